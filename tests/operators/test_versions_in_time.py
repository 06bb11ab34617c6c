"""Versions with lateness, the last of untracked columns, and their changes: examples, and random streams by a model."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import pytest

from state_engine import (
    EmbeddedRocksDBStateBackend,
    OutputTag,
    Row,
    RowKind,
    Scd2,
    StatefulJob,
    count,
)
from state_engine.core.errors import ConfigurationError
from state_engine.operators.idle_keys import ForgetsIdleKeys, IdleTime
from state_engine.operators.lateness import Lateness
from state_engine.operators.scd2 import Untracked
from state_engine.state_tables.delta import DeltaStateTable
from state_engine.testing import CollectSink, KeyedHarness, run_in_memory
from tests.operators.any_cut import Ran, at_any_cut
from tests.operators.windows.models import watermarks_before
from tests.operators.windows.test_windows import SEEDS

INSERT, BEFORE, AFTER, DELETE = RowKind
COLUMNS = "k string, since timestamp, city string, phone bigint"
LATE = OutputTag("late", COLUMNS)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BOUND = 4
BACKENDS = [None, EmbeddedRocksDBStateBackend()]


class Event(NamedTuple):
    """A change of a key; ``at`` is the time from which it holds, in milliseconds, and its event time."""

    kind: RowKind
    k: str
    at: int
    city: str
    phone: int

    @property
    def row(self) -> Row:
        return Row.of_kind(self.kind, k=self.k, since=moment(self.at), city=self.city, phone=self.phone)


class Version(NamedTuple):
    """From when and until when a city held, and with which phone."""

    k: str
    begins: int
    ends: int | None
    city: str
    phone: int


def moment(at: int) -> datetime:
    return EPOCH + timedelta(milliseconds=at)


def ms(at: datetime | None) -> Any:
    return None if at is None else (at - EPOCH) // timedelta(milliseconds=1)


def scd2(lateness: int | None = None, untracked: Untracked = "first", **more: Any) -> Scd2:
    late = None if lateness is None else Lateness(lateness, LATE)
    given: dict[str, Any] = {"tracked": ["city"], "untracked": untracked, "lateness": late, **more}
    return Scd2(COLUMNS, key=["k"], valid_from="since", **given)


def options(parallelism: int = 1, backend: Any = None) -> dict[str, Any]:
    return {
        "key_by": lambda row: row.k,
        "timestamp_of": lambda row: ms(row.since),
        "changing": True,
        "parallelism": parallelism,
        "backend": backend,
        "max_out_of_orderness_ms": BOUND,
    }


# -- random streams by a model -----------------------------------------------------------------------------------------


def stream(seed: int, length: int = 40) -> list[Event]:
    """Displacements of up to and exactly the bound, some rows far behind, many of one time, times before 1970."""
    rng = random.Random(seed)
    newest, events = rng.choice([-20, 0, 1_000_000]), []
    for phone in range(length):
        newest += rng.choice([0, 0, 1, 2, 5, 12])
        at = newest - rng.choice([0, 0, 1, BOUND, BOUND + 1, 9, 25])
        kind = rng.choice([INSERT, INSERT, INSERT, AFTER, BEFORE, DELETE])
        events.append(Event(kind, rng.choice("ab"), at, rng.choice(["Rome", "Turin"]), phone))
    return events


def accepted_of(events: list[Event], lateness: int | None) -> tuple[list[Event], list[Event]]:
    """The events that are taken, and those that are too late."""
    late = [
        event
        for event, watermark in watermarks_before(events, BOUND)
        if lateness is not None and event.at + lateness <= watermark
    ]
    return [event for event in events if event not in late], late


def versions_of(events: Iterable[Event], untracked: str) -> list[Version]:
    """What all events make, in their order of arrival."""
    last: dict[tuple[str, int], Event] = {}
    for event in events:
        if event.kind is not BEFORE or (event.k, event.at) not in last:
            last[event.k, event.at] = event
    made: list[Version] = []
    for k in sorted({k for k, _ in last}):
        current: Version | None = None
        for event in sorted((e for e in last.values() if e.k == k), key=lambda e: e.at):
            if event.kind in (DELETE, BEFORE):
                made += [] if current is None else [current._replace(ends=event.at)]
                current = None
            elif current is not None and current.city == event.city:
                if untracked == "last":
                    current = current._replace(phone=event.phone)
            else:
                made += [] if current is None else [current._replace(ends=event.at)]
                current = Version(k, event.at, None, event.city, event.phone)
        made += [] if current is None else [current]
    return made


def as_version(row: Any) -> Version:
    k, since, until, current, city, phone = row
    assert current is (until is None)
    return Version(k, ms(since), ms(until), city, phone)


class Table:
    """What outputs make of a table: each takes back what is there, and nothing else."""

    def __init__(self) -> None:
        self.versions: dict[tuple[str, int], Version] = {}

    def apply(self, outputs: list[Any]) -> None:
        for kind, row in outputs:
            version = as_version(row)
            if kind in (BEFORE, DELETE):
                assert self.versions.pop((version.k, version.begins)) == version
            else:
                assert (version.k, version.begins) not in self.versions
                self.versions[version.k, version.begins] = version
            of_key = [one for one in self.versions.values() if one.k == version.k]
            assert sum(one.ends is None for one in of_key) <= 1, "one version of a key is current at most"


def stored(run: KeyedHarness) -> list[Version]:
    versions = run.state("versions") if "versions" in run.snapshot().keyed.entries else {}
    return sorted(
        as_version((k, at, *version)) for k, of_key in versions.items() for at, version in of_key.items()
    )


def check_bound(run: KeyedHarness, came: list[Event], lateness: int) -> None:
    """``unshown`` has at most one entry besides those above the watermark as the last row of the key came."""
    unshown = run.state("unshown") if "unshown" in run.snapshot().keyed.entries else {}
    watermarks: dict[str, int] = {}
    for event, watermark in watermarks_before(came, BOUND):
        if event.at + lateness > watermark:
            watermarks[event.k] = watermark
    for k, of_key in unshown.items():
        open_ = [at for at in of_key if ms(at) + lateness > watermarks[k]]
        assert len(of_key) <= 1 + len(open_)


@SEEDS
@pytest.mark.parametrize("untracked", ["first", "last"])
@pytest.mark.parametrize("lateness", [None, 0, 5, 20])
def test_versions_are_those_of_the_rows_that_are_not_too_late(
    lateness: int | None, untracked: Untracked, seeds: range
) -> None:
    for seed in seeds:
        rng, events = random.Random(seed), stream(seed)

        def bounded(ran: Ran, came: int, events: list[Event] = events) -> None:
            if lateness is not None:
                check_bound(ran.run, events[:came], lateness)

        make = partial(scd2, lateness, untracked)
        rows = [event.row for event in events]
        ran, table = (
            at_any_cut(make, rows, rng, options, late=LATE, sizes=(1, 3, 40), behind=bounded),
            Table(),
        )
        table.apply(ran.outputs)
        taken, too_late = accepted_of(events, lateness)
        expected = sorted(versions_of(taken, untracked))
        assert stored(ran.run) == sorted(table.versions.values()) == expected, f"seed {seed}"
        assert len(ran.late) == len(too_late), f"seed {seed}"


# -- examples ----------------------------------------------------------------------------------------------------------

PEOPLE = "id bigint, name string, city string, seq bigint"
CHANGES = [
    (INSERT, 124, "Raul", "Oaxaca", 1),
    (INSERT, 123, "Isabel", "Monterrey", 1),
    (INSERT, 125, "Mercedes", "Tijuana", 2),
    (INSERT, 126, "Lily", "Cancun", 2),
    (DELETE, 123, None, None, 6),
    (AFTER, 125, "Mercedes", "Guadalajara", 6),
    (AFTER, 125, "Mercedes", "Mexicali", 5),
    (AFTER, 123, "Isabel", "Chihuahua", 5),
]
"""Of the example of Databricks' AUTO CDC."""
ALL_TRACKED = {
    (123, 1, 5, "Monterrey"), (123, 5, 6, "Chihuahua"), (124, 1, None, "Oaxaca"), (125, 2, 5, "Tijuana"),
    (125, 5, 6, "Mexicali"), (125, 6, None, "Guadalajara"), (126, 2, None, "Cancun"),
}  # fmt: skip
WITHOUT_CITY = {
    "last": {
        (123, 1, 6, "Chihuahua"), (124, 1, None, "Oaxaca"), (125, 2, None, "Guadalajara"), (126, 2, None, "Cancun"),
    },
    "first": {
        (123, 1, 6, "Monterrey"), (124, 1, None, "Oaxaca"), (125, 2, None, "Tijuana"), (126, 2, None, "Cancun"),
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "backend"),
    [(0, None), (1, None), (2, None), pytest.param(0, BACKENDS[1], marks=pytest.mark.more)],
)
def test_the_example_of_auto_cdc_in_any_arrival(seed: int, backend: Any) -> None:
    changes = random.Random(seed).sample(CHANGES, len(CHANGES))
    cases: list[tuple[dict[str, Any], set[Any]]] = [({}, ALL_TRACKED)]
    cases += [
        ({"tracked": ["name"], "untracked": untracked}, table) for untracked, table in WITHOUT_CITY.items()
    ]
    for given, expected in cases:
        by: dict[str, Any] = {"key_by": lambda row: row.id, "changing": True, "backend": backend}
        made = Scd2(PEOPLE, key=["id"], valid_from="seq", **given)
        run = KeyedHarness(made, **by)
        for kind, *values in changes:
            run.process([Row.of_kind(kind, **dict(zip(("id", "name", "city", "seq"), values, strict=True)))])
            run = KeyedHarness.restored(made, run.snapshot(), **by)
        versions = run.state("versions")
        shown = {(k, at, v.valid_to, v.city) for k, of in versions.items() for at, v in of.items()}
        assert shown == expected


