"""Log checkpoints that are whole, or not there.

Kernel 4.4 reads the log while it writes the log checkpoint. Where the reading fails it closes the file, and a closed
file is a visible one: it lacks what was not read, and whoever reads the table by it misses files, or cannot read the
table at all. Here everything is read before the file is begun. Decision 0051.
"""

from __future__ import annotations

from typing import Any

from state_engine.storage.delta.kernel_classes import KernelClasses


def write_log_checkpoint(classes: KernelClasses, engine: Any, uri: str, version: int) -> None:
    """Write the log checkpoint of a version, and the hint at it."""
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
