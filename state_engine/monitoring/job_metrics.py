"""The metrics of a job as of now: what its rows say, and what its status sees beside them; without Spark or Java."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from state_engine.monitoring.job_history import JobHistory
from state_engine.monitoring.job_status import JobStatus, State
from state_engine.monitoring.state_bytes import state_bytes
from state_engine.telemetry import metrics as m
from state_engine.telemetry.measurements import measurements
from state_engine.telemetry.metrics import JOB, Point


def metrics_of(status: JobStatus, history: JobHistory | None, *, now_ms: int) -> list[Point]:
    """All numbers of a job, each with its name.

    Args:
        history: None where the job never ran, or its rows cannot be read: only its status is known then.
    """
    points = [*_of_status(status)]
    if history is not None:
        points += [*measurements(history.checkpoints, now_ms=now_ms), *_parts(history)]
    return [replace(point, attributes={JOB: status.job, **point.attributes}) for point in points]


def _parts(history: JobHistory) -> Iterator[Point]:
    """The bytes of each keyed state of the head."""
    for operator in history.head.operators if history.head else ():
        for state, size in state_bytes(history.layout, history.path, operator).items():
            yield m.STATE_PART.of(size, operator.uid, state)


def _of_status(status: JobStatus) -> Iterator[Point]:
    for state in get_args(State):
        yield m.STATUS.of(state == status.state, state)
    if status.head_id is None:
        return
    yield m.UNPUBLISHED.of(len(status.unpublished))
    yield m.DEAD_LETTERS.of(status.dead_letters)
    yield m.FILES_MISSING.of(len(status.missing_files))
    yield m.FILES_WAITING.of(len(status.files_waiting))
    yield m.TIMERS_DUE.of(status.timers_due)
    yield m.TIMERS_DUE_TIME.of(status.timers_due_s or 0)
    if status.partitions_waiting is not None:
        yield m.LAG_PARTITIONS.of(status.partitions_waiting)
    else:
        yield from _of_lag(status)


def _of_lag(status: JobStatus) -> Iterator[Point]:
    """A source without new data has 0 of all; one that nobody can ask without Spark has no number."""
    for source, new in (status.lag or {}).items():
        if new is None:
            continue
        yield m.NEW_DATA.of(new, source)
        behind = status.behind.get(source)
        for metric, number in (
            (m.LAG_FILES, behind.files if behind else 0),
            (m.LAG_ROWS, behind.rows if behind else 0),
            (m.LAG_SIZE, behind.bytes if behind else 0),
            (m.LAG_TIME, behind.seconds if behind else 0),
        ):
            if number is not None:
                yield metric.of(number, source)
