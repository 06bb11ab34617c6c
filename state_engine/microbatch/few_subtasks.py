"""Subtasks of a few rows: each gets its table as it is, with nothing to plan and nothing to shuffle.

They run in Spark tasks; or, inside ``in_this_process`` and where there is no Spark, one after the other in this
process. Everything else stays as it is: subtasks write the same files, and the driver commits and publishes them.
Decision 0035.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count

import pyarrow as pa
from pyspark.sql import SparkSession

from state_engine.core.types.columns import in_one_chunk
from state_engine.microbatch.routing.blocks import packed, unpacked
from state_engine.microbatch.subtask.subtask import SubtaskFunction
from state_engine.spark.execution import described
from state_engine.spark.no_spark import has_spark
from state_engine.spark.task_reports import TaskAttempt, this_task

_ATTEMPT_IDS = count(1 << 32)
"""Of attempts in this process, above those of Spark's tasks."""
_nested = 0
"""How many ``in_this_process`` are open, in all threads."""


@contextmanager
def in_this_process() -> Iterator[None]:
    """Inside, and in all threads, subtasks of a few rows run here and not in Spark tasks."""
    global _nested
    _nested += 1
    try:
        yield
    finally:
        _nested -= 1


def runs_in_this_process(spark: SparkSession) -> bool:
    """Whether subtasks of a few rows run here now."""
    return bool(_nested) or not has_spark(spark)


def attempt_here(task: int) -> TaskAttempt:
    """An attempt in this process; no other one has its id, nor a task of Spark."""
    return TaskAttempt(task, next(_ATTEMPT_IDS))


def run_few(spark: SparkSession, tables: list[pa.Table], run: SubtaskFunction, label: str) -> list[str]:
    """Run a subtask over each table; their reports, as JSON."""
    if runs_in_this_process(spark):
        return [run(in_one_chunk(table), attempt_here(n)) for n, table in enumerate(tables)]

    def tasks(blocks: Iterable[bytes]) -> Iterator[str]:
        yield run(unpacked(blocks), this_task())

    with described(spark, label):
        blocks = spark.sparkContext.parallelize([packed(t) for t in tables], len(tables))
        return blocks.mapPartitions(tasks).collect()
