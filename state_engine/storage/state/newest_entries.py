"""The newest entries of some keys: of states with one value a key read from the newest file on until each has one.

What a later file says of a key replaces what earlier ones say. So where a micro-batch touches most keys, and the one
before it did, only the last file is read, and no row is decoded that another one replaces. Plays the part of a lookup
in RocksDB, which also goes from the newest file back. Of map states all files are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from state_engine.core.keys.entry_codes import entry_codes, equal_rows
from state_engine.core.state.descriptors import MapStateDescriptor, SortedMapStateDescriptor, StateDescriptor
from state_engine.core.types.columns import one_chunk
from state_engine.storage.layout import state_column
from state_engine.storage.state.base import ChangeOps, entries_left
from state_engine.storage.state.listed_files import Hashes, KeyHashes, ListedFile
from state_engine.storage.state.state_rows import Part, Read, parts_of


@dataclass(frozen=True)
class StateEntries:
    """Entries of one state.

    Attributes:
        rows: as ``Part.rows`` gives them, without ops.
        row_of: of each key the row with its entry, or of its deletion, which has no value; -1 where it has none.
    """

    rows: pa.Table
    row_of: np.ndarray

    def in_order(self, column: str) -> pa.Array:
        """A column with a row for each key; null where a key has no entry."""
        if np.array_equal(self.row_of, np.arange(self.rows.num_rows)):
            return one_chunk(self.rows[column])
        return one_chunk(self.rows[column]).take(pa.array(np.maximum(self.row_of, 0), mask=self.row_of < 0))


class NewestEntries:
    """What the files of a path hold for some keys, each state with one value a key.

    Args:
        files: of the path that may hold these keys: those of bases, then changes in path order.
        keys: stored key columns, a row for each key, each once.
    """

    def __init__(self, files: Sequence[ListedFile], hashes: Hashes, keys: Sequence[pa.Array]) -> None:
        self._keys, self._given = keys, hashes
        self._unread = parts_of(files, KeyHashes(hashes), newest_first=True)
        self._read: list[Part] = []

    def of(self, descriptor: StateDescriptor, read: Read | None = None) -> StateEntries | None:
        """The entries of one state; None where no file says anything of it.

        Args:
            read: gives its column the form of the declared type.
        """
        row_of = np.full(len(self._given), -1)
        open_keys, tables, total = np.ones(len(self._given), bool), list[pa.Table](), 0
        for part in self._newest_first():
            rows = part.rows(descriptor, read, ops=False)
            if rows is not None:
                numbers = self._numbers(rows)
                at = np.flatnonzero(open_keys[numbers] & (numbers >= 0))
                row_of[numbers[at]] = at + total  # of several, the last one stays
                open_keys[numbers[at]] = False
                tables.append(rows)
                total += rows.num_rows
            if not open_keys.any():
                break
        if not tables:
            return None
        return StateEntries(pa.concat_tables(tables), row_of)

    def of_map(
        self, descriptor: MapStateDescriptor, read: Read | None = None
    ) -> tuple[Hashes, pa.Array] | None:
        """The entries of a map state; None where no file says anything.

        Returns:
            The number of each entry's key, -1 of one that only has the hash of one of them; and the entries, those of a
            key in the order of its handle, unless the map is sorted.
        """
        tables = [rows for part in self._newest_first() if (rows := part.rows(descriptor, read)) is not None]
        if not tables:
            return None
        rows = pa.concat_tables(tables[::-1]).combine_chunks()
        entries, keys = one_chunk(rows[state_column(descriptor.stored_as)]), self._numbers(rows)
        own = keys
        if (keys < 0).any():  # keys of one hash are kept apart
            own = entry_codes([one_chunk(rows["key"])])
        in_order = not isinstance(descriptor, SortedMapStateDescriptor)
        left = entries_left(ChangeOps(own, one_chunk(rows["op"])), entries.field("key"), in_order=in_order)
        return keys[left], entries.take(pa.array(left))

    @cached_property
    def _by_hash(self) -> tuple[Hashes, Hashes]:
        """The numbers of the keys, smallest hash first, and their hashes."""
        order = np.argsort(self._given)
        return order, self._given[order]

    def _newest_first(self) -> Iterator[Part]:
        """Parts from the newest one on; each is read once, for all states."""
        yield from self._read
        for part in self._unread:
            self._read.append(part)
            yield part

    def _numbers(self, rows: pa.Table) -> np.ndarray:
        """The number of each row's key; -1 for one that only has the hash of one of them."""
        hashes, columns = rows["key_hash"].to_numpy(), one_chunk(rows["key"]).flatten()
        if np.array_equal(hashes, self._given) and equal_rows(columns, self._keys).all():
            return np.arange(len(hashes))
        first = np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)]  # rows of a key stand together
        before, after = ([c.slice(at, len(hashes) - 1) for c in columns] for at in (0, 1))
        first[1:] |= ~equal_rows(before, after)
        firsts = pa.array(np.flatnonzero(first))
        of_firsts = self._numbers_of(hashes[first], [c.take(firsts) for c in columns])
        numbers: np.ndarray = of_firsts[np.cumsum(first) - 1]
        return numbers

    def _numbers_of(self, hashes: Hashes, columns: Sequence[pa.Array]) -> np.ndarray:
        order, ordered = self._by_hash
        numbers, at = np.full(len(hashes), -1), np.searchsorted(ordered, hashes)
        left = np.arange(len(hashes))
        while len(left):
            left = left[at[left] < len(ordered)]
            left = left[ordered[at[left]] == hashes[left]]
            candidates = order[at[left]]
            same = equal_rows(
                [c.take(pa.array(left)) for c in columns], [c.take(pa.array(candidates)) for c in self._keys]
            )
            numbers[left[same]] = candidates[same]
            left = left[~same]
            at[left] += 1  # another key with the same hash
        return numbers
