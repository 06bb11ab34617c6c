"""``ValueState``: one value per key. Mirrors ``org.apache.flink.api.common.state.ValueState`` and ``TtlValueState``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from state_engine.core.errors import ValueTypeError
from state_engine.core.state.state import State
from state_engine.core.state.state_table import KeyContext, KeyedEntries, no_key
from state_engine.core.state.ttl_rule import TtlRule


class ValueState(State):
    """Handle of a value state, for the key of the current element.

    Values are normalised to the declared type when written; mutable values are copied when written and when read, so
    only ``update`` changes what is stored.
    """

    __slots__ = ("_context", "_copy", "_default", "_entries", "_name", "_normalise")

    def __init__(self, table: KeyedEntries, context: KeyContext) -> None:
        descriptor, item = table.descriptor, table.item_type
        self._entries, self._context, self._name = table.entries, context, descriptor.name
        self._normalise = item.compiled()
        self._copy = item.copy if item.mutable else None
        # other primitives keep their value here, too, and have no default
        self._default = getattr(descriptor, "default", None) if descriptor.ttl is None else None

    def value(self) -> Any:
        """The stored value; a fresh copy of the default, or None, where nothing is stored."""
        try:
            stored = self._entries.get(self._context.key)
        except TypeError:
            raise no_key(self._name) from None
        if stored is None:
            stored = self._default
        return stored if self._copy is None else self._copy(stored)

    def update(self, value: Any) -> None:
        """Store a value; None clears. Raises ValueTypeError where it has not the declared type."""
        if value is None:
            self.clear()
            return
        context = self._context
        try:
            value = self._normalise(value)
        except ValueTypeError as error:
            raise ValueTypeError(f"state '{self._name}': {error}") from None
        try:
            if context.undo is not None:
                context.undo.append(restore(self._entries, context.key))
            self._entries[context.key] = value
        except TypeError:
            raise no_key(self._name) from None

    def clear(self) -> None:
        """Clear the value of the current key."""
        context = self._context
        try:
            if self._entries.get(context.key) is None:  # pop would not look at the key of an empty dict
                return
            if context.undo is not None:
                context.undo.append(restore(self._entries, context.key))
            del self._entries[context.key]
        except TypeError:
            raise no_key(self._name) from None


class TtlValueState(ValueState):
    """A value state whose values expire."""

    __slots__ = ("_fallback", "_ttl")

    def __init__(self, table: KeyedEntries, context: KeyContext) -> None:
        super().__init__(table, context)
        self._ttl = TtlRule(table, context)
        default = getattr(table.descriptor, "default", None)
        copy = table.descriptor.value_type.copy
        self._fallback: Callable[[], Any] = (
            (lambda: copy(default)) if table.descriptor.value_type.mutable else (lambda: default)
        )

    def value(self) -> Any:
        """The stored value, if it may still be seen; a fresh copy of the default, or None, otherwise."""
        self._ttl.accessed()
        item = super().value()
        if item is None:
            return self._fallback()
        if self._ttl.expired(item):
            self._forget()
            return item.value if self._ttl.shows_expired else self._fallback()
        if self._ttl.renews_on_read:
            super().update(self._ttl.stamp(item.value, item))
        return item.value

    def update(self, value: Any) -> None:
        """Store a value that lives from now on; None clears."""
        self._ttl.accessed()
        if value is None:
            self._forget()
        else:
            super().update(self._ttl.stamp(value, super().value()))

    def clear(self) -> None:
        self._ttl.accessed()
        self._forget()

    def _forget(self) -> None:
        super().clear()


def value_handle(table: KeyedEntries, context: KeyContext) -> ValueState:
    """The handle of what a table of shape ``value`` keeps, with or without a time to live."""
    return ValueState(table, context) if table.descriptor.ttl is None else TtlValueState(table, context)


def restore(entries: Any, key: Any) -> partial[Any]:
    """The action that gives a key back what it has now."""
    was = entries.get(key)
    return partial(entries.pop, key, None) if was is None else partial(entries.__setitem__, key, was)
