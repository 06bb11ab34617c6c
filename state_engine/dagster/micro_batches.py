"""One Dagster run of a job: run the engine until it is caught up, and show every checkpoint while it goes on.

Dagster decides nothing about state: if this process dies, the next run goes on from the last committed checkpoint.
Every checkpoint becomes exactly one materialisation: that of a batch is logged as soon as a later batch has followed
it (or a failure), and the last one is the run's result. Until then a line in the log reports it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import dagster as dg
from py4j.protocol import Py4JError
from pydantic import Field

from state_engine import BatchReport, CheckpointRow, RunReport
from state_engine.core.checkpoints.checkpoint import DAGSTER_RUN
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import InvariantError, StatelakeError
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.external.external_runner import JobRunner
from state_engine.dagster.metadata import (
    checkpoint_metadata,
    history_metadata,
    run_metadata,
    sink_metadata,
    state_metadata,
    table_metadata,
)
from state_engine.dagster.naming import checkpoint_key, sink_key, state_key, table_key
from state_engine.microbatch.unasked_states import kept_for_later
from state_engine.monitoring.job_audit import rule_of
from state_engine.telemetry.trace_context import continued_trace

DATA_VERSION_TAG = "dagster/data_version"
MOST_ELSEWHERE = 100
"""Checkpoints of other runners that one run shows."""


ACCEPT_CLOCK = Field(
    default=False,
    description="The clock is right, even if it is further ahead of the last checkpoint than the job's max_clock_jump.",
)
"""Of the configuration of a run."""


class MicroBatchConfig(dg.Config):
    """Configuration of a run; all of it is optional."""

    max_batches: int | None = Field(
        default=None,
        ge=1,
        description="Stop after this many micro-batches; by default, when nothing is new.",
    )
    parameters: dict[str, str] = Field(
        default={}, description="What functions get from RuntimeContext.get_job_parameter."
    )
    accept_clock: bool = ACCEPT_CLOCK


def row_event(
    dagster_job: DagsterJob, row: CheckpointRow, batch: BatchReport | None, history: History
) -> dg.AssetMaterialization | dg.AssetObservation:
    """A row of ``checkpoints`` as a version of the asset.

    In a job with time partitions a row of an operation is no new version of any partition: it is only reported.
    """
    key = dagster_job.key(checkpoint_key(dagster_job.name))
    metadata = dict(checkpoint_metadata(row, batch, history))
    if dagster_job.job.partitions is not None:
        return dg.AssetObservation(key, metadata=metadata)
    return dg.AssetMaterialization(key, metadata=metadata, tags={DATA_VERSION_TAG: str(row.checkpoint_id)})


def requester_of(context: dg.AssetExecutionContext) -> str:
    """What rows that a run commits record as ``requested_by``."""
    return f"{DAGSTER_RUN}{context.run.run_id}"


@dataclass
class _Progress:
    """Turns the engine's reports into log lines and materialisations while a run goes on."""

    context: dg.AssetExecutionContext
    engine: JobRunner
    dagster_job: DagsterJob
    rows: list[CheckpointRow] = field(default_factory=list)
    last: BatchReport | None = None
    shown: set[int] = field(default_factory=set)
    known: History = field(default_factory=History)
    elsewhere: list[CheckpointRow] = field(default_factory=list)

    def look_elsewhere(self) -> None:
        """Find what was committed since the newest version that Dagster has, and is shown by no run of Dagster.

        The newest ones only: a job may be years older than the instance.
        """
        newest = self._newest_version()
        rows = [row for row in self.committed().main_path if row.checkpoint_id > newest]
        by_runs = any(row.requested_by.startswith(DAGSTER_RUN) for row in rows)
        versions = self._versions() if by_runs else set()
        others = [row for row in rows if not self._is_left_to_its_run(row, versions)]
        self.elsewhere = others[-MOST_ELSEWHERE:]
        if others:
            self.context.log.info(
                f"job '{self.dagster_job.name}': {counted(len(others), 'checkpoint was', 'checkpoints were')} "
                "committed outside of Dagster, or by "
                f"runs that died, the last one is {others[-1].checkpoint_id}; they are shown now"
            )

    def _is_left_to_its_run(self, row: CheckpointRow, versions: Collection[int]) -> bool:
        """Whether the run of Dagster that committed a row has shown it, or will; one that died did not."""
        if not row.requested_by.startswith(DAGSTER_RUN):
            return False
        run = self.context.instance.get_run_by_id(row.requested_by.removeprefix(DAGSTER_RUN))
        return run is None or not run.is_finished or row.checkpoint_id in versions

    def _versions(self) -> set[int]:
        """The newest versions of the checkpoint's asset that Dagster has."""
        key = self.dagster_job.key(checkpoint_key(self.dagster_job.name))
        records = self.context.instance.fetch_materializations(key, limit=MOST_ELSEWHERE).records
        tags = [event.tags or {} for record in records if (event := record.asset_materialization)]
        return {int(known[DATA_VERSION_TAG]) for known in tags if DATA_VERSION_TAG in known}

    @property
    def moved_elsewhere(self) -> list[CheckpointRow]:
        return [row for row in self.elsewhere if not row.kind.is_in_background]

    def show_elsewhere(self, *, but: int | None = None) -> None:
        """Log what was committed outside of Dagster; ``but`` is the run's result."""
        for row in self.elsewhere:
            if row.checkpoint_id != but and row.checkpoint_id not in self.shown:
                self._log(row, None)

    def batch(self, report: BatchReport) -> None:
        committed = self.committed()
        self.show_elsewhere()
        self.flush()
        self.compactions(report.checkpoint_id, committed)
        self.rows.append(committed[report.checkpoint_id])
        self.last = report
        out = ", ".join(f"{rows:,} to {sink}" for sink, rows in report.rows_out.items())
        self.context.log.info(
            f"checkpoint {report.checkpoint_id}: {counted(report.rows_in, 'row')} in, {out}, {report.seconds:.2f} s"
        )

    def flush(self) -> None:
        """Log the last batch, which turned out not to be the run's result."""
        if self.last is not None:
            self._log(self.rows[-1], self.last)
            self.last = None

    def compactions(self, before_id: int | None, committed: History) -> None:
        """Log what the run compacted after its last batch; ``before_id`` begins the next one."""
        last = self.rows[-1].checkpoint_id if self.rows else None
        for i, row in sorted(committed.items()):
            own = row.kind is CheckpointKind.COMPACTION and row.requested_by == self.requester
            if own and last is not None and i > last and (before_id is None or i < before_id):
                self._log(row, None)

    def failed(self) -> None:
        """Log what was committed before a failure, also a checkpoint whose publishing failed."""
        self.show_elsewhere()
        self.flush()
        try:
            for row in self.committed().values():
                if row.requested_by == self.requester and row.checkpoint_id not in self.shown:
                    self._log(row, None)
        except (StatelakeError, Py4JError) as error:  # must not hide the failure that led here
            self.context.log.warning(f"the checkpoints could not be looked at: {error}")

    def committed(self) -> History:
        self.known = History(self.engine.checkpoints(self.dagster_job.name))
        return self.known

    @property
    def requester(self) -> str:
        return requester_of(self.context)

    def _newest_version(self) -> int:
        key = self.dagster_job.key(checkpoint_key(self.dagster_job.name))
        event = self.context.instance.get_latest_materialization_event(key)
        tags = event.asset_materialization.tags if event and event.asset_materialization else None
        return int((tags or {}).get(DATA_VERSION_TAG, 0))

    def _log(self, row: CheckpointRow, batch: BatchReport | None) -> None:
        self.shown.add(row.checkpoint_id)
        self.context.log_event(row_event(self.dagster_job, row, batch, self.known))


