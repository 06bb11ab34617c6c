"""Rows for a keyed function over any cut into micro-batches, with restores between some of them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
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

CUTS = pytest.mark.parametrize("size", [1, pytest.param(99, marks=pytest.mark.more)], ids=["rows", "batches"])
"""The most rows of a micro-batch, for a test of examples that takes it; the first ring takes row by row."""


def together(steps: Sequence[tuple[str, Any]], size: int) -> Iterator[list[tuple[str, Any]]]:
    """Steps of one micro-batch: at most so many rows, or a watermark ``W 9``, a clock ``C9`` or ``drain`` alone.

    Example:
        >>> list(together([("a1", 0), ("a2", 0), ("W 9", 0), ("a3", 0)], size=9))
        [[('a1', 0), ('a2', 0)], [('W 9', 0)], [('a3', 0)]]
    """
    batch: list[tuple[str, Any]] = []
    for step in steps:
        alone = re.fullmatch(r"[WC] ?-?\d+|drain", step[0]) is not None
        if batch and (alone or len(batch) == size):
            yield batch
            batch = []
        batch.append(step)
        if alone:
            yield batch
            batch = []
    if batch:
        yield batch


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
