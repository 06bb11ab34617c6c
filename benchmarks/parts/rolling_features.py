"""F: rolling features by tiles of five minutes: an hour against thirty days, in a harness, in processor time.

Keys have a row every so many minutes for longer than the span, so each span is full. Both operators take the same rows
in turn. Counts are compared with those of a loop.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from benchmarks.comparison import OnStep
from benchmarks.figures import Comparison, Fact, Figures, Timed
from benchmarks.unequal import UnequalResultsError
from state_engine import count, sum_
from state_engine.operators.lateness import Lateness
from state_engine.operators.over.over import Over
from state_engine.testing import KeyedHarness

ROW = "k bigint, v bigint, at bigint"
MINUTE_MS, TILE_MS = 60_000, 5 * 60_000
HOUR, MONTH = "an hour", "30 days"
SPANS = {HOUR: 60 * MINUTE_MS, MONTH: 30 * 24 * 60 * MINUTE_MS}
DAYS = 32
"""Of rows before those that are timed."""


def harness(span_ms: int) -> KeyedHarness:
    """The operator with a count and a sum of one span."""
    features = {"n": count(last=[span_ms]), "s": sum_("v", last=[span_ms])}
    over = Over(ROW, features, emit="at_once", tile_ms=TILE_MS, lateness=Lateness(0))
    by: dict[str, Any] = {"key_by": lambda row: row[0], "timestamp_of": lambda row: row[2]}
    return KeyedHarness(over, max_out_of_orderness_ms=0, **by)


def measure(*, keys: int, every_minutes: int, rows: int, rounds: int, done: OnStep = print) -> Figures:
    """Rounds of rows of all keys, one span after the other in each.

    Args:
        every_minutes: a key has a row.
        rows: of a key in a round.

    Raises:
        UnequalResultsError: a count is not that of the rows in the span, up to a tile more.
    """
    step, made = every_minutes * MINUTE_MS, {name: harness(span) for name, span in SPANS.items()}
    before = DAYS * 24 * 60 // every_minutes
    part = partial(_rows, keys, step)
    for name, run in made.items():
        run.process(part(0, before))
        done(f"{name}: {before:,} rows of each of {keys} keys are there")
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for number in range(rounds):
        given = part(before + number * rows, before + (number + 1) * rows)
        for name, run in made.items():
            began = time.process_time()
            outputs = run.process(given)
            seconds[name].append(time.process_time() - began)
            _check(name, outputs[-1][3], SPANS[name] // step + 1)
    timed = [Timed(name, of, keys * rows) for name, of in seconds.items()]
    entries = max(len(of_key) for of_key in made[MONTH].state("tiles").values())
    return Figures(
        {"spans": Comparison("features of a span by tiles of five minutes, processor time", timed)},
        {"entries": Fact("most entries of a key with a span of 30 days", entries)},
    )


def _rows(keys: int, step_ms: int, first: int, end: int) -> list[tuple[int, int, int]]:
    return [(key, at % 97, at * step_ms) for at in range(first, end) for key in range(keys)]


def _check(name: str, number: int, least: int) -> None:
    """A span is up to a tile longer, and there are 16 tiles or more in a long one."""
    if not least <= number <= least + max(least // 16, 1) + 1:
        raise UnequalResultsError(f"{name}: {number} rows were counted, at least {least} lie in the span")
