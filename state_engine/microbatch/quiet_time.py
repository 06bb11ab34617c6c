"""Event time where no row comes: what a checkpoint knows of its sources, and how far time gets without rows.

What plans a micro-batch, what shows the health of a job, and what starts runs all ask here, so they agree.
"""

from __future__ import annotations

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.time.time_plan import PlannedSource, TimePlan
from state_engine.job.job import StatefulJob
from state_engine.microbatch.routing.origins import EventTimes


def waiting_sources(job: StatefulJob, parent: CheckpointRow | None) -> dict[str, PlannedSource]:
    """The sources with event time, by name, as if none of them had new rows."""
    sources = {}
    for name, node in job.sources.items():
        if node.timed:
            known = parent.source(name) if parent else None
            last_ms = known.last_rows_ms if known else None
            sources[name] = PlannedSource(node.time_policy, unread=False, more=False, last_rows_ms=last_ms)
    return sources


def recorded_time(row: CheckpointRow) -> TimePlan:
    """What moved event time, besides rows, in a micro-batch that was committed."""
    floors_ms = {s.name: s.floor_ms for s in row.sources if s.floor_ms is not None}
    return TimePlan(floors_ms, frozenset(s.name for s in row.sources if s.idle))


def times_without_rows(job: StatefulJob, parent: CheckpointRow, time: TimePlan) -> EventTimes:
    """How far event time is after a micro-batch without rows."""
    known = {s.name: s.watermark_ms for s in parent.sources}
    timed = [name for name, node in job.sources.items() if node.timed]
    reached = {name: time.raised(name, known.get(name)) for name in timed}
    return EventTimes(reached, time.idle, parent.operator_watermarks_ms)
