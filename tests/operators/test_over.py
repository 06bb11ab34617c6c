"""Rows with the aggregates of those before them: examples of Flink and Chronon, random streams beside a model."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from state_engine import (
    OutputTag,
    avg,
    collect_list,
    count,
    count_distinct,
    first,
    max_,
    min_,
    sum_,
    variance,
)
from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.operators.aggregates.declarations import Aggregate
from state_engine.operators.lateness import Lateness
from state_engine.operators.over.levels import level_of
from state_engine.operators.over.over import Over, WhenOut
from state_engine.testing import KeyedHarness
from tests.operators.any_cut import CUTS, EVERYWHERE, at_any_cut
from tests.operators.mixed import Mixed, forms_of

ROW = "k string, v bigint, at bigint"
LATE = OutputTag("late", ROW)
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
Given = tuple[str, int | None, int]
"""Key, value and event time."""


def options(**given: Any) -> dict[str, Any]:
    return {"key_by": lambda row: row[0], "timestamp_of": lambda row: row[2], **given}


def reach(run: KeyedHarness, watermark: int) -> list[Any]:
    run.set_watermark(watermark)
    return run.process([])


def over(
    emit: WhenOut = "final",
    tile: int | None = None,
    lateness: int = 0,
    forget_after: int | None = None,
    **aggregates: Aggregate,
) -> Over:
    late = Lateness(lateness, LATE)
    return Over(ROW, aggregates, emit=emit, tile_ms=tile, lateness=late, forget_after_ms=forget_after)


def clock(text: str) -> int:
    hours, minutes, seconds = map(int, text.split(":"))
    return (hours * 60 + minutes) * MINUTE + seconds * 1000


TILED = [(1, clock(at)) for at in ("11:04:59", "11:05:00", "11:07:30", "12:07:00", "12:10:00")]


VECTORS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "rows": (
        {"n": count(last_rows=3), "s": sum_("v", last_rows=3)},
        [
            ([1, 1, 1, 2, 2, 2], 2, [(1, 1), (2, 2), (3, 3), (3, 4), (3, 5), (3, 6)]),
            ([3, 3, 3, 4, 4, 4, 5, 6], 6, [(3, 7), (3, 8), (3, 9), (3, 10), (3, 11), (3, 12), (3, 13), (3, 15)]),
        ],
    ),
    "peers": (
        {"n": count(last=0), "s": sum_("v", last=1)},
        [([1, 1, 3, 2], 3, [(2, 2), (2, 2), (1, 4), (1, 5)]), ([5, 4], 5, [(1, 7), (1, 9)])],
    ),
    "all": (
        {"n": count(), "s": sum_("v")},
        [
            ([(1, 5), (1, 2), (2, 2), (3, 2)], 20, [(3, 6)] * 3 + [(4, 7)]),
            ([(4, 21), (5, 22), (6, 22), (7, 22)], 30, [(5, 11)] + [(8, 29)] * 3),
        ],
    ),
    "tile": (
        {"n": count(last="1 h"), "tile": 5 * MINUTE},
        [(TILED, clock("12:10:00"), [(1,), (2,), (3,), (3,), (2,)])],
    ),
    "without tile": (
        {"n": count(last="1 h")}, [(TILED, clock("12:10:00"), [(1,), (2,), (3,), (2,), (2,)])],
    ),
    "distinct": (
        {"d": count_distinct("v")},
        [([(None, 1), (None, 2), (7, 4), (7, 5), (8, 7), (None, 10)], 10, [(n,) for n in (0, 0, 1, 1, 2, 2)])],
    ),
}  # fmt: skip


@pytest.mark.internal_errors
@EVERYWHERE
@CUTS
@forms_of({name: partial(over, **aggregates) for name, (aggregates, _) in VECTORS.items()})
def test_examples_with_a_restore_between_every_two_batches(
    name: str, columns: float, size: int, backend: Any, parallelism: int
) -> None:
    aggregates, steps = VECTORS[name]
    make = partial(over, **aggregates)
    types = {"key_type": str, "input_type": ROW, "output_type": make()._plan.output_type}
    given = options(parallelism=parallelism, backend=backend, **types)
    run = Mixed(make, random.Random(0), lambda _: given, columns=columns)
    for times, watermark, expected in steps:
        rows = [("k", *(one if isinstance(one, tuple) else (one, one))) for one in times]
        for at in range(0, len(rows), size):
            assert run.process(rows[at : at + size]) == []
        assert [tuple(row)[3:] for row in run.process([], watermark=watermark)] == expected
    assert not run.runs["elements" if columns else "columns"]


# -- random streams ------------------------------------------------------------------------------------------------

BOUND = 4


def stream(seed: int) -> list[Given]:
    """Displacements up to and exactly the bound, ties, rows far behind, times before 1970, and pauses."""
    chance = random.Random(seed)
    newest, rows = chance.choice([-40, 0, 10_000]), []
    for _ in range(40):
        newest += chance.choice([0, 0, 1, 2, 5, 12, 90])
        behind = chance.choice([0, 0, 1, BOUND, BOUND + 1, 9, 25])
        rows.append((chance.choice("ab"), chance.choice([None, *range(-3, 4)]), newest - behind))
    return rows


def known(values: list[Any]) -> list[Any]:
    return [value for value in values if value is not None]


MODELS: dict[str, Callable[[list[Any]], Any]] = {
    "n": len,
    "s": lambda values: sum(known(values)) if known(values) else None,
    "lo": lambda values: min(known(values), default=None),
    "hi": lambda values: max(known(values), default=None),
    "m": lambda values: sum(known(values)) / len(known(values)) if known(values) else None,
    "d": lambda values: len(set(known(values))),
    "all": known,
    "one": lambda values: next(iter(known(values)), None),
}
DECLARED: dict[str, Callable[..., Aggregate]] = {
    "n": lambda **by: count(**by),
    "s": lambda **by: sum_("v", **by),
    "lo": lambda **by: min_("v", **by),
    "hi": lambda **by: max_("v", **by),
    "m": lambda **by: avg("v", **by),
    "d": lambda **by: count_distinct("v", **by),
    "all": lambda **by: collect_list("v", **by),
    "one": lambda **by: first("v", **by),
}
REACHES: dict[str, tuple[dict[str, Any], int | None]] = {
    "span": ({"last": [0, 7, 30]}, None),
    "tiles": ({"last": [8, 40, 400]}, 2),
    "rows": ({"last_rows": 3}, None),
    "all": ({}, None),
    "rows, forgotten": ({"last_rows": 3}, None),
    "all, forgotten": ({}, None),
}
STATES = {
    "span": ["waiting", "rows", "spans", "wakes"],
    "tiles": ["waiting", "tiles", "values_v_tiles_0", "wakes"],
    "rows": ["waiting"],
    "all": ["waiting"],
    "rows, forgotten": ["waiting", "rows", "wakes", "last_row"],
    "all, forgotten": ["waiting", "aggregates", "values_v", "elements_v", "wakes", "last_row"],
}
"""What is empty in the end."""
FORGET = 12
"""After so long keys are forgotten, where they are."""


def by_bound(parallelism: int, backend: Any) -> dict[str, Any]:
    return options(parallelism=parallelism, backend=backend, max_out_of_orderness_ms=BOUND)


def accepted_rows(rows: list[Any], lateness: int, bound: int = BOUND) -> list[tuple[int, Any]]:
    newest, kept = -(10**9), []
    for number, row in enumerate(rows):
        if row[2] + lateness > newest - bound - 1:
            kept.append((number, row))
        newest = max(newest, row[2])
    return kept


def expected_rows(rows: list[Given], emit: WhenOut, lateness: int, name: str) -> list[tuple[Any, ...]]:
    given, tile = REACHES[name]
    accepted, results = accepted_rows(rows, lateness), []
    for number, row in accepted:
        mine = [one for one in accepted if one[1][0] == row[0] and one[1][2] <= row[2]]
        if emit == "at_once":
            mine = [one for one in mine if one[0] <= number]
        mine.sort(key=lambda one: (one[1][2], one[0]))
        values = []
        for aggregate in MODELS.values():
            for span in given.get("last", [None]):
                chosen = mine
                if span is not None:
                    hop = tile
                    while hop is not None and 64 * hop <= span:
                        hop *= 4
                    start = row[2] - span
                    start = start if hop is None else start // hop * hop
                    chosen = [one for one in mine if one[1][2] >= start]
                if name.endswith("forgotten"):
                    gaps = [n for n, (a, b) in enumerate(pairwise(mine), 1) if b[1][2] - a[1][2] > FORGET]
                    up_to = mine.index((number, row))
                    mine = chosen = mine[max((n for n in gaps if n <= up_to), default=0) :]
                if "last_rows" in given:
                    end = mine.index((number, row)) + 1
                    chosen = mine[max(0, end - given["last_rows"]) : end]
                values.append(aggregate([one[1][1] for one in chosen]))
        results.append((number, (*row, *values)))
    if emit == "final":
        results.sort(key=lambda one: (one[1][2], one[0]))
    return [result for _, result in results]


SEEDS = [
    range(2),
    pytest.param(range(2, 12), marks=pytest.mark.more),
    pytest.param(range(12, 130), marks=pytest.mark.long),
]


@pytest.mark.parametrize("seeds", SEEDS, ids=["few", "more", "many"])
@pytest.mark.parametrize("name", REACHES)
@pytest.mark.parametrize("emit", ["final", "at_once"])
def test_any_stream_gives_the_rows_of_the_model(emit: WhenOut, name: str, seeds: range) -> None:
    given, tile = REACHES[name]
    aggregates = {name: make(**given) for name, make in DECLARED.items()}
    for seed in seeds:
        chance, rows = random.Random(seed), stream(seed)
        lateness = chance.choice([0, 6])
        forget_after = FORGET if name.endswith("forgotten") else None
        make = partial(over, emit, tile, lateness, forget_after, **aggregates)
        ran = at_any_cut(make, rows, chance, by_bound, late=LATE, sizes=(1, 3, 10, 40))
        for key in "ab":
            wanted = [row for row in expected_rows(rows, emit, lateness, name) if row[0] == key]
            assert [tuple(row) for row in ran.outputs if row[0] == key] == wanted, seed
        in_time = {number for number, _ in accepted_rows(rows, lateness)}
        assert list(map(tuple, ran.late)) == [row for number, row in enumerate(rows) if number not in in_time]
        left = {state: ran.run.state(state) for state in STATES[name]}
        assert left == {state: {} for state in STATES[name]}, seed


# -- sums of what a span has -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", SEEDS, ids=["few", "more", "many"])
@pytest.mark.parametrize("emit", ["final", "at_once"])
def test_what_left_a_span_leaves_nothing_in_its_sums(emit: WhenOut, seeds: range) -> None:
    """Doubles far apart, and decimals: bit for bit the results of those in the span alone."""
    row_type = "k string, x double, d decimal(20,4), at bigint"
    numbers = [1e16, -1e16, 1.0, 0.1, -0.0, 3e-300, math.inf, math.nan, None]
    aggregates: dict[str, Any] = {
        "s": sum_("x", last=[3, 20]), "m": avg("x", last=20), "e": sum_("d", last=20), "v": variance("x", last=20),
    }  # fmt: skip
    given: dict[str, Any] = {
        "key_by": lambda row: row[0],
        "timestamp_of": lambda row: row[3],
        "max_out_of_orderness_ms": BOUND,
    }
    for seed in seeds:
        chance, newest, rows, outputs = random.Random(seed), 0, list[Any](), list[Any]()
        for _ in range(40):
            newest += chance.choice([0, 1, 2, 5, 30])
            value = chance.choice(numbers[:-3] if seed % 2 else numbers)
            rows.append(
                (
                    "k",
                    value,
                    Decimal(chance.randrange(-(10**9), 10**9)).scaleb(-4),
                    newest - chance.choice([0, BOUND]),
                )
            )

        def made() -> Over:
            return Over(row_type, aggregates, emit=emit)

        run = KeyedHarness(made(), **given)
        for place in range(0, len(rows), 9):
            outputs += run.process(rows[place : place + 9])
            run = KeyedHarness.restored(made(), run.snapshot(), **given)
        outputs += run.drain()
        taken = list(enumerate(rows))
        if emit == "final":
            taken.sort(key=lambda one: (one[1][3], one[0]))
        for (number, row), output in zip(taken, outputs, strict=True):
            before = [r for n, r in enumerate(rows) if r[3] <= row[3] and (emit == "final" or n <= number)]
            doubles, decimals = (
                [[r[c] for r in before if r[3] >= row[3] - span] for span in (3, 20)] for c in (1, 2)
            )
            short, long = (known(values) for values in doubles)
            expected = (*map(double_sum, (short, long)), mean(long), sum(decimals[1]), variance_of(long))
            assert repr(tuple(output[4:])) == repr(expected), (seed, row)


def double_sum(values: list[float]) -> float | None:
    return (math.fsum(values) if not any(map(math.isnan, values)) else math.nan) if values else None


def mean(values: list[float]) -> float | None:
    return None if (total := double_sum(values)) is None else total / len(values)


def variance_of(values: list[float]) -> float | None:
    """By fractions, rounded once."""
    if len(values) < 2:
        return None
    if not all(map(math.isfinite, values)):
        return math.nan
    exact = list(map(Fraction, values))
    middle = sum(exact) / len(exact)
    return float(sum((x - middle) ** 2 for x in exact) / (len(exact) - 1))


def test_sums_of_rows_kept_by_an_operator_without_them_are_made_of_the_rows() -> None:
    """Another aggregate of a field and span is added to an operator with state."""
    run = KeyedHarness(over(s=sum_("v", last=10)), **options())
    run.process([("k", v, at) for v, at in [(1, 0), (2, 5), (3, 9)]])
    reach(run, 9)
    more: dict[str, Any] = {"s": sum_("v", last=10), "m": avg("v", last=10)}
    run = KeyedHarness.restored(over(**more), run.snapshot(), **options())
    run.process([("k", 4, 12)])
    assert [row[3:] for row in reach(run, 12)] == [(9, 3.0)]


# -- forgotten keys ----------------------------------------------------------------------------------------------------


def test_a_row_at_the_limit_keeps_its_key() -> None:
    given: dict[str, Any] = {"n": count(), "two": count(last_rows=2), "near": count(last=10)}
    run = KeyedHarness(over(forget_after=10, **given), **options())
    run.process([("k", 1, at) for at in (0, 10, 21, 31)])
    assert [row[2:] for row in reach(run, 31)] == [(0, 1, 1, 1), (10, 2, 2, 2), (21, 1, 1, 1), (31, 2, 2, 2)]
    reach(run, 41)
    assert run.state("aggregates") != {}
    reach(run, 42)
    left = [run.state(state) for state in ("aggregates", "rows", "spans", "last_row")]
    assert left == [{}] * 4


def test_a_row_that_comes_later_keeps_what_seemed_forgotten() -> None:
    """At once, a key is forgotten for good when no row can come in between."""
    run = KeyedHarness(over("at_once", lateness=20, forget_after=10, n=count(last_rows=5)), **options())
    assert [row[2:] for row in run.process([("k", 1, at) for at in (0, 15, 8, 16)])] == [
        (0, 1),
        (15, 1),
        (8, 2),
        (16, 4),
    ]


# -- tiles ---------------------------------------------------------------------------------------------------------


@pytest.mark.more
def test_a_long_span_has_few_tiles() -> None:
    """An hour, a day and 30 days by 5 minutes: below 100 entries a key, each of which a row merges at most once."""
    features = over("at_once", 5 * MINUTE, n=count(last=["1 h", "1 day", "30 days"]))
    run = KeyedHarness(features, **options(max_out_of_orderness_ms=0))
    times = range(0, 40 * DAY, 4 * MINUTE)
    outputs = run.process([("k", 1, at) for at in times])
    entries = run.state("tiles")["k"]
    assert [sum(level == one for level, _ in entries) for one in (0, 2, 4)] == [13, 19, 34]
    assert len(entries) == 13 + 19 + 34 < 100
    expected = []
    for span, tile in [(HOUR, 5 * MINUTE), (DAY, 80 * MINUTE), (30 * DAY, 4**4 * 5 * MINUTE)]:
        start = (times[-1] - span) // tile * tile
        expected.append(sum(at >= start for at in times))
    assert outputs[-1][3:] == tuple(expected)


def test_levels_leave_sixteen_to_sixty_four_tiles_to_a_span() -> None:
    for tiles in [1, 15, 16, 63, 64, 65, 255, 256, 8640, 10**6]:
        length = 4 ** level_of(tiles, 1)
        assert tiles / length < 64
        assert length == 1 or tiles / length >= 16


def test_an_idle_key_has_no_state_and_a_timer_only() -> None:
    run = KeyedHarness(over("at_once", 10, n=count(last=100), d=count_distinct("v", last=100)), **options())
    run.process([("k", 1, at) for at in range(0, 60, 5)])
    reach(run, 149)
    assert run.state("tiles")["k"]
    reach(run, 160)
    assert run.state("tiles") == {}
    assert run.state("values_v_tiles_0") == {}
    assert run.state("wakes") == {}


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: over(), r"no aggregate is given: name one, as in over\("),
        (
            lambda: over(tile=7, n=count(last=20)),
            "a span of 20 ms does not consist of tiles of 7 ms: give a tile",
        ),
        (lambda: over(tile=7, n=count()), "give one above 0, and aggregates with last=, or leave tile out"),
        (lambda: over(tile=0, n=count(last=20)), "give one above 0"),
        (lambda: over(v=count()), "two columns would be called 'v': rename the aggregate"),
        (lambda: over(n=count(last=["1 h", "1 h"])), "two columns would be called 'n_1h'"),
        (lambda: over(n=count("x")), r"aggregate n=count\('x'\): the stream has no such field"),
        (lambda: over("later", n=count()), "emit"),  # type: ignore[arg-type]
        (lambda: count(last=1, last_rows=2), "exclude each other: make two aggregates"),
        (lambda: count(last_rows=0), "last_rows must be a whole number above 0, not 0"),
        (lambda: sum_("v", last=-1), "a span of 0 or more"),
        (lambda: sum_("v", last=[]), "a span of 0 or more"),
        (lambda: over(lateness=-1, n=count()), "lateness must be 0 or more"),
        (
            lambda: over(forget_after=9, n=count(last=9)),
            "all aggregates have last=, so a key goes by itself.*leave forget_after out",
        ),
        (
            lambda: over(forget_after=9, n=count(last=10), all=count()),
            r"over\(forget_after=9 ms\) would forget rows that are in reach: make it 10 ms, or longer",
        ),
        (lambda: over(forget_after=0, n=count()), "make it 1 ms, or longer"),
    ],
)
def test_what_is_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_a_row_without_event_time_is_refused() -> None:
    with pytest.raises(ValueTypeError, match="no event time, which its operator needs"):
        KeyedHarness(over(n=count()), **options()).process([("k", 1, None)])


def test_another_reach_is_another_shape() -> None:
    shapes = [
        over(n=count(last=10)).shape, over(n=count(last=20)).shape, over(n=count(last=20), s=sum_("v", last=20)).shape,
        over(tile=5, n=count(last=20)).shape, over("at_once", n=count(last=20)).shape, over(n=count(last_rows=2)).shape,
        over(lateness=3, n=count(last=20)).shape,
    ]  # fmt: skip
    assert all(one != other for one, other in pairwise(sorted(map(str, shapes))))
