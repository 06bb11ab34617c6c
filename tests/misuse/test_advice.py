"""The advice of a message, followed, helps: columns of Delta tables that change under a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import DeltaSink, DeltaSource, StateEngine, StatefulJob
from state_engine.errors import SinkError, SourceError

pytestmark = pytest.mark.spark
READERS = "'delta.minReaderVersion'='2', 'delta.minWriterVersion'='5'"
BY_NAME = f"TBLPROPERTIES ('delta.columnMapping.mode'='name', {READERS})"


class Table:
    """A Delta table of two columns and a row, and a job that reads it."""

    def __init__(self, directory: Path, spark: SparkSession, properties: str = "") -> None:
        self.spark, self.out = spark, str(directory / "out")
        self.path = str(directory / "table")
        self.sql(
            "CREATE TABLE {} (k string, v bigint) USING delta " + properties, "INSERT INTO {} VALUES ('a', 1)"
        )
        self.engine = StateEngine(directory / "root", spark)

    def sql(self, *texts: str) -> None:
        for text in texts:
            self.spark.sql(text.format(f"delta.`{self.path}`"))

    def copied(self, *columns: str) -> StatefulJob:
        job = StatefulJob("copy")
        rows = job.source("rows", DeltaSource(self.path))
        rows = rows.transform(lambda frame: frame.select(*columns)) if columns else rows
        rows.sink("out", DeltaSink(self.out))
        return job

    def counted(self, column: str, **options: Any) -> StatefulJob:
        job = StatefulJob("count")
        rows = job.source("rows", DeltaSource(self.path, **options))
        sums = rows.key_by("k").map_with_state(
            lambda row, before: ((row.k, (before or 0) + row[column]), (before or 0) + row[column]),
            int,
            "k string, total bigint",
        )
        sums.uid("sums").sink("out", DeltaSink(self.out))
        return job


def test_what_is_said_of_a_renamed_column_helps(tmp_path: Path, spark: SparkSession) -> None:
    table = Table(tmp_path, spark, BY_NAME)
    table.engine.run(table.counted("v"))
    table.sql("ALTER TABLE {} RENAME COLUMN v TO w", "INSERT INTO {} VALUES ('b', 2)")
    with pytest.raises(
        SourceError, match=r"Change the code to the columns of today first\. Ways out: on_change='restart'"
    ) as refused:
        table.engine.run(table.counted("v"))
    assert "skip" not in str(refused.value), "which passes over commits that take rows away"
    assert table.engine.run(table.counted("w", on_change="restart")).rows_in == 2


def test_what_is_said_of_a_further_column_before_a_sink_helps(tmp_path: Path, spark: SparkSession) -> None:
    table = Table(tmp_path, spark)
    table.engine.run(table.copied())
    table.sql("ALTER TABLE {} ADD COLUMN w string", "INSERT INTO {} VALUES ('b', 2, 'x')")
    with pytest.raises(
        SinkError, match=r"transform\(lambda rows: rows\.select\('k', 'v'\)\); or add columns to the table"
    ):
        table.engine.run(table.copied())
    assert table.engine.run(table.copied("k", "v")).rows_in == 1
    spark.sql(f"ALTER TABLE delta.`{table.out}` ADD COLUMN w string")
    table.sql("INSERT INTO {} VALUES ('c', 3, 'y')")
    table.engine.run(table.copied())
    rows = spark.read.format("delta").load(table.out).collect()
    assert sorted(tuple(row) for row in rows) == [("a", 1, None), ("b", 2, None), ("c", 3, "y")]
