"""``committed_rows``: the rows of one job as they are now, read without Spark or Java, and without writing anything."""

from __future__ import annotations

from dataclasses import dataclass

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.storage.checkpoint_files import read_checkpoints
from state_engine.storage.checkpoint_log import check_owner
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.layout import JobLayout
from state_engine.storage.root import open_root
from state_engine.storage.stores.files import normal_uri


@dataclass(frozen=True)
class CommittedRows:
    """All rows of a job, in the order of their ids."""

    layout: JobLayout
    root_id: str
    rows: list[CheckpointRow]


def committed_rows(root: str, job: str) -> CommittedRows | None:
    """The rows of a job; None where it never ran there. Raises RootError where they are another one's."""
    uri = normal_uri(root)
    root_id, layout = open_root(uri, create=False), JobLayout(uri, job)
    log = DeltaLog(layout.checkpoints).newest() if root_id is not None else None
    if root_id is None or log is None:
        return None
    check_owner(log.properties, layout.checkpoints, job=job, root_id=root_id)
    rows = read_checkpoints(layout.checkpoints, log.files)
    return CommittedRows(layout, root_id, sorted(rows, key=lambda row: row.checkpoint_id))
