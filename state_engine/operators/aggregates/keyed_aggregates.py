"""``KeyedAggregates``: declared aggregates, row by row; what ``keyed.aggregate(n=count(), …)`` runs.

Emits the aggregates of the key for every element. All accumulators of a key are one value state; where rows are
updated and deleted, ``min_`` and ``max_`` read a sorted map of all different values besides. After the last row of a
key nothing of it is kept. Mirrors Flink's ``GroupAggFunction``. Decision 0065.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import repeat
from typing import Any

from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.aggregate_functions import never_added
from state_engine.core.state.sorted_map_state import SortedMapState
from state_engine.operators.aggregates.accumulators import is_nan
from state_engine.operators.aggregates.column_aggregates import VectorizedAggregates
from state_engine.operators.aggregates.plan import AggregatePlan, Result
from state_engine.operators.key_values import key_values
from state_engine.operators.retraction import NO_RESULT, ResultOfKey, takes_back


class KeyedAggregates(ResultOfKey):
    """Emits, for every element, the key and the aggregates of its rows so far.

    Args:
        plan: of the aggregates; one for rows that change where some will be taken back.
        record_key: whether the key is a record, or of several columns, whose fields come out side by side.
    """

    accepts_changes = True

    def __init__(self, plan: AggregatePlan, *, record_key: bool = False, emits_changes: bool = False) -> None:
        self._plan, self._record_key, self.emits_changes = plan, record_key, emits_changes

    def vectorized(self) -> VectorizedAggregates | None:
        """The same over columns, which a subtask runs where it can; None where there is no such form."""
        return None if self.emits_changes else VectorizedAggregates.of(self._plan)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._state = runtime_context.get_state(self._plan.state)
        self._values: list[SortedMapState | None] = [
            None if step.values is None else runtime_context.get_sorted_map_state(step.values)
            for step in self._plan.steps
        ]
        self._empty = tuple(step.accumulator.create_accumulator() for step in self._plan.steps)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """The aggregates with this element, or without it."""
        stored = self._state.value()
        if takes_back(ctx.row_kind()):
            return self._taken_back(value, stored, ctx)
        before = self._output(ctx, stored) if stored is not None and self.emits_changes else NO_RESULT
        rows, *kept = self._first_row() if stored is None else stored
        after = (rows + 1, *map(self._add, range(len(kept)), repeat(value), kept))
        self._state.update(after)
        return self.result(before, self._output(ctx, after))

    def _taken_back(self, value: Any, stored: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        if stored is None:
            raise never_added(value, what="aggregate")
        before = self._output(ctx, stored)
        rows, *kept = stored
        after = (rows - 1, *map(self._retract, range(len(kept)), repeat(value), kept))
        if rows > 1:
            self._state.update(after)
            return self.result(before, self._output(ctx, after))
        if any(left not in (None, empty) for left, empty in zip(after[1:], self._empty, strict=True)):
            raise never_added(value, what="aggregate")
        self._state.clear()
        self._clear_values()
        return self.result(before, NO_RESULT)

    def _first_row(self) -> tuple[Any, ...]:
        self._clear_values()  # a key that went while an aggregate was not declared left its values behind
        return (0, *self._empty)

    def _clear_values(self) -> None:
        for values in self._values:
            if values is not None:
                values.clear()

    def _add(self, place: int, element: Any, accumulator: Any) -> Any:
        step, values = self._plan.steps[place], self._values[place]
        value = step.value_of(element)
        if accumulator is None or value is None:
            return accumulator
        added = step.accumulator.add(value, accumulator)
        if values is not None and not is_nan(value):
            values.put(value, (values.get(value) or 0) + 1)
        return added

    def _retract(self, place: int, element: Any, accumulator: Any) -> Any:
        step, values = self._plan.steps[place], self._values[place]
        value = step.value_of(element)
        if accumulator is None or value is None:
            return accumulator
        left = step.accumulator.retract(value, accumulator)
        if values is not None and not is_nan(value):
            number = values.get(value)
            if number is None:
                raise step.accumulator.never_added(value)
            if number > 1:
                values.put(value, number - 1)
            else:
                values.remove(value)
        return left

    def _output(self, ctx: KeyedProcessFunction.Context, stored: tuple[Any, ...]) -> tuple[Any, ...]:
        key = key_values(ctx.get_current_key(), record=self._record_key)
        return (*key, *(self._shown(result, stored) for result in self._plan.results))

    def _shown(self, result: Result, stored: tuple[Any, ...]) -> Any:
        if result.step is None:
            return stored[0]
        accumulator = stored[1 + result.step]
        if accumulator is None:  # the aggregate came to the job when the key had rows already
            return None
        if result.end is None:
            return self._plan.steps[result.step].accumulator.get_result(accumulator)
        return self._end(result.end, accumulator, self._values[result.step])

    def _end(self, end: str, accumulator: tuple[int, int], values: Any) -> Any:
        count, nans = accumulator
        if nans and (end == "max" or nans == count):
            return math.nan
        entry = values.first_entry() if end == "min" else values.last_entry()
        return None if entry is None else entry[0]
