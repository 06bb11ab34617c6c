"""Log checkpoints of a Delta table, and what cleans up its log after one, as Delta's Spark writers do.

Kernel 4.4 never gets that far after a commit (its hook loads the snapshot by version, for which it cleans nothing),
and leaves checksums in any case. The log of a local table is listed whole for each snapshot (20 µs a file), so what
piles up there slows every micro-batch down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from state_engine.storage.delta.kernel_classes import KernelClasses
from state_engine.storage.delta.log_names import log_checkpoints, version_of
from state_engine.storage.stores import store_clock
from state_engine.storage.stores.files import join, open_location

Delete = Callable[[str, Sequence[str]], None]
"""Deletes files of a directory; another process may have been faster."""


def clean_log(uri: str, *, keep_ms: int, delete: Delete | None = None) -> int:
    """Delete what readers of the newest version, and of those since a time, do not need; returns how many files.

    Every version since the newest log checkpoint that was whole before that time can still be read. Checksums, which
    are optional, go as soon as a log checkpoint is newer.

    Args:
        keep_ms: what was written so long before the newest file of the log is expired, if a log checkpoint stands for
            it. Both are times of the storage, so it does not matter what clock the caller has.
        delete: what deletes; None: one file after another, which on a store are three requests each.
    """
    log = join(uri, "_delta_log")
    at = open_location(log)
    infos = at.listing(missing_ok=True)
    written_ms = {info.base_name: store_clock.written_ms(info) for info in infos}
    before_ms = max(written_ms.values(), default=0) - keep_ms
    whole = log_checkpoints(written_ms)
    expired = [v for v, names in whole.items() if all(written_ms[name] < before_ms for name in names)]
    first, newest = max(expired, default=0), max(whole, default=0)
    old = [
        name
        for name in written_ms
        if (version := version_of(name)) is not None
        and version < (newest if name.endswith(".crc") else first)
    ]
    (delete or _delete_each)(log, old)
    return len(old)


def _delete_each(directory: str, names: Sequence[str]) -> None:
    at = open_location(directory)
    for name in names:
        with suppress(FileNotFoundError):
            at.inside(name).delete()


def write_log_checkpoint(classes: KernelClasses, engine: Any, uri: str, version: int) -> None:
    """Write the log checkpoint of a version, and the hint at it.

    Kernel 4.4 reads the log while it writes. Where the reading fails it closes the file, and a closed file is a visible
    one, by which readers miss files. Here everything is read before the file is begun. Decision 0051.
    """
    snapshot = classes.table.forPath(engine, uri).getSnapshotAsOfVersion(engine, version)
    actions, batches = snapshot.getCreateCheckpointIterator(engine), classes.list(())
    try:
        while actions.hasNext():
            batches.add(actions.next())
    finally:
        actions.close()
    log = snapshot.getLogPath()
    path = classes.file_names.checkpointFileSingular(log, version).toString()
    engine.getParquetHandler().writeParquetFileAtomically(path, classes.iterator(batches))
    hint = classes.log_checkpoint(version, actions.getNumberOfAddActions(), classes.optional.empty())
    classes.checkpointer(log).writeLastCheckpointFile(engine, hint)
