"""Automation: a Dagster job for every registered job, a schedule, and sensors; off until somebody switches them on.

    <job>_schedule         micro-batches, by the cron of the job, or when a time partition is over
    <job>__new_data        micro-batches, when a source has new data, timers are due, or a time partition is over
    <job>__compaction      a compaction, when reading the state takes too many changes
    <job>__retention       a retention, once a day when something was committed since
    <job>__watch           checks whether the job moves on, and runs it again when it failed or is stuck

The options of the job choose among them. Sensors read tables without Spark. Two runs of one job at the same time are
safe without any pool: the engine lets one commit, and the other ends with ``StaleParentError`` and loses nothing; the
pool only saves the work of the second.
"""

from datetime import timedelta
from typing import Any

import dagster as dg

from state_engine.core.checkpoints.compaction_policy import CompactionPolicy, compaction_due
from state_engine.dagster.concepts.checks import is_strained, verdict_on
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.job_health import (
    describe,
    failures_in_a_row,
    missing_partitions,
    now_ms,
    status_of,
    unfinished,
)
from state_engine.dagster.naming import MOVES_ON, checkpoint_key
from state_engine.dagster.time_partitions import cron_of, definition_of, request_for
from state_engine.monitoring.job_history import read_history

NONE_IS_OVER = "all partitions that are over were run"
MOST_RETRIES = 3
"""Of runs that failed one after the other: then a person has to look."""
_DAY_MS = int(timedelta(days=1) / timedelta(milliseconds=1))
_STOPPED = dg.DefaultSensorStatus.STOPPED


def definitions(dagster_job: DagsterJob) -> dg.Definitions:
    """The Dagster job, named like the registered one, and what starts it and its operations, as chosen."""
    name = dagster_job.name
    job = dg.define_asset_job(
        name,
        # what must hold is read again by a job of its own: reading a long history takes longer than a small batch
        selection=dg.AssetSelection.assets(*(spec.key for spec in dagster_job.assets)).without_checks(),
        description=f"Run micro-batches of {name} until its sources have nothing new.",
        executor_def=dg.in_process_executor,
    )
    chosen = dagster_job.options.automation
    sensors = {
        "new_data": _new_data,
        "compaction": _compaction,
        "retention": _retention,
        "watch": _watch,
    }
    return dg.Definitions(
        jobs=[job],
        schedules=[_schedule(dagster_job, job)] if "schedule" in chosen else [],
        sensors=[sensor(dagster_job) for kind, sensor in sensors.items() if kind in chosen],
    )


