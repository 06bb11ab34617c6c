"""How the event time of a source goes on where no row moves it, as a job declares it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from state_engine.core.choices import check_choice
from state_engine.core.errors import ConfigurationError
from state_engine.core.time.partitions import TimePartitions
from state_engine.core.time.time_plan import NO_POLICY, TimePolicy
from state_engine.core.types.durations import Span, to_milliseconds
from state_engine.job.graph import SourceNode


def time_policy(
    source: str,
    idle_after: Span | None,
    watermark: str,
    clock_delay: Span | None,
    stale_after: Span | None,
    partitions: TimePartitions | None,
) -> TimePolicy:
    """What ``StatefulJob.source`` declares."""
    where = f"source '{source}'"
    check_choice(watermark, ("rows", "clock"), what=f"{where}: watermark")
    if (watermark == "clock") != (clock_delay is not None):
        raise ConfigurationError(
            f"{where}: watermark='clock' and clock_delay go together: clock_delay says how long after its event time a "
            "row may come, for example watermark='clock', clock_delay='10 min'"
        )
    if watermark == "clock" and partitions is not None:
        raise ConfigurationError(
            f"{where}: watermark='clock' is for continuous jobs: in time partitions, which may be run long after, time "
            "ends with each partition. Leave watermark and clock_delay out"
        )
    if stale_after is not None and partitions is not None:
        raise ConfigurationError(
            f"{where}: stale_after is for continuous jobs: a time partition runs when it is over. "
            "Leave it out"
        )
    return TimePolicy(
        _milliseconds(where, "idle_after", idle_after, least_ms=1, must="must be above zero"),
        _milliseconds(where, "clock_delay", clock_delay, least_ms=0, must="must not be negative"),
        _milliseconds(where, "stale_after", stale_after, least_ms=1, must="must be above zero"),
    )


def warn_of_outages(node: SourceNode) -> None:
    """Warn of a source whose backlog may be late after an outage, because time goes on before the outage shows."""
    policy, least_ms = node.time_policy, node.time_policy.stale_after_ms
    if least_ms is None:
        return
    least_ms += node.max_out_of_orderness_ms
    spans = (("clock_delay", policy.clock_delay_ms), ("idle_after", policy.idle_after_ms))
    short = [
        f"{name} is {span_ms // 1000} s"
        for name, span_ms in spans
        if span_ms is not None and span_ms < least_ms
    ]
    if short:
        warnings.warn(
            f"source '{node.name}': {' and '.join(short)}, and stale_after with max_out_of_orderness "
            f"{least_ms // 1000} s: event time goes on before an outage shows, so rows that come after it may be late. "
            "To have them joined as if there had been no outage, give at least that, plus the time that a row takes to "
            "come; or leave watermark='clock' and idle_after out, so that rows alone move time",
            stacklevel=3,
        )


def check_time_policies(sources: Iterable[SourceNode]) -> None:
    """Refuse what has no event time to act on; raises ConfigurationError."""
    for node in sources:
        if node.time_policy != NO_POLICY and not node.timed:
            raise ConfigurationError(
                f"source '{node.name}': idle_after, stale_after and watermark='clock' need event time: name its "
                "column, event_time='…', or give the stream a WatermarkStrategy"
            )


def _milliseconds(where: str, what: str, span: Span | None, *, least_ms: int, must: str) -> int | None:
    """A declared span; None where there is none."""
    if span is None:
        return None
    milliseconds = to_milliseconds(span)
    if milliseconds < least_ms:
        raise ConfigurationError(f"{where}: {what} {must}, not {milliseconds} ms")
    return milliseconds
