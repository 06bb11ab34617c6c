"""``ValueState``: one value per key. Mirrors ``org.apache.flink.api.common.state.ValueState``."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from state_engine.core.descriptors import ValueStateDescriptor
from state_engine.core.state_table import KeyContext, StateTable, no_key


class ValueState:
    """Handle of a value state, for the key of the current element.

    Values are normalised to the declared type when written; mutable values are copied when written and when read, so
    only ``update`` changes what is stored.
    """

    __slots__ = ("_context", "_copy", "_default", "_entries", "_name", "_normalise")

    def __init__(self, table: StateTable, context: KeyContext) -> None:
        descriptor = cast(ValueStateDescriptor, table.descriptor)
        self._entries, self._context, self._name = table.entries, context, descriptor.name
        self._normalise = descriptor.value_type.compiled()
        self._copy = descriptor.value_type.copy if descriptor.value_type.mutable else None
        self._default = descriptor.default

    def value(self) -> Any:
        """The stored value; a fresh copy of the default, or None, where nothing is stored."""
        try:
            found = self._entries.get(self._context.key)
        except TypeError:
            raise no_key(self._name) from None
        if found is None:
            found = self._default
        return found if self._copy is None else self._copy(found)

    def update(self, value: Any) -> None:
        """Store a value; None clears. Raises ValueTypeError where it has not the declared type."""
        if value is None:
            self.clear()
            return
        context = self._context
        value = self._normalise(value)
        try:
            if context.undo is not None:
                context.undo.append(restore(self._entries, context.key))
            self._entries[context.key] = value
        except TypeError:
            raise no_key(self._name) from None

    def clear(self) -> None:
        """Forget the value of the current key."""
        context = self._context
        try:
            if self._entries.get(context.key) is None:  # pop would not look at the key of an empty dict
                return
            if context.undo is not None:
                context.undo.append(restore(self._entries, context.key))
            del self._entries[context.key]
        except TypeError:
            raise no_key(self._name) from None


def restore(entries: Any, key: Any) -> partial[Any]:
    """The action that gives a key back what it has now."""
    was = entries.get(key)
    return partial(entries.pop, key, None) if was is None else partial(entries.__setitem__, key, was)
