"""Subtasks of a few rows: each gets its table as it is, with nothing to plan and nothing to shuffle.

They run in Spark tasks, or one after the other in this process, see ``task_attempts``. Decision 0035.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from state_engine.core.types.columns import in_one_chunk
from state_engine.microbatch.routing.blocks import packed, unpacked
from state_engine.microbatch.subtask.subtask import SubtaskFunction
from state_engine.spark.execution import described
from state_engine.spark.task_attempts import attempt_here, runs_in_this_process, this_task


def run_few(spark: SparkSession, tables: list[pa.Table], run: SubtaskFunction, label: str) -> list[str]:
    """Run a subtask over each table; their reports, as JSON."""
    if runs_in_this_process(spark):
        return [run(in_one_chunk(table), attempt_here(n)) for n, table in enumerate(tables)]

    def tasks(blocks: Iterable[bytes]) -> Iterator[str]:
        yield run(unpacked(blocks), this_task())

    with described(spark, label):
        blocks = spark.sparkContext.parallelize([packed(t) for t in tables], len(tables))
        return blocks.mapPartitions(tasks).collect()
