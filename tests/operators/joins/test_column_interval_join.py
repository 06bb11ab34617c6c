"""Interval joins over columns: what they give per element, batch by batch, on the same state."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from state_engine import EmbeddedRocksDBStateBackend
from state_engine.core.functions.vectorized_functions import vectorized_form
from tests.operators.joins import models
from tests.operators.joins.test_interval_join import BOUND, COLUMNS, HOWS, INTERVALS, LATE, join_of, options
from tests.operators.mixed import check_equal, streams

pytestmark = pytest.mark.internal_errors


def harness(how: str, parallelism: int, backend: Any = None) -> dict[str, Any]:
    one = COLUMNS.split(", ")
    both = ", ".join([*one, *(f"{name}_right {kind}" for name, kind in (column.split() for column in one))])
    types = {"input_type": (COLUMNS, COLUMNS), "output_type": COLUMNS if how == "semi" else both}
    return {**options(parallelism, backend, BOUND), **types}


@streams(250, more=24)
@pytest.mark.parametrize("how", ["inner", "semi"])
@pytest.mark.parametrize("within", INTERVALS)
def test_both_forms_are_equal(within: tuple[int, int], how: str, seeds: range) -> None:
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


def test_rows_without_partner_go_per_element() -> None:
    assert [how for how in HOWS if vectorized_form(join_of(0, how)) is not None] == ["inner", "semi"]
