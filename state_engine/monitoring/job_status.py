"""Job health: what the head is, how old, what waits before it and behind it; and whether somebody should look.

Pure: in come the rows of the job, what its sinks have not seen and whether its sources have new data; out comes
``JobStatus``. Reading them is ``JobHistory``'s. Plays the part of Flink's checkpoint statistics and of its job status
endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.clock_jumps import is_behind
from state_engine.core.checkpoints.dead_letters import letters_waiting
from state_engine.core.checkpoints.retention import shown_kind
from state_engine.core.errors import StatelakeError
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.time.time_plan import plan_time
from state_engine.core.time.timers import EVENT, PROCESSING
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from state_engine.job.job import StatefulJob
from state_engine.microbatch.gates import held_error, held_on
from state_engine.microbatch.quiet_time import (
    due_since,
    outages,
    timers_due,
    times_without_rows,
    waiting_sources,
)
from state_engine.microbatch.unasked_states import kept_for_later
from state_engine.monitoring.job_history import JobHistory
from state_engine.monitoring.restorable import PresentFiles
from state_engine.monitoring.shown_tables import TableStatus
from state_engine.monitoring.source_lag import SourceLag
from state_engine.monitoring.strains import HealthLimits, strains
from state_engine.storage.state.listed_files import AllKeys
from state_engine.storage.state.located_files import state_files
from state_engine.storage.state.stored_timers import StoredTimers
from state_engine.telemetry.measurements import StateSize, state_size

State = Literal[
    "ok",
    "damaged",
    "stuck",
    "unpublished",
    "changed",
    "refusing",
    "held",
    "waiting",
    "strained",
    "never_ran",
    "unknown",
]
_EXIT_CODES: dict[State, int] = {
    "ok": 0,
    "damaged": 1,
    "stuck": 1,
    "unpublished": 1,
    "changed": 1,
    "refusing": 1,
    "held": 1,
    "waiting": 1,
    "strained": 1,
    "never_ran": 2,
    "unknown": 2,
}


_MOST_PARTITIONS = 10_000
"""Time partitions that wait are counted up to so many."""


@dataclass(frozen=True)
class JobStatus:
    """The health of a job; times in seconds, None where there is nothing to measure.

    Attributes:
        state: ``ok``; ``damaged``: files that the head needs are gone or cut; ``stuck``: a source has new data, or
            timers are due, and no micro-batch was committed for too long; ``unpublished``: a sink has not seen one of
            the head's path; ``changed``: somebody else changed a published table; ``refusing``: all rows of the newest
            micro-batch became dead letters; ``held``: a gate holds a micro-batch, and runs end; ``waiting``: event time
            waits for a source that is down; ``strained``: lag, growth of state or skew is beyond its limit;
            ``never_ran``; ``unknown``: its history cannot be read.
        head_id, head_kind, head_age_s: the newest row of ``main``.
        batch_id, batch_age_s: the newest micro-batch on its path.
        rows_since_batch: rows of operations after that micro-batch.
        unpublished: ids of checkpoints that a sink has not seen.
        lag: whether each source has new data; None where only running it would show that. In a job with time
            partitions the next partition that is over, as ``partition <key>``.
        behind: of the sources that have new data, how much that is.
        partitions_waiting: time partitions that are over and were not run; None in a continuous job, and where the code
            of the job is not known.
        watermark_age_s: lag of event time: how far the watermark of the head is behind the clock; None where it has
            none.
        strains: what is beyond its limit, each with what to do.
        states: entries of keyed states, and bytes and files of each operator's state.
        changelog_files: files of changes that reading the state takes beside the bases.
        dead_letters: rows that were refused on the head's path, and not sent again.
        refused: rows that the newest micro-batch refused.
        restorable_id: the newest checkpoint on the head's path whose files are all there, by name and size.
        missing_files: files that the head needs and that are gone, or of another size than recorded.
        files_waiting: files that no batch reads yet, each with the source and the reason.
        outages: for which sources event time waits because they are down (``stale_after``), and since when.
        held: why a micro-batch is held, and the ways on; empty where none is.
        timers_due: how many timers a run now would fire although no row came.
        kept_states: which states the head holds and its code kept for later (``keep_states``), with their operators.
        clock_ahead_s: how far the recorded processing time is ahead of this machine's clock, where it is by an hour or
            more: until then it stands still.
        problem: what could not be looked at, and why.
        left_alone: sinks and published tables that the code no longer has, by name, and where they are;
            nobody looks at them.
    """

    job: str
    state: State
    head_id: int | None = None
    head_kind: str | None = None
    head_age_s: float | None = None
    batch_id: int | None = None
    batch_age_s: float | None = None
    rows_since_batch: int = 0
    unpublished: tuple[int, ...] = ()
    lag: Mapping[str, bool | None] | None = None
    behind: Mapping[str, SourceLag] = field(default_factory=dict)
    partitions_waiting: int | None = None
    watermark_age_s: float | None = None
    strains: tuple[str, ...] = ()
    states: tuple[StateSize, ...] = ()
    changelog_files: int = 0
    changelog_rows: int = 0
    base_rows: int = 0
    dead_letters: int = 0
    refused: int = 0
    restorable_id: int | None = None
    missing_files: tuple[str, ...] = ()
    files_waiting: tuple[str, ...] = ()
    outages: tuple[str, ...] = ()
    held: str = ""
    timers_due: int = 0
    timers_due_s: float | None = None
    clock_ahead_s: float | None = None
    kept_states: tuple[str, ...] = ()
    problem: str = ""
    left_alone: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[TableStatus, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: fine; 1: somebody should look; 2: it never ran, or is unknown."""
        return _EXIT_CODES[self.state]

    @property
    def has_lag(self) -> bool:
        """Whether some source certainly has new data."""
        return any((self.lag or {}).values())

    def to_json(self) -> dict[str, Any]:
        """As plain data, with the exit code."""
        return {**asdict(self), "exit_code": self.exit_code}


