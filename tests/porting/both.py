"""Runs a ported program in memory or on Spark, and puts its outputs into a form that compares with the harness's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import SparkSession

from state_engine import DataStream, StatefulJob
from state_engine.testing import CollectSink, run_in_memory


def sorted_plain(elements: Iterable[Any]) -> list[Any]:
    """Elements in no order of their own, with rows and tuples alike."""
    return sorted((tuple(e) if isinstance(e, tuple) else e for e in elements), key=repr)


def collected(
    build: Callable[[StatefulJob], DataStream], *, spark: SparkSession | None = None, **options: Any
) -> list[Any]:
    """The elements of the stream of a new job, sorted.

    Args:
        spark: runs the job on the engine; without it, it runs in memory.
    """
    job = StatefulJob("ported", parallelism=2)
    stream = build(job)
    if spark is not None:
        return sorted_plain(stream.collect(spark=spark, **options))
    stream.sink("out", CollectSink())
    with run_in_memory(job) as run:
        run.run(**options)
        return sorted_plain(run.sink("out"))
