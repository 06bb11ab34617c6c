"""Replays on a branch, and backfills of time partitions: plan, run what is left, swap; again where ``main`` went on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import cast

from state_engine.core.checkpoints.checkpoint import MAIN
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.errors import ConfigurationError, StaleParentError
from state_engine.engine.arguments import job_name
from state_engine.engine.context import EngineContext
from state_engine.engine.running import OnBatch, after_batch, check_keyed_sinks, maintain, traced
from state_engine.job.job import StatefulJob
from state_engine.microbatch.coordinator import RunOptions
from state_engine.microbatch.partition_runs import STOP, PartitionSteps, partitions_of
from state_engine.microbatch.planning import Steps
from state_engine.microbatch.reports import BatchReport
from state_engine.operations.outputs_policy import OutputsPolicy, outputs_of
from state_engine.replay.backfill import (
    BRANCH,
    MODES,
    ROLL_FORWARD,
    BackfillPlan,
    BackfillReport,
    BackfillRequest,
    BackfillSteps,
    Mode,
    foreseen,
    plan_backfill,
    swap,
)
from state_engine.replay.replay import Recording, ReplayReport, ReplaySteps


@dataclass(frozen=True)
class JobBackfill:
    """One backfill of one job.

    Attributes:
        code: the job to run, under the same name.
        repeats_times: whether recorded times of processing are those of the replay, too.
    """

    context: EngineContext
    job: StatefulJob
    code: StatefulJob
    request: BackfillRequest
    outputs: OutputsPolicy
    options: RunOptions
    repeats_times: bool
    on_progress: OnBatch
    batches: list[BatchReport] = field(default_factory=list)

    def run(self, *, dry_run: bool) -> BackfillReport:
        partitions = partitions_of(self.job, "backfill()")
        tables = (self.context.existing if dry_run else self.context.tables)(self.job.name)
        resumed: list[str] | None = None
        while True:
            history = tables.log.load() if tables else History()
            if not dry_run:
                check_keyed_sinks(self.context, self.job, history)
            plan = plan_backfill(self.job.name, partitions, history, self.request)
            report = foreseen(self.job.name, plan, partitions, outputs=self.outputs)
            if dry_run or not plan.todo:
                return report
            resumed = report.resumed if resumed is None else resumed
            report = replace(report, resumed=resumed, batches=self.batches, rows_withdrawn={}, rows_added={})
            try:
                self._run(plan)
                if plan.branch == MAIN or self.request.mode == BRANCH:
                    return report
                operations = self.context.operations(self.job, self.options.requested_by)
                move = swap(operations, plan, outputs=self.outputs)
            except StaleParentError:
                if plan.branch == MAIN:
                    raise
                continue  # main went on meanwhile: the branch catches up
            return replace(report, move=move, rows_withdrawn=move.rows_withdrawn, rows_added=move.rows_added)

    def _run(self, plan: BackfillPlan) -> None:
        begin_id = None if plan.branch == MAIN else plan.begin_id
        steps = self._steps(plan)
        clock = self.options.clock
        script = self.context.planner(self.code, steps, clock, repeats_times=self.repeats_times)
        options = replace(self.options, branch=plan.branch, begin_id=begin_id, script=script)
        coordinator = self.context.coordinator(self.code, options)
        with traced(self.context, "backfill", self.code, options):
            while (report := coordinator.run_batch()) is not None:
                self.batches.append(report)
                after_batch(self.context, self.code, report, self.on_progress)
                if plan.branch == MAIN:
                    maintain(self.context, self.code, report.checkpoint_id, options.requested_by)

    def _steps(self, plan: BackfillPlan) -> Steps:
        if plan.branch == MAIN:
            return PartitionSteps(self.code, up_to=plan.request.last)
        return BackfillSteps(plan)


def backfill_request(
    job: StatefulJob, code: StatefulJob, start: str, end: str, mode: str, *, rebatch: bool, branch: str | None
) -> BackfillRequest:
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


def check_outputs(outputs: OutputsPolicy, mode: str) -> None:
    """Whether what is to become of old outputs goes with a mode. Raises ConfigurationError."""
    if outputs_of(outputs).keeps_any and mode != ROLL_FORWARD:
        why = {
            STOP: "with stop, outputs of later partitions leave the sinks when these run again",
            BRANCH: "a branch changes no sink; say it to promote",
        }
        raise ConfigurationError(f"outputs='keep' goes with the mode {ROLL_FORWARD}: {why[mode]}")


_NO_TIMEOUT_MS = 10**15


def replay(
    context: EngineContext,
    code: StatefulJob,
    recorded: Recording,
    options: RunOptions,
    *,
    rebatch: bool,
    repeats_times: bool,
    on_progress: OnBatch,
) -> ReplayReport:
    tables = context.tables(code.name)
    steps = ReplaySteps(recorded, rebatch=rebatch)
    script = context.planner(code, steps, options.clock, repeats_times=repeats_times)
    options = replace(options, branch=recorded.branch, begin_id=recorded.begin_id, script=script)
    coordinator = context.coordinator(code, options)
    batches: list[BatchReport] = []
    with traced(context, "replay", code, options):
        while True:
            try:
                report = coordinator.run_batch()
            except StaleParentError:
                if recorded.begin_id is not None or recorded.branch in tables.log.load().branches:
                    raise
                continue  # main went on meanwhile, and this batch has no parent that it could be put upon
            if report is None:
                break
            batches.append(report)
            after_batch(context, code, report, on_progress)
    head = tables.log.load().head_of(recorded.branch)
    return ReplayReport(
        job=code.name,
        branch=recorded.branch,
        begin_id=recorded.begin_id,
        batches=batches,
        branch_head_id=head.checkpoint_id if head else None,
        main_head_id=recorded.main_head_id,
        remaining=len(recorded.batches) - recorded.wanted,
    )


def drop_branch(
    context: EngineContext, job: StatefulJob | str, branch: str, *, requested_by: str | None, dry_run: bool
) -> list[int]:
    name = job_name(job)
    history = context.ran(name).log.load()
    if branch == MAIN:
        raise ConfigurationError(f"job '{name}': '{MAIN}' cannot be dropped")
    known = {n: row for n, row in history.open_branches.items() if n != MAIN}
    if branch not in known:
        raise ConfigurationError(
            f"job '{name}': there is no open branch '{branch}' to drop; there are {sorted(known)}"
        )
    head = known[branch].checkpoint_id
    pinned = sorted(pin.name for pin in history.pins.values() if pin.checkpoint_id == head)
    if pinned:
        raise ConfigurationError(
            f"job '{name}': savepoints {pinned} are copies of the head of branch '{branch}': delete them first"
        )
    # a policy that keeps everything, so that nothing but the branch goes
    keep_all = RetentionPolicy(keep_last=1, keep_younger_than_ms=_NO_TIMEOUT_MS)
    maintenance = context.maintenance(job, requested_by)
    return maintenance.expire_checkpoints(keep_all, drop_branches=[branch], dry_run=dry_run)
