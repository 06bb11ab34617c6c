"""``SortedMapState``: a map of entries per key, in the order of the map keys.

Mirrors ``SortedMapState`` of the Flink line that has it (the newest released Flink has only ``MapState``), but for
every type of key: negative numbers, floats, text and records are in their natural order (``core.keys.ordering``), on
every backend. Stored as a MapState is; with a time to live, entries expire one by one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, cast

from state_engine.core.keys.ordering import key_order
from state_engine.core.state.descriptors import MapStateDescriptor
from state_engine.core.state.map_state import Bounds, MapState, TtlMapState
from state_engine.core.state.state_table import KeyContext, KeyedEntries


class SortedEntries(dict[Any, Any]):
    """Entries by map key; a dict for whoever does not ask for the order.

    The keys are sorted when their order is first asked for; from then on bisection finds the place of every new or
    removed key. As all of it happens inside the dict, undoing writes keeps the order right, too.

    Args:
        sort_key: what keys are sorted by; None for Python's own order.

    Example:
        >>> entries = SortedEntries({3: "c", -1: "a"}, None)
        >>> entries[2] = "b"
        >>> entries.first(), entries.last(), list(entries.between(None, 3))
        (-1, 3, [(-1, 'a'), (2, 'b')])
    """

    __slots__ = ("_ordered", "_sort_key")

    def __init__(self, entries: Mapping[Any, Any], sort_key: Callable[[Any], Any] | None) -> None:
        super().__init__(entries)
        self._sort_key = sort_key
        self._ordered: list[Any] | None = None

    def first(self) -> Any:
        """The smallest key; there must be one."""
        return self._keys()[0]

    def last(self) -> Any:
        """The largest key; there must be one."""
        return self._keys()[-1]

    def between(self, from_: Any, to: Any) -> Iterator[tuple[Any, Any]]:
        """The entries with ``from_ <= key < to``, in key order; None is no bound."""
        keys = self._keys()
        start = 0 if from_ is None else self._place(from_)
        end = len(keys) if to is None else self._place(to)
        return ((key, self[key]) for key in keys[start:end])

    def __setitem__(self, key: Any, value: Any) -> None:
        if self._ordered is not None and key not in self:
            insort(self._ordered, key, key=self._sort_key)
        dict.__setitem__(self, key, value)

    def __delitem__(self, key: Any) -> None:
        dict.__delitem__(self, key)
        if self._ordered is not None:
            del self._ordered[self._place(key)]

    def pop(self, key: Any, default: Any = None) -> Any:
        """Take an entry out; the default where there is none."""
        value = self.get(key, default)
        if key in self:
            del self[key]
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # a copy is a plain dict: whoever sorts it again brings the order

    def _keys(self) -> list[Any]:
        if self._ordered is None:
            self._ordered = sorted(self, key=self._sort_key)
        return self._ordered

    def _place(self, key: Any) -> int:
        sort_key = self._sort_key
        return bisect_left(self._keys(), key if sort_key is None else sort_key(key), key=sort_key)


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
