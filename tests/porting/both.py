"""Runs a ported program on the real engine, and puts its outputs into a form that compares with the harness's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import SparkSession

from state_engine import DataStream, StatefulJob


def sorted_plain(elements: Iterable[Any]) -> list[Any]:
    """Elements in no order of their own, with rows and tuples alike."""
    return sorted((tuple(e) if isinstance(e, tuple) else e for e in elements), key=repr)


def collected(
    spark: SparkSession, build: Callable[[StatefulJob], DataStream], *, parallelism: int = 2, **options: Any
) -> list[Any]:
    """What ``collect`` gives of the stream of a new job, sorted."""
    stream = build(StatefulJob("ported", parallelism=parallelism))
    return sorted_plain(stream.collect(spark=spark, **options))
