"""The command ``statelake status``: the health of jobs, for people and for monitoring; starts neither Spark nor Java.

Exit codes: 0 fine; 1 files of a job are gone, it is stuck, its outputs are not published, somebody else changed a table
that it publishes to, it refuses all its rows, a gate holds a micro-batch, or it is strained;
2 a job never ran, or nothing is known of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from state_engine.cli.form import for_people
from state_engine.cli.output import show
from state_engine.cli.session import console, loaded_settings, no_settings, registered, remark
from state_engine.cli.tables import table
from state_engine.core.checkpoints.clock_jumps import standing_time
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import StatelakeError
from state_engine.core.names import check_name
from state_engine.job.job import StatefulJob
from state_engine.monitoring.job_history import JobHistory, read_history
from state_engine.monitoring.job_status import JobStatus, status_of_history
from state_engine.monitoring.shown_tables import TableStatus
from state_engine.monitoring.source_lag import SourceLag
from state_engine.monitoring.strains import HealthLimits

_STYLES = {
    "ok": "green",
    "damaged": "red",
    "stuck": "red",
    "unpublished": "red",
    "changed": "red",
    "refusing": "red",
    "held": "red",
    "waiting": "red",
    "strained": "yellow",
    "never_ran": "yellow",
    "unknown": "yellow",
}
MINUTES = 30.0
LIMITS = HealthLimits()
LAG_MINUTES = LIMITS.lag.total_seconds() / 60
LagMinutes = Annotated[
    float,
    typer.Option(min=0, help="Minutes that data may wait while the job runs; beyond them it is strained."),
]
Growth = Annotated[
    float,
    typer.Option(min=0, help="How many times as many entries as usual a row of input may add to a state."),
]
Skew = Annotated[
    float,
    typer.Option(min=0, help="Stored rows that the fullest subtask may have, as a multiple of the mean."),
]
StuckMinutes = Annotated[
    float,
    typer.Option(
        min=0,
        help="Minutes without a commit after which a job with new data, due timers or an ended partition is stuck.",
    ),
]
_MOST_FILES = 10


def status(
    job: Annotated[
        str | None, typer.Argument(help="Name of the job; all registered ones by default.")
    ] = None,
    stuck_minutes: StuckMinutes = MINUTES,
    lag_minutes: LagMinutes = LAG_MINUTES,
    growth: Growth = LIMITS.growth,
    skew: Skew = LIMITS.skew,
) -> None:
    """Show the health of jobs; ends with 0: fine; 1: somebody should look; 2: never ran, or unknown."""
    try:
        limits = HealthLimits(timedelta(minutes=lag_minutes), growth, skew)
        looked_at = looks(job, stuck_minutes=stuck_minutes, limits=limits, now_ms=now_ms())
        statuses = [status for status, _ in looked_at]
    except StatelakeError as error:  # 1 is for jobs
        Console(stderr=True).print(f"[red]error[/]: {escape(str(error))}", soft_wrap=True, highlight=False)
        raise typer.Exit(code=2) from None
    if looked := no_settings():
        remark(looked)
    show([one.to_json() for one in statuses], lambda: status_table(statuses))
    if for_people():
        for one in statuses:
            for text in notes(one):
                console.print(f"{escape(one.job)}: {escape(text)}", soft_wrap=True, highlight=False)
    raise typer.Exit(code=worst(statuses))


def looks(
    job: str | None, *, stuck_minutes: float, limits: HealthLimits, now_ms: int
) -> list[tuple[JobStatus, JobHistory | None]]:
    """The health of one job, or of all registered ones, each with what it has recorded."""
    settings = loaded_settings().settings
    known = {name: one.job for name, one in registered(settings).items()}
    names = [check_name(job, what="job")] if job else list(known)
    patience = timedelta(minutes=stuck_minutes)
    return [
        look(settings.root, name, known.get(name), stuck_after=patience, limits=limits, now_ms=now_ms)
        for name in names
    ]


def look(
    root: str,
    name: str,
    job: StatefulJob | None,
    *,
    stuck_after: timedelta,
    now_ms: int,
    limits: HealthLimits | None = None,
) -> tuple[JobStatus, JobHistory | None]:
    """The health of one job, and what it has recorded; unknown where that cannot be read."""
    try:
        history = read_history(root, name)
    except (StatelakeError, OSError) as error:
        return JobStatus(name, "unknown", problem=str(error)), None
    if job is not None and job.partitions is not None:  # until the next one is over, nothing can be committed
        stuck_after += job.partitions.interval
    status = status_of_history(name, history, job=job, now_ms=now_ms, stuck_after=stuck_after, limits=limits)
    return status, history


def now_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def worst(statuses: list[JobStatus]) -> int:
    """The exit code over several jobs: what certainly is wrong counts more than what nobody knows."""
    codes = {one.exit_code for one in statuses}
    return 1 if 1 in codes else max(codes, default=2)


def notes(one: JobStatus) -> list[str]:
    """What a line of the table has no room for."""
    gone = [f"is missing or truncated: {file}" for file in one.missing_files[:_MOST_FILES]]
    if one.missing_files:
        way_out = (
            "restore a savepoint"
            if one.restorable_id is None
            else f"statelake restore {one.job} {one.restorable_id}"
        )
        gone.append(
            f"the head needs {counted(len(one.missing_files), 'file')} that changed or vanished since they were "
            "written. Put them back from a "
            f"copy; or go back to the newest checkpoint whose files all exist: {way_out}"
        )
    waiting = [f"waits: {text}" for text in one.files_waiting[:_MOST_FILES]]
    if len(one.files_waiting) > _MOST_FILES:
        waiting.append(f"waits: {counted(len(one.files_waiting) - _MOST_FILES, 'more file')}")
    waiting += one.outages
    if one.timers_due:
        waiting.append(f"{timers_due(one)}: run the job, and they fire")
    if one.clock_ahead_s is not None:
        now = now_ms()
        waiting.append(standing_time(now, now + round(one.clock_ahead_s * 1000)))
    waiting += one.strains
    waiting += one.kept_states
    waiting += [
        f"sink {sink} at {path} is left alone: the code no longer has it"
        for sink, path in one.left_alone.items()
    ]
    return [*gone, *waiting, *map(_shown, one.tables), *([one.problem] if one.problem else [])]


def _shown(table: TableStatus) -> str:
    what = f"table {table.name} at {table.place}"
    if table.shown_id is None:
        return table.changed or f"{what} is not there yet: run the job, or statelake publish-pending"
    shows = f"{what} shows checkpoint {table.shown_id}"
    behind = len(table.missing)
    shows += f", {behind} behind the head" if behind else ", and with it the state as of the head"
    return f"{shows}. {table.changed}" if table.changed else shows


def timers_due(one: JobStatus) -> str:
    """How many timers are due, and since when."""
    since = datetime.now(UTC) - timedelta(seconds=one.timers_due_s or 0)
    return f"{counted(one.timers_due, 'timer')} due since {since:%Y-%m-%d %H:%M:%S} UTC"


def status_table(statuses: list[JobStatus]) -> Table:
    """One line a job; columns in which nothing happened are left out."""
    names = (
        "job",
        "is",
        "head",
        "kind",
        "age",
        "last batch",
        "unpublished",
        "new data",
        "watermark age",
        "entries",
        "state",
        "changelog files",
        "dead letters",
    )
    rows = [
        (
            one.job,
            Text(one.state, _STYLES[one.state]),
            _text(one.head_id),
            _text(one.head_kind),
            _age(one.head_age_s),
            _age(one.batch_age_s),
            ", ".join(map(str, one.unpublished)),
            ", ".join(f"{name}: {_new_data(one, name)}" for name in one.lag or {}),
            _age(one.watermark_age_s),
            _entries(one),
            f"{sum(size.bytes for size in one.states):,} B",
            str(one.changelog_files),
            f"{one.dead_letters:,}",
        )
        for one in statuses
    ]
    usual = {
        "kind": "checkpoint",
        "unpublished": "",
        "new data": "",
        "watermark age": "",
        "entries": "",
        "state": "0 B",
        "dead letters": "0",
    }
    right = ("head", "age", "last batch", "watermark age", "state", "changelog files", "dead letters")
    return table(names, rows, folds=("unpublished", "new data", "entries"), right=right, usual=usual)


def _entries(one: JobStatus) -> str:
    return ", ".join(
        f"{size.operator}.{state}: {entries:,}"
        for size in one.states
        for state, entries in size.entries.items()
    )


def _new_data(one: JobStatus, name: str) -> str:
    """Whether a source has new data, and how much that is."""
    behind, waiting = one.behind.get(name, SourceLag()), (one.lag or {})[name]
    parts = [
        counted(behind.files, "file") if behind.files is not None else "",
        counted(behind.rows, "row") if behind.rows is not None else "",
        f"since {_age(behind.seconds)}" if behind.seconds is not None else "",
        f"{one.partitions_waiting:,} wait" if one.partitions_waiting else "",
    ]
    return _ANSWERS[waiting] + (f" ({', '.join(filter(None, parts))})" if any(parts) else "")


_ANSWERS: Mapping[bool | None, str] = {True: "yes", False: "no", None: "?"}


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _age(seconds: float | None) -> str:
    return "" if seconds is None else str(timedelta(seconds=int(seconds)))
