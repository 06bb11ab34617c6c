"""``KeyedAggregates``: declared aggregates, row by row; what ``keyed.aggregate(n=count(), …)`` runs.

Emits the aggregates of the key for every element. All accumulators of a key are one value state; aggregates that need
the values themselves keep them in sorted maps besides. After the last row of a key nothing of it is kept. Mirrors
Flink's ``GroupAggFunction``. Decision 0065.

On a stream of inserts ``VectorizedAggregates`` does the same by whole columns, bit for bit: ``KeyedAggregates`` is the
definition, and a batch that columns cannot compute exactly is left to it. Decision 0075.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.vectorized_functions import (
    KEY,
    ROW,
    PerElement,
    StandsForElements,
    VectorizedKeyedFunction,
    VectorizedResult,
)
from state_engine.core.types.columns import one_chunk
from state_engine.operators.aggregates.column_plan import PlanOverColumns
from state_engine.operators.aggregates.group_accumulators import GroupAccumulators, Kept
from state_engine.operators.aggregates.plan import AggregatePlan
from state_engine.operators.aggregates.segments import Segments
from state_engine.operators.idle_keys import ForgettableFunction
from state_engine.operators.key_values import key_values
from state_engine.operators.retraction import NO_RESULT, ResultOfKey, takes_back


class VectorizedAggregates(StandsForElements):
    """Emits, for every row, the key and the aggregates of its rows so far.

    Args:
        plan: of the aggregates, for rows that do not change.
    """

    def __init__(self, plan: AggregatePlan, columns: PlanOverColumns) -> None:
        self._plan, self._columns = plan, columns

    @classmethod
    def of(cls, plan: AggregatePlan) -> VectorizedAggregates | None:
        """The function over columns; None where a step has no form over columns."""
        columns = PlanOverColumns.of(plan)
        return None if columns is None else cls(plan, columns)

    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_state(self._plan.state)

    def process_batch(
        self, rows: pa.Table, state: pa.Table, ctx: VectorizedKeyedFunction.Context
    ) -> VectorizedResult:
        if ctx.kinds is not None:
            raise PerElement
        name, segments = self._plan.state.name, Segments(rows[KEY].to_numpy())
        after, results = self._columns.added(rows, one_chunk(state[name]), segments)
        keys = [column.take(rows[KEY]) for column in state.columns[1:-1]]
        names = [*state.column_names[1:-1], *(result.name for result in self._plan.results), ROW]
        return VectorizedResult(
            pa.table([*keys, *map(segments.in_rows, results), rows[ROW]], names=names),
            state=pa.table({KEY: state[KEY], name: after}),
        )


class KeyedAggregates(ResultOfKey, ForgettableFunction):
    """Emits, for every element, the key and the aggregates of its rows so far.

    Args:
        plan: of the aggregates; one for rows that change where some will be taken back.
        record_key: whether the key is a record, or of several columns, whose fields come out side by side.
    """

    accepts_changes = True
    takes_back_known_rows = True

    def __init__(self, plan: AggregatePlan, *, record_key: bool = False, emits_changes: bool = False) -> None:
        self._plan, self._record_key, self.emits_changes = plan, record_key, emits_changes
        self._rows = GroupAccumulators(plan)

    def vectorized(self) -> VectorizedAggregates | None:
        """The same over columns, which a subtask runs where it can; None where there is no such form."""
        return None if self.emits_changes else VectorizedAggregates.of(self._plan)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._state = runtime_context.get_state(self._plan.state)
        self._rows.open(runtime_context)

    def close(self) -> None:
        self._rows.close()

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """The aggregates with this element, or without it."""
        kept = self._state.value()
        before = self._output(ctx, kept) if kept is not None and self.emits_changes else NO_RESULT
        if takes_back(ctx.row_kind()):
            after = self._rows.taken_back(kept, value)
        else:
            after = self._rows.added(kept, value, ctx.timestamp())
        self._state.update(after)
        return self.result(before, NO_RESULT if after is None else self._output(ctx, after))

    def forget(self, ctx: KeyedContext) -> Iterable[Any]:
        """Clear what is kept of the key; with kinds, a delete of its result."""
        kept = self._state.value()
        if kept is None:
            return []
        before = self._output(ctx, kept) if self.emits_changes else NO_RESULT
        self._state.clear()
        self._rows.forget(None)
        return self.gone(before)

    def _output(self, ctx: KeyedContext, kept: Kept) -> tuple[Any, ...]:
        key = key_values(ctx.get_current_key(), record=self._record_key)
        return (*key, *self._rows.results(kept))
