"""What outlasts a power cut: ``fsync`` of files and of the directories that name them, on local file systems.

An operating system keeps what was written in memory for a while; after a power cut a file may be empty, cut, or not
there, and a rename undone. With ``durability="sync"`` the engine waits for the disk before it goes on where order
matters: data files before the log entry that lists them, a log entry before the next one and before what it leads to.
With ``"os"`` it leaves that to the operating system. Object stores acknowledge what they keep: nothing is done there.

Whoever writes is on the same machine, so the driver can sync by path what subtasks and the JVM wrote. Decision 0025.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Literal

from state_engine.core.errors import StorageError
from state_engine.storage.stores.failures import storage_errors
from state_engine.storage.stores.in_threads import in_threads

Durability = Literal["sync", "os"]
"""``sync``: what was acknowledged outlasts a power cut; ``os``: it outlasts crashes of processes."""

_SETTLED_NS = 100_000_000
"""A directory that changed less than this ago may change again without its time of change showing it."""

_synced: dict[str, tuple[int, int]] = {}
"""Of a directory that was synced: inode and time of its last change then. It has no newer names while both stay."""

_named: dict[str, int] = {}
"""Of a directory whose name was synced: its inode."""


def fsync_path(path: str) -> None:
    """Wait until a file's content, or a directory's names, are on the disk.

    Raises:
        FileNotFoundError: there is none.
    """
    with storage_errors(path, "synced to the disk"):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system that has nothing to sync here
                raise
        finally:
            os.close(handle)


def sync_files(files: Iterable[str], *, below: str, missing_ok: bool = False) -> None:
    """Sync files side by side, then the directories that name them.

    Args:
        below: the directory that is known to outlast: of those between it and a file, any may be new. Its own name
            is synced, too, as it may have been made just before.
        missing_ok: whether files that are not there are passed over.
    """
    paths = sorted(set(files))
    _each(paths, _fsync_if_there if missing_ok else fsync_path)
    sync_directories({os.path.dirname(path) for path in paths}, below=below)


def sync_directories(directories: Iterable[str], *, below: str, missing_ok: bool = False) -> None:
    """Sync the names in directories, and their own names, up to that of ``below``; skips what did not change.

    The names of directories above ``below`` are synced when this process first comes there.

    Args:
        missing_ok: whether directories that are not there are passed over.
    """
    wanted: set[str] = set()
    top = os.path.dirname(below.rstrip("/")) or "/"
    for directory in directories:
        path = directory.rstrip("/")
        while path not in wanted and len(path) >= len(top):
            wanted.add(path)
            path = os.path.dirname(path)
    marks = {path: mark for path in wanted if (mark := _mark(path, missing_ok=missing_ok)) is not None}
    changed = {path: mark for path, mark in marks.items() if _synced.get(path) != mark}
    _each(sorted(changed.keys() - {top}), _fsync_if_there if missing_ok else fsync_path)
    if top in changed:
        with suppress(StorageError):  # above the root there may be no right to it
            fsync_path(top)
    settled = time.time_ns() - _SETTLED_NS
    for path, mark in changed.items():
        if mark[1] < settled:
            _synced[path] = mark
        else:
            _synced.pop(path, None)
    _sync_own_names(top)


def _sync_own_names(path: str) -> None:
    """Sync the name of a directory, and those of all above it: any may have been made with it. Once a process."""
    while (parent := os.path.dirname(path)) != path and _named.get(path) != (inode := _inode(path)):
        with suppress(StorageError):  # above the root there may be no right to it
            fsync_path(parent)
        _named[path] = inode
        path = parent


def forget() -> None:
    """Nothing is known to be on the disk."""
    _synced.clear()
    _named.clear()


def _mark(path: str, *, missing_ok: bool) -> tuple[int, int] | None:
    """Inode and time of the last change; None where there is none, and that may be."""
    with suppress(*([FileNotFoundError] if missing_ok else [])), storage_errors(path, "looked at"):
        status = os.stat(path)
        return status.st_ino, status.st_mtime_ns
    return None


def _inode(path: str) -> int:
    with storage_errors(path, "looked at"):
        return os.stat(path).st_ino


def _each(paths: list[str], sync: Callable[[str], None]) -> None:
    for _ in in_threads(sync, paths):
        pass


def _fsync_if_there(path: str) -> None:
    with suppress(FileNotFoundError):
        fsync_path(path)
