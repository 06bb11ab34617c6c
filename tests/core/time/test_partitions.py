"""Time partitions: bounds where clocks are changed, and keys as Dagster spells them."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.errors import ConfigurationError
from state_engine.core.time.partitions import (
    HOUR_MS,
    Partition,
    TimePartitions,
    instant,
    order_refusal,
)

ZONES = [
    "UTC",
    "America/New_York",
    "Europe/Berlin",
    "America/Sao_Paulo",
    "Asia/Kolkata",
    "America/Havana",
    "Africa/Cairo",
]
LATER = datetime(2040, 1, 1, tzinfo=UTC)


def days(start: str = "2013-01-01", timezone: str = "America/New_York", **more: Any) -> TimePartitions:
    return TimePartitions("at", every="day", start=start, timezone=timezone, **more)


def hours(start: str, timezone: str = "America/New_York", **more: Any) -> TimePartitions:
    return TimePartitions("at", every="hour", start=start, timezone=timezone, **more)


def as_dagster(definition: dg.TimeWindowPartitionsDefinition) -> list[Partition]:
    partitions = []
    for key in definition.get_partition_keys(current_time=LATER):
        window = definition.time_window_for_partition_key(key)
        bounds = [int(at.timestamp() * 1000) for at in (window.start, window.end)]
        partitions.append(Partition(key, *bounds))
    return partitions


@given(
    day=st.dates(date(2000, 1, 1), date(2030, 1, 1)), count=st.integers(1, 40), zone=st.sampled_from(ZONES)
)
def test_days_are_those_of_dagster(day: date, count: int, zone: str) -> None:
    start, end = day.isoformat(), (day + timedelta(days=count)).isoformat()
    own = days(start, zone, end=end)
    expected = as_dagster(dg.DailyPartitionsDefinition(start_date=start, end_date=end, timezone=zone))
    assert own.from_to(own.first(), 10**14) == expected
    assert [own.at(p.key) for p in expected] == expected


@given(day=st.dates(date(2000, 1, 1), date(2030, 1, 1)), zone=st.sampled_from(ZONES), hour=st.integers(4, 23))
def test_hours_are_those_of_dagster(day: date, zone: str, hour: int) -> None:
    if zone == "Asia/Kolkata":  # hours there begin at half past in UTC, and never change
        hour = 0
    start, end = f"{day}-{hour:02}:00", f"{day + timedelta(days=2)}-12:00"
    _same_hours(start, end, zone)


def _same_hours(start: str, end: str, zone: str) -> None:
    own = hours(start, zone, end=end)
    partitions = own.from_to(own.first(), 10**14)
    expected = as_dagster(dg.HourlyPartitionsDefinition(start_date=start, end_date=end, timezone=zone))
    assert partitions == expected
    assert [own.at(p.key) for p in partitions] == partitions


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(
    "day", ["2013-03-09", "2013-11-02", "2013-10-19", "2013-02-16", "2013-03-30", "2013-10-26", "2014-05-15"]
)
def test_clocks_are_changed(day: str, zone: str) -> None:
    _same_hours(f"{day}-05:00", f"{date.fromisoformat(day) + timedelta(days=2)}-05:00", zone)


def test_the_day_and_the_hour_that_are_too_long_or_there_twice() -> None:
    partitions = days().between("2013-11-02", "2013-11-04")
    assert [(p.end_ms - p.start_ms) // HOUR_MS for p in partitions] == [24, 25, 24]
    assert instant(partitions[0].end_ms) == "2013-11-03 04:00:00 UTC"
    own = hours("2013-11-03")
    keys = [p.key for p in own.between("2013-11-03-00:00", "2013-11-03-02:00")]
    assert keys == ["2013-11-03-00:00", "2013-11-03-01:00", "2013-11-03-01:00-0500", "2013-11-03-02:00"]
    for key in ("2013-11-03-01:00-0400", "2013-03-10-02:00", "2013-11-03-01:30", "2013-11-03", "x"):
        with pytest.raises(ConfigurationError, match=f"no partition '{key}'"):
            own.at(key)
    own = hours("2013-04-06-12:00", "Australia/Lord_Howe")
    with pytest.raises(ConfigurationError, match="not changed by whole hours"):
        own.from_to(own.first(), own.first().start_ms + 24 * HOUR_MS)


def test_a_day_that_a_calendar_left_out_is_none() -> None:
    own = days("2011-12-28", "Pacific/Apia")
    assert [p.key for p in own.between("2011-12-28", "2012-01-01")] == [
        "2011-12-28", "2011-12-29", "2011-12-31", "2012-01-01",
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="2011-12-30"):
        own.at("2011-12-30")


def test_a_day_without_a_midnight_begins_with_its_first_hour() -> None:
    own = hours("2000-04-28", "Africa/Cairo")
    assert own.first().key == "2000-04-28-01:00"
    assert instant(own.first().start_ms) == "2000-04-27 22:00:00 UTC"
    with pytest.raises(ConfigurationError, match="is not a start of hours in Pacific/Apia"):
        hours("2011-12-30", "Pacific/Apia")


@given(zone=st.sampled_from(ZONES), day=st.dates(date(2000, 1, 1), date(2030, 1, 1)), hourly=st.booleans())
def test_partitions_lie_side_by_side(zone: str, day: date, hourly: bool) -> None:
    own = (hours if hourly else days)(day.isoformat(), zone)
    at: Partition | None = own.first()
    assert own.before(own.first()) is None
    for _ in range(30):
        assert at is not None
        following = own.after(at)
        assert following is not None
        assert following.start_ms == at.end_ms > at.start_ms
        assert own.before(following) == at
        at = following


def test_an_end_and_what_is_over() -> None:
    own = days(end="2013-01-04", timezone="UTC")
    first = own.first()
    assert [p.key for p in own.from_to(first, 10**14)] == ["2013-01-01", "2013-01-02", "2013-01-03"]
    assert own.from_to(first, first.end_ms - 1) == []
    assert own.from_to(first, first.end_ms) == [first]
    assert own.after(own.at("2013-01-03")) is None
    for key in ("2013-01-04", "2012-12-31"):
        with pytest.raises(ConfigurationError, match="there is no partition"):
            own.at(key)
    with pytest.raises(ConfigurationError, match="2013-01-01 is before 2013-01-02"):
        own.between("2013-01-02", "2013-01-01")
    with pytest.raises(ConfigurationError, match="begins at 2013-01-02 05:00:00 UTC"):
        own.starting_at(first.end_ms + 5 * HOUR_MS)


def test_what_is_declared_wrongly() -> None:
    for wrong, message in (
        ({"every": "week"}, "every of TimePartitions must be one of day, hour, not 'week'"),
        ({"late": "drop"}, "late of TimePartitions"),
        ({"nulls": "drop"}, "nulls of TimePartitions"),
        ({"timezone": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        ({"start": ""}, "need the start"),
        ({"start": "January"}, "'January' is not a start of days"),
        ({"start": "2013-01-01", "end": "2013-01-01"}, "there are none"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            TimePartitions("at", **({"start": "2013-01-01"} | wrong))
    both = TimePartitions({"flights": "departed_at"}, start="2013-01-01")
    assert both.column_of("flights") == "departed_at"
    with pytest.raises(ConfigurationError, match="source 'weather'"):
        both.column_of("weather")


def test_the_order_is_reported() -> None:
    own = days(end="2013-01-06")
    one, two, three = own.between("2013-01-01", "2013-01-03")
    for asked, last, message in (
        (one, None, None), (two, one, None), (two, two, None),
        (two, None, "none was run yet: run 2013-01-01 first"),
        (three, one, "the last one that was run is 2013-01-01: run 2013-01-02 first"),
        (one, two, r"was run already.*engine.backfill\(job, '2013-01-01', '2013-01-02'\)"),
    ):  # fmt: skip
        refusal = order_refusal(own, asked, last=last, job="j")
        assert (refusal is None) is (message is None)
        assert message is None or re.search(message, str(refusal))
