"""Rows with aggregates of those before them, over columns: what they are per element, on the same state."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from state_engine import (
    EmbeddedRocksDBStateBackend,
    avg,
    count,
    count_distinct,
    max_,
    min_,
    sum_,
)
from state_engine.core.functions.vectorized_functions import vectorized_form
from state_engine.operators.lateness import Lateness
from state_engine.operators.over.over import Over, WhenOut
from state_engine.operators.over.over_rows import SPANS as SPANS_OF_SUMS
from tests.operators.mixed import SIZES, check_equal, streams
from tests.operators.test_over import BOUND, LATE, ROW, stream

pytestmark = pytest.mark.internal_errors
CACHES = {SPANS_OF_SUMS}
"""Accumulators follow from the rows."""
SPANS: dict[str, Any] = {"last": [0, 7, 30]}
REACHES: dict[str, dict[str, Any]] = {
    "spans": SPANS,
    "rows": {"last_rows": 3},
    "one": {"last_rows": 1},
    # three levels, of 2, 8 and 32; one is of two spans
    "tiles": {"last": [8, 128, 200, 520], "tile": 2},
    "one tile": {"last": [8], "tile": 8},
}
TIMES = 9
"""Times of rows are so many times as far apart for tiles, so that those of all levels go."""


def over(emit: WhenOut, lateness: int, reach: dict[str, Any]) -> Over:
    reach = dict(reach)
    tile_ms = reach.pop("tile", None)
    aggregates = {"n": count(**reach), "s": sum_("v", **reach), "m": avg("v", **reach)}
    aggregates |= {"lo": min_("v", **reach), "hi": max_("v", **reach)}
    return Over(ROW, aggregates, emit=emit, tile_ms=tile_ms, lateness=Lateness(lateness, LATE))


def harness(parallelism: int, backend: Any = None, *, output: Any, times: int = 1) -> dict[str, Any]:
    return {
        "key_by": lambda row: row[0],
        "timestamp_of": lambda row: row[2],
        "max_out_of_orderness_ms": BOUND * times,
        "parallelism": parallelism,
        "backend": backend,
        "key_type": str,
        "input_type": ROW,
        "output_type": output,
    }


@streams(170)
@pytest.mark.parametrize("reach", REACHES)
@pytest.mark.parametrize("emit", ["final", "at_once"])
def test_columns_and_elements_in_turn_give_what_elements_give(
    emit: WhenOut, reach: str, seeds: range
) -> None:
    over_columns = 0
    for seed in seeds:
        rng = random.Random(seed)
        make = partial(over, emit, rng.choice([0, 6]), REACHES[reach])
        times = TIMES if reach == "tiles" and seed % 3 < 2 else 1
        rows = [(k, v, at * times) for k, v, at in stream(seed)]
        by = partial(harness, output=make()._plan.output_type, times=times)
        backend = EmbeddedRocksDBStateBackend() if seed % 20 == 0 else None
        share = 0.5 if seed % 2 else 1.0
        sizes = (1, 2, 5) if times > 1 else SIZES
        runs = check_equal(
            make, rows, rng, by, late=LATE, share=share, backend=backend, but=CACHES, sizes=sizes
        ).runs
        over_columns += runs["columns"]
        if share == 1.0 and (emit == "final" or "last" in REACHES[reach]):
            assert not runs["elements"], seed
    assert over_columns


@pytest.mark.parametrize("emit", ["final", "at_once"])
def test_a_row_that_waits_behind_others_has_no_timer(emit: WhenOut) -> None:
    make = partial(over, emit, 0, SPANS)

    def by(parallelism: int, backend: Any = None) -> dict[str, Any]:
        options = harness(parallelism, backend, output=make()._plan.output_type)
        return {**options, "max_out_of_orderness_ms": 25}

    rows = [("a", 1, 10), ("a", 2, 30), ("a", 3, 20), ("b", 4, 40)]  # 30 stands behind 10, and then behind 20
    check_equal(make, rows, random.Random(0), by, but=CACHES, sizes=[4])


NO_FORM: dict[str, dict[str, Any]] = {
    "tiles and rows": {"aggregates": {"n": count(last=[8]), "m": count(last_rows=2)}, "tile_ms": 2},
    "all rows": {"aggregates": {"n": count()}},
    "spans and rows": {"aggregates": {"n": count(last=[8]), "m": count(last_rows=2)}},
    "keys that are forgotten": {"aggregates": {"n": count(last_rows=2)}, "forget_after_ms": 5},
    "distinct": {"aggregates": {"n": count_distinct("v", last=[8])}},
}


@pytest.mark.parametrize("given", NO_FORM.values(), ids=NO_FORM)
def test_what_has_no_form_over_columns(given: dict[str, Any]) -> None:
    assert vectorized_form(Over(ROW, **given)) is None


@pytest.mark.more
@pytest.mark.parametrize("tile_ms", [None, 2])
def test_rows_that_see_many_others_go_per_element(tile_ms: int | None) -> None:
    make = partial(Over, ROW, {"s": sum_("v", last=[8])}, tile_ms=tile_ms)
    by = partial(harness, output=make()._plan.output_type)
    for number, form in ((500, "columns"), (502, "elements")):
        rows = [("a", 1, 0)] * number
        runs = check_equal(make, rows, random.Random(0), by, but=CACHES, sizes=[number]).runs
        assert runs[form]


@pytest.mark.parametrize("emit", ["final", "at_once"])
@pytest.mark.parametrize("newest", range(35, 38))
def test_what_a_span_ends_with_stays_until_nothing_has_it_in_reach(emit: WhenOut, newest: int) -> None:
    rows = [("a", 1, 0), ("a", 2, 30), ("a", 3, newest)]
    make = partial(over, emit, 0, SPANS)
    by = partial(harness, output=make()._plan.output_type)
    for seed in range(4):
        check_equal(make, rows, random.Random(seed), by, late=LATE, but=CACHES)
