"""``TimePlan``: what moves event time in a micro-batch besides its rows: idle sources, the clock, ends of partitions.

A source that is silent for too long to be just quiet is *stale*: neither idleness nor the clock moves time past it.

It is decided when the micro-batch is planned, from the clock that its checkpoint records, and is recorded itself. So a
replay fires the same timers in the same places. Mirrors Flink's ``WatermarksWithIdleness``, which asks the clock of the
machine again and again, and ``StatusWatermarkValve``. Decision 0027.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from state_engine.core.time.watermarks import furthest


@dataclass(frozen=True)
class TimePolicy:
    """How the event time of a source goes on where no row moves it.

    Attributes:
        idle_after_ms: it is idle after so long without a row, and holds back no other source; None: it never is.
        clock_delay_ms: its watermark follows the clock by so much; None: only rows move it.
        stale_after_ms: after so long without a row something upstream has failed; None: silence means nothing.
    """

    idle_after_ms: int | None = None
    clock_delay_ms: int | None = None
    stale_after_ms: int | None = None


NO_POLICY = TimePolicy()


@dataclass(frozen=True)
class PlannedSource:
    """What is known of a source when a micro-batch is planned.

    Attributes:
        unread: whether it gives rows to the micro-batch, or has rows that wait for a later one.
        more: whether rows wait for a later one: then time must not pass them.
        last_rows_ms: clock of the micro-batch that had its last rows, or that knew it first; None where none did.
        newest_ms: its newest event time, where nothing but rows moved its watermark in the last micro-batch; else None.
    """

    policy: TimePolicy
    unread: bool
    more: bool
    last_rows_ms: int | None
    newest_ms: int | None = None

    def is_stale(self, clock_ms: int) -> bool:
        """Whether its silence means an outage, or its rows are still behind the clock after one.

        Example:
            >>> policy = TimePolicy(clock_delay_ms=10, stale_after_ms=30)
            >>> silent = PlannedSource(policy, unread=False, more=False, last_rows_ms=100)
            >>> [silent.is_stale(clock) for clock in (129, 130)]
            [False, True]
            >>> back = PlannedSource(policy, unread=True, more=False, last_rows_ms=100, newest_ms=95)
            >>> [back.is_stale(clock) for clock in (124, 130)]
            [False, True]
        """
        stale_ms, delay_ms = self.policy.stale_after_ms, self.policy.clock_delay_ms
        if stale_ms is None:
            return False
        if self.was_silent(clock_ms) and not self.unread:
            return True
        if delay_ms is None or self.newest_ms is None:
            return False
        return clock_ms - self.newest_ms >= max(stale_ms, delay_ms)

    def was_silent(self, clock_ms: int) -> bool:
        """Whether it had no rows for so long, before those of this micro-batch, that they may be of a backlog."""
        stale_ms, last_ms = self.policy.stale_after_ms, self.last_rows_ms
        return stale_ms is not None and last_ms is not None and clock_ms - last_ms >= stale_ms

    def follows_clock(self, clock_ms: int) -> bool:
        """Whether its watermark is moved by the clock: not past rows that wait, or that may come after an outage."""
        waits = self.more or self.is_stale(clock_ms) or self.was_silent(clock_ms)
        return self.policy.clock_delay_ms is not None and not waits


@dataclass(frozen=True)
class TimePlan:
    """See the module docstring.

    Attributes:
        floors_ms: by source, what its watermark is at least at the end of the micro-batch.
        idle: the sources that hold back no other one in this micro-batch; they bring no row to it.
    """

    floors_ms: Mapping[str, int] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()

    def raised(self, source: str, watermark_ms: int | None) -> int | None:
        """The watermark of a source at the end of the micro-batch, given how far its rows moved it; None for none.

        Example:
            >>> plan = TimePlan({"a": 50})
            >>> plan.raised("a", 40), plan.raised("a", None), plan.raised("b", None)
            (50, 50, None)
        """
        return furthest([watermark_ms, self.floors_ms.get(source)])


ROWS_ALONE = TimePlan()
"""Nothing but rows moves event time."""


def plan_time(
    sources: Mapping[str, PlannedSource], *, clock_ms: int, partition_end_ms: int | None = None
) -> TimePlan:
    """The plan of a micro-batch.

    Args:
        partition_end_ms: where the time partition ends that the micro-batch is of, exclusive; None for none.

    Example:
        >>> quiet = PlannedSource(TimePolicy(60_000, 10_000), unread=False, more=False, last_rows_ms=40_000)
        >>> plan_time({"a": quiet}, clock_ms=100_000)
        TimePlan(floors_ms={'a': 89999}, idle=frozenset({'a'}))
    """
    floors_ms = {}
    for name, source in sources.items():
        floors = [] if partition_end_ms is None else [partition_end_ms - 1]
        if source.policy.clock_delay_ms is not None and source.follows_clock(clock_ms):
            floors.append(clock_ms - source.policy.clock_delay_ms - 1)
        if floors:
            floors_ms[name] = max(floors)
    idle = (name for name, source in sources.items() if _is_idle(source, clock_ms))
    return TimePlan(floors_ms, frozenset(idle))


def turns(sources: Iterable[PlannedSource]) -> list[int]:
    """The clocks, in order, at which sources without new rows become idle."""
    ends = {_idle_from(source) for source in sources if not source.unread}
    return sorted(at for at in ends if at is not None)


def _is_idle(source: PlannedSource, clock_ms: int) -> bool:
    from_ms = _idle_from(source)
    return not source.unread and from_ms is not None and clock_ms >= from_ms and not source.is_stale(clock_ms)


def _idle_from(source: PlannedSource) -> int | None:
    idle_after_ms = source.policy.idle_after_ms
    return (
        None if idle_after_ms is None or source.last_rows_ms is None else source.last_rows_ms + idle_after_ms
    )
