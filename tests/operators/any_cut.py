"""Rows for a keyed function over any cut into micro-batches, with restores between some of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from state_engine import EmbeddedRocksDBStateBackend, OutputTag
from state_engine.testing import KeyedHarness

EVERYWHERE = pytest.mark.parametrize(
    ("parallelism", "backend"),
    [
        pytest.param(n, backend, marks=() if (n, name) == (2, "heap") else pytest.mark.more, id=f"{name}-{n}")
        for name, backend in (("heap", None), ("rocksdb", EmbeddedRocksDBStateBackend()))
        for n in (1, 2, 7)
    ],
)
"""Each parallelism on each backend, for a test that takes both; the first ring runs one."""


class Ran(NamedTuple):
    """What came of rows: outputs, late rows, how many the function counted as late, and the harness in the end."""

    outputs: list[Any]
    late: list[Any]
    too_late: float
    run: KeyedHarness

    @property
    def left(self) -> set[str]:
        """The states in which something is left."""
        return {state for state, of in self.run.snapshot().keyed.entries.items() if of}


def at_any_cut(
    make: Callable[[], Any],
    rows: Sequence[Any],
    rng: random.Random,
    by: Callable[[int, Any], dict[str, Any]],
    *,
    late: OutputTag | None = None,
    sizes: Sequence[int] = (1, 3, 30),
    pairs: bool = False,
    behind: Callable[[Ran, int], None] = lambda ran, came: None,
) -> Ran:
    """Process rows to the end of the input; at random the function goes on from a snapshot, elsewhere.

    Args:
        by: options of a harness, for a parallelism and a backend.
        late: the side output of late rows.
        sizes: of micro-batches, chosen at random.
        pairs: whether rows are pairs of an input and an element.
        behind: called behind each micro-batch, with what came of rows so far, and their number.
    """
    run = KeyedHarness(make(), **by(rng.choice([1, 2, 7]), None))
    ran, at = Ran([], [], 0.0, run), 0
    while at < len(rows):
        part = rows[at : at + rng.choice(sizes)]
        at += len(part)
        ran.outputs.extend(run.process_pairs(part) if pairs else run.process(part))
        ran = ran._replace(too_late=ran.too_late + run.metrics.get("too_late", 0))
        behind(ran._replace(run=run), at)
        if rng.random() < 0.5:
            ran.late.extend(run.side_output(late) if late else [])
            backend = EmbeddedRocksDBStateBackend() if rng.random() < 0.05 else None
            run = KeyedHarness.restored(make(), run.snapshot(), **by(rng.choice([1, 2, 7]), backend))
    ran.outputs.extend(run.drain())
    ran.late.extend(run.side_output(late) if late else [])
    return ran._replace(run=run)
