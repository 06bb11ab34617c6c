"""Interval joins against a model, and examples from the tests of Flink and Spark with a restore between any two steps.

``l5`` is a left row of 5 ms and ``r5/b`` a right one of the key b. ``W 9`` sets the watermark, and ``drain`` ends the
input. Behind ``→`` stands what has come out since the arrow before: pairs of times in any order, ``–`` for no row,
``late`` for rows that came too late; and ``left=1+2``, the times of rows that are kept.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import partial
from typing import Any

import pytest

from state_engine import OutputTag, Row
from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.joins.interval_join import Interval, IntervalJoin, JoinSettings, _Side
from state_engine.operators.joins.joined_rows import JoinedRows, JoinResults, LeftRows
from state_engine.operators.joins.keyed_join import how_of
from state_engine.operators.lateness import Lateness
from state_engine.testing import KeyedHarness
from tests.operators.any_cut import CUTS, EVERYWHERE, at_any_cut, together
from tests.operators.joins import models
from tests.operators.joins.models import Event
from tests.operators.mixed import Mixed, forms_of, types_of_join

COLUMNS = "side int, k string, part int, n bigint, at bigint"
LATE = OutputTag("late", COLUMNS)
BOUND = 4
HOWS = ["inner", "left", "right", "full", "semi", "anti"]
EIGHT = "l1 r1 l2 r2 l3 r3 l4 r4"
J1 = "l19 l20 r26 r25 l21 r39/b r40/b l50/b l49/b r41/b"
L5 = "l1 l2 l3 l4 l5 r1 r2 r3 r4 r5"
SPARK = "l5/1 l5/3 r10/1 r5/2 r9/1 l7/1 l30/1 r30/0"
VECTORS: dict[str, tuple[Any, str, str]] = {
    "right rows one earlier at least": ((-2, -2), "inner", f"{EIGHT} → 3,1 4,2"),
    "one time": (0, "inner", f"{EIGHT} → 1,1 2,2 3,3 4,4"),
    "two later": ((2, 2), "inner", f"{EIGHT} → 1,3 2,4"),
    "one to two later": ((1, 2), "inner", f"{EIGHT} → 1,2 1,3 2,3 2,4 3,4"),
    "at the watermark": (0, "inner", "r5 W 5 l5 → late l5"),
    "a late row has no pair": (
        (-1, 1), "inner",
        "l1 r1 l2 r2 l3 r3 W 3 l1 l4 r4 l5 r5 → 1,1 1,2 2,1 2,2 2,3 3,2 3,3 3,4 4,3 4,4 4,5 5,4 5,5 late l1",
    ),
    "restored": (
        (-1, 1), "inner",
        "l1 W 1 r1 l2 r2 W 2 l3 r3 W 3 → 1,2 2,2 2,3 3,2 3,3 late r1 l4 r4 W 4 → 3,4 4,3 4,4",
    ),
    "a left row without partner": (
        (-9, 5), "left", "l1 r1/b W 5 → left=1 right=1 W 6 → 1,– left= right=1 W 10 → right= drain →",
    ),
    "a right row without partner": (
        (-9, 5), "right",
        f"r1/b W 9 → right=1 W 10 → –,1 right= W 18 {J1} W 100 → 20,25 21,25 21,26 49,40 49,41 50,41 –,39",
    ),
    "both": (
        (-9, 5), "full", f"W 18 {J1} W 100 → 20,25 21,25 21,26 49,40 49,41 50,41 –,39 19,–",
    ),
    "what is kept": (
        (0, 1), "inner",
        f"{L5} → 1,1 1,2 2,2 2,3 3,3 3,4 4,4 4,5 5,5 W 1 → left=1+2+3+4+5 right=2+3+4+5 W 4 → left=4+5 right=5 "
        "W 6 → left= right=",
    ),
    "no partner may be earlier": (
        (7, 10), "inner",
        "W 1 r2 → right= W 2 l3 r3 r13 → 3,13 l6 → 6,13 W 10 → left=3+6 right= W 18 → left= right=",
    ),
    "windows by their bounds": (
        0, "inner", "l9999/a0 l9999/b0 r9999/a0 r19999/a1 → 9999,9999 drain → left= right=",
    ),
    "a row for which no partner can come any more": ((-9, -5), "left", "W 5 l6 → 6,– W 7 l8 → 8,– l13 → drain → 13,–"),
    "semi": ((-5, 5), "semi", f"{SPARK} → 5,– 7,– drain →"),
    "semi comes with the first partner": ((-5, 5), "semi", "l5 r10 → 5,– r9 → l7 → 7,– l30 drain →"),
    "anti": ((-5, 5), "anti", f"{SPARK} → drain → 5,– 30,–"),
    "each even row is its own partner": (
        (0, 5000), "left", " ".join(f"l{n}000/{n}" + f" r{n}000/{n}" * (n % 2 == 0) for n in range(1, 16))
        + " drain → " + " ".join(f"{n}000,{f'{n}000' if n % 2 == 0 else '–'}" for n in range(1, 16)),
    ),
    "a null part of a key equals none": (0, "full", "l1/_ r1/_ l2 r2 → 2,2 drain → 1,– –,1"),
}  # fmt: skip


def join_of(within: Any, how: str = "inner", lateness: int = 0, time: Any = "left") -> IntervalJoin:
    columns = to_type(COLUMNS, parameter="rows")
    assert isinstance(columns, StructType)
    settings = JoinSettings(
        Interval.of(within), how_of(how), Lateness(lateness, LATE), Lateness(lateness, LATE), time
    )
    results: JoinResults = LeftRows()
    if how not in ("semi", "anti"):
        results = JoinedRows(columns, columns, take=None, suffix="_right", join="join", time=time)
    return IntervalJoin(columns, columns, results, settings, record_key=True)


def options(parallelism: int = 1, backend: Any = None, bound: int | None = None) -> dict[str, Any]:
    return {
        "key_by": (lambda row: (row.k, row.part), lambda row: (row.k, row.part)),
        "key_type": "k string, part int",
        "timestamp_of": lambda row: row.at,
        "max_out_of_orderness_ms": bound,
        "parallelism": parallelism,
        "backend": backend,
    }


def pair(output: Any, column: str) -> tuple[Any, Any]:
    """A column of both rows of an output, which has two or, of a semi join, one."""
    at = COLUMNS.split(", ").index({"at": "at bigint", "n": "n bigint"}[column])
    values = tuple(output)
    return values[at], values[at + 5] if len(values) == 10 else None


def row_of(step: str) -> Event:
    match = re.fullmatch(r"([lr])(\d+)(?:/(\w+))?", step)
    assert match, step
    key = match[3] or "a"
    return Event(1 if match[1] == "l" else 2, key, None if key == "_" else 1, 0, int(match[2]))


def events_of(text: str) -> list[tuple[str, list[str] | None]]:
    """Each step, and what has come out by then where that is said."""
    steps: list[tuple[str, list[str] | None]] = []
    for part in text.replace("W ", "W").replace("late ", "late:").split("→"):
        words = part.split()
        results = [word for word in words if "," in word or "=" in word or word.startswith("late:")]
        if steps:
            steps[-1] = (steps[-1][0], results)
        steps += [(word, None) for word in words if word not in results]
    return steps


@pytest.mark.internal_errors
@EVERYWHERE
@CUTS
@forms_of({name: partial(join_of, within, how) for name, (within, how, _) in VECTORS.items()})
def test_vectors(name: str, columns: float, size: int, parallelism: int, backend: Any) -> None:
    within, how, text = VECTORS[name]
    by = options(parallelism, backend) | types_of_join(COLUMNS, pairs=how not in ("semi", "anti"))
    make = partial(join_of, within, how)
    run = Mixed(make, random.Random(0), lambda _: by, late=LATE, columns=columns, pairs=True)
    outputs, expected = list[Any](), list[str]()
    for steps in together(events_of(text), size):
        (step, _), *_ = steps
        if step == "drain":
            outputs += run.process([], drain=True)
        elif step.startswith("W"):
            outputs += run.process([], watermark=int(step[1:]))
        else:
            rows = [row_of(step) for step, _ in steps]
            outputs += run.process([(row.side, Row(**row._asdict())) for row in rows])
        expected += [result for _, results in steps for result in results or ()]
        if steps[-1][1] is not None:
            came = [",".join("–" if at is None else str(at) for at in pair(o, "at")) for o in outputs]
            came += [f"late:{'lr'[row.side - 1]}{row.at}" for row in run.late]
            came += [kept(run, result) for result in expected if "=" in result]
            assert Counter(came) == Counter(expected), step
            outputs, run.late, expected = [], [], []
    assert outputs == run.late == []
    assert not run.runs["elements" if columns else "columns"]


def kept(run: Mixed, result: str) -> str:
    """The times of rows that are kept of a side, as the result of an example has them."""
    side = result.partition("=")[0]
    of_key = run.stored.keyed.entries.get(side, {}).values()
    return f"{side}=" + "+".join(map(str, sorted(at for entries in of_key for at, _ in entries)))


def test_a_row_is_not_kept_from_the_watermark_on_at_which_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes out at once, which a timer would do as well; but nothing is written for it."""
    kept = list[int]()
    monkeypatch.setattr(_Side, "keep", lambda side, ctx, at, row, *, matched: kept.append(at))
    run = KeyedHarness(join_of((-9, -5), "left"), **options())
    run.set_watermark(5)
    outputs = run.process_pairs([(1, row_of(step)) for step in ("l9", "l10", "l11")])
    assert [pair(output, "at") for output in outputs] == [(9, None), (10, None)]
    assert kept == [11]


