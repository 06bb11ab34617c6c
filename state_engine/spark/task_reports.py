"""Spark tasks that write files, and what each sends to the driver: one report, as JSON.

Spark would run a task again that raises. An error of ours would only come again, so it stands in the report, and
raised on the driver.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.errors import StatelakeError, from_wire, to_wire
from state_engine.spark.task_attempts import TaskAttempt, attempt_here, runs_in_this_process, this_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_File = TypeVar("_File", bound=DataFile)
Report = dict[str, Any]
"""What a task sends; files that it wrote are in ``files``."""
Work = Callable[[Iterable[pa.RecordBatch], int, int], Report]
"""Called in a task with its rows, its number and its attempt, which no other attempt of the application has."""


def reports_of(rows: DataFrame, work: Work, *, prefix: str) -> list[Report]:
    """Run work over rows, a task for each partition, and give their reports, in the order of the partitions."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"report": pa.array([_report(work, batches, this_task())])})

    reports = rows.mapInArrow(run, "report string").collect()
    return _checked([row["report"] for row in reports], prefix)


def reports_of_tasks(spark: SparkSession, tasks: int, work: Work, *, prefix: str) -> list[Report]:
    """Run work that needs no rows, so many tasks of it, and give their reports, in the order of the tasks.

    There is no query to plan, and the workers are those that ran the subtasks of few rows.
    """
    if runs_in_this_process(spark):
        return _checked([_report(work, (), attempt_here(task)) for task in range(tasks)], prefix)

    def run(_: Iterable[int]) -> Iterator[str]:
        yield _report(work, (), this_task())

    numbers = spark.sparkContext.parallelize(range(tasks), tasks)
    return _checked(numbers.mapPartitions(run).collect(), prefix)


def _report(work: Work, batches: Iterable[pa.RecordBatch], attempt: TaskAttempt) -> str:
    try:
        report = work(batches, attempt.task, attempt.attempt_id)
    except StatelakeError as error:
        report = {"error": to_wire(error)}
    return json.dumps(report, default=asdict)


def _checked(texts: Iterable[str], prefix: str) -> list[Report]:
    reports = [json.loads(text) for text in texts]
    for report in reports:
        if (error := report.get("error")) is not None:
            raise from_wire(error, prefix=prefix)
    return reports


def written_files(reports: Iterable[Report], kind: type[_File], name: str = "files") -> list[_File]:
    """The files of all tasks that reports have under a name, in order of key groups."""
    files = [kind(**file) for report in reports for file in report[name]]
    return sorted(files, key=lambda f: f.key_group_min or 0)
