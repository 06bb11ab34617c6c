"""``GroupState``: what is kept beside the accumulators of a group of rows, in a map of the key.

A group is all rows of a key, or those of a window, or of a part of windows; then the entries of a group begin with its
start.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.descriptors import SortedMapStateDescriptor
from state_engine.core.state.sorted_map_state import SortedMapState
from state_engine.core.types.every_type import StructType, TypeInformation
from state_engine.operators.aggregates.accumulators import BIGINT, Accumulator

Group = int | None
"""The start of a window, or of a part of windows; None for all rows of a key."""
Span = tuple[int, int] | None
"""Groups that start from the first of both times on, and before the second; None for all rows of a key."""

Shown = Literal["min", "max", "set", "list"]
"""What results show of values beside the accumulators: an end of their order, all different ones, or all."""


class GroupState:
    """Base of states beside accumulators.

    Args:
        key: the columns of the state's key, behind the start of the group.
        apart: behind the name of the state.
    """

    entries: SortedMapState

    def __init__(
        self, name: str, key: StructType, value_type: TypeInformation, *, in_windows: bool, apart: str
    ) -> None:
        self.name, self.in_windows, self._rest = name, in_windows, (None,) * len(key.names)
        if in_windows:
            key = StructType(["window_start", *key.names], [BIGINT, *key.types])
        only = key.types[0] if len(key.names) == 1 else key
        self._descriptor = SortedMapStateDescriptor(name + apart, only, value_type)

    def open(self, runtime_context: RuntimeContext) -> None:
        self.entries = runtime_context.get_sorted_map_state(self._descriptor)

    def prefix(self, group: Group) -> tuple[int | None, ...]:
        return (group,) if self.in_windows else ()

    def within(self, span: Span) -> Iterator[tuple[Any, Any]]:
        if span is None:
            return self.entries.items()
        start, end = span
        return self.entries.sub_items((start, *self._rest), (end, *self._rest))

    def of(self, group: Group) -> list[tuple[Any, Any]]:
        return list(self.within(None if group is None else (group, group + 1)))

    def forget(self, group: Group) -> None:
        if group is None:
            self.entries.clear()
        elif not self.entries.is_empty():
            for key, _ in self.of(group):
                self.entries.remove(key)

    def add(self, group: Group, value: Any, at: int | None) -> None:
        """One more value of a row with this event time."""
        raise NotImplementedError

    def take_back(self, group: Group, value: Any) -> None:
        raise NotImplementedError

    def move(self, group: int, to: int) -> None:
        """Let the entries of a group be those of another one, besides what that has."""
        raise NotImplementedError

    def changes(self, accumulator: Accumulator, group: Group, value: Any, *, added: bool) -> bool:
        """Whether a value that is added or taken back changes an accumulator of its group."""
        return True

    def merged(self, accumulator: Accumulator, whole: Any, span: Span) -> Any:
        """The merged accumulator of some groups, corrected by their common values."""
        return whole

    def shown(self, what: Shown, kept: Any, span: Span) -> Any:
        """A result of some groups, beside what their accumulator has kept."""
        raise NotImplementedError
