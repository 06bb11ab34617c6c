"""``CheckpointCoordinator``: one micro-batch, from the parent checkpoint to published outputs.

    0 publish_pending  read the head once: it is the parent; publish what earlier runs left unpublished
    1 plan             source positions (from, to], clock
    2-4 execute        read, route, run: subtasks write files that no reader sees yet; gates judge them
    5 changelog        commit the files of changes            | side by side
    6 operator_state   commit source positions                |
    7 stage            the list of files of every sink, checked
    8 commit           append one row to ``checkpoints``: the commit point
    9 publish          add the staged files to each sink

Before step 8 nothing is visible to anyone; after it everything can be repeated. A crash anywhere leaves at most files
that nobody lists. Mirrors Flink's ``CheckpointCoordinator``, with the end of a micro-batch as the barrier.

If more input waits, steps 1 to 4 of the next micro-batch run beside steps 5 to 9 of this one: see ``look_ahead``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace

from pyspark.sql import SparkSession

from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow, DataFile
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.checkpoints.table_names import changelog_table
from state_engine.core.checkpoints.updates import AddCheckpoint, OnlyBackgroundSince
from state_engine.core.errors import BadFileError, CommitFailedError, GateError, InvariantError
from state_engine.job.job import StatefulJob
from state_engine.job.job_tables import JobTables, listed_files
from state_engine.microbatch.attempt import (
    Committed,
    Executed,
    Listed,
    Planned,
    Spent,
    Staged,
    batch_after,
    rescaled_path,
)
from state_engine.microbatch.attempt_outputs import OutputsOfJob, discard_state, leaving_rest_to_collection
from state_engine.microbatch.batch import BatchContext, Script
from state_engine.microbatch.batch_result import Execution, check_limit
from state_engine.microbatch.checkpoint_builder import build_row
from state_engine.microbatch.declarations import Declarations, gone_operators
from state_engine.microbatch.declared_parts import DeclaredParts
from state_engine.microbatch.executor import GraphExecutor
from state_engine.microbatch.findings import raise_first
from state_engine.microbatch.gates import held_error, held_findings, judge
from state_engine.microbatch.look_ahead import LookAhead, may_look_ahead
from state_engine.microbatch.partition_runs import cut_of, partition_findings
from state_engine.microbatch.planning import (
    InputPlanner,
    check_clock,
    new_input,
    position_after,
    sources_of_run,
)
from state_engine.microbatch.quiet_time import outages
from state_engine.microbatch.reports import BatchReport
from state_engine.microbatch.routing.routing import Router
from state_engine.microbatch.unasked_states import UnaskedStates
from state_engine.publishing.publication import Publication
from state_engine.sources.base import BadFile, naming_source
from state_engine.sources.source_positions import SourcePositions
from state_engine.state_tables.base import TableReport
from state_engine.storage.checkpoint_log import CheckpointLog
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.java_gateway import java_threads
from state_engine.storage.state.copy_directory import NO_COPIES, LocalCopies
from state_engine.storage.stores.failures import keeping
from state_engine.storage.stores.files import join, open_location

_NOTHING = "Nothing of this micro-batch was committed; earlier commits are unchanged"
_TO_PUBLISH = "Checkpoint {} is committed, and the next run publishes what its sinks do not show yet"


@dataclass(frozen=True)
class RunOptions:
    """How a run was asked for.

    Attributes:
        clock: gives the processing time in milliseconds.
        drain: whether the input has ended for good: when all is read, every event-time timer fires.
        bounded: whether somebody says how many batches there are; else a source without end gives one.
        branch: that the run is on; only ``main`` publishes.
        begin_id: what the first batch of a branch continues; None for nothing.
        script: plans the batches of a replay, or of time partitions, instead of the sources and the clock.
        accept_clock: whether the clock is right, however far ahead of the last checkpoint it is.
        local_copies: of files of bases, on the machines that run subtasks.
    """

    clock: Callable[[], int]
    parameters: Mapping[str, str] = field(default_factory=dict)
    requested_by: str = ""
    drain: bool = False
    bounded: bool = False
    branch: str = MAIN
    begin_id: int | None = None
    script: Script | None = None
    backfill: str = ""
    accept_clock: bool = False
    local_copies: LocalCopies = NO_COPIES


class CheckpointCoordinator:
    """Runs micro-batches of one job.

    Args:
        router: routes rows; kept between runs, because it keeps what is expensive to make.
        publication: publishes what is committed; kept between runs, because it knows what is published.
    """

    def __init__(
        self,
        job: StatefulJob,
        *,
        tables: JobTables,
        positions: SourcePositions,
        kernel: DeltaKernel,
        spark: SparkSession,
        router: Router,
        publication: Publication,
        options: RunOptions,
    ) -> None:
        self._job, self._tables, self._kernel, self._options = job, tables, kernel, options
        self._log: CheckpointLog = tables.log
        self._positions = positions
        self._executor = GraphExecutor(spark, job, layout=tables.layout, router=router)
        self._publication = publication
        self._declared = publication.use_code(job)
        recorded = tuple(node.recorded for node in job.published.values())
        self._outputs = OutputsOfJob(kernel, publication, tables.layout, self._declared, recorded)
        self._parts = DeclaredParts.of(job).text()
        self._sources = sources_of_run(job)
        self._script: Script = options.script or InputPlanner(
            job,
            new_input(drain=options.drain, bounded=options.bounded),
            positions=positions,
            spark=spark,
            clock=options.clock,
            sources=self._sources,
        )
        self._not_opened: frozenset[str] | None = None
        self._next_id = 1
        self._settling = Spent()
        self._ahead = LookAhead(self._executed_after, self._drop_executed)

    def run_batch(self, *, more: bool = False) -> BatchReport | None:
        """All steps of one micro-batch; None where the sources have nothing new.

        Args:
            more: whether another micro-batch will be asked for, so that its first steps may run beside the last ones.
        """
        started = time.perf_counter()
        path, _ = self.publish_pending()
        executed = self._ahead.taken(path, self._next_id) or self._executed_after(path)
        if executed is None:
            return None
        executed.spent.steps_s = {**self._settling.steps_s, **executed.spent.steps_s}
        executed.spent.began_s = {**self._settling.began_s, **executed.spent.began_s}
        if more and self._options.script is None and may_look_ahead(self._job, executed.batch):
            committed = self._ahead.beside(
                lambda: self._finish(executed), executed, self._expected_row(executed)
            )
        else:
            committed = self._finish(executed)
        if committed.row.branch != self._options.branch:
            raise held_error(self._job.name, committed.row)
        return self._report(committed, time.perf_counter() - started)

    def close(self) -> None:
        """Discard the look-ahead attempt."""
        self._ahead.close()

    def _executed_after(self, path: list[CheckpointRow]) -> Executed | None:
        """Steps 1 to 4 of the micro-batch that comes after a path; None where there is nothing new."""
        planned = self.plan(path)
        if planned is None:
            return None
        with self._keeping(_NOTHING):
            while True:
                try:
                    with self._cleaning(planned, Exception):
                        return self.execute(planned)
                except BadFileError as error:
                    planned = self._without(planned, error)

    def _finish(self, executed: Executed) -> Committed:
        """Steps 5 to 9; what an attempt wrote that has certainly failed is removed at once."""
        with self._keeping(_NOTHING):
            with self._cleaning(executed, CommitFailedError, in_logs=True):
                listed = self.commit_files(executed)
            with self._cleaning(listed, Exception, in_logs=True):
                staged = self.stage(listed)
            with self._cleaning(staged, CommitFailedError, InvariantError, in_logs=True):
                committed = self.commit(staged)
            self._drop_exchange(staged.batch.write_id)
        with self._keeping(_TO_PUBLISH.format(committed.row.checkpoint_id)):
            self.publish(committed)
        return committed

    # -- 0 publish pending ---------------------------------------------------------------------------------------

    def publish_pending(self) -> tuple[list[CheckpointRow], list[int]]:
        """Step 0: the path to the head, after publishing, in order, what its sinks have not seen."""
        self._settling = Spent()
        with self._settling.step("settle"):  # the name under which rows of checkpoints record its duration
            history = self._log.load()
            # of the rows that the parent is the head of: the store may learn of newer ones before the plan is made
            self._next_id = history.next_id
            path = self._path(history)
            on_main = self._options.branch == MAIN
            if not on_main:
                return path, []
            return path, self._publication.publish_pending(path, self._declared, raises_at_once=False)

    def check_tables(self) -> None:
        """Raise why a published table that is not damaged could not follow, when all else is done."""
        self._publication.tables.check_followed()

    def files_waiting(self) -> list[str]:
        """What the sources have before them and do not read yet; as the last plan saw it, if it found nothing new."""
        return self._positions.waiting(self._path(self._log.history), self._sources)

    def outages(self) -> list[str]:
        """For which sources event time waits after the last micro-batch, because they are down."""
        if all(node.time_policy.stale_after_ms is None for node in self._job.sources.values()):
            return []
        path = self._path(self._log.history)
        return outages(self._job, path[-1] if path else None, clock_ms=self._options.clock())

    def _path(self, history: History) -> list[CheckpointRow]:
        """To the head of the branch of the run; to where the branch begins, if it has none yet."""
        head = history.head_of(self._options.branch)
        return history.path(head.checkpoint_id if head else self._options.begin_id)

    # -- 1 plan ----------------------------------------------------------------------------------------------------

    def plan(self, path: list[CheckpointRow]) -> Planned | None:
        """Step 1: what the batch reads, and its clock; None where there is nothing new."""
        spent = Spent()
        with spent.step("plan"):
            raise_first(partition_findings(self._job, path[-1] if path else None))
            if self._options.branch == MAIN:
                raise_first(held_findings(self._job.name, self._log.history))
            raise_first(gone_operators(self._job, path))
            if self._not_opened is None:  # later batches of the run continue their own
                unasked, parameters = self._unasked(path), self._options.parameters
                declarations = Declarations(self._job, path, unasked, parameters=parameters)
                raise_first(declarations.findings())
                self._not_opened = frozenset(declarations.not_opened)
            planned = self._script(path)
            if planned is None:
                return None
            path = rescaled_path(path, planned)
            parent = path[-1] if path else None
            if not (planned.recorded_clock or self._options.accept_clock):
                check_clock(self._job, planned.clock_ms, parent)
            batch = batch_after(
                path,
                planned,
                self._job,
                write_id=self._tables.clock.attempt().write_id,
                checkpoint_id=max(self._next_id, parent.checkpoint_id + 1 if parent else 1),
                parameters=self._options.parameters,
                branch=self._options.branch,
                backfill=self._options.backfill,
                local_copies=self._options.local_copies,
            )
            positions = {n: position_after(n, node.source, path) for n, node in self._job.sources.items()}
            return Planned(batch, positions, self._outputs.of(batch.write_id), spent)

    # -- 2 to 4 ----------------------------------------------------------------------------------------------------

    def execute(self, planned: Planned) -> Executed:
        """Steps 2 to 4: read, route and run every operator, and write source positions beside that.

        Raises:
            BadFileError: a file cannot be read.
        """
        with planned.spent.step("execute"):
            batch = planned.batch
            positions = java_threads().submit(self._write_positions, batch)
            try:
                done = self._executor.execute(batch, planned.outputs)
            finally:
                wait([positions])  # none goes on behind an error
            check_limit(self._job, done, uri=self._tables.layout.dead_letters)
            self._unasked(batch.path).check_asked(done, self._not_opened or ())
            for name, part in batch.slices.items():
                with naming_source(self._job.name, name):
                    self._job.sources[name].source.confirm(part)
            files = [f for o in done.operators.values() for r in o.subtasks for f in r.operator_state_files]
            return Executed(
                **vars(replace(planned, batch=self.judge(batch, done))),
                done=done,
                operator_state_files=[*positions.result(), *files],
            )

    def judge(self, batch: BatchContext, done: Execution) -> BatchContext:
        """The last part of step 4: gates judge what is staged; the batch, on the branch that it goes to.

        Raises:
            GateError: a gate stops it.
        """
        return judge(self._job, batch, done, self._tables.layout) if self._job.gates else batch

    def _write_positions(self, batch: BatchContext) -> list[DataFile]:
        """What the batch appends to the positions of sources, as a file; none where they stay where they are."""
        appended = {name: part.elements for name, part in batch.moved.items()}
        return [self._positions.write(batch.write_id, appended)] if any(appended.values()) else []

    def _without(self, planned: Planned, error: BadFileError) -> Planned:
        """The batch without a file, as an attempt of its own. Raises the error where it is not to be set aside."""
        batch, bad = planned.batch, BadFile(error.uri, error.letter)
        for name, part in batch.slices.items():
            left = self._job.sources[name].source.set_aside(part, bad)
            if left is not None:
                cut = cut_of({**batch.slices, name: left}, batch.parent)
                without_rows = {**batch.without_rows, **cut.without_rows}
                write_id = self._tables.clock.attempt().write_id
                again = replace(batch, write_id=write_id, slices=cut.slices, without_rows=without_rows)
                return replace(planned, batch=again, outputs=self._outputs.of(write_id))
        raise error

    # -- 5 and 6 ---------------------------------------------------------------------------------------------------

    def commit_files(self, attempt: Executed) -> Listed:
        """Steps 5 and 6, side by side: files of changes and of operator state become rows of their tables."""
        with attempt.spent.step("commit_files"):
            pool = java_threads()
            submitted = {
                changelog_table(uid): pool.submit(self.commit_changelog, attempt, uid)
                for uid in attempt.done.operators
            }
            submitted["operator_state"] = pool.submit(self.commit_operator_state, attempt)
            try:
                listed = {table: future.result() for table, future in submitted.items()}
            finally:
                wait(submitted.values())  # none goes on behind an error
            versions = {table: version for table, version in listed.items() if version is not None}
            attempt.spent.delta_commits += len(versions)
            return Listed(**vars(attempt), versions=versions)

    def commit_changelog(self, attempt: Executed, uid: str) -> int | None:
        """Step 5: the changes of one operator; None where nothing changed."""
        reports = attempt.done.operators[uid].subtasks
        files = [f for r in reports for f in r.changelog]
        if not files:
            return None
        schema, states = str(attempt.done.key_schemas[uid]), attempt.done.states[uid]
        return self._tables.list_changes(uid, schema, states, files, attempt.batch.write_id)

    def commit_operator_state(self, attempt: Executed) -> int | None:
        """Step 6: source positions, and the operator state that subtasks wrote; None where there is neither."""
        files = attempt.operator_state_files
        return self._tables.list_operator_state(files, attempt.batch.write_id) if files else None

    # -- 7 stage ---------------------------------------------------------------------------------------------------

    def stage(self, attempt: Listed) -> Staged:
        """Step 7: the row to commit, with the list of every sink's files; checked as a whole."""
        with attempt.spent.step("stage"):
            row = attempt.outputs.stage(self._row(attempt), self._log.history)
            return Staged(**vars(attempt), row=row)

    def _row(self, attempt: Listed) -> CheckpointRow:
        now, requested_by = self._tables.clock.now(), self._options.requested_by
        return build_row(self._job, attempt, created_at=now, requested_by=requested_by, declared=self._parts)

    def _expected_row(self, attempt: Executed) -> CheckpointRow:
        """What the next micro-batch may know of an attempt before it is committed: neither versions nor outputs."""
        return self._row(Listed(**vars(attempt), versions={}))

    # -- 8 commit --------------------------------------------------------------------------------------------------

    def commit(self, attempt: Staged) -> Committed:
        """Step 8: commit the row. Retries on top of a compaction that committed first.

        Raises:
            StaleParentError: another runner, or an operation, came first.
        """
        with attempt.spent.step("commit"):
            spent = {name: int(seconds * 1000) for name, seconds in attempt.spent.steps_s.items()}
            planned = replace(attempt.row, durations_ms=spent)
            attempt.spent.delta_commits += 1
            row = self._log.commit(
                [AddCheckpoint(planned)], OnlyBackgroundSince(planned.parent_id, planned.branch)
            )
            return Committed(row, attempt.done, attempt.outputs, attempt.spent)

    # -- 9 publish -------------------------------------------------------------------------------------------------

    def publish(self, committed: Committed) -> None:
        """Step 9: make the outputs visible; whatever fails here is made up for by the next run."""
        with committed.spent.step("publish"):
            committed.spent.delta_commits += committed.outputs.publish(committed.row)

    # -- pieces ----------------------------------------------------------------------------------------------------

    def _unasked(self, path: Sequence[CheckpointRow]) -> UnaskedStates:
        return UnaskedStates(self._job, path, self._tables.layout, self._options.clock)

    @contextmanager
    def _cleaning(self, attempt: Planned, *certain: type[Exception], in_logs: bool = False) -> Iterator[None]:
        """Run a step; if it fails before a commit was attempted, delete its files."""
        try:
            yield
        except BaseException as error:
            self._drop_exchange(attempt.batch.write_id)
            if isinstance(error, certain):
                to_look_at = isinstance(error, GateError) and bool(error.staged)
                self._give_up(attempt, in_logs=in_logs, outputs=not to_look_at)
            raise

    def _give_up(self, attempt: Planned, *, in_logs: bool, outputs: bool = True) -> None:
        layout, write_id = self._tables.layout, attempt.batch.write_id
        with leaving_rest_to_collection(layout, write_id):
            if outputs:
                attempt.outputs.give_up()
            discard_state(
                write_id,
                layout=layout,
                kernel=self._kernel,
                operators=self._job.operators,
                in_logs=in_logs,
            )

    def _drop_executed(self, attempt: Executed) -> None:
        self._drop_exchange(attempt.batch.write_id)
        self._give_up(attempt, in_logs=False)

    def _drop_exchange(self, write_id: str) -> None:
        """Remove files between operators, which are of no use after the attempt; a crash leaves them as orphans."""
        if not self._executor.has_exchange:
            return
        at = open_location(join(self._tables.layout.exchange, write_id))
        with suppress(OSError):  # what became of the attempt is decided already
            at.delete_directory()

    def _report(self, committed: Committed, seconds: float) -> BatchReport:
        row, done = committed.row, committed.done
        return BatchReport(
            checkpoint_id=row.checkpoint_id,
            rows_in=row.rows_in,
            rows_refused=row.rows_refused,
            rows_out={s.name: s.rows for s in row.sinks if not SinkKind(s.kind).shows_state},
            bytes_written=sum(f.bytes for _, files in listed_files(self._tables.layout, row) for f in files),
            operators=dict(done.operators),
            seconds=seconds,
            steps_s=dict(committed.spent.steps_s),
            steps_began_s=dict(committed.spent.began_s),
            delta_commits=committed.spent.delta_commits,
            partition=row.partition,
            late_rows=row.late_rows,
            behind_watermark={s.name: s.behind_watermark for s in row.sources if s.behind_watermark},
            tables=self.moved_tables if row.branch == MAIN else [],
            expectations=row.expectations,
        )

    @property
    def moved_tables(self) -> list[TableReport]:
        """What published tables got when something was published last."""
        return list(self._publication.tables.moved)

    def _keeping(self, kept: str) -> AbstractContextManager[None]:
        return keeping(self._job.name, kept, at=self._tables.layout.directory)
