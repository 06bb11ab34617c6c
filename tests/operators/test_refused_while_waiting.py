"""Rows that waited and whose function raises when a timer takes them: each is a dead letter, and the others go on."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from state_engine import (
    AggregateFunction,
    EmbeddedRocksDBStateBackend,
    FileSource,
    KeyedProcessFunction,
    OutputTag,
    StatefulJob,
    ValueStateDescriptor,
    aggregate_with,
    count,
    step,
    sum_,
)
from state_engine.core.errors import UserFunctionError
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.deduplication import FirstRowsInTime, KeptTimes
from state_engine.operators.joins.asof_join import AsOfJoin, AsOfSettings
from state_engine.operators.joins.joined_rows import JoinResults, Kept
from state_engine.operators.lateness import Lateness
from state_engine.operators.over.over import Over
from state_engine.operators.sequence import Sequences, SequenceSettings
from state_engine.operators.silence import Silence
from state_engine.operators.waiting import WaitingRows
from state_engine.testing import CollectSink, KeyedHarness, MemoryRun, run_in_memory
from tests.operators.any_cut import CUTS
from tests.operators.mixed import state_of

COLUMNS = "k string, n bigint, at bigint"
ROW = to_type(COLUMNS, parameter="rows")
BIG = 2**62
"""Two of these do not fit into 64 bits."""
BACKENDS = pytest.mark.parametrize(
    "backend",
    [None, pytest.param(EmbeddedRocksDBStateBackend(), marks=pytest.mark.more)],
    ids=["heap", "rocksdb"],
)
Rows = list[tuple[str, int | None, int]]


class Numbered(KeyedProcessFunction):
    """Emits each row when its time has come, with its number; raises at a null, when it has emitted the row."""

    holds_back_ms = 0

    def __init__(self, *, whole: bool = True) -> None:
        self._waiting = WaitingRows(ROW, Lateness(), whole=whole)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._waiting.open(runtime_context)
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen", int, default=0))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        return self._waiting.add(value, ctx)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        for _, (k, n, at) in self._waiting.due(timestamp, ctx):
            self._seen.update(self._seen.value() + 1)
            ctx.timer_service().register_event_time_timer(at + 1)
            yield k, n, at, self._seen.value()
            if n is None:
                raise ValueError("a null")


class Shares(AggregateFunction):
    """Adds up shares of a hundred; raises at 0."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + 100 // value

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, one: int, other: int) -> int:
        return one + other


class NullFails(KeptTimes):
    def keeps(self, at: int, ctx: Any) -> bool:
        if at % 10 == 2:
            raise ValueError("a bad time")
        return super().keeps(at, ctx)


def first_rows() -> FirstRowsInTime:
    first = FirstRowsInTime(ROW, 3, Lateness())
    first._kept = NullFails(3, Lateness())
    return first


class Pairs(JoinResults):
    def of(self, left: Kept | None, right: Kept | None) -> list[Any]:
        assert left is not None
        k, n, at = left.row
        return [(k, n + 1, at, None if right is None else right.at)]


class LeftRows(AsOfJoin):
    """An as-of join whose left rows come alone."""

    def __init__(self) -> None:
        super().__init__(ROW, ROW, Pairs(), AsOfSettings())

    def _joined(self, ctx: Any, row: Kept) -> list[Any]:
        return self._results.of(row, None)


def small_and_big() -> Sequences:
    steps = [step("small", where=lambda row: row.n < 5), step("big", where=lambda row: row.n > 5)]
    return Sequences(COLUMNS, SequenceSettings.of(steps, 60), Lateness())


NULL: Rows = [
    ("a", 1, 10), ("b", 1, 10), ("a", None, 12), ("a", 9, 12), ("b", 9, 13), ("a", 2, 20), ("a", 7, 24), ("b", 3, 31),
]  # fmt: skip
"""With a null between rows of one time and behind others."""
OVERFLOW: Rows = [
    ("a", BIG, 10), ("b", 1, 10), ("a", 1, 12), ("a", BIG, 12), ("a", 2, 12), ("b", 2, 12), ("a", 3, 20), ("a", 4, 60),
    ("b", 5, 61),
]  # fmt: skip
"""With one that overflows with the first, between innocent rows of its time."""
ZERO: Rows = [(k, 0 if n == BIG and at == 12 else min(n or 0, 9), at) for k, n, at in OVERFLOW]


def over(**reach: Any) -> Over:
    tile_ms = reach.pop("tile_ms", None)
    return Over(COLUMNS, {"s": sum_("n", **reach), "c": count(**reach)}, tile_ms=tile_ms)


