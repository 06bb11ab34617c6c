"""The parts of ``make bench-all``: what each measures, over what sizes, and over which small ones a test does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import large_state, micro_batches, start
from benchmarks.comparison import OnStep, Plan
from benchmarks.figures import Comparison, Fact, Figures, Timed
from benchmarks.parts import (
    catch_up,
    growth,
    new_keys,
    operations,
    reference,
    rolling_features,
    running_aggregate,
    windows,
)

EDGE = 50
"""Of a thousand micro-batches, as many of the last are compared with as many of the first."""


@dataclass(frozen=True)
class Part:
    """Something that is measured in a process of its own.

    Attributes:
        title: what it is about.
        minutes: that it takes about, on an idle machine of two cores.
        measure: gives the figures; called with one of the following, and what is called after each step.
        full, quick: sizes.
    """

    title: str
    minutes: float
    measure: Callable[..., Figures]
    full: Mapping[str, Any]
    quick: Mapping[str, Any]

    def run(self, *, quick: bool, baseline: Path | None, done: OnStep) -> Figures:
        """Measure it.

        Args:
            baseline: a checkout of 0.1.0, for the part that compares with it.
        """
        sizes = dict(self.quick if quick else self.full)
        if self.measure is catch_up.measure:
            sizes["baseline"] = baseline
        return self.measure(**sizes, done=done)


def _keys(
    *, pairs: Mapping[int, int], warm: Mapping[int, int], rounds: int, warm_up: int, done: OnStep
) -> Figures:
    """Two questions: many keys against few, and a small batch on a million of them."""
    measure = partial(large_state.measure_keys, rounds=rounds, warm_up=warm_up, done=done)
    return Figures({"sizes": measure(pairs), "warm": measure(warm)})


def _timers(*, sizes: list[int], due: int, events: int, rounds: int, warm_up: int, done: OnStep) -> Figures:
    timed = large_state.measure_timers(
        sizes, due=due, events=events, rounds=rounds, warm_up=warm_up, done=done
    )
    return Figures({"sizes": timed})


def _maps(*, size: int, entries: int, events: int, rounds: int, warm_up: int, done: OnStep) -> Figures:
    bytes_of = large_state.measure_maps(
        size, entries, events=events, rounds=rounds, warm_up=warm_up, done=done
    )
    facts = {
        "one": Fact(f"bytes of a changed entry, one of {entries} changed", bytes_of[1], "bytes"),
        "every": Fact(f"bytes of a changed entry, all {entries} changed", bytes_of[entries], "bytes"),
    }
    return Figures(facts=facts)


def _start(*, keys: int, events: int, rounds: int, warm_up: int, done: OnStep) -> Figures:
    started = start.measure(keys, events=events, rounds=rounds, warm_up=warm_up, done=done)
    wall = [Timed(engine, [one.seconds for one in of_engine]) for engine, of_engine in started.items()]
    processor = [Timed(engine, [one.processor_s for one in o]) for engine, o in started.items()]
    what = f"{events:,} events on the state of {keys:,} keys, start of the process to commit"
    return Figures(
        {"wall": Comparison(what, wall), "processor": Comparison(f"{what}, processor time", processor)}
    )


def _micro_batches(
    *, batches: int, events: int, keys: int, warm_up: int, every: int, edge: int, done: OnStep
) -> Figures:
    measured = micro_batches.measure(
        batches, events=events, keys=keys, warm_up=warm_up, every=every, done=done
    )
    edges = [
        Timed(micro_batches.FIRST, measured.seconds[:edge], events),
        Timed(micro_batches.LAST, measured.seconds[-edge:], events),
    ]
    ratio = Fact(f"sum of the last {edge}, divided by that of the first", measured.ratio(edge))
    return Figures(
        {"edges": Comparison(f"{batches:,} micro-batches of {events:,} events, {edge} at each end", edges)},
        {"ratio": ratio},
        micro_batches.curves(measured.points),
    )


_PLAN = Plan(events=1_000_000, keys=100_000, small_rounds=7, small_warm_up=8)
_QUICK_PLAN = Plan(events=4_000, keys=400, rounds=1, warm_up=1, small_rounds=1, small_warm_up=1)

PARTS: dict[str, Part] = {
    "A": Part(
        "the reference workload",
        7,
        reference.measure,
        {"plan": _PLAN, "verify_events": 20_000, "verify_keys": 2_000},
        {"plan": _QUICK_PLAN, "verify_events": 2_000, "verify_keys": 200, "flinks": ()},
    ),
    "B": Part(
        "new keys",
        3,
        new_keys.measure,
        {"keys": 1_000_000, "warm_up_keys": 20_000, "rounds": 3, "warm_up": 2},
        {"keys": 2_000, "warm_up_keys": 500, "rounds": 1, "warm_up": 0},
    ),
    "C": Part(
        "a declared running aggregate",
        2.5,
        running_aggregate.measure,
        {
            "events": 10_000_000,
            "keys": 1_000_000,
            "batches": 10,
            "rounds": 3,
            "verify_events": 100_000,
            "verify_keys": 10_000,
        },
        {
            "events": 8_000,
            "keys": 400,
            "batches": 2,
            "rounds": 1,
            "verify_events": 8_000,
            "verify_keys": 200,
            "flinks": (),
        },
    ),
    "W": Part(
        "windows and sessions",
        12,
        windows.measure,
        {
            "events": 10_000_000,
            "keys": 100_000,
            "session_keys": 100_000,
            "batches": 10,
            "rounds": 1,
            "element_events": 1_000_000,
            "verify_events": 20_000,
            "verify_keys": 500,
            "open_sessions": {10_000: 1_000, 1_000_000: 1_000},
            "open_rounds": 12,
        },
        {
            "events": 6_000,
            "keys": 50,
            "session_keys": 50,
            "batches": 2,
            "rounds": 1,
            "element_events": 3_000,
            "verify_events": 2_000,
            "verify_keys": 40,
            "open_sessions": {50: 10, 200: 10},
            "open_rounds": 3,
        },
    ),
    "D": Part(
        "small micro-batches on many keys",
        1.5,
        _keys,
        {
            "pairs": {100_000: 10_000, 10_000_000: 10_000},
            "warm": {1_000_000: 1_000},
            "rounds": 9,
            "warm_up": 6,
        },
        {"pairs": {100: 50, 1_000: 50}, "warm": {500: 20}, "rounds": 2, "warm_up": 0},
    ),
    "T": Part(
        "pending timers",
        2,
        _timers,
        {
            "sizes": [10_000, 1_000_000, 10_000_000],
            "due": 100,
            "events": 1_000,
            "rounds": 9,
            "warm_up": 6,
        },
        {"sizes": [100, 300, 600], "due": 7, "events": 20, "rounds": 2, "warm_up": 0},
    ),
    "M": Part(
        "entries of maps",
        0.5,
        _maps,
        {"size": 10_000, "entries": 100, "events": 1_000, "rounds": 3, "warm_up": 1},
        {"size": 40, "entries": 5, "events": 20, "rounds": 1, "warm_up": 0},
    ),
    "S": Part(
        "a start",
        3,
        _start,
        {"keys": 1_000_000, "events": 1_000, "rounds": 3, "warm_up": 1},
        {"keys": 500, "events": 20, "rounds": 1, "warm_up": 1},
    ),
    "U": Part(
        "catching up",
        2,
        catch_up.measure,
        {"batches": 200, "events": 1_000, "keys": 100_000, "rounds": 1, "warm_up": 20},
        {"batches": 3, "events": 50, "keys": 20, "rounds": 1, "warm_up": 1},
    ),
    "micro_batches": Part(
        "a thousand micro-batches",
        4,
        _micro_batches,
        {"batches": 1_000, "events": 1_000, "keys": 100_000, "warm_up": 50, "every": 100, "edge": EDGE},
        {"batches": 4, "events": 50, "keys": 20, "warm_up": 0, "every": 2, "edge": 2},
    ),
    "F": Part(
        "rolling features",
        0.5,
        rolling_features.measure,
        {"keys": 4, "every_minutes": 10, "rows": 100, "rounds": 9},
        {"keys": 2, "every_minutes": 240, "rows": 10, "rounds": 1},
    ),
    "G": Part(
        "growth",
        25,
        growth.measure,
        {
            "keys": [10_000_000, 100_000_000],
            "events": [1_000, 100_000],
            "rounds": 7,
            "warm_up": 4,
            "core_sizes": {
                "columns": {"events": 1_000_000, "keys": 100_000, "rounds": 5, "warm_up": 3},
                "large_columns": {"events": 5_000_000, "keys": 500_000, "rounds": 5, "warm_up": 3},
                "totals": {
                    "events": 10_000_000,
                    "keys": 1_000_000,
                    "batches": 10,
                    "rounds": 1,
                    "warm_up": 1,
                },
            },
            "core_rounds": 3,
        },
        {
            "keys": [100, 1_000],
            "events": [20, 50],
            "rounds": 2,
            "warm_up": 0,
            "core_sizes": {
                "columns": {"events": 400, "keys": 40, "rounds": 1, "warm_up": 0},
                "large_columns": {"events": 800, "keys": 80, "rounds": 1, "warm_up": 0},
                "totals": {"events": 8_000, "keys": 400, "batches": 2, "rounds": 1, "warm_up": 0},
            },
            "core_rounds": 1,
        },
    ),
    "operations": Part(
        "recovery, savepoint, rescale, restore and compaction",
        2,
        operations.measure,
        {"keys": 10_000_000, "events": 100_000, "rounds": 3},
        {"keys": 500, "events": 50, "rounds": 2},
    ),
}
"""By the name of the workload, in the order in which they run."""