def status_of(
    job: str,
    path: Sequence[CheckpointRow],
    *,
    unpublished: Sequence[int],
    lag: Mapping[str, bool | None] | None,
    now_ms: int,
    stuck_after: timedelta,
    due: DueTimers | None = None,
) -> JobStatus:
    """The health of a job.

    Args:
        path: rows from the first one to the head, oldest first; empty where the job never ran.
        stuck_after: how old the newest micro-batch may get while a source has new data, and how long timers may be due.
    """
    if not path:
        return JobStatus(job, "never_ran", lag=lag)
    head = path[-1]
    batch = next((row for row in reversed(path) if row.kind.is_micro_batch or row.kind.begins_job), None)
    states = tuple(state_size(path, operator) for operator in head.operators)
    waited_s = age_s(batch or path[0], now_ms)
    due_s = None if due is None else max(0.0, (now_ms - due.since_ms) / 1000)
    waiting_s = waited_s if any((lag or {}).values()) else min(waited_s, due_s or 0.0)
    late = waiting_s > stuck_after.total_seconds()
    refusing = batch is not None and 0 < batch.rows_in <= batch.rows_refused
    state: State = "unpublished" if unpublished else "stuck" if late else "refusing" if refusing else "ok"
    return JobStatus(
        job,
        state,
        head_id=head.checkpoint_id,
        head_kind=shown_kind(head),
        head_age_s=age_s(head, now_ms),
        batch_id=batch.checkpoint_id if batch else None,
        batch_age_s=age_s(batch, now_ms) if batch else None,
        rows_since_batch=sum(row.checkpoint_id > batch.checkpoint_id for row in path) if batch else len(path),
        unpublished=tuple(unpublished),
        lag=lag,
        watermark_age_s=_watermark_age_s(head, now_ms),
        states=states,
        changelog_files=sum(one.changelog_files for one in states),
        changelog_rows=sum(one.changelog_rows for one in states),
        base_rows=sum(one.base_rows for one in states),
        dead_letters=letters_waiting(path),
        refused=batch.rows_refused if batch else 0,
        timers_due=due.count if due else 0,
        timers_due_s=due_s,
        clock_ahead_s=(head.clock_ms - now_ms) / 1000 if is_behind(now_ms, head) else None,
    )


