"""``ReducingState``: one value per key that added values are reduced into.

Mirrors ``org.apache.flink.api.common.state.ReducingState``.
"""

from __future__ import annotations

from typing import Any, cast

from state_engine.core.errors import ValueTypeError
from state_engine.core.state.descriptors import ReducingStateDescriptor
from state_engine.core.state.state import MergingState
from state_engine.core.state.state_table import KeyContext, KeyedEntries
from state_engine.core.state.value_state import value_handle


class ReducingState(MergingState):
    """Handle of a reducing state, for the key of the current element: the first add stores, later adds reduce."""

    __slots__ = ("_name", "_normalise", "_reduce", "_value")

    def __init__(self, table: KeyedEntries, context: KeyContext) -> None:
        descriptor = cast(ReducingStateDescriptor, table.descriptor)
        self._value, self._name = value_handle(table, context), descriptor.name
        self._reduce, self._normalise = descriptor.reduce_function.reduce, descriptor.value_type.compiled()

    def get(self) -> Any:
        """The reduced value; None where nothing was added."""
        return self._value.value()

    def add(self, value: Any) -> None:
        """Reduce a value into the state; None is an error."""
        if value is None:
            raise ValueTypeError(f"None cannot be added to reducing state '{self._name}'")
        reduced = self._value.value()
        self._value.update(value if reduced is None else self._result(self._reduce(reduced, value)))

    def get_internal(self) -> Any:
        """The reduced value, as ``get`` gives it."""
        return self.get()

    def merge(self, internal: Any) -> None:
        """Reduce another state's value into this one."""
        if internal is None:
            return
        try:
            given = self._normalise(internal)  # a copy that the reduce function may change
        except ValueTypeError as error:
            raise ValueTypeError(f"reducing state '{self._name}': {error}") from None
        self.add(given)

    def clear(self) -> None:
        """Clear the value of the current key."""
        self._value.clear()

    def _result(self, value: Any) -> Any:
        if value is None:
            raise ValueTypeError(f"the reduce function of state '{self._name}' returned None")
        return value