INTERVALS = [(0, 0), (-3, 5), (2, 6), (-6, -2)]


@pytest.mark.parametrize(
    "seeds",
    [range(1), pytest.param(range(1, 9), marks=pytest.mark.more),
     pytest.param(range(9, 51), marks=pytest.mark.long)],
    ids=["few", "more", "many"],
)  # fmt: skip
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("within", INTERVALS)
def test_any_stream_gives_the_join_of_the_model(within: tuple[int, int], how: str, seeds: range) -> None:
    for seed in seeds:
        rng, events = random.Random(seed), models.stream(seed, BOUND)
        lateness = rng.choice([0, 3, 20])
        expected = models.interval_join(
            events, low=within[0], high=within[1], how=how, lateness=lateness, bound=BOUND
        )
        make, rows = partial(join_of, within, how, lateness), [(event.side, event) for event in events]
        ran = at_any_cut(make, rows, rng, partial(options, bound=BOUND), late=LATE, pairs=True)
        assert Counter(pair(output, "n") for output in ran.outputs) == expected.pairs, f"seed {seed}"
        assert ran.late == expected.late, f"seed {seed}"
        assert ran.too_late == len(ran.late), f"seed {seed}"
        assert not ran.left, f"seed {seed}"


def test_pairs_come_by_the_place_of_the_row_that_came_before() -> None:
    run = KeyedHarness(join_of((-9, 9)), **options())
    given = [Event(1, "a", 1, number, at) for number, at in enumerate([7, 3, 7, 5])]
    run.process_pairs([(1, event) for event in given])
    outputs = run.process_pairs([(2, Event(2, "a", 1, 9, 6))])
    assert [pair(output, "n") for output in outputs] == [(1, 9), (3, 9), (0, 9), (2, 9)]


