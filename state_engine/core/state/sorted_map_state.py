"""``SortedMapState``: a map of entries per key, in the order of the map keys.

Mirrors ``SortedMapState`` of the Flink line that has it (the newest released Flink has only ``MapState``), but for
every type of key: negative numbers, floats, text and records are in their natural order (``core.keys.ordering``), on
every backend. Stored as a MapState is; with a time to live, entries expire one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

from state_engine.core.keys.ordering import key_order
from state_engine.core.state.descriptors import MapStateDescriptor
from state_engine.core.state.map_state import Bounds, MapState, TtlMapState
from state_engine.core.state.sorted_entries import SortedEntries
from state_engine.core.state.state_table import KeyContext, KeyedEntries


class SortedMapState(MapState):
    """Handle of a sorted map state, for the key of the current element.

    A MapState whose ``items``, ``keys``, ``values`` and iteration go by key, with its ends and parts of it besides.
    """

    __slots__ = ("_sort_key",)

    def __init__(self, table: KeyedEntries, context: KeyContext) -> None:
        super().__init__(table, context)
        self._sort_key = key_order(cast(MapStateDescriptor, table.descriptor).key_type).sort_key

    def first_entry(self) -> tuple[Any, Any] | None:
        """The (key, value) with the smallest key; None where there is no entry."""
        return self._end(last=False)

    def last_entry(self) -> tuple[Any, Any] | None:
        """The (key, value) with the largest key; None where there is no entry."""
        return self._end(last=True)

    def head_items(self, to: Any) -> Iterator[tuple[Any, Any]]:
        """The (key, value) entries with keys < ``to``, in key order."""
        return self._copied(self._iterate((None, self._key(to))))

    def tail_items(self, from_: Any) -> Iterator[tuple[Any, Any]]:
        """The (key, value) entries with keys >= ``from_``, in key order."""
        return self._copied(self._iterate((self._key(from_), None)))

    def sub_items(self, from_: Any, to: Any) -> Iterator[tuple[Any, Any]]:
        """The (key, value) entries with ``from_`` <= key < ``to``, in key order."""
        return self._copied(self._iterate((self._key(from_), self._key(to))))

    def _end(self, *, last: bool) -> tuple[Any, Any] | None:
        key = self._outermost(last=last)
        return None if key is None else (key, self.get(key))

    def _outermost(self, *, last: bool) -> Any:
        entries = self._of_key()
        if not entries:
            return None
        return entries.last() if last else entries.first()

    def _of_key(self) -> Any:
        # a backend that sorts by itself gives its own kind of map, with the methods of SortedEntries
        entries = super()._of_key()
        if type(entries) is dict:
            entries = self._entries[self._context.key] = SortedEntries(entries, self._sort_key)
        return entries

    def _stored(self, within: Bounds) -> Iterator[tuple[Any, Any]]:
        entries = self._of_key()
        return entries.between(*within) if entries else iter(())

    def _put_back(self, entries: Any, key: Any) -> Any:
        return partial(entries.__setitem__, key, entries[key])


class TtlSortedMapState(SortedMapState, TtlMapState):
    """A sorted map state whose entries expire one by one; an entry that may not be seen any more is not there."""

    __slots__ = ()

    def _end(self, *, last: bool) -> tuple[Any, Any] | None:
        while (key := self._outermost(last=last)) is not None:
            item = self._seen(key)  # which takes an expired one away
            if item is not None:
                return key, item.value
        return None