def said(outputs: Iterable[Any]) -> list[str]:
    """``+I 10-30 Rome 1``: kind, from, until, city and phone."""
    made = []
    for kind, row in outputs:
        version = as_version(row)
        until = "" if version.ends is None else version.ends
        made.append(f"{kind} {version.begins}-{until} {version.city} {version.phone}")
    return made


def test_each_change_of_a_version_comes_out_once_deletes_first() -> None:
    run = KeyedHarness(scd2(), **options())
    steps = [
        ((INSERT, 10, "Rome"), ["+I 10- Rome 0"]),
        ((INSERT, 30, "Turin"), ["-U 10- Rome 0", "+U 10-30 Rome 0", "+I 30- Turin 1"]),
        ((INSERT, 40, "Turin"), []),
        ((INSERT, 35, "Rome"), ["-U 30- Turin 1", "+U 30-35 Turin 1", "+I 35-40 Rome 3", "+I 40- Turin 2"]),
        ((INSERT, 35, "Turin"), ["-D 35-40 Rome 3", "-D 40- Turin 2", "-U 30-35 Turin 1", "+U 30- Turin 1"]),
        ((DELETE, 30, "Turin"), ["-D 30- Turin 1", "+I 35- Turin 4"]),
        ((BEFORE, 35, "Turin"), []),
    ]
    for phone, ((kind, at, city), expected) in enumerate(steps):
        assert said(run.process([Event(kind, "a", at, city, phone).row])) == expected


