"""``SortedEntries``: the entries of one sorted map in memory, a dict that also knows its keys in order.

Looking up, writing and copying are a dict's. The keys are sorted when their order is first asked for; from then on
every new or removed key is found its place by bisection, so that an element which writes one entry and reads the first
one sorts nothing. As all of it happens inside the dict, undoing writes keeps the order right, too. Plays the part of
the sorted map under Flink's ``SortedMapState``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from typing import Any


class SortedEntries(dict[Any, Any]):
    """Entries by map key; a dict for whoever does not ask for the order.

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
