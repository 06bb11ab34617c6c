"""Who does a piece of work: a task of Spark; or this process, see ``Limits.in_process``.

What runs here writes the same files, and the driver commits and publishes them as ever. Decision 0040.
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

_ATTEMPT_IDS = count(1 << 32)
"""Of attempts in this process, above those of Spark's tasks."""


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
