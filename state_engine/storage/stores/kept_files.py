"""``KeptFiles``: little files that this process has read, kept for micro-batches that read them again.

A worker runs one micro-batch after the other, and each of them reads the files of its path, which never change. To open
and decode a little file takes a hundred times as long as to look whether it is still there, and no more is done where
it is kept. One that is gone, or that has another size or time of change, is opened and checked again, and is the same
error as ever. Plays the part of RocksDB's table cache and block cache under Flink's backend.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from threading import RLock

from state_engine.storage.stores.files import open_location
from state_engine.storage.stores.parquet_reading import OpenParquet

_UNUSED_S = 600.0
"""A file that was used in the last ten minutes makes no room for another one."""

_Stamp = tuple[int, int]
"""Size in bytes, and time of last change in nanoseconds."""


@dataclass
class _Kept:
    """A file that is open, how it was when it was opened, and when it was last used."""

    file: OpenParquet
    stamp: _Stamp
    used_s: float


class KeptFiles:
    """See the module docstring. May be used by several threads.

    Args:
        max_bytes: of all files that a process keeps, decoded.
        largest_bytes: decoded size of the largest file that is kept.
    """

    def __init__(self, max_bytes: int = 64 << 20, largest_bytes: int = 1 << 20) -> None:
        self._max_bytes, self._largest_bytes, self._lock = max_bytes, largest_bytes, RLock()
        self._files: dict[tuple[str, tuple[str, ...]], _Kept] = {}

    def opened(self, uri: str, coded: Collection[str], opening: Callable[[], OpenParquet]) -> OpenParquet:
        """A file, as it was opened before if it is the same one.

        Raises:
            FileNotFoundError: it is gone.
        """
        key, stamp, now_s = (uri, tuple(coded)), _stamp_of(uri), time.monotonic()
        kept = self._files.get(key)
        if kept is not None and kept.stamp == stamp:
            kept.used_s = now_s
            return kept.file
        file = opening()
        if file.decoded_bytes(range(file.row_groups)) <= self._largest_bytes:
            with self._lock:
                self._files.pop(key, None)
                if self._has_room(stamp[0], now_s):
                    file.keep_rows(self._may_keep)
                    self._files[key] = _Kept(file, stamp, now_s)
        return file

    def _has_room(self, size: int, now_s: float) -> bool:
        """Whether another file may be kept, once those have gone that nobody uses."""
        if self.bytes + size > self._max_bytes:
            self._files = {key: one for key, one in self._files.items() if now_s - one.used_s < _UNUSED_S}
        return self.bytes + size <= self._max_bytes

    def _may_keep(self, decoded: int) -> bool:
        """Whether rows of a file that is kept may be, too."""
        with self._lock:  # a file asks as it is read, while other threads open theirs
            return decoded <= self._largest_bytes and self.bytes + decoded <= self._max_bytes

    @property
    def bytes(self) -> int:
        with self._lock:
            return sum(one.stamp[0] + one.file.kept_bytes for one in self._files.values())

    def keep_only(self, uris: Collection[str], *, below: Collection[str]) -> None:
        """Let go of the files in some directories but for those that are named."""
        starts = tuple(f"{directory}/" for directory in below)
        with self._lock:
            for key in [k for k in self._files if k[0] not in uris and k[0].startswith(starts)]:
                del self._files[key]


PROCESS_CACHE = KeptFiles()


def _stamp_of(uri: str) -> _Stamp:
    info = open_location(uri).info()  # without size and time where it is gone, which opening it says
    return int(info.size or 0), int(info.mtime_ns or 0)
