"""Timers that wait for a run: time has reached them, and no micro-batch has fired them yet. Without Spark or Java.

By the rule with which a micro-batch is planned: what a run that began now would fire although no row came. So a timer
that waits for rows is not due, and one that waits for an idle source or for the clock is, as soon as they let it.
"""

from __future__ import annotations

from dataclasses import dataclass

from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.time.time_plan import plan_time
from state_engine.core.time.timers import EVENT, PROCESSING
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.job.job import StatefulJob
from state_engine.microbatch.quiet_time import times_without_rows, waiting_sources
from state_engine.microbatch.run_always import due_since, timers_due
from state_engine.monitoring.job_history import JobHistory
from state_engine.storage.state.listed_files import AllKeys
from state_engine.storage.state.located_files import state_files
from state_engine.storage.state.stored_timers import StoredTimers


@dataclass(frozen=True)
class DueTimers:
    """Timers that a run now would fire.

    Attributes:
        since_ms: the clock at which the first of them was due, in milliseconds since 1970.
    """

    count: int
    since_ms: int


def due_timers(job: StatefulJob, history: JobHistory, *, now_ms: int) -> DueTimers | None:
    """The timers that are due; None where none is, and in a job with time partitions, which only they let go on."""
    head = history.head
    if head is None or job.partitions is not None:
        return None
    since_ms = due_since(job, head, now_ms=now_ms)
    if since_ms is None:
        return None
    times = times_without_rows(job, head, plan_time(waiting_sources(job, head), clock_ms=now_ms))
    count = 0
    for uid, operator in job.operators.items():
        reached = times.of(operator)
        if timers_due(operator, head, clock_ms=now_ms, watermark_ms=reached, drain=False):
            event_ms = MIN_TIMESTAMP if reached is None else reached
            count += _count(history, uid, {EVENT: event_ms, PROCESSING: now_ms})
    return DueTimers(count, since_ms)


def _count(history: JobHistory, uid: str, until_ms: dict[str, int]) -> int:
    """How many timers of an operator have a time that is reached; by domain."""
    head = history.head
    recorded = head.operator(uid) if head else None
    if recorded is None:
        return 0
    files = state_files(history.layout, history.path, uid)
    schema = KeySchema.recorded(recorded.key_schema, recorded.key_type)
    stored = StoredTimers(files, AllKeys(), schema.storage, recorded.max_parallelism)
    due = stored.within({domain: (MIN_TIMESTAMP, until) for domain, until in until_ms.items()})
    return 0 if due is None else int(due.num_rows)
