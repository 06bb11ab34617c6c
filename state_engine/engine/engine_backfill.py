"""``EngineBackfill``: time partitions: which are done, and running some of them again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from state_engine.core.checkpoints.checkpoint import MAIN
from state_engine.core.errors import ConfigurationError, StaleParentError
from state_engine.engine.engine_base import Clock, EngineBase, clock_of, requester
from state_engine.engine.renamed import renamed_parameters
from state_engine.job.job import StatefulJob
from state_engine.microbatch.batch import Script
from state_engine.microbatch.coordinator import RunOptions
from state_engine.microbatch.partition_runs import (
    STOP,
    PartitionStatus,
    PartitionSteps,
    partition_states,
    partitions_of,
)
from state_engine.microbatch.reports import BatchReport, CompactionReport
from state_engine.operations.head_moves import Operations, OutputsPolicy, RestoreReport
from state_engine.replay.backfill import BackfillReport, BackfillSteps, foreseen, swap
from state_engine.replay.backfill_plan import (
    BRANCH,
    MODES,
    ROLL_FORWARD,
    BackfillPlan,
    BackfillRequest,
    Mode,
    plan_backfill,
)
from state_engine.storage.storage_failures import kept_in_job

_LOG = logging.getLogger(__name__)


class EngineBackfill(EngineBase):
    """See ``StateEngine``."""

    def partitions(self, job: StatefulJob, *, clock: Clock = None) -> list[PartitionStatus]:
        """The time partitions of a job, in order: done, stale or missing.

        Args:
            clock: partitions that are over by then are listed, besides all that were run.
        """
        found = partitions_of(job, "partitions()")
        tables = self._existing(job.name)
        return partition_states(found, tables.store.load() if tables else {}, now_ms=clock_of(clock)())

    @renamed_parameters(recut="rebatch", on_batch="on_progress")
    @kept_in_job
    def backfill(
        self,
        job: StatefulJob,
        start: str,
        end: str,
        mode: Mode | str = "roll_forward",
        *,
        dry_run: bool = False,
        clock: Clock = None,
        code: StatefulJob | None = None,
        rebatch: bool = False,
        branch: str | None = None,
        outputs: OutputsPolicy = "withdraw",
        parameters: Mapping[str, str] | None = None,
        requested_by: str | None = None,
        on_progress: Callable[[BatchReport], Any] | None = None,
    ) -> BackfillReport:
        """Run time partitions again, from the state at the end of the one before the first of them.

        The same call goes on with a backfill that did not come to its end, at its first unfinished partition.
        Partitions at the end of the range that were never run are run as well.

        Args:
            start, end: keys of the first and last partition.
            mode: ``roll_forward``: also all later ones that were run, on a branch, whose outputs then replace the old
                ones in one commit a sink; ``stop``: these only, the head ends with the last one, and later ones keep
                their outputs and are stale until they run again; ``branch``: as ``roll_forward``, and left on the
                branch, for ``compare`` and ``promote``.
            dry_run: only tell what would be done.
            clock: processing time in place of the recorded one.
            code: the job to run, under the same name; ``job`` itself by default.
            rebatch: read partitions from what the sources hold of them now, rows that were late included; by default,
                what the recorded runs read.
            branch: its name; ``backfill_<n>`` by default.
            outputs: ``withdraw``: old outputs go from the sinks as the new ones come; ``keep``, with ``roll_forward``:
                they stay beside them, for sinks that cannot let go of any.
            parameters, requested_by, on_progress: as for ``run``.

        Raises:
            PartitionOrderError: partitions in front of the first were not run yet.
            ConfigurationError: the job is continuous, there are no such partitions, or the state in front of them is
                not kept any more.
            SourceError: input that was recorded is not there unchanged.
            SinkError: a sink cannot let go of old outputs.
        """
        code = code or job
        request = _request(job, code, start, end, mode, rebatch=rebatch, branch=branch)
        partitions = partitions_of(job, "backfill()")
        _check_outputs(outputs, request.mode)
        options = RunOptions(
            clock_of(clock), dict(parameters or {}), requested_by or requester(), backfill=request.words
        )
        tables = (self._existing if dry_run else self._open)(job.name)
        resumed: list[str] | None = None
        batches: list[BatchReport] = []
        while True:
            plan = plan_backfill(job.name, partitions, tables.store.load() if tables else {}, request)
            report = foreseen(job.name, plan, partitions, outputs=outputs)
            if dry_run or not plan.todo:
                return report
            resumed = report.resumed if resumed is None else resumed
            report = replace(report, resumed=resumed, batches=batches, rows_withdrawn={}, rows_added={})
            try:
                self._run_backfill(
                    code, plan, options, None if clock is None else options.clock, batches, on_progress
                )
                if plan.branch == MAIN or request.mode == "branch":
                    return report
                move = self._swap(job, plan, options.requested_by, outputs)
            except StaleParentError:
                if plan.branch == MAIN:
                    raise
                continue  # main went on meanwhile: the branch catches up
            return replace(report, move=move, rows_withdrawn=move.rows_withdrawn, rows_added=move.rows_added)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _run_backfill(
        self,
        code: StatefulJob,
        plan: BackfillPlan,
        options: RunOptions,
        clock: Callable[[], int] | None,
        batches: list[BatchReport],
        on_progress: Callable[[BatchReport], Any] | None,
    ) -> None:
        """Run what is left of a plan, on its branch."""
        on_main = plan.branch == MAIN
        script = self._planner(
            code,
            PartitionSteps(code, up_to=plan.request.last) if on_main else BackfillSteps(plan),
            options.clock,
            repeats_times=clock is None,
        )
        begin_id = None if plan.branch == MAIN else plan.begin_id
        coordinator = self._coordinator(
            code, replace(options, branch=plan.branch, begin_id=begin_id, script=script)
        )
        while (report := coordinator.run_batch()) is not None:
            batches.append(report)
            tell_late_rows(code, report)
            if on_progress is not None:
                on_progress(report)
            if plan.branch == MAIN:
                self._tidied(code, report.checkpoint_id, options.requested_by)

    def _swap(
        self, job: StatefulJob, plan: BackfillPlan, requested_by: str, outputs: OutputsPolicy
    ) -> RestoreReport:
        tables = self._open(job.name)
        publication = self._publication(tables)
        operations = Operations(
            job.name,
            tables=tables,
            publication=publication,
            requested_by=requested_by,
            declared=self._declared(tables, job),
        )
        return swap(operations, publication, plan, outputs=outputs)

    def _tidied(self, job: StatefulJob, checkpoint_id: int, requested_by: str) -> list[CompactionReport]:
        """Overridden: what is done between micro-batches of ``main``."""
        return []

    def _partition_script(
        self, job: StatefulJob, partition: str | None, clock: Callable[[], int], *, drain: bool
    ) -> Script | None:
        """What plans the micro-batches of a run in time partitions; None for a continuous job."""
        if job.partitions is None and partition is None:
            return None
        partitions_of(job, "partition=")
        return self._planner(job, PartitionSteps(job, only=partition, drain=drain), clock)


def _request(
    job: StatefulJob, code: StatefulJob, start: str, end: str, mode: str, *, rebatch: bool, branch: str | None
) -> BackfillRequest:
    """What was asked for, checked."""
    partitions = partitions_of(job, "backfill()")
    if code.name != job.name or code.partitions != partitions:
        raise ConfigurationError(
            f"the code to backfill job '{job.name}' with must have its name and its partitions"
        )
    if mode not in MODES:
        raise ConfigurationError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    code.check()
    asked = partitions.between(start, end)
    return BackfillRequest(
        asked[0], asked[-1], cast(Mode, mode), rebatch=rebatch, code_version=code.code_version, branch=branch
    )


def _check_outputs(outputs: str, mode: str) -> None:
    if outputs not in ("withdraw", "keep"):
        raise ConfigurationError(f"outputs must be 'withdraw' or 'keep', not {outputs!r}")
    if outputs == "keep" and mode != ROLL_FORWARD:
        why = {
            STOP: "with stop, outputs of later partitions leave the sinks when these run again",
            BRANCH: "a branch changes no sink; say it to promote",
        }
        raise ConfigurationError(f"outputs='keep' goes with the mode {ROLL_FORWARD}: {why[mode]}")


def tell_late_rows(job: StatefulJob, report: BatchReport) -> None:
    """Log late rows, where the job says so."""
    if report.late_rows and job.partitions is not None and job.partitions.late == "warn":
        _LOG.warning(
            "job '%s': %d rows came after their partition had been run, found with partition %s; to take them in: "
            "engine.backfill(..., rebatch=True), or TimePartitions(late='next')",
            job.name, report.late_rows, report.partition,
            extra={"job": job.name, "partition": report.partition, "late_rows": report.late_rows},
        )  # fmt: skip
