"""Count windows and windows of the clock: examples of Flink's, and random streams against models."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from state_engine import (
    Row,
    Session,
    Sliding,
    Tumbling,
    ValueStateDescriptor,
    count,
    sum_,
)
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.aggregates.plan import plan
from state_engine.operators.idle_keys import ForgetsIdleKeys, IdleTime
from state_engine.operators.keyed_rows import KeyedRows
from state_engine.operators.ranking import Ranking
from state_engine.operators.windows.contents import Contents, WholeRows
from state_engine.operators.windows.count_windows import Counted, CountWindows
from state_engine.operators.windows.window_process import CalledFunction
from state_engine.operators.windows.window_results import RowsWithBounds, WindowAccumulators, WindowSettings
from state_engine.operators.windows.window_top_n import TopRows
from state_engine.testing import KeyedHarness
from tests.operators.any_cut import EVERYWHERE, at_any_cut
from tests.operators.windows.models import Event, watermarks_before
from tests.operators.windows.test_functions_of_windows import Listed, operator
from tests.operators.windows.test_windows import BOUND, ms, stream

IDLE = IdleTime(10, by_event_time=True)
COLUMNS = to_type("k string, v bigint, x double, at bigint", parameter="rows")


def sums() -> Contents:
    assert isinstance(COLUMNS, StructType)
    return WindowAccumulators(plan({"s": sum_("v"), "n": count()}, COLUMNS))


def counted(windows: Counted) -> CountWindows:
    return CountWindows(windows, sums(), RowsWithBounds(), WindowSettings())


def options(parallelism: int = 1, backend: Any = None, **others: Any) -> dict[str, Any]:
    return {"key_by": lambda row: row.k, "parallelism": parallelism, "backend": backend, **others}


def rows_of(text: str) -> list[Event]:
    """``a1 b2``: a row of key a and value 1, and one of key b and value 2."""
    return [Event(k, int(v), 0.0, 0) for k, v in re.findall(r"(\w)(\d+)", text)]


VECTORS = {
    "a batch of PyFlink's": (Counted(3), ["h1 e2 h3 e4 h5 e6 e6"], ["h 0 9 e 0 12"]),
    "tumbling, with a restore": (
        Counted(3),
        ["b1 b2 b3", "a1 a2", "a2", "b4 b5 b6", "a3", "b10 b20 b6", "a2 a2"],
        ["b 0 6", "", "a 0 5", "b 1 15", "", "b 2 36", "a 1 7"],
    ),
    "five every three": (
        Counted(5, 3),
        ["b1 b2 b3 b4 b5", "a1 a2", "a3 a4 a5", "b6 b7 b8 b9", "a6 a7 a8", "b10 b11"],
        ["b 0 15", "", "a 0 15", "b 1 30", "a 1 30", "b 2 45"],
    ),
}


@EVERYWHERE
@pytest.mark.parametrize("name", VECTORS)
def test_count_windows_with_a_restore_between_every_two_rows(
    name: str, parallelism: int, backend: Any
) -> None:
    windows, given, expected = VECTORS[name]
    by = options(parallelism=parallelism, backend=backend)
    run = KeyedHarness(counted(windows), **by)
    for rows, results in zip(given, expected, strict=True):
        shown = []
        for row in rows_of(rows):
            shown += [f"{k} {number} {total}" for k, number, total, _ in run.process([row])]
            run = KeyedHarness.restored(counted(windows), run.snapshot(), **by)
        assert " ".join(shown) == results
    assert run.drain() == []  # a window that is not full never comes out


@pytest.mark.parametrize(
    ("size", "slide"),
    [(5, 3), *(pytest.param(*one, marks=pytest.mark.more) for one in ((1, 1), (3, 3), (4, 2), (7, 1)))],
)
@pytest.mark.parametrize("use", ["aggregate", "process", "top_n"])
def test_count_windows_are_those_of_the_model(size: int, slide: int, use: str) -> None:
    for seed in range(6):
        rng, rows = random.Random(seed), stream(seed, count=50)
        make = partial(of_use, use, Counted(size, slide))
        shown, _, _, run = at_any_cut(make, rows, rng, options, sizes=(1, 4, 30))
        expected = []
        for k in "ab":
            of_key = [row for row in rows if row.k == k]
            for number in range((len(of_key) - size) // slide + 1):
                window = of_key[number * slide : number * slide + size]
                expected += results_of(use, k, number, window)
        assert sorted(map(tuple, shown)) == sorted(expected), f"seed {seed}"
        last = {k: sum(row.k == k for row in rows) for k in "ab"}
        assert run.state("seen") == {k: n for k, n in last.items() if n}
        kept = run.state("windows" if size == slide else "slices")
        assert all(sum(rows for rows, *_ in parts.values()) < size for parts in kept.values())


class Numbered(Listed):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        assert context.window().max_timestamp() == 2**63 - 1
        yield key, getattr(context.window(), "id", None), [tuple(row) for row in elements]


def of_use(use: str, windows: Counted) -> CountWindows:
    if use == "aggregate":
        return counted(windows)
    if use == "process":
        emitter = CalledFunction(Numbered(), merging=False)
        return CountWindows(windows, WholeRows(COLUMNS), emitter, WindowSettings())
    rows = KeyedRows(COLUMNS, apart=["k"], operator="top_n")
    contents = TopRows(rows, Ranking(rows, 2, by="v", key=["k"]), rank=True)
    return CountWindows(windows, contents, RowsWithBounds(), WindowSettings())


def results_of(use: str, k: str, number: int, rows: list[Event]) -> list[Any]:
    if use == "aggregate":
        return [(k, number, sum(row.v for row in rows), len(rows))]
    if use == "process":
        return [(k, number, [tuple(row) for row in rows])]
    best = sorted(rows, key=lambda row: -row.v)[:2]
    return [(k, number, rank, *row[1:]) for rank, row in enumerate(best, 1)]


@pytest.mark.parametrize("use", ["aggregate", "process", "top_n", "growing"])
def test_a_key_without_rows_for_so_long_begins_anew_at_any_cut(use: str) -> None:
    def windows() -> ForgetsIdleKeys:
        if use == "growing":
            return ForgetsIdleKeys(of_use("process", Counted(2, grows=True)), IDLE)
        return ForgetsIdleKeys(of_use(use, Counted(3, 2)), IDLE)

    for seed in range(4):
        rng, rows = random.Random(seed), stream(seed, count=50)
        by = partial(options, timestamp_of=lambda row: row.at, max_out_of_orderness_ms=BOUND)
        ran = at_any_cut(windows, rows, rng, by, sizes=(1, 4, 30))
        expected = []
        for k, of_key in parts_of(rows):
            for number in range((len(of_key) - 3) // 2 + 1 if use != "growing" else len(of_key) // 2):
                if use == "growing":
                    expected.append((k, None, [tuple(row) for row in of_key[: 2 * number + 2]]))
                else:
                    expected += results_of(use, k, number, of_key[number * 2 : number * 2 + 3])
        assert sorted(map(tuple, ran.outputs), key=repr) == sorted(expected, key=repr), f"seed {seed}"
        assert not ran.left, f"seed {seed}"


def parts_of(rows: list[Event]) -> list[tuple[str, list[Event]]]:
    """The rows of each key, cut where it has none for so long: by event time, and never before the watermark."""
    parts: list[tuple[str, list[Event]]] = []
    current: dict[str, tuple[int, list[Event]]] = {}
    for row, watermark in watermarks_before(rows, BOUND):
        now = max(row.at, watermark)
        last, of_key = current.get(row.k, (now, None))
        if of_key is None or last + IDLE.ms <= now:
            of_key, last = [], now
            parts.append((row.k, of_key))
        of_key.append(row)
        current[row.k] = max(last, now), of_key
    return parts


def test_states_of_the_window_that_keeps_all_rows_go_with_the_key() -> None:
    class Firings(Listed):
        def process(self, key: Any, context: Any, elements: Any) -> Any:
            fired = context.window_state().get_state(ValueStateDescriptor("fired", int, default=0))
            fired.update(fired.value() + 1)
            yield key, fired.value(), len(list(elements))

    def windows() -> ForgetsIdleKeys:
        emitter = CalledFunction(Firings(), merging=False)
        return ForgetsIdleKeys(
            CountWindows(Counted(1, grows=True), WholeRows(COLUMNS), emitter, WindowSettings()), IDLE
        )

    by = options(timestamp_of=lambda row: row.at, max_out_of_orderness_ms=0)
    run = KeyedHarness(windows(), **by)
    rows = [Event("a", 1, 0.0, at) for at in (0, 4, 14)]
    assert run.process(rows) == [("a", 1, 1), ("a", 2, 2), ("a", 1, 1)]


def test_one_window_that_keeps_all_rows_fires_every_so_many() -> None:
    run = KeyedHarness(counted(Counted(2, grows=True)), **options())
    assert [tuple(row) for row in run.process(rows_of("a1 a2 b5 a3 a4"))] == [("a", 3, 2), ("a", 10, 4)]


# -- the clock ---------------------------------------------------------------------------------------------------------


def of_clock(windows: Any) -> Any:
    return operator(windows, sums(), RowsWithBounds(), WindowSettings(clock=True))


CLOCKS: dict[str, tuple[Any, list[tuple[int, str]], list[str]]] = {
    "sliding": (
        Sliding(3000, every=1000),
        [(3, "b1"), (1000, "b1 b1"), (2000, "a1 a1"), (3000, "a1 a1 a1"), (7000, "")],
        [
            "",
            "b 1 [-2000,1000)",
            "b 3 [-1000,2000)",
            "a 2 [0,3000) b 3 [0,3000)",
            "a 5 [1000,4000) b 2 [1000,4000) a 5 [2000,5000) a 3 [3000,6000)",
        ],
    ),
    "session": (
        Session(3000),
        [(3, "b1"), (1000, "b1"), (5000, "b1 b1 a1 a1 a1"), (10000, "")],
        ["", "", "b 2 [3,4000)", "a 3 [5000,8000) b 2 [5000,8000)"],
    ),
    "a row of the last millisecond": (
        Tumbling(1000),
        [(999, "a1 b1"), (999, "a1"), (1000, "a1"), (2000, "")],
        ["", "", "a 2 [0,1000) b 1 [0,1000)", "a 1 [1000,2000)"],
    ),
}


@EVERYWHERE
@pytest.mark.parametrize("name", CLOCKS)
def test_windows_of_the_clock_with_a_restore_between_every_two_batches(
    name: str, parallelism: int, backend: Any
) -> None:
    windows, steps, expected = CLOCKS[name]
    by = options(parallelism=parallelism, backend=backend)
    run = KeyedHarness(of_clock(windows), **by)
    for (clock, rows), results in zip(steps, expected, strict=True):
        run.set_clock(clock)
        shown = [
            f"{k} {total} [{ms(start)},{ms(end)})" for k, start, end, total, _ in run.process(rows_of(rows))
        ]
        assert sorted(shown) == sorted(re.findall(r"\w \d+ \[[^)]*\)", results))
        run = KeyedHarness.restored(of_clock(windows), run.snapshot(), **by)


def tumbling(at: int) -> list[tuple[int, int]]:
    return [(at // 7 * 7, at // 7 * 7 + 7)]


def sliding(at: int) -> list[tuple[int, int]]:
    return [(start, start + 6) for start in range(at // 2 * 2 - 4, at + 1, 2)]


@pytest.mark.parametrize(
    ("windows", "model"),
    [pytest.param(Tumbling(7), tumbling, marks=pytest.mark.more), (Sliding(6, every=2), sliding)],
)
def test_windows_of_the_clock_have_the_rows_of_their_time(
    windows: Any, model: Callable[[int], list[tuple[int, int]]]
) -> None:
    for seed in range(10):
        rng, clock, shown = random.Random(seed), 0, list[Any]()
        expected: dict[tuple[str, int, int], list[int]] = {}
        run = KeyedHarness(of_clock(windows), **options(parallelism=2))
        for _ in range(15):
            clock += rng.choice([0, 1, 2, 5, 11])
            batch = [Event(rng.choice("ab"), rng.randint(1, 9), 0.0, 0) for _ in range(rng.randint(0, 4))]
            for row in batch:
                for start, end in model(clock):
                    expected.setdefault((row.k, start, end), []).append(row.v)
            run.set_clock(clock)
            shown += run.process(batch)
            run = KeyedHarness.restored(of_clock(windows), run.snapshot(), **options(parallelism=7))
        run.set_clock(clock + 100)
        shown += run.process([])
        results = {(k, ms(start), ms(end)): (total, n) for k, start, end, total, n in shown}
        assert len(results) == len(shown)
        assert results == {window: (sum(of), len(of)) for window, of in expected.items()}
        assert not {state for state, of in run.snapshot().keyed.entries.items() if of}


def test_sessions_of_the_clock_end_a_gap_behind_their_last_row() -> None:
    for seed in range(10):
        rng, clock, shown = random.Random(seed), 0, list[Any]()
        expected: list[list[int]] = []
        run = KeyedHarness(of_clock(Session(5)), **options())
        for _ in range(20):
            clock += rng.choice([0, 1, 4, 5, 6, 20])
            rows = rng.choice([0, 1, 3])
            if rows and expected and clock <= expected[-1][1]:
                expected[-1] = [expected[-1][0], clock + 5, expected[-1][2] + rows]
            elif rows:
                expected.append([clock, clock + 5, rows])
            run.set_clock(clock)
            shown += run.process([Row(k="a", v=1, x=0.0, at=0)] * rows)
        run.set_clock(clock + 100)
        shown += run.process([])
        assert [[ms(start), ms(end), n] for _, start, end, _, n in shown] == expected, f"seed {seed}"
        assert not {state for state, of in run.snapshot().keyed.entries.items() if of}
