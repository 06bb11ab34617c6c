"""Which windows a row belongs to: examples of Flink and Spark, and clocks that change against a scan by the minute."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.types.durations import Span
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.operators.windows.assigners import Cumulating, Session, Sliding, TimeWindow, Tumbling

HOUR, DAY = 3_600_000, 86_400_000
LOS_ANGELES = "America/Los_Angeles"
SIX_TO_SIX = Tumbling("1 day", offset="6 h", time_zone="UTC")
DAYS_OF_BRAZIL = Tumbling("1 day", time_zone="America/Sao_Paulo")
DAYS_OF_SAMOA = Tumbling("1 day", time_zone="Pacific/Apia")
Aligned = Tumbling | Sliding | Cumulating


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def bounds(assigner: Aligned, at: int) -> list[tuple[int, int]]:
    return [tuple(window) for window in assigner.windows_of(at)]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("assigner", "at", "window"),
    [
        (Tumbling(5000), 0, (0, 5000)),
        (Tumbling(5000), 4999, (0, 5000)),
        (Tumbling(5000), 5000, (5000, 10000)),
        (Tumbling(5000, offset=100), 100, (100, 5100)),
        (Tumbling(5000, offset=100), 5099, (100, 5100)),
        (Tumbling(5000, offset=100), 5100, (5100, 10100)),
        (Tumbling("5 s", offset="1 s"), 5999, (1000, 6000)),
        (Tumbling("5 s", offset="1 s"), 6000, (6000, 11000)),
        (Tumbling("10 s", offset="5 s"), -86398000, (-86405000, -86395000)),
        (Tumbling("10 s", offset="5 s"), -86388000, (-86395000, -86385000)),
        (Tumbling("7 days"), 1704067200000, (ms("2023-12-28"), ms("2024-01-04"))),
        (Tumbling("1 week"), 1704067200000, (ms("2024-01-01"), ms("2024-01-08"))),
        (Tumbling("1 month"), ms("2024-02-29"), (ms("2024-02-01"), ms("2024-03-01"))),
        (Tumbling("1 quarter"), ms("2024-12-31T23:59"), (ms("2024-10-01"), ms("2025-01-01"))),
        (Tumbling("2 years"), ms("1969-12-31"), (ms("1968-01-01"), ms("1970-01-01"))),
        (SIX_TO_SIX, ms("2024-01-02T05:59"), (ms("2024-01-01T06:00"), ms("2024-01-02T06:00"))),
        # the clock is put forward, and back: four hours of the clock last three, and five
        *[
            (Tumbling("4 h", time_zone=LOS_ANGELES), at, (1615708800000, 1615719600000))
            for at in (1615708800000, 1615712400000, 1615716000000)
        ],
        (Tumbling("4 h", time_zone=LOS_ANGELES), 1615719600000, (1615719600000, 1615734000000)),
        *[
            (Tumbling("4 h", time_zone=LOS_ANGELES), at, (1636268400000, 1636286400000))
            for at in (1636268400000, 1636272000000, 1636275600000, 1636279200000, 1636282800000)
        ],
        (Tumbling("4 h", time_zone=LOS_ANGELES), 1636286400000, (1636286400000, 1636300800000)),
        # a midnight that the clock skips
        (DAYS_OF_BRAZIL, ms("2018-11-04T12:00"), (ms("2018-11-04T03:00"), ms("2018-11-05T02:00"))),
        # 30 December 2011 was no day in Samoa
        (DAYS_OF_SAMOA, ms("2011-12-30T09:00"), (ms("2011-12-29T10:00"), ms("2011-12-30T10:00"))),
    ],
)  # fmt: skip
def test_a_row_is_in_one_tumbling_window(assigner: Tumbling, at: int, window: tuple[int, int]) -> None:
    assert bounds(assigner, at) == [window]
    assert assigner.slice_of(at) == window[0]


@pytest.mark.parametrize(
    ("assigner", "at", "starts"),
    [
        (Sliding(5000, every=1000), 0, range(-4000, 1000, 1000)),
        (Sliding(5000, every=1000), 4999, range(0, 5000, 1000)),
        (Sliding(5000, every=1000), 5000, range(1000, 6000, 1000)),
        (Sliding("5 s", every="1 s", offset=500), 100, range(-4500, 0, 1000)),
        (Sliding("5 s", every="1 s", offset=500), 5499, range(500, 5500, 1000)),
        (Sliding(5000, every=2000), 7000, (4000, 6000)),
    ],
)
def test_a_row_is_in_all_sliding_windows_around_it(assigner: Sliding, at: int, starts: range) -> None:
    size = 5000
    assert bounds(assigner, at) == [(start, start + size) for start in starts]


def test_sliding_windows_of_a_calendar_last_whole_days() -> None:
    rome = Sliding("1 week", every="1 day", time_zone="Europe/Rome")
    windows = rome.windows_of(ms("2024-03-31T12:00"))  # the clock is put forward at 01:00 UTC
    assert len(windows) == 7
    assert [(w.end - w.start) // HOUR for w in windows] == [167] * 7
    assert {rome.slice_of(ms("2024-03-31T12:00"))} == {windows[-1].start}


@pytest.mark.parametrize(
    ("at", "end"),
    [
        (1615708800000, 1615712400000),
        (1615712400000, 1615716000000),
        (1615716000000, 1615719600000),
        (1636272000000, 1636275600000),
        (1636275600000, 1636279200000),
    ],
)
def test_cumulating_windows_of_a_clock_end_whenever_it_shows_a_full_hour(at: int, end: int) -> None:
    windows = Cumulating("4 h", every="1 h", time_zone=LOS_ANGELES).windows_of(at)
    assert windows[0].end == end
    assert windows[-1] == Tumbling("4 h", time_zone=LOS_ANGELES).windows_of(at)[0]


def test_the_month_so_far() -> None:
    so_far = Cumulating("1 month", every="1 day")
    windows = so_far.windows_of(ms("2024-02-27T12:00"))
    first = ms("2024-02-01")
    assert bounds(so_far, ms("2024-02-27T12:00")) == [(first, first + day * DAY) for day in (27, 28, 29)]
    assert windows[-1].end == ms("2024-03-01")


SCANNED = {
    "America/Los_Angeles": ("2021-03-13", "2021-11-06"),
    "Europe/Rome": ("2024-03-30", "2024-10-26"),
    "America/Sao_Paulo": ("2018-11-03", "2018-02-17"),
    "Australia/Lord_Howe": ("2021-10-02", "2021-04-03"),
    "America/Havana": ("2023-03-11", "2023-11-04"),
    "Asia/Kathmandu": ("2024-01-01",),
}


@pytest.mark.parametrize("step_minutes", [30, 60, 110, 240, 300, 1440])
@pytest.mark.parametrize("zone", SCANNED)
def test_windows_of_a_clock_begin_whenever_it_shows_a_multiple(zone: str, step_minutes: int) -> None:
    """Against a scan, minute by minute, of what the clock shows."""
    assigner, clock = Tumbling(timedelta(minutes=step_minutes), time_zone=zone), ZoneInfo(zone)
    for day in SCANNED[zone]:
        minutes = range(ms(day) - DAY, ms(day) + 3 * DAY, 60_000)
        begin: int | None = None
        before = datetime.fromtimestamp(minutes[0] / 1000 - 60, clock).replace(tzinfo=None)
        for at in minutes:
            shown = datetime.fromtimestamp(at / 1000, clock).replace(tzinfo=None)
            passed = [
                before + timedelta(minutes=n)
                for n in range(1, int((shown - before).total_seconds()) // 60 + 1)
            ]
            hits = [one for one in passed or [shown] if (one.hour * 60 + one.minute) % step_minutes == 0]
            first_midnight = step_minutes == 1440 and begin is not None and at - begin < 20 * HOUR
            if hits and not first_midnight:
                begin = at
            if begin is not None:
                assert assigner.windows_of(at)[0].start == begin, (at, shown)
            before = shown


NIGHTS = [
    ("Europe/Rome", "2024-03-31"),
    ("Europe/Rome", "2024-10-27"),
    ("America/New_York", "2024-03-10"),
    ("America/New_York", "2024-11-03"),
    ("America/Sao_Paulo", "2018-11-04"),
    ("America/Sao_Paulo", "2018-02-18"),
    ("Australia/Lord_Howe", "2021-10-03"),
    ("Australia/Lord_Howe", "2021-04-04"),
    ("Africa/Cairo", "2024-04-26"),
    ("America/Havana", "2023-11-05"),
    ("Pacific/Apia", "2011-12-30"),
]
SIZES = [
    ("15 min", "5 min"), ("30 min", "15 min"), ("1 h", "15 min"), ("1 h", "30 min"), ("2 h", "1 h"), ("3 h", "1 h"),
    ("4 h", "1 h"), ("4 h", "2 h"), ("6 h", "2 h"), ("8 h", "4 h"), ("12 h", "6 h"), ("1 day", "1 h"),
    ("1 day", "2 h"), ("1 day", "6 h"), ("1 day", "12 h"), ("36 h", "12 h"), ("1 week", "1 day"),
]  # fmt: skip
OFFSETS: list[Span] = [0, "5 min", timedelta(minutes=-5)]


def around(night: str) -> range:
    return range(ms(night) - DAY, ms(night) + 3 * DAY // 2, 900_000)


@pytest.mark.parametrize(("size", "every"), SIZES)
@pytest.mark.parametrize(("zone", "night"), NIGHTS)
@pytest.mark.parametrize("kind", [Sliding, Cumulating])
def test_a_row_is_in_every_window_around_it_when_the_clock_changes(
    kind: type[Sliding | Cumulating], zone: str, night: str, size: str, every: str
) -> None:
    if kind is Cumulating and size == "36 h":
        return  # no whole number of days
    for offset in OFFSETS if every != "5 min" else [0]:
        assigner = kind(size, every=every, time_zone=zone, offset=offset)
        windows_of = {at: assigner.windows_of(at) for at in around(night)}
        windows = sorted(set().union(*windows_of.values()))
        for at, some in windows_of.items():
            assert some == [window for window in windows if window.start <= at < window.end]
            assert [window.end for window in some] == sorted(window.end for window in some)
        for window in windows:
            assert window.start < window.end
            assert assigner.slice_of(window.start) == window.start
            assert assigner.slice_of(window.end) == window.end
        if kind is Sliding:
            assert len({window.start for window in windows}) == len(windows)


@pytest.mark.parametrize("size", ["30 min", "1 h", "2 h", "4 h", "12 h", "1 day"])
@pytest.mark.parametrize(("zone", "night"), NIGHTS)
def test_windows_that_slide_by_their_size_lie_side_by_side(zone: str, night: str, size: str) -> None:
    sliding, tumbling = Sliding(size, every=size, time_zone=zone), Tumbling(size, time_zone=zone)
    for at in around(night):
        assert sliding.windows_of(at) == tumbling.windows_of(at)


@pytest.mark.parametrize(
    ("size", "every"), [("1 h", "15 min"), ("3 h", "1 h"), ("4 h", "1 h"), ("1 day", "1 h")]
)
@pytest.mark.parametrize(("zone", "night"), [one for one in NIGHTS if one[0] != "America/Havana"])
def test_windows_side_by_side_are_among_those_that_slide(
    zone: str, night: str, size: str, every: str
) -> None:
    sliding, tumbling = Sliding(size, every=every, time_zone=zone), Tumbling(size, time_zone=zone)
    for at in around(night):
        assert tumbling.windows_of(at)[0] in sliding.windows_of(at)


@pytest.mark.parametrize(
    ("size", "every", "start", "hours"),
    [
        # in the night that the clock is put back from 3:00 to 2:00, which is 01:00 of UTC
        *[("1 h", "15 min", f"2024-10-27T{at}", 1) for at in ("00:00", "00:15", "00:45", "01:00", "01:45", "02:00")],
        ("4 h", "1 h", "2024-10-26T22:00", 5),
        ("4 h", "1 h", "2024-10-26T23:00", 5),
        ("4 h", "1 h", "2024-10-27T00:00", 4),
        ("4 h", "1 h", "2024-10-27T01:00", 4),
        ("1 day", "1 h", "2024-10-27T00:00", 25),
        ("1 day", "1 h", "2024-10-27T01:00", 24),
        # and in the one that it is put forward from 2:00 to 3:00
        ("4 h", "1 h", "2024-03-31T00:00", 3),
        ("4 h", "1 h", "2024-03-31T01:00", 4),
        ("4 h", "2 h", "2024-03-31T01:00", 3),
        ("1 h", "15 min", "2024-03-31T00:45", 0.25),
        ("1 h", "15 min", "2024-03-31T01:00", 1),
    ],
)  # fmt: skip
def test_how_long_sliding_windows_last_when_the_clock_of_rome_changes(
    size: str, every: str, start: str, hours: float
) -> None:
    windows = Sliding(size, every=every, time_zone="Europe/Rome").windows_of(ms(start))
    assert windows[-1].start == ms(start)
    assert windows[-1].end - windows[-1].start == hours * HOUR


def test_hours_of_the_night_that_the_clock_is_put_back_are_apart() -> None:
    hourly = Tumbling("1 h", time_zone="America/Chicago")
    starts = [hourly.slice_of(at) for at in range(ms("2021-11-07"), ms("2021-11-08") + 1, 60_000)]
    assert len(set(starts)) == 25
    assert [starts.count(start) for start in sorted(set(starts))] == [60] * 24 + [1]


ANY = st.one_of(
    st.builds(Tumbling, st.integers(1, 500), st.just(0)),
    st.integers(1, 60).flatmap(lambda every: st.builds(Sliding, st.integers(every, 300), st.just(every))),
    st.tuples(st.integers(1, 40), st.integers(1, 8)).map(
        lambda one: Cumulating(one[0] * one[1], every=one[0])
    ),
    st.sampled_from(
        [
            Tumbling("1 day", time_zone="Europe/Rome"),
            Sliding("8 h", every="4 h", time_zone=LOS_ANGELES),
            Sliding("1 day", every="6 h", time_zone="Europe/Rome"),
            Sliding("2 months", every="1 month"),
            Sliding("1 week", every="1 day"),
            Cumulating("1 month", every="1 day"),
            Cumulating("1 day", every="6 h", time_zone="Europe/Rome", offset="2 h"),
            Cumulating("1 week", every="1 day", time_zone="America/Sao_Paulo"),
        ]
    ),
)
TIMES = st.integers(-3000, 3000) | st.integers(ms("1960-01-01"), ms("2040-01-01"))


@given(ANY, TIMES)
def test_a_row_lies_in_its_windows_and_all_of_a_slice_in_the_same(assigner: Aligned, at: int) -> None:
    windows, start = assigner.windows_of(at), assigner.slice_of(at)
    assert windows == sorted(set(windows))
    assert all(window.start <= start <= at < window.end for window in windows)
    assert assigner.windows_of(start) == windows
    assert assigner.slice_of(start) == start
    # a window is whole slices: its end begins one, if it does not end behind all of time
    assert all(assigner.slice_of(w.start) == w.start and assigner.slice_of(w.end) == w.end for w in windows)


@given(st.integers(1, 10**6), st.integers(-(2**62), 2**62))
def test_times_far_from_today_have_windows_of_fixed_sizes(size: int, at: int) -> None:
    start = Tumbling(size).slice_of(at)
    assert start <= at < start + size
    assert start % size == 0


def test_the_last_window_ends_with_time() -> None:
    assert Tumbling(1000).windows_of(MAX_TIMESTAMP - 1750)[0].start == 9223372036854774000
    assert Tumbling(1000).windows_of(MAX_TIMESTAMP)[0].end == MAX_TIMESTAMP


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tumbling(-1000), "must be above 0"),
        (lambda: Tumbling(0), "must be above 0"),
        (lambda: Tumbling("10 s", offset="20 s"), "offset must be shorter"),
        (lambda: Tumbling("10 s", offset=-11_000), "offset must be shorter"),
        (lambda: Sliding(-2000, every=1000), "must be above 0"),
        (lambda: Sliding(2000, every=-1000), "must be above 0"),
        (lambda: Sliding("20 s", every="10 s", offset="11 s"), "offset must be shorter"),
        (lambda: Sliding("20 s", every="10 s", offset=-11_000), "offset must be shorter"),
        (lambda: Sliding("10 s", every="20 s"), "would have none; use Tumbling"),
        (lambda: Sliding("1 month", every="1 day"), "must be a multiple of every"),
        (lambda: Sliding("10 h", every="5 h", time_zone="UTC"), "a day must be a whole number of every"),
        (
            lambda: Cumulating("1 year", every="1 month", offset="40 days"),
            "offset must be shorter than 1 month; give",
        ),
        (
            lambda: Cumulating("1 year", every="1 quarter", offset="-84 days"),
            "offset must be shorter than 3 month",
        ),
        (lambda: Tumbling("1 day", offset="-1 fortnight"), "is not a span of time"),
        (lambda: Tumbling("1 day", offset="--1 h"), "is not a span of time"),
        (lambda: Cumulating("5 s", every="2 s"), "must be a multiple of every"),
        (lambda: Cumulating(-5000, every=1000), "must be above 0"),
        (lambda: Cumulating(5000, every=-1000), "must be above 0"),
        (lambda: Cumulating("1 day", every="7 h", time_zone="UTC"), "must be a multiple of every"),
        (lambda: Tumbling("1 s", time_zone="Europe/Rome"), "last at least a minute"),
        (lambda: Tumbling("36 h", time_zone="Europe/Rome"), "longer than a day whole days"),
        (lambda: Tumbling("1 h", time_zone="Europe/Roma"), "there is no time zone 'Europe/Roma'"),
        (lambda: Tumbling("1 h", time_zone=1), "name of a zone"),  # type: ignore[arg-type]
        (lambda: Tumbling("an hour"), "is not a span of time"),
        (lambda: Session(0), "needs a gap above 0"),
        (lambda: Session("-1 s"), "is not a span of time"),
    ],
)
def test_what_makes_no_windows_is_refused(make: type, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_a_time_without_a_calendar_is_refused_with_a_way_out() -> None:
    for at in (MAX_TIMESTAMP, ms("0001-01-01"), -(2**60)):
        with pytest.raises(ValueTypeError, match=r"outside of the years 1 to 9999.*filter such rows"):
            Tumbling("1 month").windows_of(at)


def test_sessions_of_a_computed_gap() -> None:
    by_value = Session(lambda element: element["gap"])
    assert by_value.window_of({"gap": "5 s"}, 10) == TimeWindow(10, 5010)
    with pytest.raises(ValueTypeError, match="must be above 0"):
        by_value.window_of({"gap": 0}, 10)


@pytest.mark.parametrize("offset", ["-1 day", timedelta(days=-1), -DAY])
def test_months_may_begin_a_day_before_the_first(offset: Span) -> None:
    year = Cumulating("1 year", every="1 month", offset=offset)
    ends = [ms(f"2024-{month:02}-01") - DAY for month in range(2, 13)] + [ms("2025-01-01") - DAY]
    start = ms("2024-01-01") - DAY
    for at in (start, ms("2024-01-30")):
        assert bounds(year, at) == [(start, end) for end in ends]
    assert bounds(year, ms("2024-01-31"))[0] == (start, ends[1])
    for size in ("1 month", "3 months"):
        assert Tumbling(size, offset=offset).slice_of(ms("2024-01-15")) == start


def test_shapes_tell_windows_apart() -> None:
    made: list[Aligned | Session] = [
        Tumbling("1 h"), Tumbling("2 h"), Tumbling("1 h", offset="5 min"), Tumbling("1 h", time_zone="Europe/Rome"),
        Tumbling("1 day"), Tumbling("1 day", time_zone="UTC"), Tumbling("1 month"), Sliding("2 h", every="1 h"),
        Sliding("2 h", every="30 min"), Cumulating("2 h", every="1 h"), Session("1 h"), Session(lambda _: 1),
    ]  # fmt: skip
    assert len({one.shape for one in made}) == len(made)
    assert (
        Tumbling("60 min").shape
        == Tumbling(timedelta(hours=1), time_zone="UTC").shape
        == Tumbling("1 h").shape
    )


def test_assigners_travel() -> None:
    rome = Tumbling("1 day", time_zone="Europe/Rome")
    rome.windows_of(0)
    assert pickle.loads(pickle.dumps(rome)).windows_of(0) == rome.windows_of(0)
    assert rome == Tumbling("1 day", time_zone="Europe/Rome")
