"""Lists of the greatest rows of windows against a model, and examples of Flink's."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from state_engine import EmbeddedRocksDBStateBackend, Row, Session, Sliding, Tumbling
from state_engine.core.functions.vectorized_functions import vectorized_form
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.keyed_rows import KeyedRows
from state_engine.operators.ranking import Ranking
from state_engine.operators.windows.window_results import RowsWithBounds, WindowSettings
from state_engine.operators.windows.window_top_n import TopRows
from tests.operators.any_cut import CUTS, EVERYWHERE, at_any_cut
from tests.operators.mixed import Mixed, check_equal, streams
from tests.operators.windows.models import Event
from tests.operators.windows.test_functions_of_windows import operator
from tests.operators.windows.test_windows import ASSIGNERS, BOUND, LATE, SEEDS, ms, options, stream

NAN = float("nan")


def function_of(
    windows: Any, n: int, lateness: int = 0, *, rank: bool = True, by: Any = "v", **order: bool
) -> Any:
    columns = to_type("k string, v bigint, x double, at bigint", parameter="rows")
    assert isinstance(columns, StructType)
    rows = KeyedRows(columns, apart=["k"], operator="top_n")
    contents = TopRows(rows, Ranking(rows, n, by=by, key=["k"], **order), rank=rank)
    return operator(windows, contents, RowsWithBounds(), WindowSettings(lateness, LATE))


def expected_of(rows: list[Event], n: int, *, ascending: bool, ties: bool) -> list[tuple[Any, ...]]:
    """By rank: of equal rows the earlier in time, and then the one that came first."""
    ranked = sorted(rows, key=lambda row: (row.v if ascending else -row.v, row.at))
    last = ranked[:n][-1].v
    kept = [row for at, row in enumerate(ranked) if at < n or (ties and row.v == last)]
    worse = [
        sum(1 for other in ranked if (other.v < row.v if ascending else other.v > row.v)) for row in kept
    ]
    ranks = [1 + one for one in worse] if ties else range(1, len(kept) + 1)
    return [(rank, *row[1:]) for rank, row in zip(ranks, kept, strict=True)]


@SEEDS
@pytest.mark.parametrize("ties", [False, True], ids=["numbers", "ties"])
@pytest.mark.parametrize("ascending", [False, True], ids=["greatest", "least"])
@pytest.mark.parametrize("name", ASSIGNERS)
def test_the_list_of_each_window_is_that_of_the_model(
    name: str, ascending: bool, ties: bool, seeds: range
) -> None:
    windows, model = ASSIGNERS[name]
    order = {"ascending": ascending, "ties": ties}
    for seed in seeds:
        rng, rows = random.Random(seed), stream(seed, count=40)
        n, lateness = rng.choice([1, 2, 5]), rng.choice([0, 7])
        windowed = model(rows, bound=BOUND, lateness=lateness)
        make = partial(function_of, windows, n, lateness, **order)
        ran = at_any_cut(make, rows, rng, options, sizes=(1, 4, 30))
        shown: dict[Any, list[Any]] = {}
        for k, start, end, *columns in ran.outputs:
            shown.setdefault((k, ms(start), ms(end)), []).append(tuple(columns))
        assert shown == {w: expected_of(of, n, **order) for w, of in windowed.rows.items()}, f"seed {seed}"
        assert ran.left <= ({"closed"} if name == "computed" else set()), f"seed {seed}"


@pytest.mark.internal_errors
@EVERYWHERE
@CUTS
@pytest.mark.parametrize("columns", [0.0, pytest.param(1.0, marks=pytest.mark.more)])
def test_the_two_least_of_each_window(columns: float, size: int, backend: Any, parallelism: int) -> None:
    """Flink's WindowRankOperatorTest.testTop2Windows, with a restore between every two batches."""
    make = partial(function_of, Tumbling(1000), 2, ascending=True, rank=True)
    given = {500: "b1 b4 b5 b3 a2 a1 a3 a3", 1500: "b2 a4 a6 a7", 3500: "b7 b8 b1"}
    rows = [Event(one[0], int(one[1:]), 0.0, at) for at, text in given.items() for one in text.split()]
    by = {**over_columns(parallelism, backend), "max_out_of_orderness_ms": None}
    run, shown = Mixed(make, random.Random(0), lambda _: by, late=LATE, columns=columns), []
    for at in range(0, len(rows), size):
        run.process(rows[at : at + size])
    for watermark in (999, 1999, 3999):
        outputs = map(tuple, run.process([], watermark=watermark))
        shown.append(sorted((k, rank, v) for k, _, _, rank, v, *_ in outputs))
    run.process([Event("b", 9, 0.0, 3500)])
    assert shown == [
        [("a", 1, 1), ("a", 2, 2), ("b", 1, 1), ("b", 2, 3)],
        [("a", 1, 4), ("a", 2, 6), ("b", 1, 2)],
        [("b", 1, 1), ("b", 2, 7)],
    ]
    assert len(run.late) == 1
    assert not run.runs["elements" if columns else "columns"]


