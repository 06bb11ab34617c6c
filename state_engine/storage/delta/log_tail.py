"""The end of a Delta log on a local file system, after a power cut: noticed before the table is used, and mended.

Without ``fsync`` the newest entry of a log may come back empty or cut, and then no reader can open the table. Such an
entry counts as not committed: under the table's lock it is moved aside, under a name that no reader looks at. Only the
newest can be in that state, as whoever commits syncs the entry before his first (see ``LogDurability``).

The data files of what Spark commits for a sink are synced afterwards. So such an entry counts as not committed, too,
where one of them is not there or not whole. A log checkpoint that is not whole is moved aside as well, where the
entries that it stands for are there: it is a shortcut. So are checksums that Hadoop keeps beside a file at the end of
the log, if they are cut, or if their file is gone: it would read neither that file nor the next one of its name.
Decision 0025.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from uuid import uuid4

from state_engine.core.errors import CommitFailedError
from state_engine.storage.delta.log import LogCommit, is_whole
from state_engine.storage.delta.log_names import COMMIT, HINT, commit_name, log_checkpoints, version_of
from state_engine.storage.stores.durability import Durability, sync_directories, sync_files
from state_engine.storage.stores.failures import storage_errors
from state_engine.storage.stores.files import Location, is_local, join, local_path, open_location
from state_engine.storage.stores.locks import table_lock

SYNCED_AFTERWARDS = "statelake "
"""Begins the note of a commit that Spark makes for a sink, which syncs the data files when it is done."""

_LOG = logging.getLogger(__name__)
_ENDS = b"PAR1"
_BLOCK_BYTES, _CHECKSUM_HEADER_BYTES = 512, 8
"""Of the files in which Hadoop's local file system keeps checksums."""


def mend_log(uri: str, *, lock_timeout_s: float = 60.0) -> list[str]:
    """Move aside what a power cut left of the newest entry of a local table's log; names of what was moved."""
    if not is_local(uri) or not _damaged(uri):
        return []
    moved = []
    with table_lock(uri, timeout_s=lock_timeout_s):
        log = open_location(join(uri, "_delta_log"))
        for name in _damaged(uri):  # looked at again, now that nobody writes
            aside = f".{name}.cut-{uuid4().hex}"
            log.inside(name).move(join(log.path, aside))
            moved.append(aside)
            _LOG.warning(
                "table %s: %s, or what it stands for, was empty, cut or gone, as a power cut leaves what was not "
                "synced; it counts as not written and is kept as %s",
                uri, name, aside,
            )  # fmt: skip
        sync_directories([log.path], below=log.path)
    return moved


def _damaged(uri: str) -> list[str]:
    """Names of the files at the end of a log that are not whole after a power cut, or belong to what is not."""
    log = open_location(join(uri, "_delta_log"))
    names = set(log.names(missing_ok=True))
    commits = sorted(name for name in names if COMMIT.fullmatch(name))
    damaged = []
    if commits and not _is_committed(uri, log.inside(commits[-1]).read()):
        damaged.append(commits.pop())
    shortcuts = log_checkpoints(names)
    newest_version = max([int(name[:20]) for name in commits[-1:]] + list(shortcuts), default=-1)
    # checksums of versions that are not there: no reader opens such a table
    damaged += sorted(n for n in names if n.endswith(".crc") and _version(n) > newest_version)
    if shortcuts:
        newest = max(shortcuts)
        cut = [part for part in shortcuts[newest] if not _is_parquet(f"{log.path}/{part}")]
        if cut and _replaceable(newest, {v for v in shortcuts if v < newest}, set(commits)):
            damaged += cut
    if HINT in names and not is_whole(log.inside(HINT).read()):
        damaged.append(HINT)
    whole = names - set(damaged)
    at_the_end = {n for n in whole if version_of(n) == newest_version} | ({HINT} & whole)
    damaged += sorted(_checksum_of(n) for n in at_the_end if _has_cut_checksum(log, n, names))
    return damaged + sorted(n for n in names if _is_left_over(n, whole, since=newest_version))


def _is_committed(uri: str, entry: bytes) -> bool:
    """Whether the newest entry of a log is whole, and so are the files that Spark wrote for it."""
    if not is_whole(entry):
        return False
    if SYNCED_AFTERWARDS.encode() not in entry:  # nearly always
        return True
    commit, at = LogCommit.of_bytes(entry), local_path(uri)
    return not commit.note.startswith(SYNCED_AFTERWARDS) or all(
        "://" in path or _has_size(at / path, size) for path, size in commit.sizes.items()
    )


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return False


