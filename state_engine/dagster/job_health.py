"""Health of a registered job (no Spark needed), for sensors and the check ``moves_on``."""

from __future__ import annotations

import time
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING

import dagster as dg

from state_engine.core.counted_nouns import counted
from state_engine.core.time.partitions import Partition
from state_engine.dagster.dagster_internals import get_smallest_cron_interval
from state_engine.dagster.time_partitions import waiting
from state_engine.monitoring.job_history import read_history
from state_engine.monitoring.job_status import JobStatus, status_of_history
from state_engine.monitoring.strains import HealthLimits
from state_engine.registry import RegisteredJob

if TYPE_CHECKING:
    from state_engine.dagster.dagster_job import DagsterJob

INTERVALS_UNTIL_STUCK = 3
"""A job is stuck that committed nothing for so many intervals of its schedule while a source has new data."""
INTERVALS_OF_LAG = 6
"""A job is strained whose data waits for so many intervals of its schedule, though it runs."""
UNFINISHED = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]


@cache
def interval_of(cron: str) -> timedelta:
    """The shortest time between two ticks of a schedule; kept, as Dagster goes through a thousand of them.

    Example:
        >>> interval_of("*/10 * * * *")
        datetime.timedelta(seconds=600)
    """
    return get_smallest_cron_interval(cron)


def stuck_after(registered: RegisteredJob) -> timedelta:
    """How long a job may commit nothing while a source has new data, or a partition is over."""
    partitions = registered.job.partitions
    return INTERVALS_UNTIL_STUCK * (partitions.interval if partitions else interval_of(registered.cron))


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def status_of(dagster_job: DagsterJob) -> JobStatus:
    job, history = dagster_job.job, read_history(dagster_job.root, dagster_job.name)
    patience = stuck_after(dagster_job.registered)
    lag = INTERVALS_OF_LAG * patience / INTERVALS_UNTIL_STUCK
    limits = dagster_job.options.limits or HealthLimits(lag=lag)
    return status_of_history(job.name, history, job=job, now_ms=now_ms(), stuck_after=patience, limits=limits)


def missing_partitions(dagster_job: DagsterJob) -> list[Partition]:
    """Partitions that are over and were not run; none where the job is continuous."""
    if dagster_job.job.partitions is None:
        return []
    history = read_history(dagster_job.root, dagster_job.name)
    return waiting(dagster_job.job.partitions, history, now_ms=now_ms())


def describe(status: JobStatus, *, partitioned: bool = False) -> str:
    if status.state == "never_ran":
        return f"job '{status.job}' has no checkpoint yet"
    if status.state == "damaged":
        return (
            f"the head needs {counted(len(status.missing_files), 'missing or truncated file')}, first "
            f"{status.missing_files[0]}; `statelake status {status.job}` lists them, and the newest checkpoint whose "
            "files all exist"
        )
    if status.state in ("unpublished", "changed") and any(table.changed for table in status.tables):
        return next(table.changed for table in status.tables if table.changed)
    if status.state == "unpublished":
        return f"checkpoints {list(status.unpublished)} are committed, and not published: run the job, or recover it"
    if status.state == "refusing":
        return (
            f"all rows of the last micro-batch, {status.batch_id}, were refused: look at them with "
            f"`statelake dead-letters list {status.job}`"
        )
    if status.state == "held":
        return status.held
    if status.state == "waiting":
        return "; ".join(status.outages)
    if status.state == "strained":
        return "; ".join(status.strains)
    if status.state == "unknown":
        return status.problem
    new_data = sorted(name for name, new in (status.lag or {}).items() if new)
    waits = f"{new_data} have new data" if new_data else "the sources have nothing new"
    if partitioned:
        waits = f"{new_data[0]} is over and was not run" if new_data else "no other partition is over"
    if status.timers_due:
        minutes = (status.timers_due_s or 0) / 60
        waits += f"; {counted(status.timers_due, 'timer is', 'timers are')} due for {counted(round(minutes), 'minute')}"
    age_min = (status.batch_age_s or 0) / 60
    files = len(status.files_waiting)
    half = f"; {counted(files, 'file')} not read yet: {status.files_waiting[0]}" if files else ""
    return f"the last micro-batch, {status.batch_id}, began {counted(round(age_min), 'minute')} ago; {waits}{half}"


def unfinished(instance: dg.DagsterInstance, job: str) -> str | None:
    """Id of a run of a job that is under way or waits; None where there is none."""
    runs = instance.get_runs(dg.RunsFilter(job_name=job, statuses=UNFINISHED), limit=1)
    return runs[0].run_id if runs else None


def failures_in_a_row(instance: dg.DagsterInstance, job: str, *, most: int) -> int:
    """How many of the newest runs of a job failed, one after the other, up to a number."""
    count = 0
    for run in instance.get_runs(dg.RunsFilter(job_name=job), limit=most):
        if run.status != dg.DagsterRunStatus.FAILURE:
            break
        count += 1
    return count
