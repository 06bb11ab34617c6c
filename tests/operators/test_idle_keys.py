"""``ttl=`` of operators: a key without rows for so long is forgotten as a whole, at any cut into micro-batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

from state_engine import (
    AggregateFunction,
    DeltaSink,
    Row,
    RowKind,
    StatefulJob,
    StateTtlConfig,
    collect_list,
    count,
    count_distinct,
    first,
    last,
    max_,
    sum_,
)
from state_engine.core.errors import ConfigurationError, RetractionError
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.aggregates.declarations import Aggregate
from state_engine.operators.aggregates.keyed_aggregates import KeyedAggregates
from state_engine.operators.aggregates.plan import plan
from state_engine.operators.idle_keys import ForgetsIdleKeys, IdleTime
from state_engine.operators.rolling import RunningAggregate
from state_engine.operators.scd2 import Scd2
from state_engine.operators.top_n import TopN
from state_engine.testing import CollectSink, KeyedHarness, run_in_memory

INSERT, BEFORE, AFTER, DELETE = RowKind
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CLOCK, EVENT = IdleTime(10, by_event_time=False), IdleTime(10, by_event_time=True)
VALUES = {"n": count(), "s": sum_("v"), "d": count_distinct("v"), "most": max_("v")}


class Event(NamedTuple):
    """A row; ``at`` is its event time in milliseconds."""

    k: str
    v: int
    at: int


def aggregates(asked: dict[str, Aggregate] = VALUES, *, retract: bool = True) -> KeyedAggregates:
    columns = to_type("k string, v bigint, at bigint", parameter="rows")
    assert isinstance(columns, StructType)
    return KeyedAggregates(plan(asked, columns, retract=retract), emits_changes=True)


def harness(function: Any, idle: IdleTime, snapshot: Any = None, **options: Any) -> KeyedHarness:
    options |= {"key_by": lambda row: row.k, "timestamp_of": lambda row: row.at, "max_out_of_orderness_ms": 3}
    forgets = ForgetsIdleKeys(function, idle)
    if snapshot is None:
        return KeyedHarness(forgets, **options)
    return KeyedHarness.restored(forgets, snapshot, **options)


def left(run: KeyedHarness) -> set[str]:
    """The states that hold anything."""
    return {state for state, entries in run.snapshot().keyed.entries.items() if entries}


def test_a_key_is_forgotten_so_long_behind_its_last_row() -> None:
    run = harness(aggregates(), CLOCK, changing=True)
    run.set_clock(100)
    assert run.process([Event("a", 3, 0), Event("b", 4, 0)]) == [
        (INSERT, ("a", 1, 3, 1, 3)), (INSERT, ("b", 1, 4, 1, 4)),
    ]  # fmt: skip
    run.set_clock(105)
    run.process([Event("a", 5, 0)])
    run.set_clock(109)
    assert run.process([]) == []
    run.set_clock(110)
    assert run.process([]) == [(DELETE, ("b", 1, 4, 1, 4))]
    run.set_clock(115)
    assert run.process([Event("a", 7, 0)]) == [(DELETE, ("a", 2, 8, 2, 5)), (INSERT, ("a", 1, 7, 1, 7))]
    run.set_clock(200)
    assert run.process([]) == [(DELETE, ("a", 1, 7, 1, 7))]
    assert not left(run)


def test_rows_of_a_key_that_was_forgotten_are_not_taken_back() -> None:
    run = harness(aggregates(), CLOCK, changing=True)
    run.set_clock(0)
    run.process([Event("a", 3, 0)])
    run.set_clock(50)
    run.process([])
    assert run.process([(DELETE, Event("a", 3, 0)), (BEFORE, Event("a", 3, 0))]) == []
    assert run.process([(AFTER, Event("a", 4, 0))]) == [(INSERT, ("a", 1, 4, 1, 4))]
    with pytest.raises(RetractionError, match="never added"):
        run.process([(DELETE, Event("a", 3, 0))])


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.more) for seed in range(1, 12))])
def test_by_event_time_no_cut_and_no_restore_changes_what_comes_out(seed: int) -> None:
    rng, newest, rows = random.Random(seed), 0, []
    for _ in range(40):
        newest += rng.choice([0, 0, 1, 4, 9, 11])
        rows.append(Event(rng.choice("abc"), rng.randint(1, 4), newest - rng.choice([0, 0, 1, 3, 4])))
    asked = {**VALUES, "all": collect_list("v", most=3), "f": first("v"), "l": last("v")}

    def outputs(cut: Callable[[], int]) -> list[Any]:
        run, at, made = harness(aggregates(asked, retract=False), EVENT), 0, []
        while at < len(rows):
            size = cut()
            made += run.process(rows[at : at + size])
            at += size
            run = harness(
                aggregates(asked, retract=False), EVENT, run.snapshot(), parallelism=rng.choice([1, 2, 7])
            )
        made += run.drain()
        assert not left(run)
        return made

    def by_key(made: list[Any]) -> dict[str, list[Any]]:
        return {k: [change for change in made if change[1][0] == k] for k in "abc"}

    whole = by_key(outputs(lambda: 100))
    assert (
        whole
        == by_key(expected(rows, asked))
        == by_key(outputs(lambda: 1))
        == by_key(outputs(lambda: rng.randint(1, 9)))
    )


def expected(rows: list[Event], asked: dict[str, Aggregate]) -> list[Any]:
    """The changes of each key, by a loop: it ends where its next row, or the watermark, is 10 behind its last row."""
    made: list[Any] = []
    kept: dict[str, list[Event]] = {}
    until: dict[str, int] = {}
    watermark = -(10**9)
    for row in [*rows, None]:
        at = 10**9 if row is None else row.at - 4
        if row is not None:
            if until.get(row.k, 10**9) <= row.at:
                made.append((DELETE, results(kept.pop(row.k))))
                del until[row.k]
            before = kept.setdefault(row.k, [])
            old = results(before)
            kept[row.k] = [*before, row]
            new = results(kept[row.k])
            made += [(BEFORE, old), (AFTER, new)] if old else [(INSERT, new)]
            until[row.k] = max(until.get(row.k, row.at + 10), row.at + 10, watermark + 10)
        watermark = max(watermark, at)
        for k in [k for k, end in until.items() if end <= watermark]:
            made.append((DELETE, results(kept.pop(k))))
            del until[k]
    return made


def results(rows: list[Event]) -> tuple[Any, ...]:
    if not rows:
        return ()
    values = [row.v for row in rows]
    ordered = [row.v for row in sorted(rows, key=lambda row: row.at)]
    ends = ordered[:3], ordered[0], ordered[-1]
    return rows[0].k, len(values), sum(values), len(set(values)), max(values), *ends


class Sum(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + int(value.v)

    def retract(self, value: Any, accumulator: int) -> int:
        return accumulator - int(value.v)

    def get_result(self, accumulator: int) -> int:
        return accumulator


def test_an_aggregate_function_begins_again() -> None:
    run = harness(RunningAggregate(Sum(), int, emits_changes=True), CLOCK, changing=True)
    run.set_clock(0)
    assert run.process([Event("a", 3, 0), Event("a", 4, 0)])[-1] == (AFTER, 7)
    run.set_clock(10)
    assert run.process([Event("a", 5, 0)]) == [(DELETE, 7), (INSERT, 5)]


@pytest.mark.parametrize("keep_all", [False, True])
def test_a_top_list_is_deleted(keep_all: bool) -> None:
    kind = "k string, v bigint, j string, at bigint"
    best = TopN(kind, 2, by="v", key=["k", "j"], keep_all=keep_all)
    run = KeyedHarness(
        ForgetsIdleKeys(best, CLOCK),
        key_by=lambda row: (row.k, row.j),
        changing=keep_all,
        key_type="k string, j string",
    )
    run.set_clock(0)
    row = Row("k", "v", "j", "at")
    run.process([row("a", 3, "x", 0), row("a", 5, "x", 1), row("a", 4, "x", 2)])
    run.set_clock(10)
    assert run.process([]) == [(DELETE, ("a", 5, "x", 1, 1)), (DELETE, ("a", 4, "x", 2, 2))]
    assert not left(run)


def test_versions_go_with_all_that_is_kept_beside_them() -> None:
    versions = Scd2("k string, v bigint, at bigint, lsn bigint", key=["k"], valid_from="at", sequence="lsn")
    run = KeyedHarness(ForgetsIdleKeys(versions, CLOCK), key_by=lambda row: row.k, changing=True)
    run.set_clock(0)
    row = Row("k", "v", "at", "lsn")
    run.process([row("a", 3, 5, 1), row("a", 3, 7, 2), Row.of_kind(DELETE, k="a", v=3, at=9, lsn=3)])
    assert left(run) >= {"versions", "unshown", "deleted", "last_row"}
    run.set_clock(10)
    run.process([])
    assert not left(run)


def test_jobs_forget_keys_and_what_reads_their_changes_follows() -> None:
    def at(minute: int) -> datetime:
        return EPOCH + timedelta(minutes=minute)

    job = StatefulJob("idle")
    rows = job.from_collection(
        [("a", 1, at(0)), ("b", 2, at(1)), ("a", 3, at(5)), ("c", 4, at(14)), ("c", 5, at(30))],
        "k string, v bigint, at timestamp", name="rows", max_rows_per_batch=2,
    ).assign_timestamps_and_watermarks("at")  # fmt: skip
    ttl = StateTtlConfig.new_builder("10 min").use_event_time().build()
    keys = rows.key_by("k").aggregate(n=count(), last=last("v"), emit="changes", ttl=ttl, uid="keys")
    keys.sink("keys", CollectSink())
    keys.key_by("n").aggregate(keys=count(), uid="numbers").sink("numbers", CollectSink())
    rows.key_by("k").top_n(1, by="v", ttl=ttl, uid="top").sink("top", CollectSink())
    rows.key_by("k").scd2(valid_from="at", ttl=ttl, uid="versions")
    with run_in_memory(job) as run:
        run.run()
        table: dict[str, int] = {}
        for row in run.sink("keys"):
            if row.get_row_kind() in (DELETE, BEFORE):
                del table[row.k]
            else:
                table[row.k] = row.n
        assert table == {"c": 1}
        assert run.sink("numbers")[-1].keys == 1
        assert run.state("keys", "aggregates").keys() == run.state("top", "top").keys() == {"c"}
        assert run.state("versions", "versions").keys() == {"c"}


def rows_of() -> Any:
    return (
        StatefulJob("refused")
        .from_collection([], "k string, v bigint, at timestamp", name="rows")
        .key_by("k")
    )


BY_EVENT_TIME = StateTtlConfig.new_builder("1 h").use_event_time().build()
BY_READS = StateTtlConfig.new_builder("1 h").update_ttl_on_read_and_write().build()
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "event time that the stream has not": (
        lambda: rows_of().top_n(1, by="v", ttl=BY_EVENT_TIME),
        r"ttl of top_n is by event time, and none of the sources of the stream has it: give source\(event_time=…\)"),
    "event time that the stream of a keyed sink has not": (
        lambda: rows_of().sink("last", DeltaSink("t", key=["k"], ttl=BY_EVENT_TIME)),
        "ttl of sink 'last' is by event time, and none of the sources"),
    "a renewal by reads": (
        lambda: rows_of().aggregate(n=count(), ttl=BY_READS),
        "counts from the last row of a key, .* leave update_ttl_on_read_and_write and"),
    "no time": (lambda: rows_of().scd2(valid_from="at", ttl=0), "a time to live must be longer than nothing"),
    "a column named ttl": (lambda: rows_of().aggregate(ttl=count()), "No such column can be called .* ttl or uid"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_time_to_live_of_keys_is_refused(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build()
