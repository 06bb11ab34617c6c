"""``AggregatingState``: one accumulator per key that values of another type may be added to.

Mirrors ``org.apache.flink.api.common.state.AggregatingState``.
"""

from __future__ import annotations

from typing import Any, cast

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.state.aggregate_functions import defines_merge, defines_retract, never_added
from state_engine.core.state.descriptors import AggregatingStateDescriptor
from state_engine.core.state.state import MergingState
from state_engine.core.state.state_table import KeyContext, KeyedEntries
from state_engine.core.state.value_state import value_handle


class AggregatingState(MergingState):
    """Handle of an aggregating state, for the key of the current element."""

    __slots__ = ("_function", "_name", "_normalise", "_value")

    def __init__(self, table: KeyedEntries, context: KeyContext) -> None:
        descriptor = cast(AggregatingStateDescriptor, table.descriptor)
        self._value, self._name = value_handle(table, context), descriptor.name
        self._function, self._normalise = descriptor.agg_function, descriptor.value_type.compiled()

    def get(self) -> Any:
        """The result of the accumulator; None where nothing was added."""
        accumulator = self._value.value()
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        """Add a value to the accumulator."""
        accumulator = self._value.value()
        if accumulator is None:
            accumulator = self._function.create_accumulator()
        self._value.update(self._result(self._function.add(value, accumulator), method="add"))

    def retract(self, value: Any) -> None:
        """Take a value back that was added, by the ``retract`` of the aggregate function. Flink's state has none.

        Raises:
            ConfigurationError: the aggregate function defines no ``retract``.
            RetractionError: nothing was added.
        """
        if not defines_retract(self._function):
            raise ConfigurationError(
                f"aggregating state '{self._name}' cannot take values back: {type(self._function).__name__} must "
                "define retract(self, value, accumulator), the inverse of add"
            )
        accumulator = self._value.value()
        if accumulator is None:
            raise never_added(value, what=f"aggregating state '{self._name}'")
        self._value.update(self._result(self._function.retract(value, accumulator), method="retract"))

    def get_internal(self) -> Any:
        """The accumulator, as a fresh copy; None where nothing was added."""
        return self._value.value()

    def merge(self, internal: Any) -> None:
        """Merge another state's accumulator into this one, by the ``merge`` of the aggregate function.

        Raises:
            ConfigurationError: the aggregate function defines no ``merge``.
        """
        if not defines_merge(self._function):
            raise ConfigurationError(
                f"aggregating state '{self._name}' cannot be merged: {type(self._function).__name__} must define "
                "merge(self, acc_a, acc_b), which makes one accumulator of two"
            )
        if internal is None:
            return
        try:
            given = self._normalise(internal)
        except ValueTypeError as error:
            raise ValueTypeError(f"aggregating state '{self._name}': {error}") from None
        accumulator = self._value.value()  # a copy, as what is given: the function may change both
        merged = given if accumulator is None else self._function.merge(accumulator, given)
        self._value.update(self._result(merged, method="merge"))

    def clear(self) -> None:
        """Clear the accumulator of the current key."""
        self._value.clear()

    def _result(self, accumulator: Any, *, method: str) -> Any:
        if accumulator is None:
            raise ValueTypeError(
                f"the aggregate function of state '{self._name}' returned None from {method}"
            )
        return accumulator