def status_of_history(
    name: str,
    history: JobHistory | None,
    *,
    job: StatefulJob | None,
    now_ms: int,
    stuck_after: timedelta,
    limits: HealthLimits | None = None,
) -> JobStatus:
    """The health of a job, by its history; what cannot be read makes it ``unknown`` and is named in ``problem``.

    Args:
        history: None where the job never ran.
        job: for its sources; None where they are not known here.
        limits: beyond which it is strained; None for the usual ones.
    """
    if history is None:
        return JobStatus(name, "never_ran")
    lag: Mapping[str, bool | None] | None = None
    unpublished: list[int] = []
    files_waiting: list[str] = []
    missing: list[str] = []
    restorable: int | None = None
    left_alone: dict[str, str] = {}
    tables: list[TableStatus] = []
    due: DueTimers | None = None
    down: list[str] = []
    behind: Mapping[str, SourceLag] = {}
    partitions: int | None = None
    problem = ""
    try:
        present = PresentFiles(history.layout)
        missing, restorable = present.missing(history.path), present.newest_restorable(history.checkpoints)
        unpublished = sorted({row.checkpoint_id for row, _ in history.unpublished(job)})
        tables = history.tables(job)
        unpublished = sorted({*unpublished, *(missing_id for one in tables for missing_id in one.missing)})
        if job is not None:
            left_alone = history.left_alone(job)
            files_waiting = history.waiting(job)
            lag = _lag(job, history, now_ms)
            behind = {} if job.partitions else history.behind(job, lag, now_ms=now_ms)
            partitions = _partitions_waiting(job, history, now_ms)
            due = due_timers(job, history, now_ms=now_ms)
            unread = [source for source, new in lag.items() if new]
            down = outages(job, history.head, clock_ms=now_ms, unread=unread)
    except (StatelakeError, OSError) as error:
        problem = str(error)
    status = status_of(
        name, history.path, unpublished=unpublished, lag=lag, now_ms=now_ms, stuck_after=stuck_after, due=due
    )
    state: State = "changed" if status.state == "ok" and any(one.changed for one in tables) else status.state
    state = "waiting" if down and state == "ok" else state
    held = held_on(history.checkpoints)
    state = "held" if held and state in ("ok", "waiting", "stuck") else state
    state = "unknown" if problem and state == "ok" else state
    strained = strains(
        history.path,
        status.states,
        behind,
        partitions_waiting=partitions,
        now_ms=now_ms,
        limits=limits or HealthLimits(),
    )
    state = "strained" if strained and state == "ok" else state
    return replace(
        status,
        state="damaged" if missing else state,
        restorable_id=restorable,
        missing_files=tuple(missing),
        files_waiting=tuple(files_waiting),
        behind=behind,
        partitions_waiting=partitions,
        strains=tuple(strained),
        outages=tuple(down),
        held=str(held_error(name, held)) if held else "",
        kept_states=tuple(kept_for_later(history.head)),
        problem=problem,
        left_alone=left_alone,
        tables=tuple(tables),
    )


def _lag(job: StatefulJob, history: JobHistory, now_ms: int) -> Mapping[str, bool | None]:
    """Whether sources have new data; or, as only running a partition would show that, whether the next one is over."""
    if job.partitions is None:
        return history.new_data(job)
    last_end_ms = history.head.partition_end_ms if history.head else None
    return {f"partition {p.key}": True for p in job.partitions.waiting(last_end_ms, now_ms=now_ms, most=1)}


def _partitions_waiting(job: StatefulJob, history: JobHistory, now_ms: int) -> int | None:
    if job.partitions is None:
        return None
    last_end_ms = history.head.partition_end_ms if history.head else None
    return len(job.partitions.waiting(last_end_ms, now_ms=now_ms, most=_MOST_PARTITIONS))


def _watermark_age_s(head: CheckpointRow, now_ms: int) -> float | None:
    if head.watermark_ms is None or not MIN_TIMESTAMP < head.watermark_ms < MAX_TIMESTAMP:
        return None
    return (now_ms - head.watermark_ms) / 1000


def age_s(row: CheckpointRow, now_ms: int) -> float:
    """Seconds since the attempt that committed a row began; 0 where that clock is ahead of this one."""
    return max(0.0, now_ms / 1000 - row.created_at.timestamp())


@dataclass(frozen=True)
class DueTimers:
    """Timers that a run now would fire.

    Attributes:
        since_ms: the clock at which the first of them was due, in milliseconds since 1970.
    """

    count: int
    since_ms: int


def due_timers(job: StatefulJob, history: JobHistory, *, now_ms: int) -> DueTimers | None:
    """The timers that are due; None where none is, and in a job with time partitions, which only they let go on.

    By the rule with which a micro-batch is planned: what a run that began now would fire although no row came.
    """
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
    head = history.head
    recorded = head.operator(uid) if head else None
    if recorded is None:
        return 0
    files = state_files(history.layout, history.path, uid)
    schema = KeySchema.recorded(recorded.key_schema, recorded.key_type)
    stored = StoredTimers(files, AllKeys(), schema.storage, recorded.max_parallelism)
    due = stored.within({domain: (MIN_TIMESTAMP, until) for domain, until in until_ms.items()})
    return 0 if due is None else int(due.num_rows)
