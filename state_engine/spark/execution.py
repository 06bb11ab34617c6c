"""How the engine's own Spark jobs run: under a label for Spark's UI, and interpreted where there is little input.

For little input, generating and loading code takes longer than interpreting the expressions. Decision 0096.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from state_engine.spark.read_failures import reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.types import StructType

ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What ``mapInArrow`` takes."""


def mapped_in_arrow(rows: DataFrame, run: ArrowFunction, schema: StructType | str) -> DataFrame:
    """``mapInArrow`` for columns of any name: that of PySpark takes a dot or a backtick for SQL's."""
    names = rows.columns

    def run_with_names(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run(batch.rename_columns(names) for batch in batches)

    return rows.toDF(*[f"c{at}" for at in range(len(names))]).mapInArrow(run_with_names, schema)


@contextmanager
def described(spark: SparkSession, label: str) -> Iterator[None]:
    """Run the actions inside under a description, for Spark's UI."""
    context = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(label)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", before)  # type: ignore[arg-type]


def collected(
    rows: DataFrame, *, label: str, source: str | None, job: str, into: str, small: bool = False
) -> list[Row]:
    """The rows of a small result, from one Spark job."""
    from state_engine.spark.engine_session import EngineSession, moved  # PySpark is imported on first use

    session = rows.sparkSession
    if small and isinstance(session, EngineSession):
        rows = moved(rows, session.interpreted)
    with described(session, label), reading(source, job=job, into=into):
        return rows.collect()
