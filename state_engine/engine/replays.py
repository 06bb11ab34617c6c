"""Replays: recorded micro-batches run again on a branch, and the end of a branch that nobody promotes."""

from __future__ import annotations

from dataclasses import replace

from state_engine.core.checkpoints.checkpoint import MAIN
from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.errors import ConfigurationError, StaleParentError
from state_engine.engine.arguments import job_name
from state_engine.engine.context import EngineContext
from state_engine.engine.running import OnBatch
from state_engine.job.job import StatefulJob
from state_engine.microbatch.coordinator import RunOptions
from state_engine.microbatch.reports import BatchReport
from state_engine.replay.replay import Recording, ReplayReport, ReplaySteps

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
        if on_progress is not None:
            on_progress(report)
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
