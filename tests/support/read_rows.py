"""The rows of a slice as a table, whoever reads them."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import SparkSession

from state_engine.sources.rows import Given, either


def table_of(spark: SparkSession, rows: Given) -> pa.Table:
    """The rows, collected."""
    return either(spark, rows, table=lambda table: table, frame=lambda frame: frame.toArrow())
