"""``VectorizedAggregates``: declared aggregates by whole columns; what ``KeyedAggregates`` is on a stream of inserts.

The same results and the same state, row by row and bit for bit: ``KeyedAggregates`` is the definition. A batch that
columns cannot compute exactly is left to it. Decision 0075.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.vectorized_functions import (
    KEY,
    ROW,
    StandsForElements,
    VectorizedKeyedFunction,
    VectorizedResult,
)
from state_engine.core.types.columns import one_chunk
from state_engine.operators.aggregates.column_accumulators import Running, running_form
from state_engine.operators.aggregates.plan import AggregatePlan
from state_engine.operators.aggregates.segments import Segments
from state_engine.operators.aggregates.steps import AggregateStep


class VectorizedAggregates(StandsForElements):
    """Emits, for every row, the key and the aggregates of its rows so far.

    Args:
        plan: of the aggregates, for rows that do not change.
    """

    def __init__(self, plan: AggregatePlan, running: list[Running]) -> None:
        self._plan, self._running = plan, running

    @classmethod
    def of(cls, plan: AggregatePlan) -> VectorizedAggregates | None:
        """The function over columns; None where a step has no running form."""
        forms = [
            running_form(step.accumulator, step.value_type) for step in plan.steps if step.beside is None
        ]
        running = [form for form in forms if form is not None]
        return cls(plan, running) if len(running) == len(plan.steps) else None

    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_state(self._plan.state)

    def process_batch(
        self, rows: pa.Table, state: pa.Table, ctx: VectorizedKeyedFunction.Context
    ) -> VectorizedResult:
        name, kind = self._plan.state.name, self._plan.state.value_type.arrow
        key_of, kept = rows[KEY].to_numpy(), one_chunk(state[name])
        segments = Segments(key_of)
        stored = kept.is_valid().to_numpy(zero_copy_only=False)
        start = np.where(stored, kept.field(0).fill_null(0).to_numpy(zero_copy_only=False), 0)
        counts = segments.running(np.ones(len(key_of), np.int64), start)
        ended, shown = [pa.array(counts[segments.ends])], []
        for place, (step, running) in enumerate(zip(self._plan.steps, self._running, strict=True)):
            after, results = _of_step(rows, step, running, kept.field(1 + place), stored, segments)
            ended.append(after)
            shown.append(segments.in_rows(results))
        keys = [column.take(rows[KEY]) for column in state.columns[1:-1]]
        in_rows = pa.array(segments.in_rows(counts))
        columns = [in_rows if result.step is None else shown[result.step] for result in self._plan.results]
        names = [*state.column_names[1:-1], *(result.name for result in self._plan.results), ROW]
        accumulators = pa.StructArray.from_arrays(ended, fields=list(kind))
        return VectorizedResult(
            pa.table([*keys, *columns, rows[ROW]], names=names),
            state=pa.table({KEY: state[KEY], name: accumulators}),
        )


def _of_step(
    rows: pa.Table,
    step: AggregateStep,
    running: Running,
    kept: pa.Array,
    stored: np.ndarray[Any, Any],
    segments: Segments,
) -> tuple[pa.Array, pa.Array]:
    """The accumulators of a step after the batch, and its results; null where it missed rows of the key."""
    accumulator = step.accumulator
    empty = accumulator.accumulator_type.to_arrow([accumulator.create_accumulator()], storage=False)
    missed = kept.is_null().to_numpy(zero_copy_only=False) & stored
    number, begun = len(kept), stored & ~missed
    start = kept
    if not begun.all():
        start = pa.concat_arrays([kept, empty]).take(pa.array(np.where(begun, np.arange(number), number)))
    values = one_chunk(rows.column(step.position))
    after, results = running(segments.taken(values), start, segments)
    if missed.any():
        after = after.take(pa.array(np.arange(number), mask=missed))
        results = results.take(pa.array(np.arange(len(results)), mask=missed[segments.keys]))
    return after, results
