"""What ends time besides rows is decided from recorded values alone."""

from __future__ import annotations

import pytest

from state_engine.core.errors import ConfigurationError
from state_engine.core.time.time_plan import PlannedSource, TimePlan, TimePolicy, plan_time, turns
from state_engine.core.types.durations import to_milliseconds


def source(
    *, idle: int | None = None, delay: int | None = None, unread: bool = False, more: bool = False,
    last: int | None = 100,
) -> PlannedSource:  # fmt: skip
    return PlannedSource(TimePolicy(idle, delay), unread, more, last)


@pytest.mark.parametrize(
    ("one", "clock_ms", "idle"),
    [
        (source(idle=50), 149, False),
        (source(idle=50), 150, True),
        (source(idle=50, unread=True), 1_000, False),
        (source(idle=50, last=None), 1_000, False),
        (source(), 1_000, False),
    ],
)
def test_a_source_is_idle_that_brought_nothing_for_so_long(
    one: PlannedSource, clock_ms: int, idle: bool
) -> None:
    assert ("s" in plan_time({"s": one}, clock_ms=clock_ms).idle) is idle


@pytest.mark.parametrize(
    ("one", "partition_end_ms", "floor_ms"),
    [
        (source(), None, None),
        (source(delay=10), None, 489),
        (source(delay=10, unread=True), None, 489),
        (source(delay=10, more=True), None, None),
        (source(), 400, 399),
        (source(delay=10), 400, 489),
        (source(delay=10), 600, 599),
        (source(delay=10, more=True), 400, 399),
    ],
)
def test_the_clock_and_the_end_of_a_partition_raise_the_watermark(
    one: PlannedSource, partition_end_ms: int | None, floor_ms: int | None
) -> None:
    plan = plan_time({"s": one}, clock_ms=500, partition_end_ms=partition_end_ms)
    assert plan.floors_ms == ({} if floor_ms is None else {"s": floor_ms})


def test_sources_without_a_policy_are_moved_by_rows_alone() -> None:
    assert plan_time({"a": source(), "b": source(unread=True)}, clock_ms=10**12) == TimePlan()


@pytest.mark.parametrize("unread", [False, True])
def test_the_clock_moves_no_time_after_a_silence_that_may_be_an_outage(unread: bool) -> None:
    """Whether something new is planned says little: a slice of Kafka may hold no record, one of a backlog old rows."""
    of = PlannedSource(TimePolicy(clock_delay_ms=10, stale_after_ms=30), unread, more=False, last_rows_ms=100)
    assert plan_time({"s": of}, clock_ms=129).floors_ms == {"s": 118}
    assert plan_time({"s": of}, clock_ms=130).floors_ms == {}


def test_when_sources_turn_idle() -> None:
    assert turns([source(idle=50), source(idle=20), source(idle=1, unread=True), source()]) == [120, 150]


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("5ms", 5), ("90 s", 90_000), ("30 min", 1_800_000), ("6 hours", 21_600_000), (" 2 d ", 172_800_000)],
)
def test_spans_as_text(text: str, milliseconds: int) -> None:
    assert to_milliseconds(text) == milliseconds


@pytest.mark.parametrize("text", ["", "30", "min", "-5 s", "1.5 h", "3 fortnights", "5 m"])
def test_a_text_that_is_no_span_says_what_to_write(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not a span of time: write .*'30 min'"):
        to_milliseconds(text)
