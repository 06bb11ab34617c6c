"""Dead letters: rows that were refused, published like a sink, into the job's own table.

One row a refused input row: operator, subtask, key, where it came from, the error with its traceback, and the row
itself as text. Partitioned by the attempt that refused it; visible only once that attempt's checkpoint is committed.
"""

from __future__ import annotations

from state_engine.backends.delta.kernel import DeltaKernel
from state_engine.core.checkpoint import StagedSink
from state_engine.runtime.job_tables import JobTables
from state_engine.runtime.sinks.base import Publisher
from state_engine.runtime.sinks.delta import add_once, check_published

DEAD_LETTERS = "dead_letters"
"""Name and kind of the sink that a checkpoint records for them; no user sink may have it."""


class DeadLetterPublisher(Publisher):
    """Publishes to the table of dead letters; the identity of what is staged is its ``write_id``."""

    def __init__(self, kernel: DeltaKernel, tables: JobTables) -> None:
        self._kernel, self._tables = kernel, tables

    def seen(self, uri: str, app: str) -> int:
        return self._kernel.latest_transaction(uri, app) or 0

    def publish(self, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        self._tables.ensure_dead_letters()
        partition = {"write_id": staged.identity}
        if self.seen(staged.path, app) < checkpoint_id and add_once(
            self._kernel, staged, app, checkpoint_id, partition=partition
        ):
            return
        check_published(self._kernel, staged, app, checkpoint_id)