def run_micro_batches(
    context: dg.AssetExecutionContext,
    config: MicroBatchConfig,
    dagster_job: DagsterJob,
    engine: JobRunner,
    *,
    declared: Collection[dg.AssetKey],
) -> Iterator[dg.MaterializeResult[None]]:
    """Run a job and yield one result for each selected asset; none where the sources had nothing new.

    Args:
        declared: all assets of the job; those that were not selected are reported as well.
    """
    job = dagster_job.job
    progress = _Progress(context, engine, dagster_job)
    progress.look_elsewhere()
    try:
        with continued_trace(context.run.tags):
            report = engine.run(
                job,
                max_batches=config.max_batches,
                parameters=config.parameters,
                accept_clock=config.accept_clock,
                requested_by=progress.requester,
                on_progress=progress.batch,
            )
    except BaseException as error:
        progress.failed()
        show_stopped_commit(context, dagster_job, error)
        raise
    for outage in report.outages:
        context.log.warning(f"job '{job.name}': {outage}")
    if not report.batches and not report.published_pending and not progress.moved_elsewhere:
        progress.show_elsewhere()
        context.log.info(f"job '{job.name}': the sources have nothing new since the last checkpoint")
        return
    yield from _results(progress, report, declared)


def _results(
    progress: _Progress, report: RunReport, declared: Collection[dg.AssetKey]
) -> Iterator[dg.MaterializeResult[None]]:
    """The head first, then everything that follows from it, all with the head's id as their data version."""
    context = progress.context
    recorded = progress.committed()
    before = {row.checkpoint_id for row in progress.moved_elsewhere} | set(report.published_pending)
    published = [*(recorded[i] for i in sorted(before)), *progress.rows]
    head = published[-1]
    progress.show_elsewhere(but=head.checkpoint_id)
    version = dg.DataVersion(str(head.checkpoint_id))
    whole_run = run_metadata(
        report.batches,
        caught_up=report.caught_up,
        published_pending=report.published_pending,
        waiting=report.files_waiting,
        outages=report.outages,
    )
    path = recorded.path(head.checkpoint_id)
    if kept := kept_for_later(head):
        whole_run = {**whole_run, "kept_states": dg.MetadataValue.json(kept)}
    shown = checkpoint_metadata(head, progress.last, recorded)
    key_of, job = progress.dagster_job.key, report.job
    assets = {key_of(checkpoint_key(job)): {**shown, **whole_run, **history_metadata(path)}}
    for sink in head.sinks:
        if not SinkKind(sink.kind).shows_state:
            assets[key_of(sink_key(job, sink.name))] = dict(sink_metadata(sink.name, published))
    for operator in head.operators:
        for state in operator.states:
            key = key_of(state_key(job, operator.uid, state.name))
            assets[key] = dict(state_metadata(path, operator.uid, state.name, report.batches))
    for name in progress.dagster_job.job.published:  # below their states, which come first
        shown_table = table_metadata(name, report.tables, head.checkpoint_id)
        assets[key_of(table_key(job, name))] = dict(shown_table)
    for key, metadata in assets.items():
        if key in context.selected_asset_keys:
            yield dg.MaterializeResult(asset_key=key, metadata=metadata, data_version=version)
        elif key in declared:  # it changed all the same: a micro-batch is whole, whatever was selected
            tags = {DATA_VERSION_TAG: version.value}
            context.log_event(dg.AssetMaterialization(key, metadata=metadata, tags=tags))
    progress.compactions(None, recorded)


def show_stopped_commit(
    context: dg.AssetExecutionContext, dagster_job: DagsterJob, error: BaseException
) -> None:
    """Log a failed evaluation of each check whose invariant would have been broken; none for other errors."""
    if not isinstance(error, InvariantError):
        return
    for rule in dict.fromkeys(map(rule_of, error.broken)):
        evaluation = dg.AssetCheckEvaluation(
            asset_key=dagster_job.key(checkpoint_key(dagster_job.name)),
            check_name=rule,
            passed=False,
            severity=dg.AssetCheckSeverity.ERROR,
            description=str(error),
            metadata={"broken": dg.MetadataValue.json(list(error.broken))},
        )
        context.log_event(cast(Any, evaluation))
