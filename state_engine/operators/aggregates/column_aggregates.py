"""``VectorizedAggregates``: declared aggregates by whole columns; what ``KeyedAggregates`` is on a stream of inserts.

The same results and the same state, row by row and bit for bit: ``KeyedAggregates`` is the definition. A batch that
columns cannot compute exactly is left to it. Decision 0075.
"""

from __future__ import annotations

import pyarrow as pa

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
from state_engine.operators.aggregates.plan import AggregatePlan
from state_engine.operators.aggregates.segments import Segments


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
