"""Where no row comes: what a checkpoint knows of its sources, how far time gets, and which operators run all the same.

What plans a micro-batch, what shows the health of a job, and what starts runs all ask here, so they agree.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime

from state_engine.core.checkpoints.checkpoint import CheckpointRow, SourceProgress
from state_engine.core.functions.checkpointed import has_checkpoint_hooks
from state_engine.core.functions.function_calls import has_timers, takes_broadcast
from state_engine.core.time.time_plan import PlannedSource, TimePlan, plan_time, turns
from state_engine.core.time.timers import EVENT, PROCESSING
from state_engine.job.graph import OperatorNode, SourceNode
from state_engine.job.job import StatefulJob
from state_engine.microbatch.batch import BatchContext
from state_engine.microbatch.routing.origins import EventTimes, held_back_before


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


def runs_without_input(operator: OperatorNode, batch: BatchContext, watermark_ms: int) -> bool:
    """Whether an operator has something to do in a batch that brings it no rows.

    Hooks are called for every checkpoint; timers fire when they are due.
    """
    if has_checkpoint_hooks(operator.function) or takes_broadcast(operator.function):
        return True
    return timers_due(
        operator, batch.parent, clock_ms=batch.clock_ms, watermark_ms=watermark_ms, drain=batch.drain
    )


def timers_due(
    operator: OperatorNode,
    parent: CheckpointRow | None,
    *,
    clock_ms: int,
    watermark_ms: int | None,
    drain: bool,
) -> bool:
    """Whether a stored timer of an operator fires now."""
    recorded = parent.operator(operator.uid) if parent else None
    if recorded is None or not has_timers(operator.function):
        return False
    first = recorded.next_timers_ms
    event, processing = first.get(EVENT), first.get(PROCESSING)
    if processing is not None and processing <= clock_ms:
        return True
    return event is not None and (drain or (watermark_ms is not None and event <= watermark_ms))


def any_timer_due(
    job: StatefulJob, parent: CheckpointRow | None, *, clock_ms: int, time: TimePlan, drain: bool
) -> bool:
    """Whether a micro-batch without new data has timers to fire."""
    if parent is None:
        return False
    times = times_without_rows(job, parent, time)
    return any(
        timers_due(o, parent, clock_ms=clock_ms, watermark_ms=times.of(o), drain=drain)
        for o in job.operators.values()
    )


def due_since(job: StatefulJob, parent: CheckpointRow, *, now_ms: int) -> int | None:
    """The first clock at which a run without new rows has timers to fire; None where it has none by now.

    Args:
        now_ms: in milliseconds since 1970.
    """
    sources = waiting_sources(job, parent)
    if not any_timer_due(job, parent, clock_ms=now_ms, time=plan_time(sources, clock_ms=now_ms), drain=False):
        return None  # also where an earlier run would have fired them, and now time waits for a source
    delays = [s.policy.clock_delay_ms for s in sources.values() if s.policy.clock_delay_ms is not None]
    clocks = {parent.clock_ms, *turns(sources.values())}
    for operator in parent.operators:
        first = operator.next_timers_ms
        if PROCESSING in first:
            clocks.add(first[PROCESSING])
        if EVENT in first:
            held_back_ms = (
                held_back_before(job.operators[operator.uid]) if operator.uid in job.operators else 0
            )
            clocks |= {first[EVENT] + held_back_ms + delay + 1 for delay in delays}
    for at in sorted({max(clock, parent.clock_ms) for clock in clocks if clock <= now_ms}):
        if any_timer_due(job, parent, clock_ms=at, time=plan_time(sources, clock_ms=at), drain=False):
            return at
    return None
