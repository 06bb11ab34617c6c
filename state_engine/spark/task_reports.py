"""Spark tasks that write files, and what each sends to the driver: one report, as JSON.

Spark would run a task again that raises. An error of ours would only come again, so it stands in the report, and
raised on the driver.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa

from state_engine.core import errors
from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.errors import StatelakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_File = TypeVar("_File", bound=DataFile)
Report = dict[str, Any]
"""What a task sends; files that it wrote are in ``files``."""
Work = Callable[[Iterable[pa.RecordBatch], int, int], Report]
"""Called in a task with its rows, its number and its attempt, which no other attempt of the application has."""


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


def reports_of(rows: DataFrame, work: Work, *, prefix: str) -> list[Report]:
    """Run work over rows, a task for each partition, and give their reports, in the order of the partitions.

    Args:
        prefix: what the message of an error begins with.

    Raises:
        StatelakeError: of the class that it had in the task.
    """
    rows_of_reports = rows.mapInArrow(_runner(work), "report string").collect()
    reports = [json.loads(row["report"]) for row in rows_of_reports]
    for report in reports:
        if (error := report.get("error")) is not None:
            kind = getattr(errors, error["class"], StatelakeError)
            raise kind(f"{prefix}{error['message']}")
    return reports


def written_files(reports: Iterable[Report], kind: type[_File]) -> list[_File]:
    """The files of all tasks, in order of key groups."""
    files = [kind(**file) for report in reports for file in report["files"]]
    return sorted(files, key=lambda f: f.key_group_min or 0)


def _runner(work: Work) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that ``mapInArrow`` runs once a task."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        attempt = this_task()
        try:
            report = work(batches, attempt.task, attempt.attempt_id)
        except StatelakeError as error:
            report = {"error": {"class": type(error).__name__, "message": str(error)}}
        yield pa.record_batch({"report": pa.array([json.dumps(report, default=asdict)])})

    return run
