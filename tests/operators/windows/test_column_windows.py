"""Windows over columns give what they give per element: outputs, late rows, state and timers, batch by batch.

A run per element stands beside one whose batches go through columns and elements in turn, on the same state.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest

from state_engine.operators.windows.assigners import Tumbling
from state_engine.operators.windows.window_results import Emit
from tests.operators.aggregates.test_every_aggregate import OF_CLOCK, Cell
from tests.operators.mixed import check_equal
from tests.operators.windows.models import Table
from tests.operators.windows.test_windows import ASSIGNERS, BOUND, LATE, apply, operator, options, stream

OUTPUT = (
    "key string, window_start timestamp, window_end timestamp, n bigint, s bigint, m double, lo bigint, hi bigint, "
    "x double"
)
TYPES: dict[str, Any] = {
    "key_type": str,
    "input_type": "k string, v bigint, x double, at bigint",
    "output_type": OUTPUT,
}
NAMES = [name for name in ASSIGNERS if name != "computed"]
RUNNING = [(name, "running") for name in NAMES if isinstance(ASSIGNERS[name][0], Tumbling)]
LATENESS = (0, 3, 20)
FEW, MORE, MANY = range(9), range(9, 75), range(75, 1002)


@pytest.mark.internal_errors
@pytest.mark.parametrize(
    "seeds",
    [FEW, pytest.param(MORE, marks=pytest.mark.more), pytest.param(MANY, marks=pytest.mark.long)],
    ids=["few", "more", "many"],
)
@pytest.mark.parametrize(("name", "emit"), [*((name, "final") for name in NAMES), *RUNNING])
def test_columns_and_elements_in_turn_give_what_elements_give(name: str, emit: Emit, seeds: range) -> None:
    windows, model = ASSIGNERS[name]
    over_columns = 0
    for seed in seeds:
        lateness, rows = LATENESS[seed % 3], stream(seed, 40)
        mixed = check_equal(
            partial(operator, windows, lateness=lateness, emit=emit), rows, random.Random(seed),
            lambda n, backend=None: {**options(n, backend), **TYPES}, late=LATE, share=0.5 if seed % 2 else 1.0,
            kinds=True,
        )  # fmt: skip
        table, expected = Table(), model(rows, bound=BOUND, lateness=lateness)
        shown = mixed.outputs if emit == "final" else [(row.get_row_kind(), row) for row in mixed.outputs]
        apply(table, shown, emit=emit)
        assert (table, mixed.state) == (expected.table, {}), f"seed {seed}"
        over_columns += mixed.runs["columns"]
        if mixed.columns == 1.0 and name != "session":
            assert not mixed.runs["elements"], seed
    assert over_columns > len(seeds)


@pytest.mark.internal_errors
@pytest.mark.parametrize(
    "seeds",
    [
        range(4),
        pytest.param(range(4, 40), marks=pytest.mark.more),
        pytest.param(range(40, 1000), marks=pytest.mark.long),
    ],
    ids=["few", "more", "many"],
)
@pytest.mark.parametrize("name", OF_CLOCK)
def test_columns_give_what_elements_give_when_the_clock_changes(name: str, seeds: range) -> None:
    for seed in seeds:
        cell = Cell.of(name, seed)
        lateness, bound = LATENESS[seed % 3] * cell.unit_ms, BOUND * cell.unit_ms
        origin = stream(seed)[15].at
        rows = [row._replace(at=cell.origin_ms + (row.at - origin) * cell.unit_ms) for row in stream(seed)]
        mixed = check_equal(
            partial(operator, cell.windows, lateness=lateness), rows, random.Random(seed),
            lambda n, backend=None, bound=bound: {**options(n, backend, bound), **TYPES}, late=LATE, kinds=True,
        )  # fmt: skip
        table = Table()
        apply(table, mixed.outputs, emit="final")
        expected = cell.model(rows, bound=bound, lateness=lateness)
        assert (table, mixed.state) == (expected.table, {}), f"seed {seed}"
        assert mixed.runs["columns"]
