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

from state_engine.core.keys.entry_codes import equal_rows, key_codes, last_rows
from state_engine.core.state.descriptors import MapStateDescriptor, SortedMapStateDescriptor, StateDescriptor
from state_engine.core.time.timers import TimersDescriptor
from state_engine.core.types.columns import one_chunk
from state_engine.storage.layout import state_column
from state_engine.storage.state.base import ChangeOps, coded, entries_left
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


class NewestParts:
    """The rows of keys with some hashes, from the newest file back; each part is read once, for all states.

    Args:
        files: of the path that may hold these keys: those of bases, then changes in path order.
    """

    def __init__(self, files: Sequence[ListedFile], hashes: Hashes) -> None:
        self._unread = parts_of(files, KeyHashes(hashes), newest_first=True)
        self._read: list[Part] = []
        self._folded: dict[str, MapRows | None] = {}

    def __iter__(self) -> Iterator[Part]:
        yield from self._read
        for part in self._unread:
            self._read.append(part)
            yield part

    def of_map(self, descriptor: MapStateDescriptor, read: Read | None = None) -> MapRows | None:
        """The entries of a map state; None where no file says anything.

        Args:
            read: gives its column the form of the declared type.
        """
        if descriptor.stored_as not in self._folded:
            self._folded[descriptor.stored_as] = self._of_map(descriptor, read)
        return self._folded[descriptor.stored_as]

    def _of_map(self, descriptor: MapStateDescriptor, read: Read | None) -> MapRows | None:
        heads, entries, name = [], [], state_column(descriptor.stored_as)
        for part in reversed(list(self)):
            of_state = part.of_state(descriptor)
            if of_state is not None:
                table, own = of_state
                column = one_chunk(table[name] if read is None else read(table[name]))
                columns = {"op": coded(table["op"]), "map_key": column.field("key")}
                head = pa.table({"key_hash": table["key_hash"], "key": table["key"], **columns})
                at = np.arange(len(head)) if own is None else np.flatnonzero(own)
                heads.append(head if own is None else head.take(pa.array(at)))
                entries.append((column, at))
        if not heads:
            return None
        rows = pa.concat_tables(heads).combine_chunks()
        keys = _key_numbers(rows["key_hash"].to_numpy(), one_chunk(rows["key"]).flatten())
        in_order = not isinstance(descriptor, SortedMapStateDescriptor | TimersDescriptor)
        changes = ChangeOps(keys, one_chunk(rows["op"]))
        left = entries_left(changes, one_chunk(rows["map_key"]), in_order=in_order)
        left = left if in_order else np.sort(left)
        of_left = rows.select(["key_hash", "key"]).take(pa.array(left)).combine_chunks()
        return MapRows(of_left.append_column(name, _gathered(entries, left)), keys[left])


@dataclass(frozen=True)
class MapRows:
    """Entries of a map state, those of a key in the order of its handle, unless the map is sorted.

    Attributes:
        rows: hash, key and entry of each.
        keys: the same number for rows of one key.
    """

    rows: pa.Table
    keys: Hashes


class NewestEntries:
    """What the files of a path hold for some keys.

    Args:
        parts: the rows of these keys, and maybe of others.
        hashes, keys: of the keys; stored key columns, a row for each key, each once.
    """

    def __init__(self, parts: NewestParts, hashes: Hashes, keys: Sequence[pa.Array]) -> None:
        self._parts, self._given, self._keys = parts, hashes, keys

    def of(self, descriptor: StateDescriptor, read: Read | None = None) -> StateEntries | None:
        """The entries of one state; None where no file says anything of it.

        Args:
            read: gives its column the form of the declared type.
        """
        row_of = np.full(len(self._given), -1)
        open_keys, tables, total = np.ones(len(self._given), bool), list[pa.Table](), 0
        for part in self._parts:
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
            The number of each entry's key, -1 of one that is none of them; and the entries.
        """
        of_map = self._parts.of_map(descriptor, read)
        if of_map is None:
            return None
        row_of = last_rows(of_map.keys)
        there, numbers = row_of >= 0, np.full(len(row_of), -1)
        one_of_each = of_map.rows.select(["key_hash", "key"]).take(pa.array(row_of[there]))
        columns = one_chunk(one_of_each["key"]).flatten()
        numbers[there] = self._numbers_of(one_of_each["key_hash"].to_numpy(), columns)
        return numbers[of_map.keys], one_chunk(of_map.rows[state_column(descriptor.stored_as)])

    @cached_property
    def _by_hash(self) -> tuple[Hashes, Hashes]:
        """The numbers of the keys, smallest hash first, and their hashes."""
        order = np.argsort(self._given)
        return order, self._given[order]

    def _numbers(self, rows: pa.Table) -> np.ndarray:
        """The number of each row's key; -1 for one that only has the hash of one of them."""
        hashes, columns = rows["key_hash"].to_numpy(), one_chunk(rows["key"]).flatten()
        if np.array_equal(hashes, self._given) and equal_rows(columns, self._keys).all():
            return np.arange(len(hashes))
        first = _begins_key(hashes, columns)
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


def _begins_key(hashes: Hashes, columns: Sequence[pa.Array]) -> np.ndarray:
    """Which rows have another key than the one before; rows of a key stand together, as far as they are of one file."""
    first: np.ndarray = np.append(True, hashes[1:] != hashes[:-1])[: len(hashes)]
    before, after = ([c.slice(at, len(hashes) - 1) for c in columns] for at in (0, 1))
    first[1:] |= ~equal_rows(before, after)
    return first


def _key_numbers(hashes: Hashes, columns: Sequence[pa.Array]) -> Hashes:
    """A number for each row, the same for rows of one key."""
    first = _begins_key(hashes, columns)
    firsts = pa.array(np.flatnonzero(first))
    of_firsts = key_codes([c.take(firsts) for c in columns], hashes[first])[0]
    numbers: Hashes = of_firsts[np.cumsum(first) - 1]
    return numbers


def _gathered(parts: Sequence[tuple[pa.Array, Hashes]], rows: Hashes) -> pa.Array:
    """Some rows of columns, each by itself, because values that are not wanted are never copied.

    Args:
        parts: columns, and which of their rows count.
        rows: of all rows that count, one column after the other.
    """
    order, taken, start = np.argsort(rows), [], 0
    rising = rows[order]
    for column, at in parts:
        within = rising[np.searchsorted(rising, start) : np.searchsorted(rising, start + len(at))] - start
        taken.append(column.take(pa.array(at[within])))
        start += len(at)
    gathered = pa.concat_arrays(taken)
    if (np.diff(order) == 1).all():
        return gathered
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return gathered.take(pa.array(place))
