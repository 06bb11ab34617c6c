"""``FoldingState``: one value per key that elements are folded into, from an initial value. Deprecated, as in Flink.

Mirrors ``org.apache.flink.api.common.state.FoldingState``; an AggregatingState does the same and more.
"""

from __future__ import annotations

from typing import Any, cast

from state_engine.core.errors import ValueTypeError
from state_engine.core.state.descriptors import FoldingStateDescriptor
from state_engine.core.state.state import AppendingState
from state_engine.core.state.state_table import KeyContext, KeyedEntries
from state_engine.core.state.value_state import value_handle


class FoldingState(AppendingState):
    """Handle of a folding state, for the key of the current element."""

    __slots__ = ("_copy", "_fold", "_initial", "_name", "_value")

    def __init__(self, table: KeyedEntries, context: KeyContext) -> None:
        descriptor = cast(FoldingStateDescriptor, table.descriptor)
        self._value, self._name = value_handle(table, context), descriptor.name
        self._fold, self._initial = descriptor.fold_function.fold, descriptor.initial_value
        self._copy = descriptor.value_type.copy

    def get(self) -> Any:
        """The folded value; None where nothing was added."""
        return self._value.value()

    def add(self, value: Any) -> None:
        """Fold an element into the state."""
        folded_so_far = self._value.value()
        folded = self._fold(self._copy(self._initial) if folded_so_far is None else folded_so_far, value)
        if folded is None:
            raise ValueTypeError(f"the fold function of state '{self._name}' returned None")
        self._value.update(folded)

    def clear(self) -> None:
        """Clear the value of the current key."""
        self._value.clear()