def shares(**reach: Any) -> Over:
    return Over(COLUMNS, {"s": aggregate_with(Shares(), "bigint", "bigint", "n", **reach)})


EXAMPLES: dict[str, tuple[Callable[[], Any], Rows, int]] = {
    "a function": (Numbered, NULL, 2),
    "a sequence": (small_and_big, NULL, 2),
    "a span": (partial(over, last=[30]), OVERFLOW, 3),
    "tiles": (partial(over, last=[30], tile_ms=10), OVERFLOW, 3),
    "last rows": (partial(over, last_rows=9), OVERFLOW, 3),
    "all rows": (over, OVERFLOW, 3),
    "a function of a span": (partial(shares, last=[30]), ZERO, 3),
    "a function of all rows": (shares, ZERO, 3),
}
"""What is run, rows, and the number of the one that fails."""


def processed(
    make: Callable[[], Any], rows: Rows, size: int, **options: Any
) -> tuple[list[Any], KeyedHarness]:
    """Outputs in the order of each key; batches end with watermarks, and the input ends."""
    run = KeyedHarness(
        make(), key_by=lambda row: row[0], timestamp_of=lambda row: row[2], on_error="dead_letter", **options
    )
    outputs: list[Any] = []
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        outputs += run.process(part)
        run.set_watermark(max(MIN_TIMESTAMP, part[0][2] - 5))
        outputs += run.process([])
    outputs += run.drain()
    return sorted(map(tuple, outputs), key=lambda output: output[0]), run


@CUTS
@BACKENDS
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "a function" else pytest.mark.more) for name in EXAMPLES]
)
def test_others_come_out_as_if_the_row_had_not_come(name: str, backend: Any, size: int) -> None:
    make, rows, bad = EXAMPLES[name]
    options = {"parallelism": 2, "backend": backend, "input_type": ROW}
    outputs, run = processed(make, rows, size, **options)
    expected, without = processed(make, [*rows[:bad], *rows[bad + 1 :]], size, **options)
    assert outputs == expected
    assert state_of(run) == state_of(without)
    assert not run.state("waiting")
    (refusal,) = run.refused
    assert refusal.waited is not None
    assert (refusal.key, tuple(refusal.waited.value), refusal.waited.timestamp) == (
        "a",
        rows[bad],
        rows[bad][2],
    )
    assert refusal.waited.whole


