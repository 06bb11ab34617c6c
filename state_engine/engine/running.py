"""A run of a job: micro-batches until the sources have nothing new, and what is done between two of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.compaction_policy import CompactionPolicy, compaction_due
from state_engine.core.checkpoints.history import History
from state_engine.core.choices import check_bound
from state_engine.core.errors import ConfigurationError
from state_engine.engine.arguments import job_name
from state_engine.engine.context import EngineContext
from state_engine.engine.published import tidy_quietly
from state_engine.job.job import StatefulJob
from state_engine.microbatch.batch import Script
from state_engine.microbatch.coordinator import RunOptions
from state_engine.microbatch.partition_runs import PartitionSteps, partitions_of
from state_engine.microbatch.reports import BatchReport, CompactionReport, RunReport

_LOG = logging.getLogger(__name__)

OnBatch = Callable[[BatchReport], object] | None
"""Called after every committed batch."""


def run(
    context: EngineContext,
    job: StatefulJob,
    options: RunOptions,
    *,
    partition: str | None,
    max_batches: int | None,
    on_progress: OnBatch,
) -> RunReport:
    check_bound(max_batches, what="max_batches")
    with traced(context, "run", job, options):
        return _run(
            context, job, options, partition=partition, max_batches=max_batches, on_progress=on_progress
        )


def _run(
    context: EngineContext,
    job: StatefulJob,
    options: RunOptions,
    *,
    partition: str | None,
    max_batches: int | None,
    on_progress: OnBatch,
) -> RunReport:
    script = _partition_script(context, job, partition, options)
    options = replace(options, bounded=max_batches is not None, script=script)
    coordinator = context.coordinator(job, options)
    path, published = coordinator.publish_pending()
    tables = coordinator.moved_tables
    check_keyed_sinks(context, job, context.tables(job.name).log.history)
    batches: list[BatchReport] = []
    compactions: list[CompactionReport] = []
    caught_up = False
    try:
        while max_batches is None or len(batches) < max_batches:
            report = coordinator.run_batch(more=max_batches is None or len(batches) + 1 < max_batches)
            if report is None:
                caught_up = True
                break
            batches.append(report)
            after_batch(context, job, report, on_progress)
            compactions += maintain(context, job, report.checkpoint_id, options.requested_by)
    finally:
        coordinator.close()
    coordinator.check_tables()
    return RunReport(
        job.name,
        batches,
        caught_up,
        published,
        compactions,
        coordinator.files_waiting(),
        left_alone=_left_alone(context, job, path),
        tables_pending=tables,
        outages=coordinator.outages(),
    )


def traced(
    context: EngineContext, what: str, job: StatefulJob, options: RunOptions
) -> AbstractContextManager[None]:
    """The span of a run, a replay, a backfill or of dead letters that are sent again, where OpenTelemetry is on."""
    telemetry = context.telemetry
    return nullcontext() if telemetry is None else telemetry.run(what, job.name, options.requested_by)


def check_keyed_sinks(context: EngineContext, job: StatefulJob, history: History) -> None:
    """Refuse keyed sinks that would begin empty beside their tables, before micro-batches run on ``main``.

    Raises:
        ConfigurationError: names the sink, its table and the ways out.
    """
    sinks = [node.recorded for node in job.published.values() if node.sink_key]
    context.publication(context.tables(job.name)).tables.check_begins_empty(history, sinks)


def publish_pending(
    context: EngineContext, job: StatefulJob | str, *, from_checkpoint: int | None, dry_run: bool
) -> list[int]:
    tables = context.tables(job.name) if isinstance(job, StatefulJob) else context.ran(job_name(job))
    history = tables.log.load()
    path = history.main_path
    if from_checkpoint is not None and from_checkpoint not in history:
        raise ConfigurationError(f"job '{job_name(job)}' has no checkpoint {from_checkpoint}")
    publication, declared = context.publication(tables), context.declared(tables, job)
    if dry_run:
        return sorted({row.checkpoint_id for row, _ in publication.unpublished(path, declared)})
    return publication.publish_pending(path, declared, again_from=from_checkpoint)


def _tell(context: EngineContext, job: StatefulJob, report: BatchReport) -> None:
    """Have OpenTelemetry know of a committed batch, where that is on. A failure here does not fail the run."""
    if context.telemetry is None:
        return
    try:
        context.telemetry.batch(job.name, report, context.tables(job.name).log.history)
    except Exception:
        facts = {"job": job.name, "checkpoint_id": report.checkpoint_id}
        _LOG.warning("job '%s': telemetry of a micro-batch failed", job.name, exc_info=True, extra=facts)


def after_batch(context: EngineContext, job: StatefulJob, report: BatchReport, on_progress: OnBatch) -> None:
    """Report a committed batch: to OpenTelemetry, to the caller, and its late rows to the log where the job says so."""
    _tell(context, job, report)
    if report.late_rows and job.partitions is not None and job.partitions.late == "warn":
        _LOG.warning(
            "job '%s': %d rows came after their partition had been run, found with partition %s; to take them in: "
            "engine.backfill(..., rebatch=True), or TimePartitions(late='next')",
            job.name, report.late_rows, report.partition,
            extra={"job": job.name, "partition": report.partition, "late_rows": report.late_rows},
        )  # fmt: skip
    if on_progress is not None:
        on_progress(report)


def maintain(
    context: EngineContext, job: StatefulJob, checkpoint_id: int, requested_by: str
) -> list[CompactionReport]:
    """Merge files of checkpoint rows, and compact what the job's policy sees a reason for, where it is time.

    What fails here is tried again after the next micro-batch, and fails no run.
    """
    try:
        context.tables(job.name).log.merge()
        return _compacted(context, job, checkpoint_id, requested_by)
    except Exception:
        _LOG.warning(
            "job '%s': maintenance after a micro-batch failed; it is tried again after the next one",
            job.name,
            exc_info=True,
            extra={"job": job.name, "checkpoint_id": checkpoint_id},
        )
        return []


def _compacted(
    context: EngineContext, job: StatefulJob, checkpoint_id: int, requested_by: str
) -> list[CompactionReport]:
    if job.compaction is None:
        return []
    path = (context.tables(job.name).log.history).path(checkpoint_id)
    due = compaction_due(path, job.compaction)
    if not due:
        return []
    facts = {"job": job.name, "checkpoint_id": checkpoint_id, "step": "compact"}
    _LOG.info("job '%s': compacting: %s", job.name, due.reason, extra=facts)
    return [compact(context, job, list(due.reasons), requested_by=requested_by)]


def compact(
    context: EngineContext,
    job: StatefulJob | str,
    operators: Collection[str] | None,
    *,
    policy: CompactionPolicy | None = None,
    full: bool = False,
    dry_run: bool = False,
    requested_by: str | None = None,
) -> CompactionReport:
    """See ``StateEngine.compact``; published tables are rearranged with it."""
    maintenance = context.maintenance(job, requested_by)
    done = maintenance.compact(operators, policy=policy, full=full, dry_run=dry_run)
    if not dry_run:
        tidy_quietly(context, job)
    return done


def _left_alone(context: EngineContext, job: StatefulJob, path: Sequence[CheckpointRow]) -> dict[str, str]:
    tables = context.tables(job.name)
    left = context.publication(tables).left_alone(path, context.declared(tables, job))
    return {staged.name: staged.path for staged in left}


def _partition_script(
    context: EngineContext, job: StatefulJob, partition: str | None, options: RunOptions
) -> Script | None:
    """What plans the micro-batches of a run in time partitions; None for a continuous job."""
    if job.partitions is None and partition is None:
        return None
    partitions_of(job, "partition=")
    steps = PartitionSteps(job, only=partition, drain=options.drain)
    return context.planner(job, steps, options.clock)