def _schedule(dagster_job: DagsterJob, job: Any) -> dg.ScheduleDefinition:
    """By the cron of the job; where it has time partitions, after the end of each, for all that were not run."""
    name, partitions = f"{dagster_job.name}_schedule", dagster_job.job.partitions
    if partitions is None:
        return dg.ScheduleDefinition(
            name=name,
            job=job,
            cron_schedule=dagster_job.registered.cron,
            default_status=dg.DefaultScheduleStatus.STOPPED,
        )

    def missing(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        wanted = missing_partitions(dagster_job)
        return request_for(dagster_job.name, wanted) if wanted else dg.SkipReason(NONE_IS_OVER)

    return dg.ScheduleDefinition(
        name=name,
        job=job,
        cron_schedule=cron_of(dagster_job.registered, definition_of(partitions)),
        execution_timezone=partitions.timezone,
        execution_fn=missing,
        description=f"Runs every {partitions.every} of {dagster_job.name} that is over and was not run, in order.",
        default_status=dg.DefaultScheduleStatus.STOPPED,
    )


def _new_data(dagster_job: DagsterJob) -> dg.SensorDefinition:
    name = dagster_job.name

    @dg.sensor(
        name=f"{name}__new_data",
        job_name=name,
        description=(
            f"Runs {name} when a source has something that no checkpoint consumed, or timers are due."
            if dagster_job.job.partitions is None
            else f"Runs the partitions of {name} that are over and were not run."
        ),
        minimum_interval_seconds=30,
        default_status=_STOPPED,
    )
    def new_data(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        if run := unfinished(context.instance, name):
            return dg.SkipReason(f"run {run} of {name} is under way")
        if failures_in_a_row(context.instance, name, most=MOST_RETRIES) == MOST_RETRIES:
            return dg.SkipReason(
                f"the last {MOST_RETRIES} runs of {name} failed: repair what they report, and launch one by hand"
            )
        if dagster_job.job.partitions is not None:
            wanted = missing_partitions(dagster_job)
            return request_for(name, wanted) if wanted else dg.SkipReason(NONE_IS_OVER)
        status = status_of(dagster_job)
        if status.has_lag or status.timers_due or status.state == "never_ran":
            return dg.RunRequest()
        unknown = sorted(source for source, new in (status.lag or {}).items() if new is None)
        blind = (
            f"; only running the job shows whether {unknown} have new data: use its schedule"
            if unknown
            else ""
        )
        return dg.SkipReason(describe(status) + blind)

    return new_data


def _compaction(dagster_job: DagsterJob) -> dg.SensorDefinition:
    name = dagster_job.name

    @dg.sensor(
        name=f"{name}__compaction",
        job_name=f"{name}__compact",
        description="Compacts when too many changes lie beside the bases, or too much in them has expired.",
        minimum_interval_seconds=300,
        default_status=_STOPPED,
    )
    def compaction(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        if run := unfinished(context.instance, f"{name}__compact"):
            return dg.SkipReason(f"run {run} of {name}__compact is under way")
        history = read_history(dagster_job.root, name)
        due = compaction_due(
            history.path if history else [], dagster_job.job.compaction or CompactionPolicy()
        )
        return dg.RunRequest() if due else dg.SkipReason(f"not worth it: {due.reason}")

    return compaction


def _retention(dagster_job: DagsterJob) -> dg.SensorDefinition:
    name = dagster_job.name

    @dg.sensor(
        name=f"{name}__retention",
        job_name=f"{name}__expire",
        description="Expires old checkpoints and vacuums files, once a day if something was committed since.",
        minimum_interval_seconds=3600,
        default_status=_STOPPED,
    )
    def retention(context: dg.SensorEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        history = read_history(dagster_job.root, name)
        if history is None or history.head is None:
            return dg.SkipReason(f"{name} has no checkpoint yet")
        now, head = now_ms(), history.head.checkpoint_id
        last_ms, last_head = map(int, (context.cursor or "0 0").split())
        if now - last_ms < _DAY_MS:
            return dg.SkipReason("it ran less than a day ago")
        if head == last_head:
            return dg.SkipReason(f"nothing was committed since checkpoint {head}")
        context.update_cursor(f"{now} {head}")
        # the asset by itself only shows what would go
        config = {"ops": {f"{name}_expire": {"config": {"dry_run": False}}}}
        return dg.RunRequest(run_config=config)

    return retention


def _watch(dagster_job: DagsterJob) -> dg.SensorDefinition:
    name = dagster_job.name

    @dg.sensor(
        name=f"{name}__watch",
        job_name=name,
        description=(
            f"Shows in the check {MOVES_ON} whether {name} moves on. Runs it again when it failed or is stuck, up to "
            f"{MOST_RETRIES} times in a row."
        ),
        minimum_interval_seconds=60,
        default_status=_STOPPED,
    )
    def watch(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        verdict = verdict_on(dagster_job)
        failures = failures_in_a_row(context.instance, name, most=MOST_RETRIES)
        reason = (
            f"{verdict.description}; the last {failures} runs failed" if failures else verdict.description
        )
        evaluation = dg.AssetCheckEvaluation(
            asset_key=dagster_job.key(checkpoint_key(name)),
            check_name=MOVES_ON,
            passed=verdict.passed and not failures,
            severity=verdict.severity,
            description=reason,
            metadata=verdict.metadata,
        )
        busy = unfinished(context.instance, name)
        would_help = bool(failures) or not is_strained(verdict)
        again = not evaluation.passed and would_help and busy is None and failures < MOST_RETRIES
        if not evaluation.passed:
            context.log.error(f"job '{name}' does not move on: {reason}")
        return dg.SensorResult(
            run_requests=[_again(dagster_job, failures)] if again else [],
            asset_events=[evaluation],
        )

    return watch


def _again(dagster_job: DagsterJob, failures: int) -> dg.RunRequest:
    tags = {"statelake/retry": str(failures)}
    return request_for(dagster_job.name, missing_partitions(dagster_job), tags=tags)
