"""Which operators run in a micro-batch although nothing new came to them, and since when one has a reason to."""

from __future__ import annotations

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.functions.checkpointed import has_checkpoint_hooks
from state_engine.core.functions.function_calls import has_timers, takes_broadcast
from state_engine.core.time.time_plan import TimePlan, plan_time, turns
from state_engine.core.time.timers import EVENT, PROCESSING
from state_engine.job.graph import OperatorNode
from state_engine.job.job import StatefulJob
from state_engine.microbatch.batch import BatchContext
from state_engine.microbatch.quiet_time import times_without_rows, waiting_sources


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
            clocks |= {first[EVENT] + delay + 1 for delay in delays}
    for at in sorted({max(clock, parent.clock_ms) for clock in clocks if clock <= now_ms}):
        if any_timer_due(job, parent, clock_ms=at, time=plan_time(sources, clock_ms=at), drain=False):
            return at
    return None
