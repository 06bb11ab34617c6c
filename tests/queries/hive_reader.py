"""Asks a metastore with a session that knows nothing of the engine: ``hive_reader.py JARS DIRECTORY QUERY``."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession


def main(jars: str, directory: str, query: str) -> None:
    options = {
        "spark.jars": jars,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": f"{directory}/warehouse",
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={directory}/metastore",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        # what a session may be set to must change nothing
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.ansi.enabled": "false",
    }
    builder = SparkSession.builder.master("local[1]")
    for key, value in options.items():
        builder = builder.config(key, value)
    rows = builder.getOrCreate().sql(query).collect()
    assert "state_engine" not in sys.modules
    print("ANSWER", json.dumps([list(row) for row in rows]))


if __name__ == "__main__":
    main(*sys.argv[1:])
