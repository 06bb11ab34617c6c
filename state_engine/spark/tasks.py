"""Runs work in tasks and collects their reports: subtasks of operators and sinks, compactions, entries without input.

A task is given its rows in one of three ways, see ``TaskInput``, and sends one report to the driver, as JSON. Spark
repeats a task that raises, and an error of ours would only come again: it stands in the report, and the driver raises
it. Where ``Limits.in_process`` says so, this process does the work: it writes the same files, and the driver commits
and publishes them as ever. Decision 0040.

The engine's own Spark jobs run under a label for Spark's UI.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.errors import StatelakeError, from_wire, to_wire
from state_engine.core.types.columns import from_bytes, in_one_chunk, to_bytes
from state_engine.spark.no_spark import has_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

ArrowFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What ``mapInArrow`` takes."""


def mapped_in_arrow(rows: DataFrame, run: ArrowFunction, schema: StructType | str) -> DataFrame:
    """``mapInArrow`` for columns of any name: that of PySpark takes a dot or a backtick for SQL's."""
    names = rows.columns

    def run_with_names(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run(batch.rename_columns(names) for batch in batches)

    return rows.toDF(*[f"c{at}" for at in range(len(names))]).mapInArrow(run_with_names, schema)


@contextmanager
def described(spark: SparkSession, label: str) -> Iterator[None]:
    """Run the actions inside under a description, for Spark's UI."""
    if not has_spark(spark):
        yield
        return
    context = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(label)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", before)  # type: ignore[arg-type]


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


_File = TypeVar("_File", bound=DataFile)
Given = TypeVar("Given")
Report = dict[str, Any]
"""What a task reports, as the driver gets it."""
Work = Callable[[Given, TaskAttempt], Any]
"""What a task does with its rows; it returns its report, of plain data and dataclasses."""
_Answer = Callable[[Given, TaskAttempt], str]


class TaskInput(ABC, Generic[Given]):
    """What each of several tasks is given."""

    @abstractmethod
    def answers(self, spark: SparkSession, answer: _Answer[Given]) -> list[str]:
        """What a function returns in each task, in the order of the tasks."""


@dataclass(frozen=True)
class DriverTables(TaskInput[pa.Table]):
    """A table for each task, which the driver has; sent without a query, so that there is nothing to plan.

    Attributes:
        tables: of the tasks.
        here: whether this process does the work of the tasks itself.
    """

    tables: Sequence[pa.Table]
    here: bool

    def answers(self, spark: SparkSession, answer: _Answer[pa.Table]) -> list[str]:
        if self.here:
            return [answer(in_one_chunk(table), attempt_here(n)) for n, table in enumerate(self.tables)]

        def tasks(blocks: Iterable[bytes]) -> Iterator[str]:
            for block in blocks:
                yield answer(in_one_chunk(from_bytes(block)), this_task())

        return _without_query(spark, [to_bytes(table) for table in self.tables], tasks)


@dataclass(frozen=True)
class OwnReads(TaskInput[Given]):
    """Tasks that read what they need themselves, without a query.

    Attributes:
        tasks: how many there are.
        read: what a task reads, by its number; it is pickled for the tasks.
        here: whether this process does their work itself.
    """

    tasks: int
    read: Callable[[int], Given]
    here: bool = False

    def answers(self, spark: SparkSession, answer: _Answer[Given]) -> list[str]:
        if self.here:
            return [answer(self.read(n), attempt_here(n)) for n in range(self.tasks)]

        def tasks(numbers: Iterable[int]) -> Iterator[str]:
            for number in numbers:
                yield answer(self.read(number), this_task())

        return _without_query(spark, range(self.tasks), tasks)


@dataclass(frozen=True)
class FramePartitions(TaskInput[Given]):
    """Tasks that get the partitions of a DataFrame.

    Attributes:
        rows: the DataFrame.
        read: what a task is given of the batches of its partition.
    """

    rows: DataFrame
    read: Callable[[Iterable[pa.RecordBatch]], Given]

    def answers(self, spark: SparkSession, answer: _Answer[Given]) -> list[str]:
        read = self.read  # a DataFrame cannot go to tasks

        def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield pa.record_batch({"report": pa.array([answer(read(batches), this_task())])})

        reports = mapped_in_arrow(self.rows, task, "report string")
        return [row["report"] for row in reports.collect()]


def run(
    spark: SparkSession, rows: TaskInput[Given], work: Work[Given], *, label: str, prefix: str
) -> list[Report]:
    """Run work over rows, and return the reports of the tasks, in the order of the tasks.

    Args:
        label: describes the job in Spark's UI.
        prefix: begins the message of an error.

    Raises:
        StatelakeError: of the class that it had in the task; the first one by the order of the tasks.
    """

    def answer(given: Given, attempt: TaskAttempt) -> str:
        try:
            report = work(given, attempt)
        except StatelakeError as error:
            report = {"error": to_wire(error)}
        return json.dumps(report, default=asdict)

    with described(spark, label):
        reports = [json.loads(text) for text in rows.answers(spark, answer)]
    for report in reports:
        if (error := report.get("error")) is not None:
            raise from_wire(error, prefix=prefix)
    return reports


def written_files(reports: Iterable[Report], kind: type[_File], name: str = "files") -> list[_File]:
    """The files of all tasks that reports have under a name, in order of key groups."""
    files = [kind(**file) for report in reports for file in report[name]]
    return sorted(files, key=lambda f: f.key_group_min or 0)


def _without_query(
    spark: SparkSession, given: Sequence[Any], run_all: Callable[[Iterable[Any]], Iterator[str]]
) -> list[str]:
    return spark.sparkContext.parallelize(given, len(given)).mapPartitions(run_all).collect()
