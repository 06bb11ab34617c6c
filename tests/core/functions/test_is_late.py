"""``ctx.is_late()`` in the contexts of every kind of function, and the rule behind it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine import (
    BroadcastProcessFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessFunction,
    SinkFunction,
)
from state_engine.core.time.watermarks import is_late, late_among
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from state_engine.testing import KeyedHarness, OperatorHarness

AT = [10, 30, 28, 27, 30, 29, 31]
"""Event times, with two milliseconds of out-of-orderness: 27 is as old as the watermark that 30 made."""
LATE = [False, False, False, True, False, False, False]
BY_KEY: dict[str, Any] = {"key_by": lambda at: at % 2}
TIMED: dict[str, Any] = {"timestamp_of": lambda at: at, "max_out_of_orderness_ms": 2}


class Plain(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any]:
        yield ctx.is_late()


class Keyed(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        yield ctx.is_late()


class Both(CoProcessFunction):
    def process_element1(self, value: Any, ctx: CoProcessFunction.Context) -> Iterable[Any]:
        yield ctx.is_late()

    def process_element2(self, value: Any, ctx: CoProcessFunction.Context) -> Iterable[Any]:
        yield ctx.is_late()


class KeyedBoth(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        yield ctx.is_late()

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        yield ctx.is_late()


class Rules(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterable[Any]:
        yield ctx.is_late()

    def process_broadcast_element(self, value: Any, ctx: BroadcastProcessFunction.Context) -> Iterable[Any]:
        yield f"rule {ctx.is_late()}"


class KeyedRules(KeyedBroadcastProcessFunction):
    def process_element(
        self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext
    ) -> Iterable[Any]:
        ctx.timer_service().register_event_time_timer(value)
        yield ctx.is_late()

    def process_broadcast_element(
        self, value: Any, ctx: KeyedBroadcastProcessFunction.Context
    ) -> Iterable[Any]:
        yield f"rule {ctx.is_late()}"

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield f"timer {timestamp} {ctx.is_late()}"


class Sink(SinkFunction):
    seen: list[bool] = []  # noqa: RUF012 - the harness copies the function, and this stays

    def invoke(self, value: Any, context: SinkFunction.Context) -> None:
        self.seen.append(context.is_late())


class Timers(KeyedProcessFunction):
    """A timer for each element, and one that was due when it was set."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        ctx.timer_service().register_event_time_timer(value)
        ctx.timer_service().register_event_time_timer(0)
        return []

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield ctx.is_late()


@pytest.mark.parametrize("cut", [1, 3, len(AT)])
def test_an_element_is_late_that_the_watermark_has_passed(cut: int) -> None:
    for harness in (OperatorHarness(Plain(), **TIMED), KeyedHarness(Keyed(), **BY_KEY, **TIMED)):
        given = [AT[at : at + cut] for at in range(0, len(AT), cut)]
        assert [late for part in given for late in harness.process(part)] == LATE


def test_without_event_time_nothing_is_late() -> None:
    assert OperatorHarness(Plain()).process(AT) == [False] * len(AT)
    untimed = OperatorHarness(Plain(), timestamp_of=lambda at: None, max_out_of_orderness_ms=2)
    untimed.set_watermark(100)
    assert untimed.process(AT) == [False] * len(AT)


def test_of_two_inputs_the_slower_one_decides() -> None:
    for harness in (
        OperatorHarness(Both(), **TIMED),
        KeyedHarness(KeyedBoth(), key_by=lambda at: 0, **TIMED),
    ):
        assert harness.process_pairs([(1, 30), (1, 10)]) == [False, False]
        assert harness.process_pairs([(2, 20), (1, 17), (1, 18), (2, 17)]) == [False, True, False, True]


def test_broadcast_elements_are_judged_like_others() -> None:
    plain, keyed = OperatorHarness(Rules(), **TIMED), KeyedHarness(KeyedRules(), **BY_KEY, **TIMED)
    for harness in (plain, keyed):
        harness.set_watermark(20)
        assert harness.process([20, 21], broadcast=[20, 21])[:3] == ["rule True", "rule False", True]
    fired = [output for output in keyed.process([40, 20]) if str(output).startswith("timer")]
    assert sorted(fired) == ["timer 20 False", "timer 21 False"]


def test_a_timer_is_not_late() -> None:
    harness = KeyedHarness(Timers(), **BY_KEY, **TIMED)
    outputs = harness.process(AT) + harness.drain()
    assert outputs == [False] * len(outputs)
    assert len(outputs) > len(set(AT))


def test_a_sink_knows_what_is_late() -> None:
    Sink.seen.clear()
    OperatorHarness(Sink(), **TIMED).process(AT)
    assert Sink.seen == LATE


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.integers(MIN_TIMESTAMP + 1, MAX_TIMESTAMP), st.integers(-3, 3)),
            st.one_of(st.integers(-3, 3), st.just(MIN_TIMESTAMP), st.just(MAX_TIMESTAMP)),
        )
    )
)
def test_columns_are_judged_as_single_elements_are(rows: list[tuple[int | None, int]]) -> None:
    times = np.array([MIN_TIMESTAMP if at is None else at for at, _ in rows], np.int64)
    before = np.array([watermark for _, watermark in rows], np.int64)
    assert late_among(times, before).tolist() == [is_late(at, watermark) for at, watermark in rows]
