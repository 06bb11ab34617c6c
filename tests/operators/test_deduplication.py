"""Duplicates: examples of Flink and Spark, random streams against a loop, and what jobs make of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import pytest

from state_engine import (
    EmbeddedRocksDBStateBackend,
    OutputTag,
    RowKind,
    StatefulJob,
    StateTtlConfig,
    Tumbling,
    count,
)
from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.deduplication import FirstRow, FirstRowsInTime, FirstRowsWithin, NewestRow
from state_engine.operators.idle_keys import ForgetsIdleKeys, IdleTime
from state_engine.operators.lateness import Lateness
from state_engine.state_tables.delta import DeltaStateTable
from state_engine.testing import CollectSink, KeyedHarness, run_in_memory
from tests.operators.any_cut import CUTS, EVERYWHERE, Ran, at_any_cut
from tests.operators.mixed import Mixed, forms_of
from tests.operators.windows.models import watermarks_before
from tests.operators.windows.test_windows import SEEDS

INSERT, BEFORE, AFTER, DELETE = RowKind
COLUMNS = "k string, v bigint, at bigint"
ROW = to_type(COLUMNS, parameter="rows")
LATE = OutputTag("late", COLUMNS)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = 60_000
BOUND = 4
Function = Callable[[], Any]
BACKENDS = [None, EmbeddedRocksDBStateBackend()]


class Event(NamedTuple):
    """A row; ``at`` is its event time in milliseconds."""

    k: str
    v: int
    at: int


def first(within: int | None, lateness: int = 0, *, final: bool = False) -> Any:
    late = Lateness(lateness, LATE)
    if final:
        return FirstRowsInTime(ROW, within, late)
    return FirstRow() if within is None else FirstRowsWithin(within, late)


def last(**options: Any) -> NewestRow:
    return NewestRow(COLUMNS, key=["k"], **options)


def options(parallelism: int = 1, backend: Any = None, **more: Any) -> dict[str, Any]:
    by: dict[str, Any] = {"key_by": lambda row: row.k, "timestamp_of": lambda row: row.at}
    return {**by, "parallelism": parallelism, "backend": backend, **more}


# -- examples ----------------------------------------------------------------------------------------------------------


def seconds(*given: int) -> list[Event]:
    return [Event(str(at), at, at) for at in given]


def minutes(k: str, hour: int, minute: int) -> Event:
    return Event(k, 0, (60 * hour + minute) * MINUTE)


def of(text: str) -> list[Event]:
    """``k1:14@101``: a row of the key, with the value, at the time."""
    parts = [one.replace("@", ":").split(":") for one in text.split()]
    return [Event(k, int(v), int(at)) for k, v, at in parts]


Step = tuple[list[Event] | int, list[Any]]
"""Rows or a watermark, and what comes out."""
VECTORS: dict[str, tuple[Function, int | None, list[Step]]] = {
    "Spark": (
        lambda: first(10), 10,
        [
            (seconds(*range(10, 16)) * 5, seconds(*range(10, 16))), (seconds(13, 14, 15, 16, 17), seconds(16, 17)),
            (seconds(5), []), (seconds(35), seconds(35)), (seconds(55), seconds(55)),
        ],
    ),
    "by event time": (
        lambda: first(None, final=True), None,
        [
            (50, []), (of("k1:0@1"), []), (of("k1:14@101 k1:13@99 k1:15@99 k1:12@100 k2:11@101"), []),
            (102, of("k1:13@99 k2:11@101")), (of("k1:12@300 k2:11@301 k3:5@299"), []), (302, of("k3:5@299")),
        ],
    ),
    "the last one": (
        lambda: last(by_time=True), None,
        [
            (of("k1:13@99"), [(INSERT, ("k1", 13, 99))]),
            (of("k1:12@100"), [(BEFORE, ("k1", 13, 99)), (AFTER, ("k1", 12, 100))]),
            (of("k2:11@101"), [(INSERT, ("k2", 11, 101))]),
            (of("k1:12@300"), [(BEFORE, ("k1", 12, 100)), (AFTER, ("k1", 12, 300))]),
            (of("k2:11@301"), [(BEFORE, ("k2", 11, 101)), (AFTER, ("k2", 11, 301))]),
            (of("k3:5@299"), [(INSERT, ("k3", 5, 299))]),
            (of("k1:7@200"), []), (of("k1:8@300"), [(BEFORE, ("k1", 12, 300)), (AFTER, ("k1", 8, 300))]),
        ],
    ),
    "exactly within": (
        lambda: first(30 * MINUTE), 0,
        [
            ([minutes("a", 11, 50)], [minutes("a", 11, 50)]), ([minutes("b", 12, 15)], [minutes("b", 12, 15)]),
            ([minutes("a", 12, 16)], []), ([minutes("a", 12, 20)], [minutes("a", 12, 20)]),
            ([minutes("a", 12, 49)], []),
        ],
    ),
    "out of order": (
        lambda: first(10, 100), 0,
        [
            (of("a:1@50"), of("a:1@50")), (of("a:2@45"), []), (of("a:3@40"), of("a:3@40")),
            (of("a:4@60"), of("a:4@60")), (of("a:5@55"), []), (of("a:6@31"), []),
        ],
    ),
}  # fmt: skip


@pytest.mark.internal_errors
@EVERYWHERE
@CUTS
@forms_of({name: function for name, (function, *_) in VECTORS.items()})
def test_examples_with_a_restore_between_every_two_batches(
    name: str, columns: float, size: int, parallelism: int, backend: Any
) -> None:
    function, bound, steps = VECTORS[name]
    types = {"key_type": str, "input_type": COLUMNS, "output_type": COLUMNS}
    by = {**options(parallelism, backend, max_out_of_orderness_ms=bound), **types}
    run = Mixed(function, random.Random(0), lambda _: by, columns=columns)
    for given, expected in steps:
        if isinstance(given, int):
            outputs = run.process([], watermark=given)
        else:
            outputs = [one for at in range(0, len(given), size) for one in run.process(given[at : at + size])]
        came = [(row.get_row_kind(), tuple(row)) for row in outputs]
        wanted = [one if isinstance(one[0], RowKind) else (INSERT, one) for one in expected]
        assert sorted(came, key=repr) == sorted([(kind, tuple(row)) for kind, row in wanted], key=repr)
    assert not run.runs["elements" if columns else "columns"]


# -- random streams ----------------------------------------------------------------------------------------------------


def stream(seed: int, count: int = 40) -> list[Event]:
    """Displacements of up to and exactly the bound, some rows far behind, many of one time, times before 1970."""
    rng = random.Random(seed)
    newest, rows = rng.choice([-20, 0, 1_000_000]), []
    for v in range(count):
        newest += rng.choice([0, 0, 1, 2, 5, 12])
        rows.append(Event(rng.choice("ab"), v, newest - rng.choice([0, 0, 1, BOUND, BOUND + 1, 9, 25])))
    return rows


def run_of(function: Function, rows: list[Any], rng: random.Random, **more: Any) -> Ran:
    by = partial(options, max_out_of_orderness_ms=BOUND, **more)
    return at_any_cut(function, rows, rng, by, late=LATE, sizes=(1, 3, 40))


def expected_of(
    rows: list[Event], within: int, lateness: int, *, final: bool
) -> tuple[list[Event], list[Event]]:
    """The rows that come out, and those that are too late."""
    late = [row for row, watermark in watermarks_before(rows, BOUND) if row.at + lateness <= watermark]
    taken = [row for row in rows if row not in late]
    kept: list[Event] = []
    for row in sorted(taken, key=lambda one: one.at) if final else taken:
        if all(one.k != row.k or abs(one.at - row.at) >= within for one in kept):
            kept.append(row)
    return kept, late


@SEEDS
@pytest.mark.parametrize("lateness", [0, 3, 20])
@pytest.mark.parametrize("final", [False, True], ids=["at once", "final"])
def test_first_rows_are_those_of_a_loop(final: bool, lateness: int, seeds: range) -> None:
    for seed in seeds:
        rng, rows = random.Random(seed), stream(seed)
        within = rng.choice([1, 2, 5, 13, 10**6])
        ran = run_of(partial(first, within, lateness, final=final), rows, rng)
        expected, too_late = expected_of(rows, within, lateness, final=final)
        for k in "ab":
            of_key = [row for row in ran.outputs if row.k == k]
            assert of_key == [row for row in expected if row.k == k], f"seed {seed}"
        assert [tuple(row) for row in ran.late] == too_late, f"seed {seed}"
        assert not ran.left, f"seed {seed}"


@SEEDS
def test_without_a_distance_there_is_one_row_of_each_key(seeds: range) -> None:
    for seed in seeds:
        rng, rows = random.Random(seed), stream(seed)
        ran = run_of(lambda: first(None), rows, rng)
        assert sorted(ran.outputs) == sorted(
            next(row for row in rows if row.k == k) for k in {row.k for row in rows}
        )
        assert ran.left == {"seen"}
        ran = run_of(lambda: first(None, 5, final=True), rows, rng)
        assert sorted(ran.outputs) == sorted(expected_of(rows, 10**12, 5, final=True)[0])
        assert ran.left == {"seen"}


@SEEDS
def test_last_rows_are_a_table_of_the_newest_ones(seeds: range) -> None:
    for seed in seeds:
        rng, rows = random.Random(seed), stream(seed)
        for function, place in (
            (lambda: last(by_time=True), lambda row: row.at),
            (lambda: last(sequence="v"), lambda row: row.v),
            (last, lambda row: 0),
        ):
            ran = run_of(function, rows, rng)
            newest = {
                k: max(reversed([row for row in rows if row.k == k]), key=place) for k in {r.k for r in rows}
            }
            assert table_of(ran.outputs) == newest, f"seed {seed}"
            assert ran.left == {"row"}


def table_of(outputs: list[Any]) -> dict[str, Event]:
    """What changes make of a table; each takes back what was there."""
    table: dict[str, Event] = {}
    for kind, row in outputs:
        if kind in (BEFORE, DELETE):
            assert table.pop(row[0]) == row
        else:
            assert row[0] not in table
            table[row[0]] = Event(*row)
    return table


@SEEDS
def test_last_rows_of_a_stream_that_changes_are_those_that_its_table_has(seeds: range) -> None:
    for seed in seeds:
        rng, table, changes = random.Random(seed), dict[str, Event](), list[Any]()
        for v in range(40):
            k, row = rng.choice("abc"), Event("", v, rng.randint(0, 50))
            if k in table and rng.random() < 0.3:
                changes.append((DELETE, table.pop(k)))
            elif k in table:
                changes += [(BEFORE, table[k]), (AFTER, row._replace(k=k))]
                table[k] = row._replace(k=k)
            else:
                table[k] = row._replace(k=k)
                changes.append((INSERT, table[k]))
        ran = run_of(lambda: last(changing=True), changes, rng, changing=True)
        assert table_of(ran.outputs) == table, f"seed {seed}"


def test_at_the_ends_of_time_nothing_overflows() -> None:
    last_ms = 253_402_300_799_999
    rows = [Event("a", n, at) for n, at in enumerate((last_ms, last_ms - 1, -62_135_596_800_000))]
    for final in (False, True):
        assert first(5, 3, final=final).holds_back_ms == 3
        run = KeyedHarness(first(2**62, 2**62, final=final), **options(max_out_of_orderness_ms=0))
        outputs = [*run.process(rows), *run.drain()]
        assert [row.v for row in outputs] == ([2] if final else [0])


def test_a_row_without_event_time_is_refused() -> None:
    for function in (first(5), first(5, final=True), last(by_time=True)):
        run = KeyedHarness(function, key_by=lambda row: row.k, timestamp_of=lambda row: None)
        with pytest.raises(ValueTypeError, match="no event time, which its operator needs: filter such rows"):
            run.process([Event("a", 1, 1)])


def test_keys_are_forgotten_and_begin_anew() -> None:
    idle = IdleTime(10, by_event_time=True)
    by = options(max_out_of_orderness_ms=0)
    rows = of("a:1@0 a:2@9 a:3@18 a:4@28 a:5@30")
    assert KeyedHarness(ForgetsIdleKeys(first(None), idle), **by).process(rows) == [rows[0], rows[3]]
    run = KeyedHarness(ForgetsIdleKeys(last(by_time=True), idle), **by)
    assert run.process(rows[2:4]) == [
        (INSERT, ("a", 3, 18)), (DELETE, ("a", 3, 18)), (INSERT, ("a", 4, 28)),
    ]  # fmt: skip


# -- jobs --------------------------------------------------------------------------------------------------------------


def source_of(rows: list[Event], *, timed: bool = True, changing: bool = False, **more: Any) -> Any:
    given: list[Any] = [(row.k, row.v, EPOCH + timedelta(milliseconds=row.at)) for row in rows]
    job = StatefulJob("once")
    event_time = {"event_time": "at", "max_out_of_orderness": 0} if timed else {}
    columns = "k string, v bigint, at timestamp"
    return job.from_collection(
        [(INSERT, row) for row in given] if changing and given else given, columns, name="rows",
        changing=changing, max_rows_per_batch=2, **event_time, **more,
    )  # fmt: skip


def keyed_of(**more: Any) -> Any:
    return source_of([], **more).key_by("k")


def test_what_comes_late_is_in_time_behind_it_and_what_comes_too_late_is_aside() -> None:
    rows = source_of(of("a:1@5 b:2@100 a:3@50 a:4@90 a:5@95 b:6@40"))
    late = OutputTag("late", "k string, v bigint, at timestamp")
    once = rows.key_by("k").drop_duplicates(within=10, lateness=55, late_to=late, uid="once")
    once.key_by("k").window(Tumbling(20)).aggregate(n=count(), uid="n").sink("n", CollectSink())
    once.get_side_output(late).sink("late", CollectSink())
    once.publish(DeltaStateTable("/once"))
    with run_in_memory(rows._job) as run:
        run.run()
        assert [(row.k, row.value) for row in run.table("seen")] == [("a", True)] * 2 + [("b", True)]
        assert sorted(row.kept_at for row in run.table("seen")) == [50, 90, 100]
        run.process(drain=True)
        shown = [
            (row.k, (row.window_start - EPOCH) // timedelta(milliseconds=1), row.n) for row in run.sink("n")
        ]
        assert sorted(shown) == [("a", 0, 1), ("a", 40, 1), ("a", 80, 1), ("b", 100, 1)]
        assert [row.v for row in run.sink("late")] == [6]
        assert run.table("seen") == []


def test_by_event_time_outputs_have_their_own_time_and_are_in_time_behind_it() -> None:
    rows = source_of(of("a:1@5 a:2@4 b:3@100 b:4@101"))
    once = rows.key_by("k").drop_duplicates(within=10, emit="final", lateness=3, uid="once")
    once.key_by("k").window(Tumbling(2)).aggregate(n=count(), uid="n").sink("n", CollectSink())
    with run_in_memory(rows._job) as run:
        run.run()
        run.process(drain=True)
        starts = [(row.k, (row.window_start - EPOCH) // timedelta(milliseconds=1)) for row in run.sink("n")]
        assert starts == [("a", 4), ("b", 100)]


def test_the_last_rows_are_changes_and_a_table() -> None:
    rows = source_of(of("a:1@5 a:2@4 b:3@10 a:4@10 b:5@10"))
    newest = rows.key_by("k").drop_duplicates(keep="last", uid="newest").publish(DeltaStateTable("/newest"))
    newest.key_by("v").aggregate(n=count(), uid="n").sink("n", CollectSink())
    with run_in_memory(rows._job) as run:
        run.run()
        assert sorted((row.k, row.v, row.row_time) for row in run.table("row")) == [
            ("a", 4, 10),
            ("b", 5, 10),
        ]
        assert {key for key, (rows, *_) in run.state("n", "aggregates").items() if rows} == {4, 5}


def test_bare_values_and_records_come_out_as_they_are() -> None:
    job = StatefulJob("bare")
    numbers = job.from_collection([3, 4, 3, 5, 4], int, name="numbers")
    numbers.key_by(lambda number: number, key_type=int).drop_duplicates(uid="once").sink(
        "once", CollectSink()
    )
    with run_in_memory(job) as run:
        run.run()
        assert sorted(run.sink("once")) == [3, 4, 5]


BY_EVENT_TIME = StateTtlConfig.new_builder("1 h").use_event_time().build()
TAG = OutputTag("late", "k string, v bigint, at timestamp")
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no event time": (
        lambda: keyed_of(timed=False).drop_duplicates(within=5),
        r"drop_duplicates\(within=…\) needs event time, and none of the sources"),
    "no event time for the first by it": (
        lambda: keyed_of(timed=False).drop_duplicates(emit="final"),
        r"drop_duplicates\(emit='final'\) needs event time"),
    "late rows that are gone": (
        lambda: keyed_of(late_to=TAG).drop_duplicates(within=5, lateness=5),
        r"source 'rows' diverts late rows before drop_duplicates.*drop_duplicates\(…, late_to=…\), or leave lateness"),
    "no distance": (
        lambda: keyed_of().drop_duplicates(within=0), "within of drop_duplicates must be longer than nothing"),
    "another row": (lambda: keyed_of().drop_duplicates(keep="any"), "keep must be 'first' or 'last'"),
    "another word for emit": (
        lambda: keyed_of().drop_duplicates(emit="running"), "emit must be 'at_once' or 'final'"),
    "a distance of last rows": (
        lambda: keyed_of().drop_duplicates(keep="last", within=5), "leave within, emit, lateness and late_to out"),
    "late rows of last rows": (
        lambda: keyed_of().drop_duplicates(keep="last", late_to=TAG), "no row is too late for it: leave within"),
    "a sequence of first rows": (
        lambda: keyed_of().drop_duplicates(sequence="v"), "says which row is the last one: use keep='last'"),
    "late rows for ever": (
        lambda: keyed_of().drop_duplicates(lateness=5), "so no row is too late: leave lateness and late_to out"),
    "a lateness below 0": (
        lambda: keyed_of().drop_duplicates(within=5, lateness=timedelta(seconds=-1)), "lateness must be 0 or more"),
    "a time to live beside a distance": (
        lambda: keyed_of().drop_duplicates(within=5, ttl="1 h"), "takes no ttl: with within, what is kept"),
    "a time to live that the stream has not": (
        lambda: keyed_of(timed=False).drop_duplicates(ttl=BY_EVENT_TIME), "ttl of drop_duplicates is by event time"),
    "first rows of a stream that changes": (
        lambda: keyed_of(changing=True).drop_duplicates(),
        "takes inserts only, and its stream holds updates and deletes"),
    "an unknown sequence": (
        lambda: keyed_of().drop_duplicates(keep="last", sequence="lsn"), r"there is no column \['lsn'\]"),
    "a sequence of the key": (
        lambda: keyed_of().drop_duplicates(keep="last", sequence="k"), "the sequence .* is part of the key"),
    "last bare values": (
        lambda: StatefulJob("bare").from_collection([1], int).key_by(lambda v: v, key_type=int)
        .drop_duplicates(keep="last"),
        r"drop_duplicates\(keep='last'\) needs rows with named columns"),
    "a column of the state": (
        lambda: StatefulJob("named").from_collection([], "k string, row_time bigint, at timestamp", event_time="at")
        .key_by("k").drop_duplicates(keep="last"),
        "drop_duplicates: the stream has a column 'row_time', and the state keeps .* rename it"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_while_the_job_is_built(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build()
