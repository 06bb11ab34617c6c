"""Reports how far long Spark work is: how many tasks are done, of how many, while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import NamedTuple
from uuid import uuid4

from pyspark import StatusTracker
from pyspark.sql import SparkSession


class TaskProgress(NamedTuple):
    """Progress of a Spark job in tasks.

    Attributes:
        done: tasks that are done.
        of: tasks that exist so far.
    """

    done: int
    of: int


OnProgress = Callable[[TaskProgress], object]
"""Called while tasks run, from a thread of its own, and at the end."""

_GROUP = "spark.jobGroup.id"
_EVERY_S = 0.25


@contextmanager
def task_progress(spark: SparkSession, on_progress: OnProgress | None) -> Iterator[None]:
    """Report the Spark jobs that this thread runs inside; nothing where nobody wants to know.

    Example::

        with task_progress(spark, lambda at: print(f"{at.done} of {at.of} tasks")):
            frame.collect()
    """
    if on_progress is None:
        yield
        return
    context, group, over = spark.sparkContext, f"statelake-{uuid4().hex}", Event()
    before = context.getLocalProperty(_GROUP)
    watcher = Thread(target=_watch, args=(context.statusTracker(), group, over, on_progress), daemon=True)
    context.setLocalProperty(_GROUP, group)
    watcher.start()
    try:
        yield
    finally:
        context.setLocalProperty(_GROUP, before)  # type: ignore[arg-type]
        over.set()
        watcher.join()


def _watch(tracker: StatusTracker, group: str, over: Event, on_progress: OnProgress) -> None:
    last_seen = TaskProgress(0, 0)
    while True:
        last = over.wait(_EVERY_S)
        seen = _tasks(tracker, group)
        if seen != last_seen:
            on_progress(seen)
            last_seen = seen
        if last:
            return


def _tasks(tracker: StatusTracker, group: str) -> TaskProgress:
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    there = [stage for stage in stages if stage is not None]
    return TaskProgress(sum(s.numCompletedTasks for s in there), sum(s.numTasks for s in there))
