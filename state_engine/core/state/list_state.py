"""``ListState``: a list of elements per key.

Mirrors ``org.apache.flink.api.common.state.ListState`` and ``TtlListState``; elements expire one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, cast

from state_engine.core.errors import ValueTypeError
from state_engine.core.state.state import MergingState
from state_engine.core.state.state_table import KeyContext, KeyedEntries, no_key
from state_engine.core.state.ttl_rule import TtlRule
from state_engine.core.state.value_state import restore


class ListState(MergingState):
    """Handle of a list state, for the key of the current element; adding writes only what was added."""

    __slots__ = ("_context", "_copy", "_entries", "_name", "_normalise")

    def __init__(self, table: KeyedEntries, context: KeyContext) -> None:
        item = table.item_type
        self._entries, self._context, self._name = table.entries, context, table.descriptor.name
        self._normalise = item.compiled()
        self._copy = item.copy if item.mutable else None

    def get(self) -> list[Any]:
        """The elements in the order they were added, as a fresh list; empty where there are none."""
        elements = self._of_key()
        if not elements:
            return []
        return list(elements) if self._copy is None else [self._copy(e) for e in elements]

    def get_internal(self) -> list[Any] | None:
        """The elements, as a fresh list; None where there are none."""
        return self.get() or None

    def merge(self, internal: Iterable[Any] | None) -> None:
        """Append the elements of another list, behind those that are here."""
        if not isinstance(internal, list | None):
            raise ValueTypeError(
                f"list state '{self._name}' merges a list of elements, or None, as get_internal gives it, "
                f"not {internal!r}"
            )
        if internal:
            self.add_all(internal)

    def add(self, value: Any) -> None:
        """Append one element; None is an error."""
        self.add_all((value,))

    def add_all(self, values: Iterable[Any]) -> None:
        """Append elements in order; nothing is added where one of them is refused."""
        added, elements, context = self._checked(values), self._of_key(), self._context
        if not added:
            return
        if elements is None:
            if context.undo is not None:
                context.undo.append(partial(self._entries.pop, context.key, None))
            self._entries[context.key] = added
        else:
            if context.undo is not None:
                context.undo.append(partial(elements.__delitem__, slice(len(elements), None)))
            elements.extend(added)

    def update(self, values: Iterable[Any]) -> None:
        """Replace the whole list; an empty one clears, and None is an error, as in Flink."""
        replacement = self._checked(self._given(values))
        self.clear()
        if replacement:
            self.add_all(replacement)

    def clear(self) -> None:
        """Clear the list of the current key."""
        if self._of_key() is None:
            return
        context = self._context
        if context.undo is not None:
            context.undo.append(restore(self._entries, context.key))
        del self._entries[context.key]

    def __iter__(self) -> Any:
        return iter(self.get())

    def _of_key(self) -> list[Any] | None:
        try:
            return self._entries.get(self._context.key)
        except TypeError:
            raise no_key(self._name) from None

    def _given(self, values: Any) -> Iterable[Any]:
        if values is None:
            raise ValueTypeError(
                f"list state '{self._name}': update(None) is refused, as in Flink; update([]) and clear() empty it"
            )
        return cast(Iterable[Any], values)

    def _checked(self, values: Iterable[Any]) -> list[Any]:
        normalise, checked = self._normalise, []
        try:
            for value in values:
                if value is None:
                    break
                checked.append(normalise(value))
            else:
                return checked
        except ValueTypeError as error:
            raise ValueTypeError(f"list state '{self._name}': {error}") from None
        raise ValueTypeError(f"None cannot be an element of list state '{self._name}'")


class TtlListState(ListState):
    """A list state whose elements expire one by one."""

    __slots__ = ("_ttl",)

    def __init__(self, table: KeyedEntries, context: KeyContext) -> None:
        super().__init__(table, context)
        self._ttl = TtlRule(table, context)

    def get(self) -> list[Any]:
        """The elements that may still be seen, in the order they were added."""
        ttl = self._ttl
        ttl.accessed()
        items = super().get()
        alive = [item for item in items if not ttl.expired(item)]
        if items and not alive:
            super().clear()
        elif ttl.renews_on_read or (len(alive) < len(items) and not ttl.shows_expired):
            self._replace([ttl.stamp(i.value, i) for i in alive] if ttl.renews_on_read else alive)
        return [item.value for item in (items if ttl.shows_expired else alive)]

    def add_all(self, values: Iterable[Any]) -> None:
        self._ttl.accessed()
        super().add_all([self._stamped(v) for v in values])

    def update(self, values: Iterable[Any]) -> None:
        self._ttl.accessed()
        self._replace([self._stamped(v) for v in self._given(values)])

    def clear(self) -> None:
        self._ttl.accessed()
        super().clear()

    def _stamped(self, value: Any) -> Any:
        return None if value is None else self._ttl.stamp(value)

    def _replace(self, items: list[Any]) -> None:
        checked = self._checked(items)
        super().clear()
        super().add_all(checked)