@pytest.mark.internal_errors
@EVERYWHERE
@CUTS
@pytest.mark.parametrize("columns", [0.0, pytest.param(1.0, marks=pytest.mark.more)])
@pytest.mark.parametrize(("ascending", "names"), [(False, [NAN, 5.0]), (True, [None, 3.0])])
def test_null_is_below_every_value_and_nan_above(
    ascending: bool,
    names: list[float | None],
    columns: float,
    size: int,
    backend: Any,
    parallelism: int,
) -> None:
    make = partial(function_of, Tumbling(10), 2, by="x", ascending=ascending)
    by = over_columns(parallelism, backend)
    run = Mixed(make, random.Random(0), lambda _: by, columns=columns)
    rows = [Row(k="a", v=1, x=x, at=1) for x in (None, 5.0, NAN, 3.0)]
    for at in range(0, len(rows), size):
        run.process(rows[at : at + size])
    assert [repr(tuple(row)[5]) for row in run.process([], drain=True)] == [repr(x) for x in names]
    assert not run.runs["elements" if columns else "columns"]


TUMBLING = [name for name, (windows, _) in ASSIGNERS.items() if isinstance(windows, Tumbling)]
COLUMNS = (
    "key string, window_start timestamp, window_end timestamp, rank bigint, v bigint, x double, at bigint"
)


def over_columns(parallelism: int, backend: Any = None) -> dict[str, Any]:
    types = {"key_type": str, "input_type": "k string, v bigint, x double, at bigint", "output_type": COLUMNS}
    return {**options(parallelism, backend), **types}


@streams(130)
@pytest.mark.internal_errors
@pytest.mark.parametrize("ties", [False, True], ids=["numbers", "ties"])
@pytest.mark.parametrize("ascending", [False, True], ids=["greatest", "least"])
@pytest.mark.parametrize("name", TUMBLING)
def test_lists_over_columns_are_those_per_element(
    name: str, ascending: bool, ties: bool, seeds: range
) -> None:
    windows, _ = ASSIGNERS[name]
    for seed in seeds:
        rng = random.Random(seed)
        values: list[Any] = [NAN, 1.5, None, 0.0]
        rows = [row._replace(x=rng.choice(values)) for row in stream(seed, count=40)]
        n, lateness, by = rng.choice([1, 2, 5]), rng.choice([0, 7]), rng.choice(["v", "x", ["x", "v"]])
        make = partial(function_of, windows, n, lateness, by=by, ascending=ascending, ties=ties)
        backend = EmbeddedRocksDBStateBackend() if seed % 20 == 0 else None
        share = 0.5 if seed % 2 else 1.0
        runs = check_equal(make, rows, rng, over_columns, late=LATE, share=share, backend=backend).runs
        assert share < 1 or not runs["elements"]


def test_lists_of_other_windows_and_rows_have_no_form_over_columns() -> None:
    assert vectorized_form(function_of(Tumbling(10), 1)) is not None
    assert vectorized_form(function_of(Sliding(10, every=5), 1)) is None
    assert vectorized_form(function_of(Session(10), 1)) is None
