"""One subtask of an operator in one micro-batch: what runs inside a Spark task.

Receives its routed rows as Arrow, reads the touched keys' state from the files of the path, runs the function, and
writes changes, operator state, outputs and dead letters as files that no reader sees yet. Only a report of these files
goes back. A row or function that fails is reported, not raised: Spark would only run it again. Plays the part of
Flink's ``StreamTask``.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from state_engine.core.counted_nouns import counted
from state_engine.core.errors import CodeVersionError, MemoryLimitError, StatelakeError, to_wire
from state_engine.core.functions.vectorized_functions import (
    PerElement,
    StandsForElements,
    VectorizedKeyedFunction,
    vectorized_form,
)
from state_engine.core.operator.outputs import ElementRefused
from state_engine.core.state.state_table import KeyContext
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.microbatch.routing.blocks import BLOCK, unpacked
from state_engine.microbatch.subtask.column_run import ColumnRun
from state_engine.microbatch.subtask.element_run import ElementRun
from state_engine.microbatch.subtask.received_rows import ReceivedRows
from state_engine.microbatch.subtask.subtask_spec import SubtaskReport, SubtaskSpec
from state_engine.microbatch.subtask.subtask_work import SubtaskWork
from state_engine.spark.execution import ArrowFunction
from state_engine.spark.lost_subtasks import MORE_MEMORY
from state_engine.spark.shipped_code import shipped
from state_engine.spark.task_attempts import TaskAttempt, this_task

SubtaskFunction = Callable[[pa.Table | None, TaskAttempt], str]
"""Runs one subtask over its routed rows; its report, as JSON."""


def subtask_function(spec: SubtaskSpec) -> SubtaskFunction:
    """What runs each subtask of an operator, with the code that this process has."""
    outputs = [o.kind for o in spec.outputs] + [o.tag for o in spec.outputs]
    inputs = [one.declared for one in spec.routed.inputs]
    sent = shipped(
        spec, [spec.function, spec.backend, *outputs, *inputs, spec.key_form], what=f"operator '{spec.uid}'"
    )

    def run(rows: pa.Table | None, attempt: TaskAttempt) -> str:
        try:
            own = sent.unpacked()
        except CodeVersionError as error:
            return SubtaskReport(attempt.task, error=to_wire(error)).to_json()
        with _without_gc():
            return Subtask(own, *attempt).run(rows).to_json()

    return run


def in_task(run: SubtaskFunction) -> ArrowFunction:
    """The same as a Spark task over shuffled blocks: the subtask is that of the partition."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = unpacked(block for batch in batches for block in batch[BLOCK].to_pylist())
        yield pa.record_batch({"report": pa.array([run(rows, this_task())])})

    return task


@contextmanager
def _without_gc() -> Iterator[None]:
    """A batch makes millions of tuples and no cycles: collecting costs half of the run."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Subtask:
    """One subtask; see the module docstring."""

    def __init__(self, spec: SubtaskSpec, index: int, attempt_id: int, attempt: int = 0) -> None:
        self._spec = spec
        self._work = SubtaskWork(spec, index, attempt_id, attempt)
        self._rows = ReceivedRows(self._work)

    def run(self, table: pa.Table | None) -> SubtaskReport:
        """Do all of it; errors of rows and functions are in the report."""
        report = self._work.report
        try:
            if table is None:
                raise StatelakeError(
                    f"subtask {self._work.index} got no marker row: Spark planned the shuffle away"
                )
            self._rows.receive(table)
            self._run()
        except ElementRefused as refused:
            rows = self._rows.that_hold(refused.refusal)
            letter = self._work.refused.described(refused.refusal, rows)
            report.error = to_wire(self._work.refused.raised(letter))
        except MemoryError:
            report.error = to_wire(self._without_memory())
        except StatelakeError as error:
            report.error = to_wire(error)
        return report

    def _without_memory(self) -> MemoryLimitError:
        report = self._work.report
        return MemoryLimitError(
            f"operator '{self._spec.uid}', subtask {self._work.index} had no memory left for its rows and the state of "
            f"their keys ({counted(report.rows_in, 'row')}, {counted(report.keys, 'key')}). Nothing of this "
            "micro-batch was committed. "
            f"{MORE_MEMORY}"
        )

    def _run(self) -> None:
        spec, clocks = self._spec, self._spec.clocks
        context = KeyContext(
            clock_ms=clocks.clock_ms,
            watermark_ms=None if clocks.watermark_ms == MIN_TIMESTAMP else clocks.watermark_ms,
            checkpoint_watermark_ms=clocks.checkpoint_watermark_ms,
            has_event_time=spec.routed.event_time,
        )
        context.present = spec.key_form
        if (over_columns := self._over_columns()) is not None:
            try:
                ColumnRun(self._work, self._rows, context).run(over_columns)
                return
            except PerElement:
                self._work.report.metrics = {}
        ElementRun(self._work, self._rows, context).run()

    def _over_columns(self) -> VectorizedKeyedFunction | None:
        """The function over columns to run; None where elements are handled one by one."""
        if not self._spec.keyed:
            return None
        form = vectorized_form(self._spec.function)
        for_elements = self._spec.backend.spills or not self._rows.events.num_rows
        return None if for_elements and isinstance(form, StandsForElements) else form
