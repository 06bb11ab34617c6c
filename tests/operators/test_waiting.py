"""Rows that wait by event time: in which order they are taken, and which of them come too late."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from state_engine import EmbeddedRocksDBStateBackend, KeyedProcessFunction, OutputTag
from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.lateness import Lateness
from state_engine.operators.waiting import WaitingRows
from state_engine.testing import KeyedHarness

LATE = OutputTag("late", "k string, at bigint, n bigint")
ROW = to_type("k string, at bigint, n bigint", parameter="rows")


class InOrder(KeyedProcessFunction):
    """Emits each row when its time has come."""

    late_to = LATE

    def __init__(self, lateness_ms: int) -> None:
        self.holds_back_ms = lateness_ms
        self._waiting = WaitingRows(ROW, Lateness(lateness_ms, LATE))

    def open(self, runtime_context: RuntimeContext) -> None:
        self._waiting.open(runtime_context)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        return self._waiting.add(value, ctx)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        for at, row in self._waiting.due(timestamp, ctx):
            assert at == row[1]
            yield tuple(row)


def options(**given: Any) -> dict[str, Any]:
    return {"key_by": lambda row: row[0], "timestamp_of": lambda row: row[1], **given}


def harness(lateness: int = 0, **given: Any) -> KeyedHarness:
    return KeyedHarness(InOrder(lateness), **options(**given))


def reach(run: KeyedHarness, watermark: int) -> list[Any]:
    run.set_watermark(watermark)
    return run.process([])


def test_rows_of_one_time_keep_their_order_and_the_limit_is_too_late() -> None:
    run = harness(10)
    assert run.process([("k", 5, 0), ("k", 3, 1), ("k", 5, 2), ("k", -7, 3), ("k", 3, 4)]) == []
    assert reach(run, 12) == [("k", -7, 3)], "3 + 10 is not reached yet"
    assert reach(run, 13) == [("k", 3, 1), ("k", 3, 4)]
    assert run.process([("k", 3, 5), ("k", 4, 6)]) == [], "3 is too late, 4 is not"
    assert [tuple(row) for row in run.side_output(LATE)] == [("k", 3, 5)]
    assert run.drain() == [("k", 4, 6), ("k", 5, 0), ("k", 5, 2)]
    assert run.state("waiting") == {}


def test_a_time_behind_the_largest_long() -> None:
    run = harness(1000)
    assert run.process([("k", MAX_TIMESTAMP - 1, 0), ("k", MAX_TIMESTAMP - 2, 1)]) == []
    assert reach(run, MAX_TIMESTAMP - 1) == []
    assert run.drain() == [("k", MAX_TIMESTAMP - 2, 1), ("k", MAX_TIMESTAMP - 1, 0)]


def test_a_row_without_event_time_is_refused() -> None:
    with pytest.raises(ValueTypeError, match=r"no event time, which its operator needs: filter"):
        harness().process([("k", None, 0)])


def test_a_lateness_below_zero_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="0 or more, not -1 ms"):
        Lateness(-1)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.more) for seed in range(1, 24))])
def test_random_streams_with_a_restore_behind_each_batch(seed: int) -> None:
    """What comes out of accepted rows is these, sorted by time and total order, whatever the cuts and parallelism."""
    chance = random.Random(seed)
    lateness = chance.choice([0, 3])
    rows = [(chance.choice("abc"), chance.randint(-9, 9) + n // 3, n) for n in range(30)]
    marks = sorted(chance.randint(-9, 25) for _ in rows)
    accepted = [row for row, mark in zip(rows, [-99, *marks], strict=False) if row[1] + lateness > mark]
    wanted = {k: sorted((row for row in accepted if row[0] == k), key=lambda row: row[1:]) for k in "abc"}
    given: dict[str, Any] = {"backend": EmbeddedRocksDBStateBackend() if seed % 2 else None}
    run, outputs = harness(lateness, **given), []
    for place, (row, mark) in enumerate(zip(rows, marks, strict=True)):
        outputs += [*run.process([row]), *reach(run, mark)]
        if place % 9 == 0:
            parallelism = chance.choice([1, 2, 7])
            run = KeyedHarness.restored(
                InOrder(lateness), run.snapshot(), **options(parallelism=parallelism, **given)
            )
    outputs += run.drain()
    assert {k: [row for row in outputs if row[0] == k] for k in "abc"} == wanted
    assert run.state("waiting") == {}
