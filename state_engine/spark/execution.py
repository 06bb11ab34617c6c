"""How the engine's own Spark jobs run: under a label for Spark's UI, and interpreted where there is little input.

For little input, generating and loading code takes longer than interpreting the expressions. Decision 0096.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from state_engine.spark.no_spark import has_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What ``mapInArrow`` takes."""


def mapped_in_arrow(rows: DataFrame, run: ArrowFunction, schema: StructType | str) -> DataFrame:
    """``mapInArrow`` for columns of any name: that of PySpark takes a dot or a backtick for SQL's."""
    names = rows.columns

    def run_with_names(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run(batch.rename_columns(names) for batch in batches)

    return rows.toDF(*[f"c{at}" for at in range(len(names))]).mapInArrow(run_with_names, schema)


def interpreted(rows: DataFrame) -> DataFrame:
    """The same rows, of whose expressions Spark compiles none."""
    from state_engine.spark.engine_session import EngineSession, moved  # PySpark is imported on first use

    session = rows.sparkSession
    return moved(rows, session.interpreted) if isinstance(session, EngineSession) else rows


@contextmanager
def described(spark: SparkSession, label: str) -> Iterator[None]:
    """Run the actions inside under a description, for Spark's UI."""
    if not has_spark(spark):
        yield
        return
    context = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(label)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", before)  # type: ignore[arg-type]
