"""``ListState``: a list of elements per key. Mirrors ``org.apache.flink.api.common.state.ListState``."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from state_engine.core.errors import ValueTypeError
from state_engine.core.state_table import KeyContext, StateTable, no_key
from state_engine.core.value_state import restore


class ListState:
    """Handle of a list state, for the key of the current element; adding writes only what was added."""

    __slots__ = ("_context", "_copy", "_entries", "_name", "_normalise")

    def __init__(self, table: StateTable, context: KeyContext) -> None:
        descriptor = table.descriptor
        self._entries, self._context, self._name = table.entries, context, descriptor.name
        self._normalise = descriptor.value_type.compiled()
        self._copy = descriptor.value_type.copy if descriptor.value_type.mutable else None

    def get(self) -> list[Any]:
        """The elements in the order they were added, as a fresh list; empty where there are none."""
        found = self._found()
        if not found:
            return []
        return list(found) if self._copy is None else [self._copy(e) for e in found]

    def add(self, value: Any) -> None:
        """Append one element; None is an error."""
        self.add_all((value,))

    def add_all(self, values: Iterable[Any]) -> None:
        """Append elements in order; nothing is added where one of them is refused."""
        added, found, context = self._checked(values), self._found(), self._context
        if not added:
            return
        if found is None:
            if context.undo is not None:
                context.undo.append(partial(self._entries.pop, context.key, None))
            self._entries[context.key] = added
        else:
            if context.undo is not None:
                context.undo.append(partial(found.__delitem__, slice(len(found), None)))
            found.extend(added)

    def update(self, values: Iterable[Any] | None) -> None:
        """Replace the whole list; an empty one clears."""
        replacement = self._checked(values or ())
        self.clear()
        if replacement:
            self.add_all(replacement)

    def clear(self) -> None:
        """Forget the list of the current key."""
        if self._found() is None:
            return
        context = self._context
        if context.undo is not None:
            context.undo.append(restore(self._entries, context.key))
        del self._entries[context.key]

    def __iter__(self) -> Any:
        return iter(self.get())

    def _found(self) -> list[Any] | None:
        try:
            return self._entries.get(self._context.key)
        except TypeError:
            raise no_key(self._name) from None

    def _checked(self, values: Iterable[Any]) -> list[Any]:
        normalise, checked = self._normalise, []
        for value in values:
            if value is None:
                raise ValueTypeError(f"None cannot be an element of list state '{self._name}'")
            checked.append(normalise(value))
        return checked
