"""Windows over columns give what they give per element: outputs, late rows, state and timers, batch by batch.

A run per element stands beside one whose batches go through columns and elements in turn, on the same state.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from state_engine.core.state.descriptors import TIMERS
from state_engine.operators.windows.assigners import Tumbling
from state_engine.operators.windows.window_results import Emit
from state_engine.testing import KeyedHarness
from tests.operators.mixed import Mixed, kinds_of, state_of
from tests.operators.windows.test_windows import ASSIGNERS, LATE, operator, options, stream

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
FEW, MORE = range(3), range(3, 25)


def without_timers(state: dict[str, Any], name: str) -> dict[str, Any]:
    """Timers of sessions are sufficient over columns, and not the same."""
    return {of: entries for of, entries in state.items() if name != "session" or of != TIMERS}


@pytest.mark.internal_errors
@pytest.mark.parametrize("seeds", [FEW, pytest.param(MORE, marks=pytest.mark.more)], ids=["few", "more"])
@pytest.mark.parametrize("lateness", [0, 3, 20])
@pytest.mark.parametrize(("name", "emit"), [*((name, "final") for name in NAMES), *RUNNING])
def test_columns_and_elements_in_turn_give_what_elements_give(
    name: str, emit: Emit, lateness: int, seeds: range
) -> None:
    windows, _ = ASSIGNERS[name]
    over_columns = 0
    for seed in seeds:
        rng, rows, at = random.Random(seed), stream(seed, 40), 0

        def made() -> Any:
            return operator(windows, lateness=lateness, emit=emit)

        elements = KeyedHarness(made(), **options(), **TYPES)
        mixed = Mixed(
            made, rng, lambda n: {**options(n), **TYPES}, late=LATE, columns=0.5 if seed % 2 else 1.0
        )
        while at <= len(rows):
            size = rng.choice([1, 3, 10, 40])
            batch, at = rows[at : at + size], at + size
            drain = at > len(rows)
            outputs, wanted = mixed.process(batch, drain=drain), elements.process(batch, drain=drain)
            assert outputs == wanted, seed
            assert kinds_of(outputs) == kinds_of(wanted), seed
            assert mixed.times == elements.output_timestamps, seed
            assert mixed.late == elements.side_output(LATE), seed
            assert without_timers(mixed.state, name) == without_timers(state_of(elements), name), seed
        assert mixed.state == {}
        over_columns += mixed.runs["columns"]
        if mixed.columns == 1.0 and name != "session":
            assert not mixed.runs["elements"], seed
    assert over_columns > len(seeds)
