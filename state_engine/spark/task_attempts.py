"""Who does a piece of work: a task of Spark; or, inside ``in_this_process`` and where there is no Spark, this process.

What runs here writes the same files, and the driver commits and publishes them as ever. Decision 0040.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from state_engine.spark.no_spark import has_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATTEMPT_IDS = count(1 << 32)
"""Of attempts in this process, above those of Spark's tasks."""
_COUNTING = Lock()
_nested = 0
"""How many ``in_this_process`` are open, in all threads."""


@contextmanager
def in_this_process() -> Iterator[None]:
    """Inside, and in all threads, subtasks of a few rows, and work without rows, run here and not in Spark tasks."""
    global _nested
    with _COUNTING:
        _nested += 1
    try:
        yield
    finally:
        with _COUNTING:
            _nested -= 1


def runs_in_this_process(spark: SparkSession) -> bool:
    """Whether such work runs here now."""
    return bool(_nested) or not has_spark(spark)


def attempt_here(task: int) -> TaskAttempt:
    """An attempt in this process; no other one has its id, nor a task of Spark."""
    return TaskAttempt(task, next(_ATTEMPT_IDS))


class TaskAttempt(NamedTuple):
    """Who does a piece of work.

    Attributes:
        task: its number: the partition that it works on, or the subtask that it is.
        attempt_id: which no other attempt of the application has; part of the names of files.
        number: how often the task was tried before.
    """

    task: int
    attempt_id: int
    number: int = 0


def this_task() -> TaskAttempt:
    """The attempt that this code runs in; only inside of a Spark task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return TaskAttempt(context.partitionId(), int(context.taskAttemptId()), context.attemptNumber())
