"""Dead letters: rows that were refused, published like a sink, into the job's own table.

One row a refused input row: operator, subtask, key, where it came from, the error with its traceback, and the row
itself as text. Partitioned by the attempt that refused it; visible only once that attempt's checkpoint is committed,
and withdrawn like outputs where the head moves to another path.
"""

from __future__ import annotations

from state_engine.core.checkpoints.checkpoint import DataFile, StagedSink
from state_engine.job.job_tables import JobTables
from state_engine.sinks.delta import (
    LogPublisher,
    change_once,
    check_active,
    check_published,
    rewritten,
)
from state_engine.storage.delta.kernel import DeltaKernel, FileGroup, InactiveFilesError
from state_engine.storage.layout import WRITE_ID


class DeadLetterPublisher(LogPublisher):
    """Publishes to the table of dead letters, each file into the partition that its path names."""

    def __init__(self, kernel: DeltaKernel, tables: JobTables) -> None:
        super().__init__(kernel)
        self._tables = tables

    def _publish(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        self._tables.ensure_dead_letters()
        if self.seen(staged.path, app) < checkpoint_id:
            try:
                if change_once(self._kernel, staged, app, checkpoint_id, _by_partition(staged)):
                    return
            except InactiveFilesError as error:
                raise rewritten(staged, error.paths) from error
        check_published(staged, app, checkpoint_id, active=self._kernel.active_files)

    def check_withdrawable(self, staged: StagedSink) -> None:
        check_active(self._kernel, staged, lineage=False)


def _by_partition(staged: StagedSink) -> list[FileGroup]:
    """A row that moves the head may bring files of several attempts."""
    groups: dict[str, list[DataFile]] = {}
    for file in staged.files:
        groups.setdefault(file.path.split("/")[0].removeprefix(f"{WRITE_ID.name}="), []).append(file)
    return [FileGroup(files, {WRITE_ID.name: write_id}) for write_id, files in groups.items()]
