"""``MapState``: a map of entries per key.

Mirrors ``org.apache.flink.api.common.state.MapState`` and ``TtlMapState``; entries expire one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, cast

from state_engine.core.errors import StateAccessError, ValueTypeError
from state_engine.core.state.descriptors import MapStateDescriptor
from state_engine.core.state.map_access import MapAccess
from state_engine.core.state.state_table import KeyContext, KeyedEntries, TrackedMap, no_key
from state_engine.core.state.ttl_rule import TtlRule

Bounds = tuple[Any, Any]
"""Which entries of a sorted map: from a key on, and up to another one; None is no bound."""
_ALL: Bounds = (None, None)


class MapState(MapAccess):
    """Handle of a map state, for the key of the current element.

    Values may be None, keys not. Iteration sees the writes of this element; writing while iterating raises
    StateAccessError. Float keys: -0.0 is 0.0, NaN is refused.
    """

    # _ttl is TtlMapState's: a sorted map with a time to live has two bases, which could not both add slots
    __slots__ = (
        "_context",
        "_copy",
        "_copy_value",
        "_entries",
        "_key",
        "_name",
        "_normalise",
        "_ttl",
        "_writes",
    )

    def __init__(self, table: KeyedEntries, context: KeyContext) -> None:
        descriptor, item = cast(MapStateDescriptor, table.descriptor), table.item_type
        self._entries, self._context, self._name = table.entries, context, descriptor.name
        self._normalise = item.compiled()
        self._copy = item.copy if item.mutable else None
        self._copy_value = descriptor.value_type.copy if item.mutable else None
        self._key = _map_key(descriptor)
        self._writes = 0

    def get(self, key: Any) -> Any:
        """The value of a map key; None where it is missing."""
        key, entries = self._key(key), self._of_key()
        value = entries.get(key) if entries else None
        return value if self._copy is None else self._copy(value)

    def put(self, key: Any, value: Any) -> None:
        """Store one entry."""
        key = self._key(key)
        try:
            value = None if value is None else self._normalise(value)
        except ValueTypeError as error:
            raise ValueTypeError(f"map state '{self._name}': {error}") from None
        self._put(self._of_key(), key, value)

    def _put(self, entries: dict[Any, Any] | None, key: Any, value: Any) -> None:
        context = self._context
        self._writes += 1
        if entries is None:
            self._entries[context.key] = {}
            entries = self._entries[context.key]  # which may be a backend's own kind of map
            if context.undo is not None:
                context.undo.append(partial(self._entries.pop, context.key, None))
        if context.undo is not None:
            if key in entries:
                context.undo.append(partial(entries.__setitem__, key, entries[key]))
            else:
                context.undo.append(partial(entries.pop, key, None))
        entries[key] = value

    def put_all(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        """Store the entries of a dict, or (key, value) pairs."""
        for key, value in list(entries.items() if isinstance(entries, Mapping) else entries):
            self.put(key, value)

    def remove(self, key: Any) -> None:
        """Remove one entry; after the last one nothing is stored."""
        key, entries, context = self._key(key), self._of_key(), self._context
        if not entries or key not in entries:
            return
        self._writes += 1
        if len(entries) == 1:
            if context.undo is not None:
                context.undo.append(partial(self._entries.__setitem__, context.key, entries))
            del self._entries[context.key]
            return
        if context.undo is not None:
            context.undo.append(self._put_back(entries, key))
        del entries[key]

    def contains(self, key: Any) -> bool:
        """Whether there is an entry for the map key."""
        key, entries = self._key(key), self._of_key()
        return bool(entries) and key in cast(dict[Any, Any], entries)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """The (key, value) entries."""
        return self._copied(self._iterate(_ALL))

    def keys(self) -> Iterator[Any]:
        """The map keys."""
        return (key for key, _ in self._iterate(_ALL))

    def values(self) -> Iterator[Any]:
        """The values."""
        return (value for _, value in self.items())

    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return not self._of_key()

    def clear(self) -> None:
        """Remove all entries of the current key."""
        entries, context = self._of_key(), self._context
        if entries is None:
            return
        self._writes += 1
        if context.undo is not None:
            context.undo.append(partial(self._entries.__setitem__, context.key, entries))
        del self._entries[context.key]

    def _of_key(self) -> dict[Any, Any] | None:
        try:
            return self._entries.get(self._context.key)
        except TypeError:
            raise no_key(self._name) from None

    def _stored(self, within: Bounds) -> Iterable[tuple[Any, Any]]:
        return (self._of_key() or {}).items()

    def _iterate(self, within: Bounds) -> Iterator[tuple[Any, Any]]:
        writes = self._writes
        for item in self._stored(within):
            yield item
            self._check_unchanged(writes)

    def _copied(self, items: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        copy = self._copy_value
        for key, value in items:
            yield key, value if copy is None else copy(value)

    def _put_back(self, entries: dict[Any, Any], key: Any) -> Callable[[], Any]:
        """What undoes the removal of an entry: their order is part of the state, so the whole map as it was."""
        if isinstance(entries, TrackedMap):
            return entries.put_back(key)
        return partial(_refill, entries, dict(entries))

    def _check_unchanged(self, writes: int) -> None:
        if self._writes != writes:
            raise StateAccessError(
                f"map state '{self._name}' was changed while it was iterated: collect the items into a list first"
            )


class TtlMapState(MapState):
    """A map state whose entries expire one by one; an entry that may not be seen any more is not there."""

    __slots__ = ()

    def __init__(self, table: KeyedEntries, context: KeyContext) -> None:
        super().__init__(table, context)
        self._ttl = TtlRule(table, context)

    def get(self, key: Any) -> Any:
        item = self._seen(key)
        return None if item is None else item.value

    def put(self, key: Any, value: Any) -> None:
        self._ttl.accessed()
        before = super().get(key)
        if before is not None and self._ttl.expired(before):
            super().remove(key)  # its place in the order, too: whether it was cleaned up before must not show
        super().put(key, self._ttl.stamp(value, before))

    def remove(self, key: Any) -> None:
        self._ttl.accessed()
        super().remove(key)

    def contains(self, key: Any) -> bool:
        """Whether there is an entry that may be seen."""
        return self._seen(key) is not None

    def is_empty(self) -> bool:
        """Whether there is no entry that may be seen."""
        self._ttl.accessed()
        entries = self._of_key() or {}
        return not entries or (
            not self._ttl.shows_expired and all(self._ttl.expired(i) for i in entries.values())
        )

    def clear(self) -> None:
        self._ttl.accessed()
        super().clear()

    def _seen(self, key: Any) -> Any:
        ttl, writes = self._ttl, self._writes
        ttl.accessed()
        item = super().get(key)
        if item is None:
            return None
        if ttl.expired(item):
            super().remove(key)
            item = item if ttl.shows_expired else None
        elif ttl.renews_on_read:
            super().put(key, ttl.stamp(item.value, item))
        self._writes = writes  # reading, whatever it cleans up, is no change for who iterates
        return item

    def _iterate(self, within: Bounds) -> Iterator[tuple[Any, Any]]:
        shown, writes = self._shown(within), self._writes
        for key, item in shown:
            yield key, item.value
            self._check_unchanged(writes)

    def _shown(self, within: Bounds) -> list[tuple[Any, Any]]:
        """The entries that may be seen; decided, cleaned up and renewed before the first one is given out."""
        ttl, writes = self._ttl, self._writes
        ttl.accessed()
        shown = []
        for key, item in list(self._stored(within)):
            gone = ttl.expired(item)
            if gone:
                super().remove(key)
            elif ttl.renews_on_read:
                super().put(key, ttl.stamp(item.value, item))
            if not gone or ttl.shows_expired:
                shown.append((key, item))
        self._writes = writes
        return shown


def _map_key(descriptor: MapStateDescriptor) -> Any:
    normalise = descriptor.key_type.compiled()
    floats = "double" in str(descriptor.key_type.storage)

    def checked(key: Any) -> Any:
        if key is None:
            raise ValueTypeError(f"None cannot be a key of map state '{descriptor.name}'")
        try:
            return with_floats(normalise(key)) if floats else normalise(key)
        except ValueTypeError as error:
            raise ValueTypeError(f"key of map state '{descriptor.name}': {error}") from None

    def with_floats(key: Any) -> Any:
        if isinstance(key, tuple):
            return tuple.__new__(type(key), map(with_floats, key))
        if isinstance(key, float):
            if key != key:
                raise ValueTypeError("NaN cannot be a key, for it equals nothing")
            return key + 0.0
        return key

    return checked


def _refill(entries: dict[Any, Any], was: dict[Any, Any]) -> None:
    entries.clear()
    entries.update(was)
