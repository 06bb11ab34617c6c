"""Rows of Parquet files, read where that costs least: by the driver, by tasks with Arrow, or by Spark.

Whoever reads them, they are the same rows. Decision 0040.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from state_engine.sources.base import Rows
from state_engine.sources.file_ranges import FileRange
from state_engine.sources.parquet.few_rows import few_rows
from state_engine.sources.parquet.task_rows import task_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def parquet_rows(
    spark: SparkSession, ranges: Sequence[FileRange], schema: StructType, scan: Callable[[], DataFrame]
) -> Rows:
    """The rows of ranges of files with the hidden columns of a slice.

    Args:
        scan: gives the same rows as Spark reads them, whatever the files are.
    """
    few = few_rows(ranges, schema)
    if few is not None:
        return few
    many = task_rows(ranges, schema, cores=spark.sparkContext.defaultParallelism, scan=scan)
    return scan() if many is None else many