def test_a_version_shows_the_last_of_its_rows_also_where_earlier_ones_are_dropped() -> None:
    run = KeyedHarness(scd2(0, "last"), **options())
    rows = [(10, "Rome"), (20, "Rome"), (40, "Rome"), (43, "Rome")]
    assert (
        said(run.process([Event(INSERT, "a", at, city, at).row for at, city in rows]))[-1] == "+U 10- Rome 43"
    )
    assert [ms(at) for at in run.state("unshown")["a"]] == [20, 40, 43]
    outputs = run.process([Event(INSERT, "a", 41, "Bari", 41).row])
    assert said(outputs) == ["-U 10- Rome 43", "+U 10-41 Rome 40", "+I 41-43 Bari 41", "+I 43- Rome 43"]


def test_a_row_that_becomes_a_version_again_shows_the_last_of_those_behind_it() -> None:
    run = KeyedHarness(scd2(None, "last"), **options())
    run.process([Event(INSERT, "a", at, "Rome", at).row for at in (10, 20, 30)])
    assert said(run.process([Event(INSERT, "a", 15, "Bari", 15).row])) == [
        "-U 10- Rome 30", "+U 10-15 Rome 10", "+I 15-20 Bari 15", "+I 20- Rome 30"
    ]  # fmt: skip


def test_the_sequence_of_a_time_is_that_of_its_own_row() -> None:
    run = KeyedHarness(scd2(None, "last", sequence="phone"), **options())
    run.process([Event(INSERT, "a", at, "Rome", phone).row for at, phone in ((10, 1), (20, 9))])
    assert said(run.process([Event(INSERT, "a", 10, "Bari", 5).row])) == [
        "-U 10- Rome 9", "+U 10-20 Bari 5", "+I 20- Rome 9"
    ]  # fmt: skip


