"""Event time where no row comes: what a checkpoint knows of its sources, and how far time gets without rows.

What plans a micro-batch, what shows the health of a job, and what starts runs all ask here, so they agree.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime

from state_engine.core.checkpoints.checkpoint import CheckpointRow, SourceProgress
from state_engine.core.time.time_plan import PlannedSource, TimePlan
from state_engine.job.graph import SourceNode
from state_engine.job.job import StatefulJob
from state_engine.microbatch.routing.origins import EventTimes


def waiting_sources(job: StatefulJob, parent: CheckpointRow | None) -> dict[str, PlannedSource]:
    """The sources with event time, by name, as if none of them had new rows."""
    sources = {}
    for name, node in job.sources.items():
        if node.timed:
            known = parent.source(name) if parent else None
            sources[name] = PlannedSource(
                node.time_policy,
                unread=False,
                more=False,
                last_rows_ms=known.last_rows_ms if known else None,
                newest_ms=_newest_ms(known, node) if known else None,
            )
    return sources


def _newest_ms(known: SourceProgress, node: SourceNode) -> int | None:
    """The newest event time of a source, where only rows moved its watermark."""
    if known.floor_ms is not None or known.watermark_ms is None:
        return None
    return known.watermark_ms + node.max_out_of_orderness_ms + 1


def outages(
    job: StatefulJob, parent: CheckpointRow | None, *, clock_ms: int, unread: Collection[str] = ()
) -> list[str]:
    """For which sources event time waits because they are down (``stale_after``), and since when."""
    sources = {n: replace(one, unread=n in unread) for n, one in waiting_sources(job, parent).items()}
    return [_outage(name, one) for name, one in sources.items() if one.is_stale(clock_ms)]


def _outage(name: str, source: PlannedSource) -> str:
    if source.unread:
        return f"source '{name}' has new rows after an outage: event time waits until they have caught up"
    last = datetime.fromtimestamp((source.last_rows_ms or 0) / 1000, UTC)
    return f"source '{name}' brought its last rows at {last:%Y-%m-%d %H:%M:%S} UTC: event time waits for it"


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
