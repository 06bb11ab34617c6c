"""``GroupAccumulators``: what is kept of a group of rows, the rows of a key or of a window, and what it shows.

The one place where rows are added to the accumulators of a plan and taken back, and where results are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.aggregate_functions import never_added
from state_engine.operators.aggregates.group_states import Group, GroupState, Span
from state_engine.operators.aggregates.plan import AggregatePlan, AggregateStep, Result

Kept = tuple[Any, ...]
"""The number of rows, and an accumulator for each step of the plan; null for a step that missed rows of the group."""


class GroupAccumulators:
    """The accumulators of groups, and the states beside them.

    Args:
        plan: of the aggregates; of rows that change where some will be taken back, and of parts where some are merged.
        in_windows: whether a key has several groups, which begin at different times.
        apart: behind the names of states, where a function has several of these.
    """

    def __init__(self, plan: AggregatePlan, *, in_windows: bool = False, apart: str = "") -> None:
        self._plan = plan
        self._states: dict[str, GroupState] = {}
        for step in plan.steps:
            if step.beside is not None and step.beside.name not in self._states:
                self._states[step.beside.name] = step.beside.make(in_windows=in_windows, apart=apart)

    def open(self, runtime_context: RuntimeContext) -> None:
        self.open_states(runtime_context)
        self.open_functions(runtime_context)

    def open_states(self, runtime_context: RuntimeContext) -> None:
        for state in self._states.values():
            state.open(runtime_context)

    def open_functions(self, runtime_context: RuntimeContext) -> None:
        """Open the functions of users alone, once where several accumulators are of one plan."""
        for step in self._plan.steps:
            step.accumulator.open(runtime_context)

    def copy(self, other: GroupAccumulators, span: Span) -> None:
        """Let what is kept beside the accumulators be what others of this plan have of some groups."""
        for name, state in self._states.items():
            state.entries.clear()
            for key, value in other._states[name].within(span):
                state.entries.put(key, value)

    def close(self) -> None:
        for step in self._plan.steps:
            step.accumulator.close()

    def added(self, kept: Kept | None, row: Any, at: int | None, group: Group = None) -> Kept:
        """With one more row of an event time; None stands for a group without rows."""
        if kept is None:
            self.forget(group)  # a group that went while an aggregate was not declared left its values behind
            kept = (0, *(step.accumulator.create_accumulator() for step in self._plan.steps))
        values = self._values(kept, row)
        after = self._changed(kept, values, at, group, added=True)
        for state, value in self._beside(values):
            state.add(group, value, at)
        return (kept[0] + 1, *after)

    def taken_back(self, kept: Kept | None, row: Any, group: Group = None) -> Kept | None:
        """Without a row; None where none is left. Raises RetractionError where it was certainly never added."""
        if kept is None:
            raise never_added(row, what="aggregate")
        values = self._values(kept, row)
        after = self._changed(kept, values, None, group, added=False)
        for state, value in self._beside(values):
            state.take_back(group, value)
        if kept[0] > 1:
            return (kept[0] - 1, *after)
        for step, left in zip(self._plan.steps, after, strict=True):
            if left is not None and step.accumulator.has_values(left):
                raise never_added(row, what="aggregate")
        self.forget(group)
        return None

    def merged(self, parts: Sequence[Kept], span: Span) -> Kept | None:
        """The accumulators of several groups, all that a span has, together; None of none."""
        if len(parts) < 2:
            return parts[0] if parts else None
        rows, *accumulators = zip(*parts, strict=True)
        steps = zip(self._plan.steps, accumulators, strict=True)
        return (sum(rows), *(self._together(step, of_step, span) for step, of_step in steps))

    def move(self, group: int, to: int) -> None:
        """Let what is kept beside the accumulators of a group be that of another one, besides what that has."""
        for state in self._states.values():
            state.move(group, to)

    def forget(self, group: Group) -> None:
        """Remove what is kept beside the accumulators of a group."""
        for state in self._states.values():
            state.forget(group)

    def results(self, kept: Kept, span: Span = None) -> list[Any]:
        """The values of the aggregates of groups; null of one that came to the job when there were rows."""
        return [self._shown(result, kept, span) for result in self._plan.results]

    def _values(self, kept: Kept, row: Any) -> list[Any]:
        """What each step gets of a row; None for nothing."""
        steps = zip(self._plan.steps, kept[1:], strict=True)
        return [None if accumulator is None else step.value_of(row) for step, accumulator in steps]

    def _changed(
        self, kept: Kept, values: list[Any], at: int | None, group: Group, *, added: bool
    ) -> list[Any]:
        after = []
        for step, accumulator, value in zip(self._plan.steps, kept[1:], values, strict=True):
            state = self._state_of(step)
            if value is not None and (
                state is None or state.changes(step.accumulator, group, value, added=added)
            ):
                change = step.accumulator.add if added else step.accumulator.retract
                accumulator = change((at, value) if step.with_time else value, accumulator)
            after.append(accumulator)
        return after

    def _beside(self, values: list[Any]) -> list[tuple[GroupState, Any]]:
        """The states that a row changes, each with the value that it gets."""
        if not self._states:
            return []
        given = {
            step.beside.name: value
            for step, value in zip(self._plan.steps, values, strict=True)
            if step.beside is not None and value is not None
        }
        return [(self._states[name], value) for name, value in given.items()]

    def _together(self, step: AggregateStep, accumulators: tuple[Any, ...], span: Span) -> Any:
        if None in accumulators:
            return None
        whole, state = reduce(step.accumulator.merge, accumulators), self._state_of(step)
        return whole if state is None else state.merged(step.accumulator, whole, span)

    def _shown(self, result: Result, kept: Kept, span: Span) -> Any:
        if result.step is None:
            return kept[0]
        accumulator = kept[1 + result.step]
        if accumulator is None:
            return None
        if result.of is not None:
            return result.of(accumulator)
        state = self._state_of(self._plan.steps[result.step])
        assert state is not None
        assert result.shows is not None
        return state.shown(result.shows, accumulator, span)

    def _state_of(self, step: AggregateStep) -> GroupState | None:
        return None if step.beside is None else self._states[step.beside.name]