def test_a_key_that_is_forgotten_takes_its_versions_back() -> None:
    idle = IdleTime(10, by_event_time=True)
    run = KeyedHarness(ForgetsIdleKeys(scd2(), idle), **options())
    run.process([Event(INSERT, "a", at, city, at).row for at, city in ((1, "Rome"), (2, "Turin"))])
    assert said(run.process([Event(INSERT, "a", 30, "Bari", 3).row])) == [
        "-D 1-2 Rome 1", "-D 2- Turin 2", "+I 30- Bari 3"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "times"),
    [
        ("date", [date(2026, 1, 1), date(2026, 1, 9), date(2026, 1, 2)]),
        ("timestamp_ntz", [datetime(2026, 1, 1), datetime(2026, 1, 9), datetime(2026, 1, 2)]),
    ],
)
def test_a_date_and_a_time_without_zone_are_in_utc(
    kind: str, times: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    made = Scd2(f"k string, since {kind}, v bigint", key=["k"], valid_from="since", lateness=Lateness(0))
    run = KeyedHarness(made, key_by=lambda row: row.k, changing=True)
    run.process([Row(k="a", since=times[0], v=1)])
    run.set_watermark(ms(datetime(2026, 1, 2, tzinfo=UTC)) - 1)
    assert len(run.process([Row(k="a", since=times[2], v=2)])) == 3
    run.set_watermark(ms(datetime(2026, 1, 2, tzinfo=UTC)))
    assert run.process([Row(k="a", since=times[2], v=3)]) == []
    assert len(run.process([Row(k="a", since=times[1], v=4)])) == 3
    monkeypatch.undo()
    time.tzset()


# -- jobs --------------------------------------------------------------------------------------------------------------


def keyed_of(
    rows: list[Any] | None = None, *, timed: bool = True, since: str = "timestamp", **more: Any
) -> Any:
    job = StatefulJob("homes", parallelism=2)
    event_time: dict[str, Any] = {"event_time": "since", "max_out_of_orderness": 0} if timed else {}
    columns = f"k string, since {since}, city string, phone bigint"
    given = job.from_collection(rows or [], columns, name="rows", max_rows_per_batch=2, **event_time, **more)
    return given.key_by("k")


def test_who_reads_the_changes_has_what_the_table_shows_and_late_rows_are_aside() -> None:
    rows = [
        ("a", 5, "Rome"),
        ("b", 100, "Rome"),
        ("a", 50, "Turin"),
        ("a", 60, "Bari"),
        ("b", 40, "Pisa"),
        ("b", 90, "Bari"),
    ]
    keyed = keyed_of([(k, moment(at), city, at) for k, at, city in rows])
    tag = OutputTag("late", COLUMNS)
    versions = keyed.scd2(valid_from="since", lateness=55, late_to=tag, uid="homes")
    versions.publish(DeltaStateTable("/homes"))
    versions.key_by("city").aggregate(n=count(), uid="n").sink("n", CollectSink())
    versions.get_side_output(tag).sink("late", CollectSink())
    with run_in_memory(keyed._job) as run:
        run.run()
        cities = [row.city for row in run.table("versions")]
        assert sorted(cities) == ["Bari", "Bari", "Rome", "Rome", "Turin"]
        assert {key: n for key, (n, *_) in run.state("n", "aggregates").items()} == {
            "Bari": 2,
            "Rome": 2,
            "Turin": 1,
        }
        assert [row.phone for row in run.sink("late")] == [40]


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no event time": (
        lambda: keyed_of(timed=False).scd2(valid_from="since", lateness=5),
        r"scd2\(lateness=…\) needs event time, and none of the sources"),
    "late rows that are gone": (
        lambda: keyed_of(late_to=LATE).scd2(valid_from="since", lateness=5),
        r"source 'rows' diverts late rows before scd2.*scd2\(…, late_to=…\), or leave lateness"),
    "late rows of none": (
        lambda: keyed_of().scd2(valid_from="since", late_to=LATE), "late_to would get none: give lateness, too"),
    "a lateness below 0": (
        lambda: keyed_of().scd2(valid_from="since", lateness=-1), "lateness must be 0 or more"),
    "a time to live beside it": (
        lambda: keyed_of().scd2(valid_from="since", lateness=5, ttl="1 h"), "scd2 with lateness takes no ttl"),
    "a time that is none": (
        lambda: keyed_of().scd2(valid_from="phone", lateness=5),
        "the valid_from column 'phone' is compared with the watermark, and it is .*: make a timestamp or a date"),
    "another word": (
        lambda: keyed_of().scd2(valid_from="since", untracked="any"), "untracked must be 'first' or 'last'"),
    "rows that are never merged": (
        lambda: keyed_of().scd2(valid_from="since", untracked="last", merge_equal=False), "leave untracked out"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_while_the_job_is_built(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build()
