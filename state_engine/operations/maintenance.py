"""``Maintenance``: work in the background that never disturbs micro-batches: compaction, and expiring checkpoints.

A row of ``compaction`` or ``retention`` is committed upon whatever the head is then; micro-batches re-parent over it,
and it over them. Plays the part of RocksDB's compaction under Flink's backend, and of Flink's checkpoint subsumption.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from state_engine.core.checkpoints.checkpoint import (
    BaseFile,
    CheckpointRow,
    DataFile,
    OperatorCheckpoint,
    PinnedCheckpoint,
    StagedSink,
)
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.compaction_policy import CompactionPolicy, compaction_due
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.retention import RetentionPolicy, plan, restore_refusal
from state_engine.core.checkpoints.state_files import position_files
from state_engine.core.checkpoints.updates import (
    AddCheckpoint,
    Expire,
    NewestIs,
    Pin,
    SetOperators,
    SettleTable,
    StatePositions,
    Unpin,
    Update,
    continuing,
)
from state_engine.core.checkpoints.write_ids import WriteAttempt
from state_engine.core.errors import ConfigurationError, StaleParentError
from state_engine.core.keys.key_groups import KeyGroupRange, remaining
from state_engine.job.job_tables import JobTables
from state_engine.microbatch.reports import CompactionReport
from state_engine.operations.changed_groups import groups_to_write
from state_engine.operations.compaction import compacted, write_base
from state_engine.sources.source_positions import SourcePositions
from state_engine.state_tables.states import published_on
from state_engine.storage.state.located_files import state_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Updates = Callable[[CheckpointRow, History], Sequence[Update] | None]
"""What is to be committed, planned from a row that changes nothing yet; None where there is nothing left to do."""


@dataclass(frozen=True)
class _NewBase:
    """A base that is written and not in force yet.

    Attributes:
        expired: files with the entries of published states that it leaves out.
    """

    files: list[BaseFile]
    expired: list[DataFile]
    key_groups: list[KeyGroupRange]
    unchanged: list[KeyGroupRange]

    def in_force(
        self, operator: OperatorCheckpoint, base_id: str, compacted_row: CheckpointRow
    ) -> OperatorCheckpoint:
        before = compacted_row.operator(operator.uid)
        assert before is not None
        return compacted(
            operator,
            self.files,
            base_id=base_id,
            checkpoint_id=compacted_row.checkpoint_id,
            max_parallelism=before.max_parallelism,
            expired=self.expired,
            key_groups=self.key_groups if operator.max_parallelism == before.max_parallelism else None,
            unchanged=self.unchanged,
        )


class Maintenance:
    """Background work on one job.

    Args:
        position_files: a compaction states the positions of sources whole where they are in so many files.
    """

    def __init__(
        self,
        job: str,
        *,
        tables: JobTables,
        positions: SourcePositions,
        spark: SparkSession,
        requested_by: str = "",
        position_files: int = 16,
    ) -> None:
        self._job, self._tables, self._positions = job, tables, positions
        self._spark, self._requested_by = spark, requested_by
        self._position_files = position_files

    # -- compaction ------------------------------------------------------------------------------------------------

    def compact(
        self,
        operators: Collection[str] | None = None,
        *,
        policy: CompactionPolicy | None = None,
        full: bool = False,
        dry_run: bool = False,
    ) -> CompactionReport:
        """Fold the state of operators at the head into new bases; see ``StateEngine.compact``.

        Args:
            policy: pass over the operators that it sees no reason for; None to fold all that changed.
        """
        history, head = self._head()
        path = history.path(head.checkpoint_id)
        if dry_run:
            chosen = self._chosen(path, operators, policy)
            groups = {o.uid: sum(map(len, self._groups(path, o, full=full))) for o in chosen}
            due = {uid: n for uid, n in groups.items() if n}
            return CompactionReport(head.checkpoint_id, None, entries={}, bytes={}, key_groups=due)
        base_id = self._tables.clock.attempt().write_id
        written = {
            o.uid: base
            for o in self._chosen(path, operators, policy)
            if (base := self._write(path, o, base_id, full=full)) is not None
        }
        done = CompactionReport(
            checkpoint_id=head.checkpoint_id,
            committed_id=None,
            entries={uid: sum(f.rows for f in base.files) for uid, base in written.items()},
            bytes={uid: sum(f.bytes for f in base.files) for uid, base in written.items()},
            key_groups={uid: sum(map(len, base.key_groups)) for uid, base in written.items()},
        )
        if not written and len(position_files(path)) < self._position_files:
            return done
        tries = count()

        def updates(row: CheckpointRow, history: History) -> list[Update] | None:
            bases = SetOperators(
                [written[o.uid].in_force(o, base_id, head) for o in row.operators if o.uid in written]
            )
            if not history.may_apply_compaction(head.checkpoint_id, bases.applied(row)):
                return None
            path = history.path(row.parent_id)
            return [bases, *self._positions_of(row, path, attempt=next(tries))]

        committed = self._commit(CheckpointKind.COMPACTION, updates, write_id=base_id)
        return replace(done, committed_id=committed.checkpoint_id if committed else None)

    def _positions_of(
        self, row: CheckpointRow, path: Sequence[CheckpointRow], *, attempt: int
    ) -> list[Update]:
        """The positions of all sources at the end of the path of a row's parent, where they are in many files."""
        if len(position_files(path)) < self._position_files:
            return []
        elements = {source.name: self._positions.elements(path, source.name) for source in row.sources}
        file = self._positions.write(row.write_id, elements, attempt=attempt)
        refs = [
            replace(ref, write_id=row.write_id, elements=len(elements[ref.operator]))
            if ref.operator in elements
            else ref
            for ref in row.operator_state
        ]
        self._tables.list_operator_state([file], row.write_id)
        return [StatePositions(refs, file)]

    def _chosen(
        self,
        path: Sequence[CheckpointRow],
        operators: Collection[str] | None,
        policy: CompactionPolicy | None,
    ) -> list[OperatorCheckpoint]:
        known = {o.uid: o for o in path[-1].operators}
        unknown = sorted(set(operators or ()) - set(known))
        if unknown:
            raise ConfigurationError(
                f"job '{self._job}': there is no keyed state of operators {unknown}; there is of {sorted(known)}"
            )
        chosen = [o for uid, o in known.items() if operators is None or uid in operators]
        if policy is not None:
            due = compaction_due(path, policy).reasons
            chosen = [o for o in chosen if o.uid in due]
        return chosen

    def _write(
        self, path: Sequence[CheckpointRow], operator: OperatorCheckpoint, base_id: str, *, full: bool
    ) -> _NewBase | None:
        """Write and list the files of a base, which nobody reads before a row names it; None where none is needed."""
        uid, layout = operator.uid, self._tables.layout
        everything = KeyGroupRange(0, operator.max_parallelism - 1)
        groups = self._groups(path, operator, full=full)
        if not groups:
            return None
        written = write_base(
            self._spark,
            layout,
            path,
            uid,
            base_id=base_id,
            key_groups=groups,
            listing=[one.state for one in published_on(path) if one.operator == uid],
        )
        self._tables.list_base(operator, written.files, base_id)
        if written.expired:
            of_operator = uid, operator.key_schema, operator.states
            self._tables.list_changes(*of_operator, written.expired, base_id)
        return _NewBase(written.files, written.expired, groups, list(remaining(everything, groups)))

    def _groups(
        self, path: Sequence[CheckpointRow], operator: OperatorCheckpoint, *, full: bool
    ) -> list[KeyGroupRange]:
        """The key groups of which a base is to be written."""
        if full:
            return [KeyGroupRange(0, operator.max_parallelism - 1)]
        return groups_to_write(path, operator, state_files(self._tables.layout, path, operator.uid))

    # -- retention -------------------------------------------------------------------------------------------------

    def expire_checkpoints(
        self, policy: RetentionPolicy, *, drop_branches: Collection[str] = (), dry_run: bool = False
    ) -> list[int]:
        """Give up the checkpoints that a policy does not keep; their ids. See ``StateEngine.expire_checkpoints``."""

        def planned(history: History) -> list[int]:
            now_ms = self._tables.clock.now_ms()
            return list(plan(history, policy, now_ms=now_ms, drop_branches=drop_branches).expired)

        if dry_run:
            return planned(self._head()[0])
        row = self._commit(
            CheckpointKind.RETENTION,
            lambda row, rows: [Expire(ids)] if (ids := planned(rows)) else None,
        )
        return row.retired if row else []

    def pin(self, name: str, *, path: str, checkpoint_id: int | None = None) -> CheckpointRow:
        """Keep a checkpoint, the head by default, restorable until ``unpin``; the checkpoint's row."""

        def updates(row: CheckpointRow, history: History) -> list[Update]:
            wanted = row.parent_id if checkpoint_id is None else checkpoint_id
            assert wanted is not None
            refusal = restore_refusal(history, wanted)
            if name in history.pins:
                refusal = f"savepoint '{name}' already exists: delete it, or choose another name"
            if refusal is not None:
                raise ConfigurationError(f"job '{self._job}': {refusal}")
            return [Pin(PinnedCheckpoint(name, wanted, path))]

        row = self._commit(CheckpointKind.RETENTION, updates)
        assert row is not None
        return self._tables.log.history[row.pinned[0].checkpoint_id]

    def unpin(self, name: str) -> None:
        """Let retention have a savepoint's checkpoint."""
        self._commit(
            CheckpointKind.RETENTION,
            lambda row, rows: [Unpin(name)] if name in rows.pins else None,
        )

    def settle_table(self, table: StagedSink) -> CheckpointRow:
        """Record that a published table was rebuilt, or accepted as others left it; the row that says so."""
        row = self._commit(CheckpointKind.RETENTION, lambda *_: [SettleTable(table)])
        assert row is not None
        return row

    def fence(self) -> None:
        """Commit a row that changes nothing: an attempt that is about to commit finds its id taken, and looks again."""
        self._commit(CheckpointKind.RETENTION, lambda *_: [])

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _head(self) -> tuple[History, CheckpointRow]:
        history = self._tables.log.load()
        head = history.head
        if head is None:
            raise ConfigurationError(f"job '{self._job}' has no checkpoint yet: run it first")
        return history, head

    def _commit(
        self, kind: CheckpointKind, updates: Updates, *, write_id: str | None = None
    ) -> CheckpointRow | None:
        """Commit a row on the head, whatever that is by then."""
        name = write_id or self._tables.clock.attempt().write_id
        while True:
            history, head = self._head()
            attempt = WriteAttempt(name, self._tables.clock.now())
            row = continuing(head, kind, history.next_id, attempt, requested_by=self._requested_by)
            planned = updates(row, history)
            if planned is None:
                return None
            with suppress(StaleParentError):  # planned anew for what is there now
                return self._tables.log.commit([AddCheckpoint(row), *planned], NewestIs(history.newest_id))
