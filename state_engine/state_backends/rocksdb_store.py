"""``RocksStore``: one RocksDB database in a temporary directory, with raw bytes as keys and values.

Everything of one key's state is under a *slot*, a number that is never used twice: what replaces it gets a new slot,
so what was there before is there until somebody drops it. Nothing outlives ``close``: durability is the checkpoint's.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import weakref
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rocksdict import Options, Rdict

_LONG = struct.Struct(">Q")


class Reader:
    """A database as it was when this was made, for one reader that begins a scan after ending the one before.

    rocksdict's own ``Snapshot`` finds single keys as of then, but iterates over what is there now; an iterator, once
    made, stays at its moment. So one of each.
    """

    def __init__(self, db: Rdict) -> None:
        self._snapshot, self._iterator = db.snapshot(), db.iter()

    def get(self, key: bytes) -> bytes | None:
        """The row of a key, None where there is none."""
        try:
            value: bytes = self._snapshot[key]
        except Exception as error:  # rocksdict raises nothing more precise
            if str(error) != "key not found":
                raise
            return None
        return value

    def scan(self, prefix: bytes, *, from_: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Rows whose keys begin with a prefix, without it, in order."""
        iterator, size = self._iterator, len(prefix)
        iterator.seek(prefix + from_)
        while iterator.valid() and (key := iterator.key()).startswith(prefix):
            yield key[size:], iterator.value()
            iterator.next()
        iterator.status()


class RocksStore:
    """A database that lives as long as one micro-batch."""

    def __init__(self, options: Options, directory: str | None) -> None:
        from rocksdict import Rdict, WriteOptions

        self.path = tempfile.mkdtemp(prefix="statelake-rocksdb-", dir=directory)
        # also where nobody calls close
        self._remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        try:
            self._db = Rdict(self.path, options)
        except BaseException:
            self._remove()
            raise
        unlogged = WriteOptions()
        unlogged.disable_wal = True  # type: ignore[method-assign, assignment]  # a property; after a crash nobody reads it
        self._db.set_write_options(unlogged)
        self._slots = count(1)
        self.writes = 0

    def new_slot(self) -> int:
        """A slot that nothing is under yet."""
        return next(self._slots)

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._db.get(key)
        return value

    def put(self, key: bytes, row: bytes) -> None:
        self._db[key] = row
        self.writes += 1

    def delete(self, key: bytes) -> None:
        del self._db[key]

    def drop(self, slot: int) -> None:
        for key, _ in self.scan(slot_key(slot)):
            del self._db[slot_key(slot) + key]

    def reader(self) -> Reader:
        """The database as it is now, whatever is written to it."""
        return Reader(self._db)

    def scan(
        self, prefix: bytes, *, from_: bytes = b"", to: bytes | None = None, backwards: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows whose keys begin with a prefix, without it, in order; ``from_`` included, ``to`` not.

        Sees the database as it is when the first row is asked for.
        """
        # no row is named as a bare prefix, so the one after it bounds a scan backwards
        start = prefix[:-1] + bytes([prefix[-1] + 1]) if backwards else prefix + from_
        size, stop = len(prefix), None if to is None else prefix + to
        rows: Any = self._db.items(backwards=backwards, from_key=start)
        for key, row in rows:
            if not key.startswith(prefix) or (stop is not None and key >= stop):
                return
            yield key[size:], row

    def compact(self) -> None:
        self._db.compact_range(None, None)

    def close(self) -> None:
        """Close the database and remove its directory. May be called twice."""
        if self._remove.alive:
            self._db.close()
            self._remove()


def slot_key(slot: int, tag: bytes = b"", rest: bytes = b"") -> bytes:
    return _LONG.pack(slot) + tag + rest
