"""``StoreClock``: the time of the storage itself, by which the collector and attempts measure ages.

Runners' clocks may be days apart, or jump; the storage has one, and every file bears its time. It is asked by writing a
small file below the root and reading when it was written: once a process, and again after a while; in between, the
machine's steady counter says what has passed. So ``now_ms`` is never ahead of the storage, and behind it only by what
the counter did not see, as while a machine was frozen. Whoever rests on it errs towards an attempt that is too old, and
a file that is too young to be deleted. Flink has no counterpart: its files are deleted by whoever counts references.
Decision 0028.
"""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from uuid import uuid4

import pyarrow.fs as pafs

from state_engine.core.checkpoints.write_ids import WriteAttempt, write_id_at
from state_engine.storage.stores.files import is_local, join, local_path, open_location

PROBE = "_statelake_time-"
"""Begins the name of the file; readers of tables and directories leave out what begins so."""

_ASK_AGAIN_NS = 600 * 1_000_000_000
# counts while the machine is suspended, too, where the system has it
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class StoreClock:
    """The time of the storage of a directory.

    Args:
        uri: of the directory; made where there is none when the time is asked for.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._known: tuple[int, int] | None = None

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        passed = 0 if self._known is None else _steady_ns() - self._known[1]
        if self._known is None or passed > _ASK_AGAIN_NS:
            self._known, passed = (self._ask(), _steady_ns()), 0
        return self._known[0] + passed // 1_000_000

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def saw(self, written_ms: int) -> None:
        """A file that was written since the clock was asked: it may be slow, if its machine stood still."""
        if written_ms > self.now_ms():
            self._known = written_ms, _steady_ns()

    def attempt(self) -> WriteAttempt:
        now_ms = self.now_ms()
        return WriteAttempt(write_id_at(now_ms, uuid4().int), datetime.fromtimestamp(now_ms / 1000, UTC))

    def _ask(self) -> int:
        if is_local(self._uri):
            os.makedirs(local_path(self._uri), exist_ok=True)
        at = open_location(
            join(self._uri, PROBE + uuid4().hex)
        )  # nobody else's, who might not let us write it
        with at.fs.open_output_stream(at.path) as stream:
            stream.write(b"t")
        time_ms = written_ms(at.info())
        at.fs.delete_file(at.path)
        return time_ms


def written_ms(info: pafs.FileInfo) -> int:
    """When a file was last written, by the time of its storage; milliseconds since 1970."""
    if info.mtime_ns is None:
        return time.time_ns() // 1_000_000  # as young as can be: nothing of it is deleted
    return int(info.mtime_ns) // 1_000_000


def same_store(one: str, other: str) -> bool:
    """Whether two directories are on storage with one clock: one bucket or server, or one local file system."""
    if is_local(one) and is_local(other):
        try:
            return os.stat(local_path(one)).st_dev == os.stat(local_path(other)).st_dev
        except FileNotFoundError:
            return False
    return one.split("/", 3)[:3] == other.split("/", 3)[:3]


def _steady_ns() -> int:
    return time.clock_gettime_ns(_STEADY)
