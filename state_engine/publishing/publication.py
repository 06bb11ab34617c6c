"""``Publication``: makes the outputs of committed checkpoints visible, in order, each exactly once.

Works from the rows of ``checkpoints`` alone, so that any runner can finish what another one began. Branches other than
``main`` never publish: what they staged becomes visible when a row of ``main`` promotes them.

Only the last row in the foreground may wait, see ``core.checkpoints.pending``. Where the code of the job is known, its
sinks are asked whether they show what was published before, and sinks that it no longer has are left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence

from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow, StagedSink
from state_engine.core.checkpoints.pending import (
    PathChanges,
    SinkChange,
    SinkStatus,
    in_order,
    last_of_sinks,
    newest_in_foreground,
)
from state_engine.core.checkpoints.row_outputs import DEAD_LETTERS, SinkKey, publications
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import MissingFilesError, SinkBehindError, SinkError
from state_engine.job.job import StatefulJob
from state_engine.job.job_tables import JobTables
from state_engine.publishing.published_tables import PublishedTables
from state_engine.publishing.publishers import publishers
from state_engine.publishing.sink_places import Declared, SinkPlaces
from state_engine.sinks.base import FROM_INPUT, naming_damage
from state_engine.sinks.foreach_batch import ForeachBatchPublisher, ForeachBatchSink
from state_engine.state_tables.base import TableTargets
from state_engine.state_tables.states import published_in
from state_engine.storage.delta.kernel import DeltaKernel

_LOG = logging.getLogger(__name__)


class Publication:
    """Publishes what a job's checkpoints staged.

    Args:
        targets: writes published tables, by kind; None for what really writes them.
    """

    def __init__(self, kernel: DeltaKernel, tables: JobTables, targets: TableTargets | None = None) -> None:
        self._kernel, self._tables = kernel, tables
        self.places = SinkPlaces(tables.layout, tables.log.app)
        self.tables = PublishedTables(kernel, tables, self.places, targets)
        self._functions = ForeachBatchPublisher(kernel)
        self._publishers = publishers(kernel, tables, self._functions)
        self._published: int | None = None
        self._known: set[str] = set()
        self._asked: set[SinkKey] = set()

    def recorded(self, rows: Iterable[CheckpointRow]) -> frozenset[SinkKey]:
        return frozenset(
            key
            for row in rows
            for key in (
                *((one.name, one.path) for one in self.staged(row)),
                *(one.key for one in published_in(row)),
            )
        )

    def use_code(self, job: StatefulJob) -> frozenset[SinkKey]:
        """Call the functions of a job's code from now on, and follow its tables.

        Returns:
            Name and path of its sinks and published tables, and its dead letters.
        """
        self.tables.code = {node.recorded.key: node.recorded for node in job.published.values()}
        sinks = self.places.sinks(job)
        self._functions.sinks = {
            at: sink for (_, at), sink in sinks.items() if isinstance(sink, ForeachBatchSink)
        }
        return self.places.declared(job)

    def publish_pending(
        self,
        path: Sequence[CheckpointRow],
        declared: Declared = None,
        *,
        again_from: int | None = None,
        raises_at_once: bool = True,
    ) -> list[int]:
        """Publish what the sinks have not seen of a path of ``main``, and bring published tables to its end.

        Returns, and raises, as ``_publish_outputs``.

        Args:
            raises_at_once: whether to raise where a table could not follow; else ``PublishedTables.check_followed``
                does, when the caller is done with what does not depend on it.
        """
        done = self._publish_outputs(path, declared, again_from=again_from)
        self._follow(declared)
        if raises_at_once:
            self.tables.check_followed()
        return done

    def _publish_outputs(
        self, path: Sequence[CheckpointRow], declared: Declared, *, again_from: int | None
    ) -> list[int]:
        """Publish what the sinks have not seen of a path of ``main``; ids of the rows that had something.

        Args:
            declared: the sinks of today's code; others are left alone.
            again_from: publish what a sink does not show of this checkpoint and later ones, although it did before.
        """
        newest_id, known = newest_in_foreground(path), (declared or frozenset()) <= self._asked
        if not newest_id:
            self._asked |= (
                declared or set()
            )  # they hold nothing of this job but what it publishes from now on
            return []
        if again_from is None and newest_id == self._published and known and not self._lost(path, declared):
            return []
        changes = self.places.changes(path, declared)
        shown = list(self._shown(changes, again_from=again_from))
        for one in shown:
            self._check_behind(one, again_from)
            if one.key not in self._asked:  # later it is known who published
                self._check_seen(one)
        if any(one.unseen for one in shown):  # no sink may show a row that a power cut can take back
            self._kernel.outlasting(self._tables.layout.checkpoints)
        done: set[int] = set()
        for change in in_order(shown):
            self._publish(change.staged, change.checkpoint_id)
            done.add(change.checkpoint_id)
        for left in changes.left_alone():
            self._tell_left_alone(left, newest_id=newest_id)
        self._published = newest_id
        self._asked |= {*(one.key for one in shown), *(declared or ())}
        return sorted(done)

    def _lost(self, path: Sequence[CheckpointRow], declared: Declared) -> bool:
        """Whether a sink does not show any more what this process published to it: then it is looked at again.

        Topics and functions are not asked: their publishers look for themselves.
        """
        newest = self.places.changes(last_of_sinks(path), declared).by_sink.values()
        return any(
            SinkKind(last.staged.kind).answers_quickly and self.seen(last.staged) < last.checkpoint_id
            for *_, last in newest
            if self.places.is_declared(last.staged, declared)
        )

    def publish_what_can_be(
        self, path: Sequence[CheckpointRow], declared: Declared = None
    ) -> list[tuple[CheckpointRow, StagedSink]]:
        """Publish what the sinks take of the newest row; what they refuse, and what they do not show any more."""
        refused: list[tuple[CheckpointRow, StagedSink]] = []
        for one in self._shown(self.places.changes(path, declared)):
            if one.behind:
                refused += [(change.row, change.staged) for change in one.unseen]
                continue
            for change in one.unseen:
                try:
                    self._publish(change.staged, change.checkpoint_id)
                except (SinkError, MissingFilesError):
                    refused.append((change.row, change.staged))
        return refused

    def unpublished(
        self, path: Sequence[CheckpointRow], declared: Declared = None
    ) -> list[tuple[CheckpointRow, StagedSink]]:
        """What the sinks do not show of a path of ``main``, oldest first, with the row that changes it."""
        shown = self._shown(self.places.changes(path, declared))
        return [(change.row, change.staged) for change in in_order(shown)]

    def accept(self, path: Sequence[CheckpointRow], name: str, *, dry_run: bool = False) -> StagedSink | None:
        """Take what is in the place of a sink for that sink; the last that was published to it.

        Returns:
            None where the path has no such sink.
        """
        changes = (
            one for row in reversed(path) for one in self.staged(row) if one.name == name != DEAD_LETTERS
        )
        last = next(changes, None)
        if last is not None and not dry_run:
            self._publishers[last.kind].accept(last, self.places.app_of(name))
        return last

    def left_alone(self, path: Sequence[CheckpointRow], declared: Declared) -> list[StagedSink]:
        """Sinks on a path that today's code does not have."""
        return self.places.left_alone(path, declared)

    def _shown(self, changes: PathChanges, *, again_from: int | None = None) -> Iterator[SinkStatus]:
        for one in changes.shown(self.seen, since=again_from):
            if one.seen:
                self._known.add(one.key[0])
            yield one

    def _check_behind(self, one: SinkStatus, again_from: int | None) -> None:
        lost = [c.checkpoint_id for c in one.behind if again_from is None or c.checkpoint_id < again_from]
        if lost:
            name, path = one.key
            ids = f"checkpoint {lost[0]}" if len(lost) == 1 else f"checkpoints {lost[0]} to {lost[-1]}"
            newest = one.changes[-1].staged
            why = self._publishers[newest.kind].loss(newest) or self._usual_loss(lost[0])
            job = self._tables.layout.job
            raise SinkBehindError(
                f"job '{job}', sink '{name}': {path} does not show what {ids} published to it "
                f"({counted(sum(c.staged.rows for c in one.behind), 'row')}): {why.replace('JOB', job)}; or give the "
                "sink another name to begin empty. Nothing was done"
            )

    def _usual_loss(self, first_id: int) -> str:
        """Why a sink may have lost what was published to it from a checkpoint on, and what to do about it."""
        return (
            "it was put back from a backup, or emptied, or deleted. Publish that again with "
            f"engine.publish_pending(job, from_checkpoint={first_id}), or `statelake publish-pending JOB "
            f"--from-checkpoint {first_id}`, while its staged files exist. If they are gone with the sink, "
            f"{FROM_INPUT}. Or restore the job to a checkpoint that the sink shows"
        )

    def _check_seen(self, one: SinkStatus) -> None:
        """Ids alone prove nothing: the newest that a sink has seen must stand for the row's own files."""
        newest = next((c for c in reversed(one.changes) if c.checkpoint_id <= one.seen), None)
        if newest is not None:
            publisher = self._publishers[newest.staged.kind]
            publisher.check_seen(newest.staged, self.places.app_of(newest.staged.name), newest.checkpoint_id)

    def _tell_left_alone(self, change: SinkChange, *, newest_id: int) -> None:
        staged, waits = change.staged, change.checkpoint_id == newest_id
        _LOG.log(
            logging.WARNING if waits else logging.INFO,
            "job '%s': the code no longer has the sink '%s' at %s, so it is left alone%s",
            self._tables.layout.job,
            staged.name,
            staged.path,
            f"; nobody checked whether it shows checkpoint {newest_id}" if waits else "",
            extra={"job": self._tables.layout.job, "checkpoint_id": newest_id, "sink": staged.name},
        )

    def publish(self, row: CheckpointRow, declared: Declared = None, *, raises_at_once: bool = True) -> int:
        """Publish a row whose parent is published; the number of Delta commits. Does nothing on a branch.

        Args:
            declared: the sinks of today's code; None for those of the newest micro-batch.
        """
        commits = 0
        for staged in self.staged(row):
            self._publish(staged, row.checkpoint_id)
            commits += SinkKind(staged.kind).has_log
        if row.branch == MAIN:
            self._published = row.checkpoint_id
            commits += self._follow(declared)
            if raises_at_once:
                self.tables.check_followed()
        return commits

    def _follow(self, declared: Declared) -> int:
        """Bring published tables to the head; the number of Delta commits."""
        history = self._tables.log.history
        moves = self.tables.follow(history, declared) if history.head is not None else []
        return sum(move.kind == SinkKind.DELTA_STATE for move in moves if not move.problem)

    def check_identity(self, sinks: Sequence[StagedSink]) -> None:
        """Refuse to commit files for sinks that another application has taken since; see ``Publisher``."""
        for one in map(self.places.located, sinks):
            if one.files:
                self._publishers[one.kind].check_identity(one)

    def check_withdrawable(self, sinks: Sequence[StagedSink]) -> None:
        """Refuse changes of outputs that could not be published once they are committed; see ``Publisher``."""
        for one in map(self.places.located, sinks):
            self._publishers[one.kind].check_withdrawable(one)

    def withdraws(self, sink: StagedSink) -> bool:
        """Whether a sink can let go of outputs at all; see ``Publisher``."""
        return self._publishers[sink.kind].withdraws(sink)

    def staged(self, row: CheckpointRow) -> Iterator[StagedSink]:
        """Everything that a row changes in sinks; dead letters are published like a sink."""
        yield from map(self.places.located, publications(row))

    def knows(self, sink: str) -> bool:
        """Whether the sink of a name was found to hold something of this job, when its path was looked at."""
        return sink in self._known

    def seen(self, staged: StagedSink) -> int:
        with naming_damage(staged.name):
            return self._seen(staged)

    def _seen(self, staged: StagedSink) -> int:
        return self._publishers[staged.kind].seen(staged.path, self.places.app_of(staged.name))

    def _publish(self, staged: StagedSink, checkpoint_id: int) -> None:
        with naming_damage(staged.name):
            self._publishers[staged.kind].publish(staged, self.places.app_of(staged.name), checkpoint_id)
