"""An OS lock around every commit to a Delta table on a local file system.

Delta's local log store is not safe between processes, nor between threads of one JVM: two commits of one version can
both succeed and corrupt the log. ``flock`` is released by the kernel when its holder dies, so no lock outlives a
crash. The lock file lies inside the table (a hidden name that no reader and no VACUUM looks at), so every process that
sees the table sees the lock. A table that is removed and made again while somebody waits has another lock file: a lock
counts only if its file is still the one at the path. Object stores need none: their log store has put-if-absent.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from state_engine.core.errors import LockTimeoutError
from state_engine.storage.stores.failures import storage_errors
from state_engine.storage.stores.files import is_local, local_path

LOCK_FILE = ".statelake.lock"
_POLL_S = 0.005


@contextmanager
def table_lock(uri: str, *, timeout_s: float = 60.0) -> Iterator[None]:
    """Hold the lock of a table; a no-op where the table is not on a local file system."""
    if not is_local(uri):
        yield
        return
    handle = _locked(uri, timeout_s)
    try:
        with suppress(OSError):  # it only shows others who holds the lock, and the disk may be full
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(_me()).encode(), 0)
        yield
    finally:
        os.close(handle)  # closing the only descriptor releases the lock


def _locked(uri: str, timeout_s: float) -> int:
    """A descriptor that holds the lock of what is at the path now."""
    directory, deadline = local_path(uri), time.monotonic() + timeout_s
    while True:
        try:
            with storage_errors(str(directory), "locked"):
                directory.mkdir(parents=True, exist_ok=True)
                handle = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # removed in between
            continue
        try:
            _acquire(handle, uri, deadline=deadline, timeout_s=timeout_s)
            if _is_at(directory / LOCK_FILE, handle):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _is_at(path: Path, handle: int) -> bool:
    """Whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


def _acquire(handle: int, uri: str, *, deadline: float, timeout_s: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holder = os.pread(handle, 4096, 0).decode(errors="replace") or "unknown"
                raise LockTimeoutError(
                    f"the lock of table {uri} was not free within {timeout_s:g} s; held by {holder}. "
                    "If that process hangs, stop it: the lock is released when it ends"
                ) from None
            time.sleep(_POLL_S)


def _me() -> dict[str, object]:
    return {"pid": os.getpid(), "host": socket.gethostname(), "thread": threading.current_thread().name,
            "since": time.strftime("%Y-%m-%dT%H:%M:%S%z")}  # fmt: skip