@pytest.mark.parametrize(
    ("time", "expected"),
    [("left", [5, 9]), ("right", [8, 6]), ("later", [8, 9])],
    ids=["left", "right", "later"],
)
def test_the_event_time_of_a_pair(time: Any, expected: list[int]) -> None:
    columns = to_type(COLUMNS, parameter="rows")
    assert isinstance(columns, StructType)
    rows = JoinedRows(columns, columns, take=None, suffix="_right", join="join", time=time)
    join = IntervalJoin(columns, columns, rows, JoinSettings(Interval.of(3), time=time), record_key=True)
    run = KeyedHarness(join, **options())
    run.process_pairs([(row_of(step).side, row_of(step)) for step in ["l5", "r8", "l9", "r6/x", "r6"]])
    run = KeyedHarness(join, **options())
    times = list[int | None]()
    for step in ["l5/a", "r8/a", "l9/b", "r6/b"]:
        run.process_pairs([(row_of(step).side, row_of(step))])
        times += run.output_timestamps
    assert times == expected


@pytest.mark.parametrize(
    ("within", "how", "time", "lateness", "held_back"),
    [
        ((-20, 10), "inner", "left", 0, 20), (5, "left", "left", 0, 5), ((-20, -10), "full", "left", 7, 27),
        (0, "semi", "left", 3, 3), ((-20, 10), "inner", "later", 7, 7), ((-20, 10), "left", "later", 0, 20),
    ],
)  # fmt: skip
def test_how_far_outputs_may_be_behind_the_watermark(
    within: Any, how: Any, time: Any, lateness: int, held_back: int
) -> None:
    settings = JoinSettings(Interval.of(within), how, Lateness(lateness), time=time)
    assert settings.holds_back_ms == held_back


@pytest.mark.parametrize("side", [1, 2])
def test_a_row_without_event_time_is_refused(side: int) -> None:
    run = KeyedHarness(join_of(5), **(options() | {"timestamp_of": lambda row: None}))
    with pytest.raises(ValueTypeError, match=r"no event time.*filter such rows, or give them one"):
        run.process_pairs([(side, row_of("l5"))])


def test_spellings_of_how_and_of_spans() -> None:
    given = ["leftouter", "right_outer", "outer", "fullouter", "left_semi", "leftanti"]
    assert [how_of(one) for one in given] == ["left", "right", "full", "full", "semi", "anti"]
    assert Interval.of(("-1 h", "30 min")) == Interval(-3_600_000, 1_800_000)
    refused: dict[str, Any] = {
        "put the smaller bound first": (5, 1),
        "give two": -5,
        "one span or two": (1, 2, 3),
    }
    for way_out, within in refused.items():
        with pytest.raises(ConfigurationError, match=way_out):
            Interval.of(within)
    with pytest.raises(ConfigurationError, match="how of a join must be 'inner', 'left', "):
        how_of("cross")
