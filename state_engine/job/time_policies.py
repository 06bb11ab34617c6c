"""How the event time of a source goes on where no row moves it, as a job declares it."""

from __future__ import annotations

from collections.abc import Iterable

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
    partitions: TimePartitions | None,
) -> TimePolicy:
    """What ``StatefulJob.source`` declares.

    Raises:
        ConfigurationError: the arguments do not fit each other, or the job.
    """
    where = f"source '{source}'"
    if watermark not in ("rows", "clock"):
        raise ConfigurationError(f"{where}: watermark must be 'rows' or 'clock', not {watermark!r}")
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
    return TimePolicy(
        None if idle_after is None else _positive(where, "idle_after", idle_after),
        None if clock_delay is None else _not_negative(where, "clock_delay", clock_delay),
    )


def check_time_policies(sources: Iterable[SourceNode]) -> None:
    """Refuse what has no event time to act on; raises ConfigurationError."""
    for node in sources:
        if node.time_policy != NO_POLICY and not node.timed:
            raise ConfigurationError(
                f"source '{node.name}': idle_after and watermark='clock' need event time: name its column, "
                "event_time='…', or give the stream a WatermarkStrategy"
            )


def _positive(where: str, what: str, span: Span) -> int:
    milliseconds = to_milliseconds(span)
    if milliseconds <= 0:
        raise ConfigurationError(f"{where}: {what} must be above zero, not {milliseconds} ms")
    return milliseconds


def _not_negative(where: str, what: str, span: Span) -> int:
    milliseconds = to_milliseconds(span)
    if milliseconds < 0:
        raise ConfigurationError(f"{where}: {what} must not be negative, not {milliseconds} ms")
    return milliseconds
