"""Functions of two connected streams, keyed and not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from state_engine.core.errors import ConfigurationError, StateAccessError
from state_engine.core.functions.every_function import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
    MapFunction,
)
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.descriptors import ValueStateDescriptor
from state_engine.testing import KeyedHarness, OperatorHarness


class Joins(KeyedCoProcessFunction):
    """Keeps the last price of a key; orders read it, and a timer reports orders that waited too long."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.price = runtime_context.get_state(ValueStateDescriptor("price", int))
        self.open_order = runtime_context.get_state(ValueStateDescriptor("open_order", int))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        price = self.price.value()
        if price is None:
            self.open_order.update(value[1])
            ctx.timer_service().register_event_time_timer((ctx.timestamp() or 0) + 10)
        else:
            yield ctx.get_current_key(), value[1] * price

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        self.price.update(value[2])
        if self.open_order.value() is not None:
            yield ctx.get_current_key(), self.open_order.value() * value[2]
            self.open_order.clear()

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterable[Any]:
        if self.open_order.value() is not None:
            yield ctx.get_current_key(), None


PAIRS: list[tuple[int, Any]] = [
    (1, ("a", 3, 0)), (2, (1, "a", 5)), (1, ("b", 2, 2)), (1, ("a", 4, 3)), (2, (11, "a", 6)), (2, (12, "c", 7)),
    (1, ("a", 1, 20)), (2, (21, "c", 7)),
]  # fmt: skip
# b's order waits until 12: both inputs have come that far with the last element only
JOINED = [("a", 15), ("a", 20), ("a", 6), ("b", None)]


def joins(**options: Any) -> KeyedHarness:
    return KeyedHarness(
        Joins(),
        key_by=(lambda order: order[0], lambda price: price[1]),
        timestamp_of=(lambda order: order[2], lambda price: price[0]),
        max_out_of_orderness_ms=0,
        **options,
    )


@pytest.mark.parametrize("parallelism", [1, 4])
def test_both_inputs_share_the_state_of_their_key_wherever_batches_are_cut(parallelism: int) -> None:
    assert joins(parallelism=parallelism).process_pairs(PAIRS) == JOINED
    harness = joins(parallelism=parallelism)
    assert [out for pair in PAIRS for out in harness.process_pairs([pair])] == JOINED
    assert harness.state("price") == {"a": 6, "c": 7}


def test_one_input_may_come_alone() -> None:
    harness = joins()
    assert harness.process1([("a", 3, 0)]) == []
    assert harness.process2([(1, "a", 5)]) == [("a", 15)]


def test_map_and_flat_map_of_two_inputs() -> None:
    class Maps(CoMapFunction):
        def map1(self, value: int) -> Any:
            return value, "one"

        def map2(self, value: int) -> Any:
            return value, "two"

    class FlatMaps(CoFlatMapFunction):
        def flat_map1(self, value: int) -> Any:
            return [value] * value

        def flat_map2(self, value: int) -> Any:
            yield -value

    pairs = [(1, 2), (2, 3), (1, 0), (2, 1)]
    assert OperatorHarness(Maps(), parallelism=2).process_pairs(pairs) == [
        (2, "one"), (3, "two"), (0, "one"), (1, "two"),
    ]  # fmt: skip
    assert OperatorHarness(FlatMaps(), parallelism=2).process_pairs(pairs) == [2, 2, -3, -1]
    assert KeyedHarness(FlatMaps(), key_by=lambda v: v).process_pairs(pairs) == [2, 2, -3, -1]


def test_without_a_key_there_is_no_keyed_state_and_no_timer() -> None:
    class Asks(CoProcessFunction):
        def process_element1(self, value: Any, ctx: CoProcessFunction.Context) -> Any:
            ctx.timer_service().register_event_time_timer(1)

        def process_element2(self, value: Any, ctx: CoProcessFunction.Context) -> Any:
            return [(ctx.timestamp(), ctx.current_watermark(), ctx.current_processing_time())]

    class Opens(Asks):
        def open(self, runtime_context: RuntimeContext) -> None:
            runtime_context.get_state(ValueStateDescriptor("s", int))

    assert OperatorHarness(Asks(), clock_ms=5).process2([1]) == [(None, -(2**63), 5)]
    with pytest.raises(StateAccessError, match="register_event_time_timer was called without a current key"):
        OperatorHarness(Asks()).process1([1])
    with pytest.raises(StateAccessError, match="is not on a keyed stream, so it has no keyed state"):
        OperatorHarness(Opens()).process2([1])
    with pytest.raises(ConfigurationError, match=r"Joins is a KeyedCoProcessFunction.*call key_by first"):
        OperatorHarness(Joins()).process1([("a", 1, 0)])


def test_inputs_are_kept_apart_by_the_harness() -> None:
    with pytest.raises(ConfigurationError, match="Joins has two inputs: use process1"):
        joins().process([1])
    with pytest.raises(ConfigurationError, match=r"pairs of 1 or 2 and an element.*got \[\(0, 5\)\]"):
        joins().process_pairs([(0, 5)])
    with pytest.raises(ConfigurationError, match="for a function of two inputs"):
        OperatorHarness(MapFunction.of(str, what="map")).process1([1])


def test_methods_must_be_defined() -> None:
    for harness in (OperatorHarness(CoMapFunction()), OperatorHarness(CoFlatMapFunction())):
        with pytest.raises(NotImplementedError, match=r"must define .*map1"):
            harness.process1([1])
    with pytest.raises(NotImplementedError, match="must define process_element2"):
        KeyedHarness(KeyedCoProcessFunction(), key_by=lambda v: v).process2([1])


def test_a_map_of_two_inputs_that_gives_none_has_no_output() -> None:
    class Numbers(CoMapFunction):
        def map1(self, value: int) -> int | None:
            return value if value > 1 else None

        def map2(self, value: int) -> int | None:
            return None

    assert OperatorHarness(Numbers()).process_pairs([(1, 1), (1, 2), (2, 3), (1, 3)]) == [2, 3]
