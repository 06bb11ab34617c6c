"""Subtasks of a few rows: each gets its table as it is, with nothing to plan and nothing to shuffle.

They run in Spark tasks; or, inside ``in_this_process``, one after the other in this process. Everything else stays as
it is: subtasks write the same files, and the driver commits and publishes them. Decision 0035.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count

import pyarrow as pa
from pyspark.sql import SparkSession

from state_engine.core.types.columns import one_chunk
from state_engine.microbatch.subtask.subtask import SubtaskFunction, TaskAttempt, in_task
from state_engine.spark.execution import described

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


def run_few(spark: SparkSession, tables: list[pa.Table], run: SubtaskFunction, label: str) -> list[str]:
    """Run a subtask over each table; their reports, as JSON."""
    if _nested:
        return [run(_batches(table), TaskAttempt(n, next(_ATTEMPT_IDS))) for n, table in enumerate(tables)]
    task = in_task(run)

    def tasks(packed: Iterable[bytes]) -> Iterator[str]:
        for one in packed:
            with pa.ipc.open_stream(one) as stream:
                for report in task(stream):
                    yield from report["report"].to_pylist()

    with described(spark, label):
        rows = spark.sparkContext.parallelize([_packed(t) for t in tables], len(tables))
        return rows.mapPartitions(tasks).collect()


def _batches(table: pa.Table) -> list[pa.RecordBatch]:
    """One batch, which an empty table has, too, with its columns."""
    return [pa.RecordBatch.from_arrays([one_chunk(column) for column in table.columns], schema=table.schema)]


def _packed(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as stream:
        for batch in _batches(table):
            stream.write_batch(batch)
    return bytes(out.getvalue())