@pytest.mark.more
@pytest.mark.parametrize(("make", "bad"), [(first_rows, 12), (LeftRows, None)], ids=["first rows", "as-of"])
def test_functions_that_take_rows_one_by_one(make: Callable[[], Any], bad: int | None) -> None:
    rows = [("a", 1, 10), ("a", 5, 16), ("b", 2, 11), ("a", None, 12), ("b", 3, 23)]
    run = KeyedHarness(
        make(), key_by=lambda row: row[0], timestamp_of=lambda row: row[2], on_error="dead_letter"
    )
    outputs = run.process_pairs([(1, row) for row in rows]) if make is LeftRows else run.process(rows)
    assert outputs == []
    assert [row[2] for row in run.drain()] == [10, 11, 16, 23]
    (refusal,) = run.refused
    assert refusal.waited is not None
    assert (tuple(refusal.waited.value), run.state("waiting")) == (rows[3], {})


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.more) for seed in range(1, 30))])
def test_random_rows_of_which_many_fail(seed: int) -> None:
    chance = random.Random(seed)
    rows: Rows = [
        (chance.choice("ab"), chance.choice([None, 1, 2]), n // 4 * 3 + chance.randint(0, 3))
        for n in range(40)
    ]
    rows.sort(key=lambda row: row[2])
    options = {
        "backend": EmbeddedRocksDBStateBackend() if seed % 5 == 4 else None,
        "parallelism": seed % 3 + 1,
    }
    good = [row for row in rows if row[1] is not None]
    outputs, run = processed(Numbered, rows, chance.choice([1, 3, 40]), **options)
    expected, without = processed(Numbered, good, 1, **options)
    assert (outputs, state_of(run)) == (expected, state_of(without))
    refused = [tuple(one.waited.value) for one in run.refused if one.waited is not None]
    assert sorted(refused, key=repr) == sorted((row for row in rows if row[1] is None), key=repr)


@pytest.mark.more
def test_a_timer_that_fails_at_no_row_is_refused_itself() -> None:
    class Fails(Numbered):
        def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
            raise ValueError("at once")

    _, run = processed(Fails, [("a", 1, 10), ("a", 2, 12)], 2)
    (refusal, *_) = run.refused
    assert (refusal.waited, refusal.place) == (None, "timer at 10 ms (event time)")


@pytest.mark.more
def test_a_timer_that_fails_before_it_takes_a_row_ends_however_often_it_failed_at_one() -> None:
    class Broken(Numbered):
        calls = 0

        def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
            self.calls += 1
            if self.calls > 1:
                raise ValueError("broken for good")
            yield from super().on_timer(timestamp, ctx)

    _, run = processed(Broken, [("a", None, 10), ("a", 2, 10)], 2)
    assert [refusal.waited is not None for refusal in run.refused] == [True, False]


@pytest.mark.more
def test_rows_that_wait_without_a_timer_go_on_with_the_next_row() -> None:
    """As an older version left them, whose timer was gone when it had failed."""
    options: dict[str, Any] = {"key_by": lambda row: row[0], "timestamp_of": lambda row: row[2]}
    run = KeyedHarness(Numbered(), **options)
    run.process([("a", 1, 10), ("a", 2, 11), ("b", 3, 10)])
    stored = run.snapshot()
    entries = dict(stored.keyed.entries)
    entries["_timers"] = {"b": entries["_timers"]["b"]}
    stuck = KeyedHarness.restored(
        Numbered(), replace(stored, keyed=replace(stored.keyed, entries=entries)), **options
    )
    stuck.set_watermark(20)
    assert stuck.process([]) == [("b", 3, 10, 1)]
    assert stuck.process([("a", 4, 30)]) == [("a", 1, 10, 1), ("a", 2, 11, 2)]
    assert stuck.drain() == [("a", 4, 30, 3)]


@pytest.mark.more
@pytest.mark.parametrize("at", [-(10**14), 10**15])
def test_a_silence_refuses_a_time_that_no_timestamp_has(at: int) -> None:
    run = KeyedHarness(
        Silence(5), key_by=lambda row: "a", timestamp_of=lambda row: row, on_error="dead_letter"
    )
    run.process([at, 10, 30])
    assert [refusal.index for refusal in run.refused] == [0]
    assert len(run.drain()) == 2


# -- in a job ------------------------------------------------------------------------------------------------------

SCHEMA = "k string, n bigint, d decimal(38,0), at timestamp"
BEGIN = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATE = OutputTag("late", SCHEMA)


def event(k: str, n: int | None, minute: int) -> tuple[Any, ...]:
    return (k, n, None if n is None else Decimal(n) * 2 * 10**19, BEGIN + timedelta(minutes=minute))


def job_of(build: Callable[[Any], Any], on_error: Any = "dead_letter") -> StatefulJob:
    job = StatefulJob("waits", on_error=on_error)
    rows = job.source("rows", FileSource("/x", schema=SCHEMA), event_time="at")
    results = build(rows.key_by("k"))
    results.sink("out", CollectSink())
    results.get_side_output(LATE).sink("late", CollectSink())
    return job


def sequence_of(keyed: Any) -> Any:
    steps = (step("small", where=lambda row: row.n < 5), step("big", where=lambda row: row.n > 5))
    return keyed.sequence(*steps, within="1 h", late_to=LATE, uid="op")


def over_of(keyed: Any, aggregate: Any) -> Any:
    return keyed.over(s=aggregate, late_to=LATE, uid="op")


JOBS: dict[str, tuple[Callable[[Any], Any], int | None]] = {
    "a sequence": (sequence_of, None),
    "a sum": (partial(over_of, aggregate=sum_("n", last="1 h")), BIG),
    "a decimal sum": (partial(over_of, aggregate=sum_("d", last="1 h")), BIG),
    "last rows": (partial(over_of, aggregate=sum_("n", last_rows=3)), BIG),
    "all rows": (partial(over_of, aggregate=sum_("n")), BIG),
}


def micro_batches(bad: int | None) -> list[list[tuple[Any, ...]]]:
    first = event("a", BIG if bad else 1, 0)
    return [
        [first, event("b", 1, 0), event("a", bad, 1), event("a", 9, 1)],
        [event("b", 9, 20), event("a", 2, 30)],
        [event("a", 7, 200), event("c", 1, 200)],
    ]


def ran(run: MemoryRun, batches: list[list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    for rows in batches:
        run.process({"rows": rows})
    run.process(drain=True)
    return sorted(map(tuple, run.sink("out")), key=repr)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "a sum" else pytest.mark.more) for name in JOBS]
)
def test_the_letter_of_a_job_has_the_row_and_is_sent_again(name: str) -> None:
    build, bad = JOBS[name]
    batches = micro_batches(bad)
    with run_in_memory(job_of(build)) as run:
        expected = ran(run, [[batches[0][0], batches[0][1], batches[0][3]], *batches[1:]])
        assert (run.dead_letters(), bool(expected)) == ([], True)
    with run_in_memory(job_of(build)) as run:
        assert ran(run, batches) == expected
        (letter,) = run.dead_letters()
        at = int(batches[0][2][3].timestamp() * 1000)
        assert letter["position"] == f"a row that waited, of {at} ms (event time)"
        row = json.loads(letter["row"])
        assert (row["k"], row["n"], row["at"]) == ("a", bad, str(batches[0][2][3]))
        assert run.state("op", "waiting") == {}
        assert run.sink("late") == []
        report = run._engine.replay_dead_letters(run._made.job)
        assert (len(report.sent), report.refused, report.left) == (1, 0, {})
        assert [tuple(late) for late in run.sink("late")] == [batches[0][2]], "its time is over"


