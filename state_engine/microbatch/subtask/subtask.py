"""One subtask of an operator in one micro-batch: what runs inside a Spark task.

Receives its routed rows as Arrow, reads the touched keys' state from the files of the path, runs the function, and
writes changes, operator state, outputs and dead letters as files that no reader sees yet. Only a report of these files
goes back. Plays the part of Flink's ``StreamTask``.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from state_engine.core.counted_nouns import counted
from state_engine.core.errors import MemoryLimitError, StatelakeError
from state_engine.core.functions.vectorized_functions import (
    PerElement,
    StandsForElements,
    VectorizedKeyedFunction,
    vectorized_form,
)
from state_engine.core.operator.outputs import ElementRefused
from state_engine.core.state.state_table import KeyContext
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.microbatch.subtask.column_run import ColumnRun
from state_engine.microbatch.subtask.element_run import ElementRun
from state_engine.microbatch.subtask.expectation_run import ExpectationRun
from state_engine.microbatch.subtask.function_run import PassThroughRun
from state_engine.microbatch.subtask.received_rows import ReceivedRows
from state_engine.microbatch.subtask.subtask_spec import SubtaskReport, SubtaskSpec
from state_engine.microbatch.subtask.subtask_work import SubtaskWork
from state_engine.operators.row_expectation import RowExpectation
from state_engine.spark.failures import MORE_MEMORY
from state_engine.spark.shipped_code import shipped
from state_engine.spark.tasks import TaskAttempt, Work


def subtask_function(spec: SubtaskSpec) -> Work[pa.Table | None]:
    """What runs each subtask of an operator over its routed rows, with the code that this process has."""
    outputs = [o.kind for o in spec.outputs] + [o.tag for o in spec.outputs]
    inputs = [one.declared for one in spec.routed.inputs]
    sent = shipped(
        spec, [spec.function, spec.backend, *outputs, *inputs, spec.key_form], what=f"operator '{spec.uid}'"
    )

    def run(rows: pa.Table | None, attempt: TaskAttempt) -> SubtaskReport:
        own = sent.unpacked()
        with _without_gc():
            return Subtask(own, *attempt).run(rows)

    return run


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
        """Do all of it.

        Raises:
            UserFunctionError: a row or function failed under ``on_error='fail'``.
            MemoryLimitError: there was no memory left.
            StatelakeError: the job, its state or an output is not right.
        """
        if table is None and self._spec.function is not None:
            raise StatelakeError(
                f"subtask {self._work.index} got no marker row: Spark planned the shuffle away"
            )
        try:
            self._run(table)
        except ElementRefused as refused:
            rows = self._rows.that_hold(refused.refusal)
            letter = self._work.refused.described(refused.refusal, rows)
            raise self._work.refused.raised(letter) from None
        except MemoryError:
            raise self._without_memory() from None
        return self._work.report

    def _without_memory(self) -> MemoryLimitError:
        report = self._work.report
        return MemoryLimitError(
            f"operator '{self._spec.uid}', subtask {self._work.index} had no memory left for its rows and the state of "
            f"their keys ({counted(report.rows_in, 'row')}, {counted(report.keys, 'key')}). Nothing of this "
            "micro-batch was committed. "
            f"{MORE_MEMORY}"
        )

    def _run(self, table: pa.Table | None) -> None:
        spec, clocks = self._spec, self._spec.clocks
        context = KeyContext(
            clock_ms=clocks.clock_ms,
            watermark_ms=None if clocks.watermark_ms == MIN_TIMESTAMP else clocks.watermark_ms,
            checkpoint_watermark_ms=clocks.checkpoint_watermark_ms,
            has_event_time=spec.routed.event_time,
        )
        context.present = spec.key_form
        if spec.function is None:
            PassThroughRun(self._work, self._rows, context).run(table)
            return
        self._rows.receive(table)
        if isinstance(spec.function, RowExpectation):
            ExpectationRun(self._work, self._rows, context).run(spec.function)
            return
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
        if not isinstance(form, StandsForElements):
            return form
        nothing = not self._rows.events.num_rows and not form.uses_timers
        return None if nothing or self._spec.backend.spills else form
