"""Joins over columns: what they give per element, batch by batch, on the same state."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from state_engine import EmbeddedRocksDBStateBackend
from state_engine.core.functions.vectorized_functions import vectorized_form
from tests.operators.joins import models, test_asof_join
from tests.operators.joins.test_interval_join import BOUND, COLUMNS, HOWS, INTERVALS, LATE, join_of, options
from tests.operators.mixed import check_equal, streams, types_of_join

pytestmark = pytest.mark.internal_errors


def harness(how: str, parallelism: int, backend: Any = None) -> dict[str, Any]:
    return {**options(parallelism, backend, BOUND), **types_of_join(COLUMNS, pairs=how != "semi")}


@streams(250, more=24)
@pytest.mark.parametrize("how", ["inner", "semi"])
@pytest.mark.parametrize("within", INTERVALS)
def test_interval_joins(within: tuple[int, int], how: str, seeds: range) -> None:
    ran_over_columns = 0
    for seed in seeds:
        rng = random.Random(seed)
        rows = [(event.side, event) for event in models.stream(seed, BOUND)]
        backend = EmbeddedRocksDBStateBackend() if seed % 20 == 0 else None
        share = 0.5 if seed % 2 else 1.0
        time = "left" if how == "semi" else rng.choice(["left", "right", "later"])
        make = partial(join_of, within, how, rng.choice([0, 3, 20]), time)
        ran = check_equal(
            make, rows, rng, partial(harness, how), late=LATE, share=share, backend=backend, pairs=True
        )
        ran_over_columns += ran.runs["columns"]
        assert not ran.runs["elements"] or share < 1
    assert ran_over_columns


def versions(parallelism: int, backend: Any = None) -> dict[str, Any]:
    types = types_of_join(test_asof_join.COLUMNS, pairs=True)
    return {**test_asof_join.options(parallelism, backend, BOUND), **types}


@streams(250, more=24)
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("exact", [False, True])
def test_as_of_joins(exact: bool, inner: bool, seeds: range) -> None:
    ran_over_columns = 0
    for seed in seeds:
        rng = random.Random(seed)
        rows = list(map(test_asof_join.given, models.versions(seed, BOUND)))
        backend = EmbeddedRocksDBStateBackend() if seed % 20 == 0 else None
        share = 0.5 if seed % 2 else 1.0
        settings = {"exact": exact, "inner": inner, "tolerance_ms": rng.choice([None, 0, 7])}
        make = partial(test_asof_join.join_of, rng.choice([0, 3, 20]), emit="at_once", **settings)
        late = test_asof_join.LATE_ROWS
        ran = check_equal(make, rows, rng, versions, late=late, share=share, backend=backend, pairs=True)
        ran_over_columns += ran.runs["columns"]
        assert not ran.runs["elements"] or share < 1
    assert ran_over_columns


def test_rows_that_wait_for_none_or_for_versions_go_per_element() -> None:
    assert [how for how in HOWS if vectorized_form(join_of(0, how)) is not None] == ["inner", "semi"]
    assert vectorized_form(test_asof_join.join_of()) is None
