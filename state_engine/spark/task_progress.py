"""Tells how far long Spark work is: how many tasks are done, of how many, while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from uuid import uuid4

from pyspark import StatusTracker
from pyspark.sql import SparkSession

OnProgress = Callable[[int, int], None]
"""Told how many tasks are done, and how many there are so far; from a thread of its own, and at the end."""

_GROUP = "spark.jobGroup.id"
_EVERY_S = 0.25


@contextmanager
def task_progress(spark: SparkSession, on_progress: OnProgress | None) -> Iterator[None]:
    """Tell of the Spark jobs that this thread runs inside; of nothing where nobody wants to know.

    Example::

        with task_progress(spark, lambda done, of: print(f"{done} of {of} tasks")):
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
    told = (0, 0)
    while True:
        last = over.wait(_EVERY_S)
        found = _tasks(tracker, group)
        if found != told:
            on_progress(*found)
            told = found
        if last:
            return


def _tasks(tracker: StatusTracker, group: str) -> tuple[int, int]:
    """Tasks that are done, and all."""
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    there = [stage for stage in stages if stage is not None]
    return sum(s.numCompletedTasks for s in there), sum(s.numTasks for s in there)
