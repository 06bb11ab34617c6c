"""Subtasks that run in a job of Spark without a query: there is nothing to plan and nothing to shuffle.

Those of a few rows are given a table each, as it is; others read their rows themselves. The same Python processes run
both, one micro-batch after the other. Decisions 0035 and 0087.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from state_engine.core.types.columns import in_one_chunk
from state_engine.microbatch.routing.blocks import packed, unpacked
from state_engine.microbatch.routing.own_rows import OwnRows
from state_engine.microbatch.subtask.subtask import SubtaskFunction
from state_engine.spark.execution import described
from state_engine.spark.task_attempts import attempt_here, runs_in_this_process, this_task


def run_few(spark: SparkSession, tables: list[pa.Table], run: SubtaskFunction, label: str) -> list[str]:
    """Run a subtask over each table, in Spark tasks or in this process, see ``task_attempts``; reports, as JSON."""
    if runs_in_this_process(spark):
        return [run(in_one_chunk(table), attempt_here(n)) for n, table in enumerate(tables)]

    def tasks(blocks: Iterable[bytes]) -> Iterator[str]:
        yield run(unpacked(blocks), this_task())

    return _collected(spark, [packed(table) for table in tables], tasks, label)


def run_reading(spark: SparkSession, rows: OwnRows, run: SubtaskFunction, label: str) -> list[str]:
    """Run all subtasks in Spark tasks, each over the rows that it reads; their reports, as JSON."""

    def tasks(subtasks: Iterable[int]) -> Iterator[str]:
        for subtask in subtasks:
            yield run(rows.of(subtask), this_task())

    return _collected(spark, range(rows.parallelism), tasks, label)


def _collected(
    spark: SparkSession, given: Sequence[Any], run: Callable[[Iterable[Any]], Iterator[str]], label: str
) -> list[str]:
    """What a function makes of each of these, in a task of its own."""
    with described(spark, label):
        return spark.sparkContext.parallelize(given, len(given)).mapPartitions(run).collect()
