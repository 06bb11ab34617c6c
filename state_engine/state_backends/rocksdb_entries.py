"""Values and lists whose contents live in RocksDB: only keys and slots are in memory.

What was loaded stays under the slot it was loaded to, so the changes are found by comparing slots, and what an element
replaced can be put back. A list is a row per addition: adding never reads or rewrites what is there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from state_engine.core.state.state_table import APPEND, CLEAR, DELETE, PUT, Change, TrackedEntries
from state_engine.state_backends.rocksdb_codec import Code
from state_engine.state_backends.rocksdb_store import Reader, RocksStore, slot_key

_CHUNK = b"\x01"
_PLACE, _SIZE = struct.Struct(">Q"), struct.Struct(">I")


class RocksValues(TrackedEntries):
    """Entries of a state of one value per key: a row each."""

    __slots__ = ("_base", "_changed", "_loaded", "_read", "_slots", "_store", "_write")

    def __init__(self, store: RocksStore, code: Code, parts: Iterable[tuple[Any, Any]]) -> None:
        self._store, (self._write, self._read) = store, code
        self._slots: dict[Any, int] = {}
        self._changed: dict[Any, None] = {}
        self._base = 0
        for key, item in parts:
            self[key] = item
        self._loaded, self._base = dict(self._slots), store.new_slot()
        self._changed.clear()

    def get(self, key: Any, default: Any = None) -> Any:
        slot = self._slots.get(key)
        return default if slot is None else self._item(self._store.get(slot_key(slot)))

    def __getitem__(self, key: Any) -> Any:
        return self._item(self._store.get(slot_key(self._slots[key])))

    def __setitem__(self, key: Any, item: Any) -> None:
        slot = self._slots.get(key)
        if slot is None or slot < self._base:
            slot = self._slots[key] = self._store.new_slot()
            self._changed[key] = None
        self._store.put(slot_key(slot), self._write(item))

    def __delitem__(self, key: Any) -> None:
        slot = self._slots.pop(key)
        self._changed[key] = None
        if slot > self._base:
            self._store.delete(slot_key(slot))

    def pop(self, key: Any, default: Any = None) -> Any:
        """Take a value out; the default where there is none."""
        value = self.get(key, default)
        if key in self._slots:
            del self[key]
        return value

    def __iter__(self) -> Iterator[Any]:
        return iter(self._slots)

    def __len__(self) -> int:
        return len(self._slots)

    def freeze(self) -> Callable[[], Iterator[Change]]:
        frozen = [(key, self._loaded.get(key), self._slots.get(key)) for key in self._changed]
        reader = self._store.reader()
        return lambda: self._differences(reader, frozen)

    def _item(self, row: bytes | None) -> Any:
        assert row is not None, "a slot that is in use has a row"
        return self._read(row)

    def _differences(
        self, reader: Reader, frozen: list[tuple[Any, int | None, int | None]]
    ) -> Iterator[Change]:
        for key, was, now in frozen:
            if now is None:
                if was is not None:
                    yield Change(key, DELETE, None)
                continue
            row = reader.get(slot_key(now))
            if was is None or reader.get(slot_key(was)) != row:
                yield Change(key, PUT, self._item(row))


class RocksContainers(TrackedEntries):
    """Entries that are lists or maps, each under a slot of its own.

    Attributes:
        kind: class of a list or a map of one key.
        add: what adds to it.
    """

    __slots__ = ("_base", "_changed", "_garbage", "_held", "store")

    kind: type[Any]
    add: Callable[[Any, Any], None]

    def __init__(self, store: RocksStore, parts: Iterable[tuple[Any, Any]]) -> None:
        self.store, self._base = store, 0
        self._held: dict[Any, Any] = {}
        self._changed: dict[Any, None] = {}
        self._garbage: list[Any] = []
        for key, given in parts:
            if key in self._held:
                self.add(self._held[key], given)
            else:
                self[key] = given
        self._base = store.new_slot()
        self._changed.clear()

    def get(self, key: Any, default: Any = None) -> Any:
        return self._held.get(key, default)

    def __getitem__(self, key: Any) -> Any:
        return self._held[key]

    def __setitem__(self, key: Any, given: Any) -> None:
        self._changed[key] = None
        replaced = self._held.get(key)
        if isinstance(given, self.kind):
            self._held[key] = given
        else:
            self._held[key] = self.kind(self, key)
            self.add(self._held[key], given)
        if replaced is not None:
            self._garbage.append(replaced)

    def __delitem__(self, key: Any) -> None:
        self._garbage.append(self._held.pop(key))
        self._changed[key] = None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._held)

    def __len__(self) -> int:
        return len(self._held)

    def collect_garbage(self) -> None:
        """Between elements: drop what was replaced and cannot come back."""
        while self._garbage:
            container = self._garbage.pop()
            if container.slot > self._base and self._held.get(container.key) is not container:
                self.store.drop(container.slot)


class RocksList:
    """The list of one key: sized, iterable, extended at its end and cut there."""

    __slots__ = ("key", "length", "owner", "slot")

    def __init__(self, owner: RocksLists, key: Any) -> None:
        self.owner, self.key, self.slot, self.length = owner, key, owner.store.new_slot(), 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[Any]:
        return self.owner.elements(None, self.slot)

    def extend(self, items: Iterable[Any]) -> None:
        added = list(items)
        if added:
            self.owner.append(self, added)

    def __delitem__(self, part: slice) -> None:
        """Remove the elements from a position on, where an addition began."""
        assert part.start is not None
        assert part.stop is None
        self.owner.cut(self, part.start)


class RocksLists(RocksContainers):
    """Entries of a list state."""

    __slots__ = ("_loaded", "_read", "_write")

    kind, add = RocksList, staticmethod(RocksList.extend)

    def __init__(self, store: RocksStore, code: Code, parts: Iterable[tuple[Any, Any]]) -> None:
        self._write, self._read = code
        super().__init__(store, parts)
        self._loaded = {key: (elements.slot, elements.length) for key, elements in self._held.items()}

    def append(self, to: RocksList, added: list[Any]) -> None:
        """Write a chunk at the end of a list."""
        coded = [self._write(item) for item in added]
        chunk = b"".join(_SIZE.pack(len(data)) + data for data in coded)
        self.store.put(slot_key(to.slot, _CHUNK, _PLACE.pack(to.length)), chunk)
        to.length += len(added)
        self._changed[to.key] = None

    def cut(self, elements: RocksList, length: int) -> None:
        """Remove the chunks from a position on."""
        for place, _ in self.store.scan(slot_key(elements.slot, _CHUNK), from_=_PLACE.pack(length)):
            self.store.delete(slot_key(elements.slot, _CHUNK, place))
        elements.length = length

    def elements(self, reader: Reader | None, slot: int, start: int = 0) -> Iterator[Any]:
        """The elements under a slot from the start of a chunk on."""
        rows = (reader or self.store).scan(slot_key(slot, _CHUNK), from_=_PLACE.pack(start))
        for _, chunk in rows:
            at = 0
            while at < len(chunk):
                (size,) = _SIZE.unpack_from(chunk, at)
                at += _SIZE.size + size
                yield self._read(chunk[at - size : at])

    def freeze(self) -> Callable[[], Iterator[Change]]:
        frozen = []
        for key in self._changed:
            now = self._held.get(key)
            frozen.append((key, self._loaded.get(key), None if now is None else (now.slot, now.length)))
        reader = self.store.reader()
        return lambda: self._differences(reader, frozen)

    def _differences(
        self, reader: Reader, frozen: list[tuple[Any, tuple[int, int] | None, tuple[int, int] | None]]
    ) -> Iterator[Change]:
        for key, was, now in frozen:
            if was is not None and now is not None and was[0] == now[0]:
                if now[1] > was[1]:
                    yield Change(key, APPEND, list(self.elements(reader, now[0], was[1])))
                continue
            if was is not None:
                yield Change(key, CLEAR, None)
            if now is not None and now[1]:
                yield Change(key, APPEND, list(self.elements(reader, now[0])))
