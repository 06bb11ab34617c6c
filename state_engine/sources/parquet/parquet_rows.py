"""Rows of Parquet files, read where that costs least: by the driver, by tasks with Arrow, or by Spark.

Whoever reads them, they are the same rows. Decision 0040.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from state_engine.sources.file_ranges import FileRange
from state_engine.sources.parquet.few_rows import few_rows
from state_engine.sources.parquet.task_rows import task_rows
from state_engine.sources.rows import Given
from state_engine.spark.placement import limits_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def parquet_rows(
    spark: SparkSession, ranges: Sequence[FileRange], schema: StructType, scan: Callable[[], DataFrame]
) -> Given:
    """The rows of ranges of files with the hidden columns of a slice.

    Args:
        scan: gives the same rows as Spark reads them, whatever the files are.
    """
    limits = limits_of(spark)
    few = few_rows(ranges, schema, limits)
    if few is not None:
        return few
    cores = spark.sparkContext.defaultParallelism
    many = task_rows(ranges, schema, cores=cores, scan=scan, limits=limits)
    return scan() if many is None else many
