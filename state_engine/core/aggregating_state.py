"""``AggregatingState``: one accumulator per key that values of another type may be added to.

Mirrors ``org.apache.flink.api.common.state.AggregatingState``.
"""

from __future__ import annotations

from typing import Any, cast

from state_engine.core.descriptors import AggregatingStateDescriptor
from state_engine.core.errors import ValueTypeError
from state_engine.core.state import MergingState
from state_engine.core.state_table import KeyContext, StateTable
from state_engine.core.value_state import value_handle


class AggregatingState(MergingState):
    """Handle of an aggregating state, for the key of the current element."""

    __slots__ = ("_function", "_name", "_value")

    def __init__(self, table: StateTable, context: KeyContext) -> None:
        descriptor = cast(AggregatingStateDescriptor, table.descriptor)
        self._value, self._name = value_handle(table, context), descriptor.name
        self._function = descriptor.agg_function

    def get(self) -> Any:
        """The result of the accumulator; None where nothing was added."""
        accumulator = self._value.value()
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        """Add a value to the accumulator."""
        accumulator = self._value.value()
        if accumulator is None:
            accumulator = self._function.create_accumulator()
        accumulator = self._function.add(value, accumulator)
        if accumulator is None:
            raise ValueTypeError(f"the aggregate function of state '{self._name}' returned None from add")
        self._value.update(accumulator)

    def clear(self) -> None:
        """Forget the accumulator of the current key."""
        self._value.clear()