def _is_parquet(path: str) -> bool:
    with storage_errors(path, "read"), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < 12:
            return False
        file.seek(-4, os.SEEK_END)
        return file.read() == _ENDS


def _checksum_of(name: str) -> str:
    """The file in which Hadoop keeps the checksums of another one."""
    return f".{name}.crc"


def _is_left_over(name: str, whole: Collection[str], *, since: int) -> bool:
    """Whether Hadoop keeps checksums under a name for a file of a version that is not there: for any file to come."""
    if not (name.startswith(".") and name.endswith(".crc")):
        return False
    of = name.removeprefix(".").removesuffix(".crc")
    return of not in whole and (of == HINT or _version(of) >= max(since, 0))


def _version(name: str) -> int:
    """The version that a file belongs to; -1 for none."""
    version = version_of(name)
    return -1 if version is None else version


def _has_cut_checksum(log: Location, name: str, names: Collection[str]) -> bool:
    """Whether the checksums of a file are fewer than it has blocks: Hadoop would not read it."""
    if _checksum_of(name) not in names:
        return False
    size, checksum_size = log.inside(name).info().size, log.inside(_checksum_of(name)).info().size
    return None not in (size, checksum_size) and checksum_size != _CHECKSUM_HEADER_BYTES + 4 * -(
        -size // _BLOCK_BYTES
    )


def _replaceable(version: int, older: Collection[int], commits: Collection[str]) -> bool:
    """Whether the entries that a log checkpoint stands for are there, all since the one before it."""
    return all(commit_name(v) in commits for v in range(max(older, default=-1) + 1, version + 1))


class LogDurability:
    """Syncs what commits through Kernel write to local tables, in the order that a power cut cannot break.

    Before a commit: the data files that it lists, and the entry before its own, whoever wrote it. After it: its own.
    So at any time the newest entry alone may be lost, and every entry that is there lists files that are there.
    """

    def __init__(self, durability: Durability) -> None:
        self.durability: Durability = durability
        self._synced: dict[str, int] = {}

    def files(self, uri: str, paths: Collection[str], *, by_hadoop: bool = False) -> None:
        """Sync files of a table, and the directories that name them.

        Args:
            by_hadoop: whether they are committed, and Hadoop wrote them: they are synced with their checksums, and
                those that somebody removed since are passed over.

        Raises:
            CommitFailedError: one of them is not there any more.
        """
        if not self._applies(uri) or not paths:
            return
        at = local_path(uri)
        data_files = [f"{at}/{path}" for path in paths]
        if by_hadoop:
            data_files = with_checksums(file for file in data_files if os.path.exists(file))
        try:
            sync_files(data_files, below=str(at))
        except FileNotFoundError as error:
            raise CommitFailedError(
                f"table {uri}: {error.filename}, which was written for this commit, is gone: somebody "
                "deleted it, or it is so old that a collection took it for an orphan. Nothing was committed; run again"
            ) from error

    def entry(self, uri: str, version: int, *, since: int | None = None) -> None:
        """Sync an entry of a table's log, unless this process did, and those that others wrote ``since`` another."""
        synced = self._synced.get(uri, -1)
        if not self._applies(uri) or version < 0 or synced >= version:
            return
        log = local_path(uri) / "_delta_log"
        first = version if since is None else max(since, synced) + 1
        paths = [log / commit_name(v) for v in range(first, version + 1)]
        # for one that was cleaned up a log checkpoint stands
        sync_files(with_checksums(map(str, paths)), below=str(log.parent), missing_ok=True)
        self._synced[uri] = version

    def shortcuts(self, uri: str) -> None:
        """Sync the log checkpoints, before entries that they stand for may go."""
        if self._applies(uri):
            log = local_path(uri) / "_delta_log"
            files = sorted(log.glob("*.checkpoint*.parquet"))[-1:] + [p for p in [log / HINT] if p.exists()]
            sync_files(with_checksums(map(str, files)), below=str(log))

    def _applies(self, uri: str) -> bool:
        return self.durability == "sync" and is_local(uri)


def with_checksums(files: Iterable[str]) -> list[str]:
    """Local files that Hadoop wrote, and those in which it keeps their checksums, for one that is cut is an error, too.

    Example:
        >>> with_checksums(["/nowhere/_delta_log/00000000000000000000.json"])
        ['/nowhere/_delta_log/00000000000000000000.json']
    """
    paths = list(files)
    beside = (os.path.join(os.path.dirname(path), _checksum_of(os.path.basename(path))) for path in paths)
    return [*paths, *(path for path in beside if os.path.exists(path))]
