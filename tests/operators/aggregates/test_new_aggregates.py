"""Aggregates of distinct and collected values, of ends and of moments: types, exactness, evolution, refusals, jobs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from itertools import permutations
from typing import Any, cast

import pytest

from state_engine import (
    AggregateFunction,
    OutputTag,
    Row,
    RowKind,
    Session,
    Sliding,
    StatefulJob,
    Tumbling,
    aggregate_with,
    collect_list,
    collect_set,
    count,
    count_distinct,
    first,
    last,
    max_,
    max_by,
    min_,
    min_by,
    stddev,
    sum_,
    variance,
)
from state_engine.core.errors import ConfigurationError, RetractionError
from state_engine.core.types.every_type import DecimalType, FloatType, StructType
from state_engine.core.types.type_parsing import to_type
from state_engine.job.graph import OperatorInput
from state_engine.job.windowing import Windowing
from state_engine.operators.aggregates.accumulators import BIGINT, DOUBLE
from state_engine.operators.aggregates.declarations import Aggregate
from state_engine.operators.aggregates.keyed_aggregates import KeyedAggregates
from state_engine.operators.aggregates.moments import Moments
from state_engine.operators.aggregates.plan import plan
from state_engine.operators.windows.aligned_windows import AlignedWindows
from state_engine.operators.windows.window_results import RowsWithBounds, WindowAccumulators, WindowSettings
from state_engine.testing import CollectSink, KeyedHarness, run_in_memory
from tests.operators.aggregates.readings import COLUMNS, Spread
from tests.operators.feed import Feed

INSERT, BEFORE, AFTER, DELETE = RowKind
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PRICE = DecimalType(38, 6)


def moments_of(values: list[Any], kind: Any = DOUBLE) -> tuple[Moments, Any]:
    moments = Moments(kind, what="variance('x')")
    kept = moments.create_accumulator()
    for value in values:
        kept = moments.add(value, kept)
    return moments, kept


def shown(values: list[Any], kind: Any = DOUBLE) -> tuple[float | None, ...]:
    moments, kept = moments_of(values, kind)
    return tuple(
        of(kept, population=population)
        for of in (moments.variance, moments.stddev)
        for population in (False, True)
    )


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (BIGINT, int),
        (DOUBLE, float),
        (PRICE, Decimal),
        (DecimalType(5, 0), Decimal),
        (FloatType(DOUBLE.arrow), float),
    ],
)
def test_moments_of_the_textbook(kind: Any, make: Callable[[int], Any]) -> None:
    values = [make(value) for value in (2, 4, 4, 4, 5, 5, 7, 9)]
    assert shown(values, kind) == (4.571428571428571, 4.0, 2.138089935299395, 2.0)
    assert shown(values[:1], kind) == (None, 0.0, None, 0.0)
    assert shown([], kind) == (None,) * 4


@pytest.mark.parametrize(
    ("values", "variances"),
    [
        ([5e-324, 5e-324], (0.0, 0.0, 0.0, 0.0)),
        ([5e-324, -5e-324], (0.0, 0.0, math.sqrt(2) * 5e-324, 5e-324)),
        ([1.7e308, -1.7e308], (math.inf, math.inf, math.inf, 1.7e308)),
        ([2.0**700, 2.0**700 * (1 + 2**-52)], (math.inf, math.inf, math.sqrt(2) * 2.0**647, 2.0**647)),
        ([1e16, 1.0, -1e16], (1e32, 2e32 / 3, 1e16, math.sqrt(2e32 / 3))),
        ([1e16 + 2, 1e16], (2.0, 1.0, math.sqrt(2), 1.0)),
        ([math.nan, 1.0, 2.0], (math.nan,) * 4),
        ([math.inf, 1.0], (math.nan,) * 4),
        ([0.0, -0.0], (0.0,) * 4),
    ],
)
def test_moments_are_exact_at_every_magnitude(values: list[float], variances: tuple[float, ...]) -> None:
    for order in permutations(values):
        results = shown(list(order))
        assert results == pytest.approx(variances, rel=1e-7, abs=0, nan_ok=True)
        assert str(results) == str(shown(values)), "the order changes no bit"


def test_the_largest_numbers_have_moments() -> None:
    most = 2**63 - 1
    assert shown([most, -most - 1], BIGINT)[1] == float((2**64 - 1) ** 2 / 4)
    assert shown([most] * 3, BIGINT) == (0.0,) * 4
    large = Decimal("99999999999999999999999999999999.999999")
    assert shown([large, Decimal("99999999999999999999999999999999.999997")], PRICE) == (
        2e-12,
        1e-12,
        math.sqrt(2e-12),
        1e-6,
    )


@pytest.mark.parametrize("seed", range(20))
def test_merged_and_taken_back_in_any_order_moments_are_equal_bit_for_bit(seed: int) -> None:
    rng = random.Random(seed)
    kind, value = rng.choice(
        [
            (DOUBLE, lambda: rng.choice([0.1, 1e300, -1e-300, 5e-324, rng.random(), math.inf, math.nan])),
            (BIGINT, lambda: rng.randint(-(2**63), 2**63 - 1)),
            (PRICE, lambda: Decimal(rng.randint(-(10**38) + 1, 10**38 - 1)).scaleb(-6)),
        ]
    )
    kept, gone = [value() for _ in range(8)], [value() for _ in range(5)]
    moments, expected = moments_of(kept, kind)
    parts = [
        moments_of([*kept[:3], *gone], kind)[1],
        moments_of(kept[3:5], kind)[1],
        moments_of(kept[5:], kind)[1],
    ]
    rng.shuffle(parts)
    merged = moments.merge(moments.merge(parts[0], parts[1]), parts[2])
    for one in rng.sample(gone, len(gone)):
        merged = moments.retract(one, merged)
    assert repr(merged) == repr(expected)
    with pytest.raises(RetractionError, match="never added"):
        moments.retract(kept[0], moments.create_accumulator())


def types_of(**asked: Aggregate) -> dict[str, str]:
    columns = to_type(f"{COLUMNS}, tags array<string>, small int", parameter="rows")
    assert isinstance(columns, StructType)
    return {result.name: str(result.type) for result in plan(asked, columns).results}


def test_types_of_results_are_those_of_the_fields() -> None:
    assert types_of(a=count_distinct("name"), b=stddev("price"), c=variance("small")) == {
        "a": "int64", "b": "double", "c": "double",
    }  # fmt: skip
    ends = types_of(
        a=first("price"), b=last("name"), c=min_by("pair", "x"), d=max_by("small", "name"), e=last("tags")
    )
    pair = "struct<a: int64, b: string>"
    assert ends == {
        "a": "decimal128(38, 6)",
        "b": "string",
        "c": pair,
        "d": "int32",
        "e": "list<item: string>",
    }
    assert types_of(a=collect_list("tags"), b=collect_set("price"), c=collect_list("small", most=3)) == {
        "a": "list<item: list<item: string>>", "b": "list<item: decimal128(38, 6)>", "c": "list<item: int32>",
    }  # fmt: skip


def fed(aggregates: dict[str, Aggregate], columns: str = "k string, v bigint, w bigint") -> Feed:
    kind = to_type(columns, parameter="columns")
    assert isinstance(kind, StructType)
    return Feed(KeyedAggregates(plan(aggregates, kind)))


def test_without_event_time_the_order_of_the_stream_counts() -> None:
    feed = fed(
        {
            "f": first("v"),
            "l": last("v"),
            "lo": min_by("v", "w"),
            "hi": max_by("v", "w"),
            "all": collect_list("v"),
        }
    )
    rows = [("a", None, 9), ("a", 1, 5), ("a", 2, None), ("a", 3, 5), ("a", 4, 5)]
    outputs = [feed.send(INSERT, "a", row)[0] for row in rows]
    assert outputs[0] == ("a", None, None, None, None, [])
    assert outputs[-1] == ("a", 1, 4, 1, 1, [1, 2, 3, 4])
    assert feed.state()["elements_v"] == {"a": {(None, n): n + 1 for n in range(4)}}


def test_one_field_is_kept_once_and_an_end_of_rows_that_change_beside_it() -> None:
    columns = to_type("k string, v bigint, w bigint", parameter="columns")
    assert isinstance(columns, StructType)
    asked = {
        "n": count_distinct("v"),
        "all": collect_set("v"),
        "lo": min_("v"),
        "sd": stddev("v"),
        "var": variance("v"),
    }
    changing = plan(asked, columns, retract=True)
    assert [step.name for step in changing.steps] == ["distinct_v", "values_v", "moments_v"]
    feed = Feed(KeyedAggregates(changing, emits_changes=True))
    for kind, v in ((INSERT, 3), (INSERT, 3), (INSERT, 8), (DELETE, 3)):
        outputs = feed.send(kind, "a", ("a", v, None))
    assert outputs[-1] == (AFTER, ("a", 2, [3, 8], 3, math.sqrt(12.5), 12.5))
    assert feed.state()["values_v"] == {"a": {3: 1, 8: 1}}
    feed.send(DELETE, "a", ("a", 3, None))
    assert feed.send(DELETE, "a", ("a", 8, None)) == [(DELETE, ("a", 1, [8], 8, None, None))]
    assert not any(feed.state().values())


def test_fields_whose_names_would_meet_in_the_state_are_refused() -> None:
    columns = to_type("a bigint, b_of_c bigint, a_of_b bigint, c bigint", parameter="columns")
    assert isinstance(columns, StructType)
    with pytest.raises(
        ConfigurationError, match="kept under one name, 'min_by_a_of_b_of_c': rename one of the fields"
    ):
        plan({"one": min_by("a", "b_of_c"), "other": min_by("a_of_b", "c")}, columns)


class Unmerged(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + int(value.v)

    def get_result(self, accumulator: int) -> int:
        return accumulator


def rows_of(*, changing: bool = False) -> Any:
    job = StatefulJob("aggregates")
    rows = job.from_collection([], "k string, v bigint, at timestamp", name="rows", changing=changing)
    return rows.assign_timestamps_and_watermarks("at").key_by("k")


def on_changes(aggregate: Aggregate) -> Any:
    return rows_of(changing=True).aggregate(a=aggregate)


UNMERGED = aggregate_with(Unmerged(), "bigint", "bigint")
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    **{
        f"{aggregate} of rows that change": (
            partial(on_changes, aggregate),
            r"cannot take back the rows that are updated and deleted \(from source 'rows'\): use top_n\(1, by=…\)",
        )
        for aggregate in (first("v"), last("v"), min_by("v", "at"), max_by("v", "at"))
    },
    "first in windows of rows that change": (
        lambda: rows_of(changing=True).window(Tumbling(5)).aggregate(a=first("v")), r"first\('v'\) cannot take back"),
    "collect_list of rows that change": (
        lambda: rows_of(changing=True).aggregate(a=collect_list("v")), "use collect_set, which keeps each value"),
    "a function without retract": (
        lambda: rows_of(changing=True).aggregate(a=UNMERGED),
        r"a=aggregate_with\(Unmerged\(\)\) needs retract\(self, value, accumulator\) in Unmerged \(from source"),
    "a function without merge, in sessions": (
        lambda: rows_of().window(Session(5)).aggregate(a=UNMERGED), r"needs merge\(self, acc_a, acc_b\) in Unmerged"),
    "a function without merge, in windows that overlap": (
        lambda: rows_of().window(Sliding(4, every=2)).aggregate(a=UNMERGED), r"needs merge\(self, acc_a, acc_b\)"),
    "a function without types": (
        lambda: rows_of().aggregate(a=Unmerged()), r"give it with its types, as in a=aggregate_with\(Unmerged\(…\)"),
    "what is no function": (lambda: aggregate_with(cast(Any, 3), int, int), "takes an AggregateFunction, not 3"),
    "different lists": (lambda: types_of(a=count_distinct("tags")), "have no order; make another field"),
    "by a list": (lambda: types_of(a=max_by("v", "tags")), r"a=max_by\('v', 'tags'\): values of type .* have no order"),
    "the deviation of text": (lambda: types_of(a=stddev("name")), "this is for numbers: make it one in a map before"),
    "no values at most": (lambda: collect_list("v", most=0), "most must be a whole number above 0, not 0"),
    "sessions of rows that change": (
        lambda: rows_of(changing=True).window(Session(5)),
        r"inserts only, .* \(from source 'rows'\): a deleted row may split a session. Keep the rows in a Keyed"),
    "windows of the clock of rows that change": (
        lambda: Windowing(OperatorInput(rows_of(changing=True)._node, ("k",)), cast(Any, None), Tumbling(5),
                          WindowSettings(clock=True)), "in another window than it was. Use windows"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "message"), REFUSED.values(), ids=REFUSED)
def test_what_an_aggregate_cannot_do_is_refused_while_the_job_is_built(
    build: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build()


def test_a_function_without_merge_is_one_of_tumbling_windows() -> None:
    assert rows_of().window(Tumbling(5)).aggregate(a=UNMERGED) is not None


# -- evolution -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("windows", [Tumbling(10), Sliding(10, every=5)], ids=["tumbling", "sliding"])
def test_an_aggregate_that_is_added_is_null_for_open_windows(windows: Any) -> None:
    columns = to_type("k string, v bigint, at bigint", parameter="columns")
    assert isinstance(columns, StructType)
    options: dict[str, Any] = {
        "key_by": lambda row: row[0],
        "timestamp_of": lambda row: row[2],
        "max_out_of_orderness_ms": 0,
    }

    def function(asked: dict[str, Aggregate]) -> AlignedWindows:
        contents = WindowAccumulators(plan(asked, columns, merge=True))
        return AlignedWindows(windows, contents, RowsWithBounds(), WindowSettings())

    def sums(outputs: list[Any]) -> dict[int, tuple[Any, ...]]:
        """Of whole windows: results by start."""
        return {(row[1] - EPOCH) // timedelta(milliseconds=1): row[3:] for row in outputs}

    few = KeyedHarness(function({"n": count(), "d": count_distinct("v")}), **options)
    few.process([("a", 3, 1), ("a", 4, 2)])
    asked = {"n": count(), "s": sum_("v"), "all": collect_list("v"), "set": collect_set("v"), "l": last("v")}
    more = KeyedHarness.restored(function(asked), few.snapshot(), **options)
    more.process([("a", 5, 3)])
    outputs = more.process([("a", 6, 12), ("a", 7, 100)])
    assert sums(outputs)[0] == (3, None, None, None, None)
    assert sums(more.drain())[100] == (1, 7, [7], [7], 7)
    again = KeyedHarness.restored(
        function({"n": count(), "d": count_distinct("v")}), more.snapshot(), **options
    )
    again.process([("a", 7, 300)])
    assert sums(again.drain())[300] == (1, 1)


# -- jobs ------------------------------------------------------------------------------------------------------------


def at(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def change(kind: RowKind, k: str, v: int, ms: int) -> Row:
    return Row.of_kind(kind, k=k, v=v, at=at(ms))


LATE = OutputTag("late", "k string, v bigint, at timestamp")


@pytest.mark.parametrize("emit", ["final", "running"])
@pytest.mark.parametrize("cut", [1, 2, 100])
def test_each_half_of_a_change_goes_to_the_window_of_its_own_time(emit: Any, cut: int) -> None:
    changes = [
        change(INSERT, "a", 1, 1), change(INSERT, "a", 5, 2), change(INSERT, "b", 9, 3),
        change(DELETE, "b", 9, 3),  # the window of b has no row any more
        change(BEFORE, "a", 5, 2), change(AFTER, "a", 5, 12),  # to the next window
        change(INSERT, "a", 7, 40),
        change(BEFORE, "a", 1, 1), change(AFTER, "a", 2, 41),  # the first half is too late
    ]  # fmt: skip
    job = StatefulJob("changes")
    rows = job.from_collection(
        changes, "k string, v bigint, at timestamp", name="rows", changing=True, max_rows_per_batch=cut
    ).assign_timestamps_and_watermarks("at")
    windows = (
        rows.key_by("k")
        .window(Tumbling(10), late_to=LATE, emit=emit)
        .aggregate(n=count(), total=sum_("v"), most=max_("v"), different=count_distinct("v"), uid="windows")
    )
    windows.sink("windows", CollectSink())
    windows.get_side_output(LATE).sink("late", CollectSink())
    with run_in_memory(job) as run:
        run.run(drain=True)
        table: dict[Any, Any] = {}
        for row in run.sink("windows"):
            kind, (k, start, _, *values) = row.get_row_kind(), tuple(row)
            if kind in (BEFORE, DELETE):
                assert table.pop((k, start)) == values
            else:
                table[k, start] = values
        assert table == {
            ("a", at(0)): [1, 1, 1, 1], ("a", at(10)): [1, 5, 5, 1], ("a", at(40)): [2, 9, 7, 2],
        }  # fmt: skip
        assert [(row.get_row_kind(), tuple(row)) for row in run.sink("late")] == [(BEFORE, ("a", 1, at(1)))]
        assert not any(run.state("windows", name) for name in ("windows", "values_v"))


def test_a_function_of_whole_rows_stands_beside_other_aggregates() -> None:
    job = StatefulJob("functions")
    rows = job.from_collection([("a", 1), ("a", 7), ("b", 4)], "k string, v bigint")
    spread = aggregate_with(Spread(), "array<bigint>", "bigint", field="v")
    results = rows.key_by("k").aggregate(n=count(), total=UNMERGED, spread=spread, uid="results")
    results.sink("results", CollectSink())
    with run_in_memory(job) as run:
        run.run()
        assert [tuple(row) for row in run.sink("results")] == [("a", 1, 1, 0), ("a", 2, 8, 6), ("b", 1, 4, 0)]
        assert set(run.state("results", "aggregates")) == {"a", "b"}
