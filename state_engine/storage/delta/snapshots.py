"""``Snapshots``: the newest snapshot of each table, kept for as long as it is the newest.

Kernel reads the end of a log for every snapshot: two milliseconds on a disk, four requests on an object store. Whether
that is needed, the names in the log tell: the snapshot of a version is the newest one while the entry of that version
is the very file that it was, there is none of the next version, and the newest log checkpoint is the same. On a disk
that is three calls, on a store one list.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError

from state_engine.storage.delta.commit_ends import class_name, reading_log
from state_engine.storage.delta.kernel_classes import KernelClasses
from state_engine.storage.delta.kernel_engines import KernelEngines
from state_engine.storage.delta.log_names import HINT, commit_name
from state_engine.storage.delta.log_tail import mend_log
from state_engine.storage.stores.files import is_local, join, local_path, open_location

LogFile = tuple[int, int, int]
"""By what a file differs from another one at its path: inode (0 on a store), time of last change, size in bytes.

The time is in nanoseconds on a disk, in seconds on a store, which may say more in a list than of a single file.
"""


LogEntry = tuple[int, LogFile]
"""An entry of a log: its version, and its file."""


@dataclass(frozen=True)
class _Kept:
    """A snapshot, and the files of the log by which it is known to be the newest.

    Attributes:
        hint: at the newest log checkpoint; with another one, files that the snapshot reads may be gone.
    """

    snapshot: Any
    version: int
    entry: LogFile
    hint: LogFile | None

    def is_newest(self, log: _Names) -> bool:
        return (
            self.hint == log.file(HINT)
            and self.entry == log.file(commit_name(self.version))
            and log.file(commit_name(self.version + 1)) is None
        )


class Snapshots:
    """See the module docstring.

    Args:
        lock_timeout_s: how long mending a log that a power cut left waits for the table's lock.
    """

    def __init__(self, classes: KernelClasses, engines: KernelEngines, *, lock_timeout_s: float) -> None:
        self._classes, self._engines, self._lock_timeout_s = classes, engines, lock_timeout_s
        self._seen: set[str] = set()
        self._kept: dict[str, _Kept] = {}

    def newest(self, uri: str) -> Any | None:
        """The newest snapshot of a table; None where there is no table."""
        log = _names_of(uri)
        kept = self._kept.get(uri)
        if kept is not None and kept.is_newest(log):
            return kept.snapshot
        hint = log.file(HINT)  # before Kernel reads the log: it may change meanwhile
        snapshot = self._read(uri, log)
        self._keep(uri, snapshot, hint)
        return snapshot

    def entry(self, uri: str, version: int) -> LogEntry | None:
        """The entry of the snapshot that is kept; None where that is of another version, or none is."""
        kept = self._kept.get(uri)
        return (version, kept.entry) if kept is not None and kept.version == version else None

    def committed(self, uri: str, before: Any, result: Any) -> None:
        """Keep the snapshot that a commit made of the one before; none where another commit came first."""
        kept, after = self._kept.get(uri), result.getPostCommitSnapshot()
        if kept is not None and kept.snapshot is before and after.isPresent():
            self._keep(uri, after.get(), kept.hint)

    def forget(self, uri: str) -> None:
        """Have the next look read the log.

        A snapshot without a checksum hands that on to those that commits make of it, and Kernel reads the whole table
        after each of them; the log has the checksum by now.
        """
        self._kept.pop(uri, None)

    def _keep(self, uri: str, snapshot: Any | None, hint: LogFile | None) -> None:
        self._kept.pop(uri, None)
        if snapshot is None:
            return
        version = int(snapshot.getVersion())
        entry = _names_of(uri).file(commit_name(version)) if is_local(uri) else _entry_on_a_store(snapshot)
        if entry is not None:
            self._kept[uri] = _Kept(snapshot, version, entry, hint)

    def _read(self, uri: str, log: _Names) -> Any | None:
        if uri not in self._seen:  # cheaper than a Java exception where there is nothing
            if not log.exists():
                return None
            mend_log(uri, lock_timeout_s=self._lock_timeout_s)
            self._seen.add(uri)
        with reading_log(uri):
            try:
                engine = self._engines.of(uri)
                return self._classes.table.forPath(engine, uri).getLatestSnapshot(engine)
            except Py4JJavaError as error:
                if class_name(error) == "TableNotFoundException":
                    return None
                raise


@dataclass(frozen=True)
class _NamesOnDisk:
    log: Path

    def exists(self) -> bool:
        return self.log.is_dir()

    def file(self, name: str) -> LogFile | None:
        try:
            info = os.stat(self.log / name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return info.st_ino, info.st_mtime_ns, info.st_size


@dataclass(frozen=True)
class _NamesInStore:
    """The names in a log as one list gave them."""

    files: Mapping[str, LogFile]

    def exists(self) -> bool:
        return bool(self.files)

    def file(self, name: str) -> LogFile | None:
        return self.files.get(name)


_Names = _NamesOnDisk | _NamesInStore


def _names_of(uri: str) -> _Names:
    if is_local(uri):
        return _NamesOnDisk(local_path(uri) / "_delta_log")
    infos = open_location(join(uri, "_delta_log")).listing(missing_ok=True)
    return _NamesInStore(
        {one.base_name: (0, int(one.mtime_ns or 0) // 10**9, int(one.size or 0)) for one in infos}
    )


def _entry_on_a_store(snapshot: Any) -> LogFile | None:
    """The entry of a snapshot's version, as Kernel saw it; None where it reads a log checkpoint in its place."""
    entries = snapshot.getLogSegment().getDeltas()
    if entries.isEmpty():
        return None
    status = entries.get(entries.size() - 1)
    return 0, int(status.getModificationTime()) // 1000, int(status.getSize())