class Values(KeyedProcessFunction):
    """Emits numbers in time; raises at 3, unless it is repaired."""

    holds_back_ms = 0

    def __init__(self, *, repaired: bool) -> None:
        self.repaired, self._waiting = (
            repaired,
            WaitingRows(to_type("bigint", parameter="n"), Lateness(0, MISSED)),
        )

    def open(self, runtime_context: RuntimeContext) -> None:
        self._waiting.open(runtime_context)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        return self._waiting.add(value, ctx)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        for _, value in self._waiting.due(timestamp, ctx):
            if value == 3 and not self.repaired:
                raise ValueError("three")
            yield value


MISSED = OutputTag("missed", "bigint")


@pytest.mark.more
def test_a_letter_of_a_bare_value_is_sent_again() -> None:
    def job(*, repaired: bool) -> StatefulJob:
        made = StatefulJob("waits", on_error="dead_letter")
        rows = made.source("rows", FileSource("/x", schema="n bigint, at timestamp"), event_time="at")
        keyed = rows.map(lambda row: row.n, output_type="bigint").key_by(lambda n: n % 2, key_type="bigint")
        values = keyed.process(Values(repaired=repaired), output_type="bigint", uid="op")
        values.sink("out", CollectSink())
        values.get_side_output(MISSED).sink("missed", CollectSink())
        return made

    with run_in_memory(job(repaired=False)) as run:
        run.process({"rows": [(n, BEGIN + timedelta(minutes=n)) for n in range(5)]})
        run.process(drain=True)
        (letter,) = run.dead_letters()
        assert (sorted(run.sink("out")), json.loads(letter["row"])) == ([0, 1, 2, 4], {"value": 3})
        run.restart(job(repaired=True))
        report = run._engine.replay_dead_letters(run._made.job)
        assert (report.refused, run.sink("missed")) == (0, [3])


@pytest.mark.more
def test_a_letter_of_a_part_of_a_row_shows_it_and_is_not_sent_again() -> None:
    job = StatefulJob("waits", on_error="dead_letter")
    source = job.source("rows", FileSource("/x", schema=SCHEMA), event_time="at")
    timed = source.map(lambda row: (row.k, row.n, int(row.at.timestamp() * 1000)), output_type=COLUMNS)
    numbered = timed.key_by("k").process(
        Numbered(whole=False), output_type=f"{COLUMNS}, seen bigint", uid="op"
    )
    numbered.sink("out", CollectSink())
    with run_in_memory(job) as run:
        run.process({"rows": [event("a", 1, 0), event("a", None, 1), event("a", 2, 2)]})
        run.process(drain=True)
        (letter,) = run.dead_letters()
        assert (letter["row"], len(run.sink("out"))) == ('{"k": "a", "n": null, "at": 1772366460000}', 2)
        report = run._engine.replay_dead_letters(job)
        (why,) = report.left.values()
        assert (report.sent, "an operator that keeps parts of its rows" in why) == ([], True)


@pytest.mark.more
@pytest.mark.parametrize("name", JOBS)
def test_a_job_that_fails_names_the_row(name: str) -> None:
    build, bad = JOBS[name]
    with run_in_memory(job_of(build, on_error="fail")) as run, pytest.raises(UserFunctionError) as raised:
        ran(run, micro_batches(bad))
    text = str(raised.value)
    assert "a row that waited, of 1772366460000 ms (event time)" in text
    assert '(row {"k": "a", ' in text
