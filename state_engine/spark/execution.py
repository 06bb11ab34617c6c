"""How the engine's own Spark jobs run: session options that hold for one action, and a label for Spark's UI.

Adaptive execution would run every shuffle stage as a job of its own and plan anew in between, which costs more than a
micro-batch gains; Arrow batches are large because a subtask holds its rows anyway; time stamps go to Python in UTC.
For little input, generating and loading code takes longer than interpreting the expressions.
The options are put back afterwards, so a user's session stays the user's. Decision 0005.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from state_engine.spark.read_failures import reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What ``mapInArrow`` takes."""
_OPTIONS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    "spark.sql.session.timeZone": "UTC",
}
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Over little input, compiling a query takes longer than it saves."""


@contextmanager
def described(spark: SparkSession, label: str) -> Iterator[None]:
    """Run the actions inside under a description, for Spark's UI."""
    spark.sparkContext.setJobDescription(label)
    try:
        yield
    finally:
        spark.sparkContext.setJobDescription("")


@contextmanager
def execution(spark: SparkSession, label: str, *, small: bool = False) -> Iterator[None]:
    """Run the actions inside with the engine's options and a job description; ``small``: over little input."""
    options = _OPTIONS | INTERPRETED if small else _OPTIONS
    before = {key: spark.conf.get(key) for key in options}
    changed = {key: value for key, value in options.items() if before[key] != value}
    with described(spark, label):
        try:
            for key, value in changed.items():
                spark.conf.set(key, value)
            yield
        finally:
            for key in changed:
                spark.conf.set(key, str(before[key]))


def collected(
    rows: DataFrame, *, label: str, source: str | None, job: str, into: str, small: bool = False
) -> list[Row]:
    """The rows of a small result, from one Spark job that runs with the engine's options.

    Args:
        label: for Spark's UI.
        source, job, into: for errors of the source, see ``reading``.
        small: whether the rows come from little input.

    Raises:
        SourceError: a file cannot be read, or a record cannot be parsed.
    """
    with execution(rows.sparkSession, label, small=small), reading(source, job=job, into=into):
        return rows.collect()
