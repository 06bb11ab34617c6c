"""Maps whose entries live in RocksDB: a row per entry, so that writing one never rewrites the map.

Rows under a slot: ``1 <map key>`` holds the entry's place in the order of first puts and its item; ``2 <place>`` holds
the map key, for iteration in that order; ``3 <map key>`` holds the row that was loaded, for entries that have changed
since. A sorted map iterates over the first kind, whose keys sort as map keys do (``core.keys.ordering``), and has no
second.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, ItemsView, Iterable, Iterator, ValuesView
from typing import Any

from state_engine.core.state.state_table import CLEAR, DELETE, PUT, Change, TrackedMap
from state_engine.state_backends.rocksdb_codec import Code
from state_engine.state_backends.rocksdb_entries import RocksContainers
from state_engine.state_backends.rocksdb_store import Reader, RocksStore, slot_key

_ENTRY, _ORDER, _BEFORE = b"\x01", b"\x02", b"\x03"
_PLACE = struct.Struct(">Q")
_WAS_ABSENT = b""


class _Items(ItemsView[Any, Any]):
    def __init__(self, entries: RocksMap) -> None:
        super().__init__(entries)
        self._map = entries

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._map.owner.items_of(None, self._map.slot)


class _Values(ValuesView[Any]):
    def __init__(self, entries: RocksMap) -> None:
        super().__init__(entries)
        self._map = entries

    def __iter__(self) -> Iterator[Any]:
        return (item for _, item in self._map.items())


class RocksMap(TrackedMap):
    """The map of one key. In a sorted map's state, its ends and parts, too."""

    __slots__ = ("key", "next_place", "owner", "size", "slot")

    def __init__(self, owner: RocksMaps, key: Any) -> None:
        self.owner, self.key, self.slot = owner, key, owner.store.new_slot()
        self.size = self.next_place = 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self.items())

    def items(self) -> ItemsView[Any, Any]:
        """The entries, read as they are asked for."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """The items, read as they are asked for."""
        return _Values(self)

    def get(self, key: Any, default: Any = None) -> Any:
        row = self.owner.row(self, self.owner.write_key(key))
        return default if row is None else self.owner.item(row)

    def __contains__(self, key: object) -> bool:
        return self.owner.row(self, self.owner.write_key(key)) is not None

    def __getitem__(self, key: Any) -> Any:
        row = self.owner.row(self, self.owner.write_key(key))
        if row is None:
            raise KeyError(key)
        return self.owner.item(row)

    def __setitem__(self, key: Any, item: Any) -> None:
        coded = self.owner.write_key(key)
        was = self.owner.row(self, coded)
        place = _PLACE.pack(self.next_place) if was is None else was[: _PLACE.size]
        self.next_place += was is None
        self.owner.put_row(self, coded, was, place + self.owner.write_item(item))

    def __delitem__(self, key: Any) -> None:
        coded = self.owner.write_key(key)
        row = self.owner.row(self, coded)
        if row is None:
            raise KeyError(key)
        self.owner.delete_row(self, coded, row)

    def put_back(self, key: Any) -> Callable[[], Any]:
        coded = self.owner.write_key(key)
        row = self.owner.row(self, coded)
        assert row is not None
        return lambda: self.owner.put_row(self, coded, self.owner.row(self, coded), row)

    def first(self) -> Any:
        """The smallest key; there must be one."""
        return next(iter(self))

    def last(self) -> Any:
        """The largest key; there must be one."""
        coded, _ = next(self.owner.store.scan(slot_key(self.slot, _ENTRY), backwards=True))
        return self.owner.read_key(coded)

    def between(self, from_: Any, to: Any) -> Iterator[tuple[Any, Any]]:
        """The entries with ``from_ <= key < to``, in key order; None is no bound."""
        owner = self.owner
        start, stop = (
            b"" if from_ is None else owner.write_key(from_),
            None if to is None else owner.write_key(to),
        )
        rows = owner.store.scan(slot_key(self.slot, _ENTRY), from_=start, to=stop)
        return ((owner.read_key(coded), owner.item(row)) for coded, row in rows)


class RocksMaps(RocksContainers):
    """Entries of a map state, sorted or in the order of first puts."""

    __slots__ = ("_loaded", "_read_item", "_sorted", "read_key", "write_item", "write_key")

    kind, add = RocksMap, staticmethod(RocksMap.update)

    def __init__(
        self,
        store: RocksStore,
        code: Code,
        parts: Iterable[tuple[Any, Any]],
        *,
        key_code: Code,
        in_key_order: bool,
    ) -> None:
        (self.write_item, self._read_item), self._sorted = code, in_key_order
        self.write_key, self.read_key = key_code
        super().__init__(store, parts)
        self._loaded = {key: of_key.slot for key, of_key in self._held.items()}

    # -- rows of one map --------------------------------------------------------------------------------------------

    def row(self, entries: RocksMap, coded: bytes) -> bytes | None:
        return self.store.get(slot_key(entries.slot, _ENTRY, coded))

    def item(self, row: bytes) -> Any:
        return self._read_item(row[_PLACE.size :])

    def put_row(self, entries: RocksMap, coded: bytes, was: bytes | None, row: bytes) -> None:
        self._remember(entries, coded, was)
        self.store.put(slot_key(entries.slot, _ENTRY, coded), row)
        if was is None:
            entries.size += 1
            if not self._sorted:
                self.store.put(slot_key(entries.slot, _ORDER, row[: _PLACE.size]), coded)

    def delete_row(self, entries: RocksMap, coded: bytes, row: bytes) -> None:
        self._remember(entries, coded, row)
        self.store.delete(slot_key(entries.slot, _ENTRY, coded))
        entries.size -= 1
        if not self._sorted:
            self.store.delete(slot_key(entries.slot, _ORDER, row[: _PLACE.size]))

    def items_of(self, reader: Reader | None, slot: int) -> Iterator[tuple[Any, Any]]:
        """The entries under a slot, in the state's order."""
        rows: Reader | RocksStore = reader or self.store
        if self._sorted:
            for coded, row in rows.scan(slot_key(slot, _ENTRY)):
                yield self.read_key(coded), self.item(row)
        else:
            for _, coded in rows.scan(slot_key(slot, _ORDER)):
                stored = rows.get(slot_key(slot, _ENTRY, coded))
                if (
                    stored is not None
                ):  # None: it was removed meanwhile, and whoever iterates is about to get an error
                    yield self.read_key(coded), self.item(stored)

    def _remember(self, entries: RocksMap, coded: bytes, row: bytes | None) -> None:
        """Keep what was loaded, before it is first changed."""
        self._changed[entries.key] = None
        if entries.slot < self._base:
            at = slot_key(entries.slot, _BEFORE, coded)
            if self.store.get(at) is None:
                self.store.put(at, _WAS_ABSENT if row is None else row)

    # -- changes ----------------------------------------------------------------------------------------------------

    def freeze(self) -> Callable[[], Iterator[Change]]:
        frozen = []
        for key in self._changed:
            now = self._held.get(key)
            frozen.append((key, self._loaded.get(key), now.slot if now is not None and now.size else None))
        reader = self.store.reader()
        return lambda: self._differences(reader, frozen)

    def _differences(
        self, reader: Reader, frozen: list[tuple[Any, int | None, int | None]]
    ) -> Iterator[Change]:
        for key, was, now in frozen:
            if was is not None and was == now:
                yield from self._changed_entries(reader, key, now)
                continue
            if was is not None:
                yield Change(key, CLEAR, None)
            if now is not None:
                for entry in self.items_of(reader, now):
                    yield Change(key, PUT, entry)

    def _anew(self, reader: Reader, key: Any, slot: int) -> Iterator[Change]:
        yield Change(key, CLEAR, None)
        for entry in self.items_of(reader, slot):
            yield Change(key, PUT, entry)

    def _changed_entries(self, reader: Reader, key: Any, slot: int) -> Iterator[Change]:
        gone, put = [], []
        size = _PLACE.size
        for coded, before in reader.scan(slot_key(slot, _BEFORE)):
            now = reader.get(slot_key(slot, _ENTRY, coded))
            if now is None:
                if before != _WAS_ABSENT:
                    gone.append(coded)
            elif before == _WAS_ABSENT or before[:size] == now[:size] or self._sorted:
                if before[size:] != now[size:] or before == _WAS_ABSENT:
                    put.append((now[:size], coded))
            else:
                # removed and put again: it comes last now, which only writing the map anew can say
                yield from self._anew(reader, key, slot)
                return
        for coded in gone:
            yield Change(key, DELETE, (self.read_key(coded), None))
        for _, coded in sorted(put):
            row = reader.get(slot_key(slot, _ENTRY, coded))
            assert row is not None
            yield Change(key, PUT, (self.read_key(coded), self.item(row)))
