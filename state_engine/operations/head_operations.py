"""``HeadOperations``: rows of ``checkpoints`` that move the head or change how the next micro-batches run.

    restore   the head goes back to an older checkpoint, and the sinks with it
    promote   the head goes on to the end of a replay, and the sinks with it
    rescale   another parallelism: one row, no byte of state is written (max parallelism: see ``max_parallelism``)

Each reads the head, publishes what it left unpublished, commits one row on it, and publishes that. A micro-batch or
another operation that commits in between makes it fail with ``StaleParentError``, and nothing has happened then. Plays
the part of Flink's ``CheckpointCoordinator.restoreSavepoint`` and of its rescale request. Decision 0033.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from state_engine.core.checkpoints.checkpoint import CheckpointRow, StagedSink
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.retention import restore_refusal
from state_engine.core.checkpoints.row_outputs import DEAD_LETTERS, with_withdrawn, without_sink
from state_engine.core.checkpoints.sink_moves import moves, newest_sinks
from state_engine.core.checkpoints.updates import AddCheckpoint, MoveHead, NewestIs, Update, continuing
from state_engine.core.checkpoints.write_ids import WriteAttempt
from state_engine.core.errors import ConfigurationError, DamagedOutputError, MissingFilesError, SinkError
from state_engine.job.job import StatefulJob
from state_engine.job.job_tables import JobTables
from state_engine.operations.outputs_policy import OutputsOfSinks, OutputsPolicy, outputs_of
from state_engine.operations.rescaling import plan_rescaling, wanted_parallelism
from state_engine.publishing.publication import Publication
from state_engine.publishing.sink_places import Declared
from state_engine.publishing.stale_outputs import stale_beside
from state_engine.state_tables.base import TableReport


@dataclass(frozen=True)
class RestoreReport:
    """What a restore or promotion does, or in a dry run would do.

    Attributes:
        kind: ``restore``, ``promote`` or ``import``.
        checkpoint_id: whose state is in force afterwards; of an import, in the job that the savepoint was taken of.
        replaced_id: the head that is left; None for an import, into a job that has none.
        abandoned: ids of the micro-batches and transforms that are no longer on the head's path, oldest first.
        sinks: per sink that changes, the files that leave it and those that come (back).
        committed_id: the row that records it; None in a dry run.
        left_alone: sinks that the code of the job no longer has, with what was not moved in them.
        tables: what tables that show states get.
    """

    kind: CheckpointKind
    checkpoint_id: int
    replaced_id: int | None
    abandoned: list[int]
    sinks: list[StagedSink]
    committed_id: int | None = None
    left_alone: list[StagedSink] = field(default_factory=list)
    tables: list[TableReport] = field(default_factory=list)

    @property
    def rows_withdrawn(self) -> dict[str, int]:
        """Output rows that leave, by sink."""
        return {s.name: sum(f.rows for f in s.withdrawn) for s in self.sinks}

    @property
    def rows_added(self) -> dict[str, int]:
        """Output rows that come (back), by sink."""
        return {s.name: s.rows for s in self.sinks}


class HeadOperations:
    """Operations on one job.

    Args:
        declared: the sinks of the job's code; None where it is not known, and every sink counts.
    """

    def __init__(
        self,
        job: str,
        *,
        tables: JobTables,
        publication: Publication,
        requested_by: str = "",
        declared: Declared = None,
    ) -> None:
        self._job, self._tables, self._publication = job, tables, publication
        self._requested_by, self._declared = requested_by, declared

    # -- moving the head -------------------------------------------------------------------------------------------

    def restore(
        self, checkpoint_id: int, *, outputs: OutputsPolicy = "withdraw", dry_run: bool = False
    ) -> RestoreReport:
        """Go back to a checkpoint of any earlier path of ``main``; see ``StateEngine.restore``."""
        with self._advising_on_sinks():
            history, head = self._published_but_for_what_is_left(checkpoint_id)
            refusal = restore_refusal(history, checkpoint_id)
            if refusal is not None:
                raise ConfigurationError(f"job '{self._job}': {refusal}")
            target = history[checkpoint_id]
            if target.branch != head.branch:
                raise ConfigurationError(
                    f"job '{self._job}': checkpoint {checkpoint_id} is of the branch '{target.branch}': promote that "
                    "branch to go on from its head"
                )
            if checkpoint_id == head.checkpoint_id:
                raise ConfigurationError(
                    f"job '{self._job}': checkpoint {checkpoint_id} is already the head: there is nothing to restore"
                )
            return self.move(CheckpointKind.RESTORE, history, head, target, outputs=outputs, dry_run=dry_run)

    def promote(
        self,
        branch: str,
        *,
        expected_head: int | None = None,
        outputs: OutputsPolicy = "withdraw",
        dry_run: bool = False,
    ) -> RestoreReport:
        """Go on from the head of a branch; see ``StateEngine.promote``."""
        with self._advising_on_sinks():
            begins = self._tables.log.load().open_branches.get(branch)
            history, head = self._published_but_for_what_is_left(begins.checkpoint_id if begins else 0)
            known = {n: r for n, r in history.open_branches.items() if n != head.branch}
            if branch not in known:
                raise ConfigurationError(
                    f"job '{self._job}': there is no branch '{branch}' to promote; open branches: {sorted(known)}"
                )
            # what compaction and retention did since changes nothing that anybody looked at
            if expected_head is not None and history.may_reparent(expected_head) != head:
                raise ConfigurationError(
                    f"job '{self._job}': the head is checkpoint {head.checkpoint_id}, not {expected_head}: look at "
                    "what came since, and replay it too or name the new head"
                )
            return self.move(
                CheckpointKind.PROMOTE, history, head, known[branch], outputs=outputs, dry_run=dry_run
            )

    @contextmanager
    def _advising_on_sinks(self) -> Iterator[None]:
        """Add the way out to errors of sinks, where nobody said which ones the code of the job has."""
        try:
            yield
        except (SinkError, MissingFilesError) as error:
            if self._declared is None:
                error.args = (
                    f"{error}. If the job no longer writes to that sink, leave it alone: leave_alone=[…] "
                    "(--leave-alone), or give the job itself",
                )
            raise

    def move(
        self,
        kind: CheckpointKind,
        history: History,
        head: CheckpointRow,
        target: CheckpointRow,
        *,
        outputs: OutputsPolicy,
        dry_run: bool = False,
        kept: Collection[int] = (),
        backfill: str = "",
    ) -> RestoreReport:
        """Make another checkpoint the one that the job goes on from: one fenced row, and one commit a sink.

        Args:
            outputs: sinks that keep theirs show old outputs beside the new ones.
            kept: checkpoints that are left, and whose outputs stay in all sinks for now.

        Raises:
            StaleParentError: something was committed in between; nothing was done.
        """
        policy = outputs_of(outputs)
        self._check_sinks(policy, history)
        tables = self._policies_of_tables(history, target, policy)
        left = history.leaving(head.checkpoint_id, target.checkpoint_id)
        way = (head.checkpoint_id, target.checkpoint_id)
        sinks, left_alone = self._of_the_code(_sinks_that_move(history, *way, policy), history)
        # what is kept now leaves later: better to know at once that it cannot
        self._publication.check_withdrawable(sinks)
        if kept:
            sinks, left_alone = self._of_the_code(_sinks_that_move(history, *way, policy, kept=kept), history)
            self._publication.check_withdrawable(sinks)
        abandoned = [row.checkpoint_id for row in left if row.kind.changes_state]
        planned = RestoreReport(
            kind, target.checkpoint_id, head.checkpoint_id, abandoned, sinks, left_alone=left_alone
        )
        if dry_run:
            moves = self._publication.tables.planned(
                history, target.checkpoint_id, policy.of_table, self._declared
            )
            return replace(planned, tables=moves)
        row = self.commit(
            kind, target, history, MoveHead(head.checkpoint_id, [*sinks, *tables], backfill=backfill)
        )
        return replace(planned, committed_id=row.checkpoint_id, tables=self._publication.tables.moved)

    def _policies_of_tables(
        self, history: History, target: CheckpointRow, policy: OutputsOfSinks
    ) -> list[StagedSink]:
        """Tables that do something else than to follow, as the row that moves the head records them."""
        states = self._publication.tables.states(history, self._declared)
        for state in states:
            self._publication.tables.check_known(
                history, state, target.checkpoint_id, policy.of_table(state.name)
            )
        named = ((state, policy.of_table(state.name)) for state in states)
        return [replace(state, policy=p).staged() for state, p in named if p != "follow"]

    def _check_sinks(self, policy: OutputsOfSinks, history: History) -> None:
        """Refuse a policy that names sinks which neither the code of the job nor its checkpoints have."""
        keys = {*newest_sinks(history.values()), *(self._declared or ())}
        tables = {state.name for state in self._publication.tables.states(history, self._declared)}
        policy.check_names(self._job, {name for name, _ in keys} - {DEAD_LETTERS} - tables, tables)

    def _of_the_code(
        self, sinks: list[StagedSink], history: History
    ) -> tuple[list[StagedSink], list[StagedSink]]:
        """The sinks that are moved, and those that the code of the job does not have any more.

        Those of the code in whose place tables show states now are not moved: the policies of these say what happens.
        """
        mine = [s for s in sinks if self._publication.places.is_declared(s, self._declared)]
        left_alone = [s for s in sinks if s not in mine]
        tables = {state.name for state in self._publication.tables.states(history, self._declared)}
        return [s for s in mine if s.name not in tables], left_alone

    # -- parallelism -----------------------------------------------------------------------------------------------

    def rescale(self, job: StatefulJob, parallelism: int | Mapping[str, int] | None) -> CheckpointRow | None:
        """Give operators another parallelism; None where they have it already. See ``StateEngine.rescale``."""
        history, head = self.published_head()
        planned = plan_rescaling(job, head, wanted_parallelism(job, parallelism))
        return self.commit(CheckpointKind.RESCALE, head, history, planned) if planned.changes else None

    # -- pieces ----------------------------------------------------------------------------------------------------

    def published_head(self) -> tuple[History, CheckpointRow]:
        history = self._tables.log.load()
        head = history.head
        if head is None:
            raise ConfigurationError(f"job '{self._job}' has no checkpoint yet: run it first")
        self._publication.publish_pending(history.main_path, self._declared)
        return history, head

    def _published_but_for_what_is_left(self, checkpoint_id: int) -> tuple[History, CheckpointRow]:
        """As ``published_head``; but rows that can never be published do not keep the head from leaving them."""
        try:
            return self.published_head()
        except (SinkError, MissingFilesError) as error:
            history = self._tables.log.load()
            head = history.head
            assert head is not None
            refused = self._publication.publish_what_can_be(history.main_path, self._declared)
            stay = history.ids_to(checkpoint_id) if checkpoint_id in history else set()
            if isinstance(error, DamagedOutputError):
                if error.checkpoint_id in stay or refused:
                    raise
                return history, head  # which is about to be left
            if not refused or any(row.checkpoint_id in stay for row, _ in refused):
                raise
            unseen: dict[int, CheckpointRow] = {}
            for row, staged in refused:  # no sink ever showed it, so none needs to let it go
                known = unseen.get(row.checkpoint_id, row)
                unseen[row.checkpoint_id] = without_sink(known, staged.name)
            return history.with_rows(unseen.values()), head

    def commit(
        self,
        kind: CheckpointKind,
        parent: CheckpointRow,
        history: History,
        *updates: Update,
        attempt: WriteAttempt | None = None,
    ) -> CheckpointRow:
        """Commit one row on a parent and publish it; raises StaleParentError where something came first.

        Args:
            attempt: that wrote files for it; None for a new one.
        """
        attempt = attempt or self._tables.clock.attempt()
        planned = continuing(parent, kind, history.next_id, attempt, requested_by=self._requested_by)
        row = self._tables.log.commit([AddCheckpoint(planned), *updates], NewestIs(history.newest_id))
        self._publication.publish(row, self._declared)
        return row


def _sinks_that_move(
    history: History,
    old_head_id: int,
    new_parent_id: int,
    policy: OutputsOfSinks,
    *,
    kept: Collection[int] = (),
) -> list[StagedSink]:
    """What a row that moves the head withdraws from each sink, and puts there; see ``moves``.

    Args:
        policy: sinks that keep what is left lose nothing. From the others goes also what a backfill left behind of
            partitions that the new path ran.
    """
    everything = [row.checkpoint_id for row in history.leaving(old_head_id, new_parent_id)]
    losing_nothing = moves(history, old_head_id, new_parent_id, kept=everything) if policy.keeps_any else []
    stale = stale_beside(history, old_head_id, new_parent_id)
    withdrawing = with_withdrawn(moves(history, old_head_id, new_parent_id, kept=kept), stale)
    return [
        *(sink for sink in withdrawing if not policy.keeps(sink.name)),
        *(sink for sink in losing_nothing if policy.keeps(sink.name)),
    ]
