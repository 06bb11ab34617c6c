"""Broadcast functions: rules reach every subtask before the elements, and only their side writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from state_engine.core.errors import ConfigurationError, StateAccessError
from state_engine.core.functions.every_function import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    MapFunction,
)
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.descriptors import MapStateDescriptor, ValueStateDescriptor
from state_engine.testing import KeyedHarness, OperatorHarness

RULES = MapStateDescriptor("rules", str, int)


class Multiplies(KeyedBroadcastProcessFunction):
    """Multiplies by the rule ``times``; counts per key; on a timer emits the rule."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int, default=0))

    def process_element(
        self, value: int, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext
    ) -> Iterable[Any]:
        self.seen.update(self.seen.value() + 1)
        ctx.timer_service().register_event_time_timer(value)
        rules = ctx.get_broadcast_state(RULES)
        if value == 99:
            rules.put("times", 0)
        yield ctx.get_current_key(), value * (rules.get("times") or 1), self.seen.value()

    def process_broadcast_element(
        self, value: Any, ctx: KeyedBroadcastProcessFunction.Context
    ) -> Iterable[Any]:
        if value[0] == "seen":
            self.seen.value()
        ctx.get_broadcast_state(RULES).put(*value)
        if value[0] == "bad":
            raise RuntimeError("on purpose")
        yield from [value] if value[0] == "show" else []

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield timestamp, ctx.get_broadcast_state(RULES).get("times")


def keyed(**options: Any) -> KeyedHarness:
    return KeyedHarness(Multiplies(), key_by=lambda v: v % 3, **options)


@pytest.mark.parametrize("parallelism", [1, 4])
def test_broadcast_elements_come_first_on_every_subtask(parallelism: int) -> None:
    harness = keyed(parallelism=parallelism)
    assert harness.process([1, 2], broadcast=[("times", 5)]) == [(1, 5, 1), (2, 10, 1)]
    assert harness.process([3, 1]) == [(0, 15, 1), (1, 5, 2)]
    assert harness.process_broadcast([("times", 7)]) == []
    assert harness.process([4]) == [(1, 28, 3)]
    assert harness.state("rules") == [{"times": 7}] * parallelism
    harness.set_watermark(2)
    assert harness.process([]) == [(1, 7), (2, 7)]


def test_every_subtask_emits_for_a_broadcast_element() -> None:
    assert keyed(parallelism=3).process([1], broadcast=[("show", 1)]) == [("show", 1)] * 3 + [(1, 1, 1)]


def test_rules_survive_a_rescale() -> None:
    harness = keyed(parallelism=2)
    harness.process_broadcast([("times", 5)])
    for parallelism in (1, 5):
        other = KeyedHarness.restored(
            Multiplies(), harness.snapshot(), key_by=lambda v: v % 3, parallelism=parallelism
        )
        assert other.process([1, 2]) == [(1, 5, 1), (2, 10, 1)]


def test_the_other_side_only_reads() -> None:
    with pytest.raises(StateAccessError, match="state 'rules' is read-only here, so it has no put"):
        keyed().process([99])


def test_broadcast_elements_have_no_key() -> None:
    with pytest.raises(StateAccessError, match="without a current key"):
        keyed().process_broadcast([("seen", 1)])


def test_a_refused_broadcast_element_leaves_no_trace() -> None:
    harness = keyed(on_error="dead_letter")
    assert harness.process([1], broadcast=[("times", 5), ("bad", 1)]) == [(1, 5, 1)]
    (refused,) = harness.refused
    assert (refused.index, refused.key, refused.broadcast, refused.error) == (
        1,
        None,
        True,
        "RuntimeError: on purpose",
    )
    assert harness.state("rules") == [{"times": 5}]


class Plain(BroadcastProcessFunction):
    def process_element(self, value: int, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterable[Any]:
        rules = ctx.get_broadcast_state(RULES)
        yield value, sorted(rules.items())

    def process_broadcast_element(self, value: Any, ctx: BroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(RULES).put(value, value.count("a"))


def test_a_stream_without_keys_has_broadcast_state_too() -> None:
    harness = OperatorHarness(Plain(), parallelism=3)
    rules = [("a", 1), ("b", 0)]
    assert harness.process([1, 2, 3], broadcast=["b", "a"]) == [(n, rules) for n in (1, 2, 3)]


def test_functions_are_run_on_the_streams_they_are_for() -> None:
    with pytest.raises(ConfigurationError, match="make it a KeyedBroadcastProcessFunction"):
        KeyedHarness(Plain(), key_by=lambda v: v).process([1])
    with pytest.raises(ConfigurationError, match="Multiplies is a KeyedBroadcastProcessFunction"):
        OperatorHarness(Multiplies()).process([1])
    with pytest.raises(ConfigurationError, match="takes no broadcast elements"):
        OperatorHarness(MapFunction.of(str, what="map")).process_broadcast([1])
    with pytest.raises(ConfigurationError, match="is not a function of a stream; derive it from one of"):
        OperatorHarness(object()).process([1])  # type: ignore[arg-type]


class Times(KeyedBroadcastProcessFunction):
    """Emits the event time of every element."""

    def process_element(
        self, value: int, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext
    ) -> Iterable[Any]:
        yield "element", ctx.timestamp()

    def process_broadcast_element(
        self, value: Any, ctx: KeyedBroadcastProcessFunction.Context
    ) -> Iterable[Any]:
        yield "broadcast", ctx.timestamp()


@pytest.mark.parametrize(
    ("timestamp_of", "times"),
    [
        ((lambda v: v * 10, lambda rule: rule[1]), (10, 5)),
        (lambda v: v * 10 if isinstance(v, int) else rule_time(v), (10, 5)),
        (None, (None, None)),
    ],
    ids=["apart", "one for both", "none"],
)
def test_broadcast_elements_have_their_times(timestamp_of: Any, times: tuple[Any, Any]) -> None:
    harness = KeyedHarness(Times(), key_by=lambda v: v, timestamp_of=timestamp_of)
    assert harness.process([1], broadcast=[("times", 5)]) == [("broadcast", times[1]), ("element", times[0])]


def rule_time(rule: tuple[str, int]) -> int:
    return rule[1]


def ordered(**options: Any) -> KeyedHarness:
    return keyed(ordered=True, **options)


@pytest.mark.parametrize("parallelism", [1, 4])
def test_ordered_broadcast_elements_stand_among_the_others(parallelism: int) -> None:
    pairs = [(1, 1), (2, ("times", 5)), (1, 1), (2, ("show", 7)), (1, 2), (2, ("times", 7))]
    expected = [(1, 1, 1), (1, 5, 2), *[("show", 7)] * parallelism, (2, 10, 1)]
    harness = ordered(parallelism=parallelism)
    assert harness.process_pairs(pairs) == expected
    assert harness.state("rules") == [{"times": 7, "show": 7}] * parallelism
    assert harness.state("seen") == {1: 2, 2: 1}
    one_by_one = ordered(parallelism=parallelism)
    assert [out for pair in pairs for out in one_by_one.process_pairs([pair])] == expected
    assert harness.process1([1]) == [(1, 7, 3)]
    assert harness.process2([("times", 9)]) == []
    assert harness.process1([1]) == [(1, 9, 4)]


@pytest.mark.parametrize("cut", [1, 7])
def test_due_timers_of_all_keys_fire_before_an_ordered_broadcast_element(cut: int) -> None:
    """Each at its own watermark: the timer of 1 sees the first rule, that of 2 the second one."""
    times = (lambda value: value, lambda rule: rule[2])
    harness = KeyedHarness(
        Timed(),
        key_by=lambda v: v,
        ordered=True,
        timestamp_of=times,
        max_out_of_orderness_ms=0,
        parallelism=2,
    )
    pairs = [(1, 1), (1, 2), (2, ("times", 5, 2)), (2, ("times", 6, 3)), (1, 3), (2, ("times", 7, 4)), (1, 9)]
    seen = [out for at in range(0, 7, cut) for out in harness.process_pairs(pairs[at : at + cut])]
    assert seen == [(1, 5), (2, 6), (3, 7)]


class Timed(Multiplies):
    """Puts out what timers see alone."""

    def process_element(
        self, value: int, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext
    ) -> Iterable[Any]:
        ctx.timer_service().register_event_time_timer(value)
        return []

    def process_broadcast_element(
        self, value: Any, ctx: KeyedBroadcastProcessFunction.Context
    ) -> Iterable[Any]:
        ctx.get_broadcast_state(RULES).put(*value[:2])
        return []


def test_a_refused_ordered_broadcast_element_leaves_no_trace() -> None:
    harness = ordered(on_error="dead_letter", parallelism=2)
    pairs = [(1, 1), (2, ("times", 5)), (1, 99), (2, ("bad", 1)), (1, 2)]
    assert harness.process_pairs(pairs) == [(1, 1, 1), (2, 10, 1)]
    refused = [(one.index, one.key, one.broadcast) for one in harness.refused]
    assert sorted(refused, key=repr) == [(2, 0, False), (3, None, True), (3, None, True)]
    assert harness.state("rules") == [{"times": 5}] * 2


def test_ordered_broadcast_elements_have_no_key() -> None:
    with pytest.raises(StateAccessError, match="without a current key"):
        ordered().process_pairs([(1, 1), (2, ("seen", 1))])


def test_a_stream_without_keys_can_be_ordered() -> None:
    harness = OperatorHarness(Plain(), parallelism=3, ordered=True)
    assert harness.process_pairs([(1, 0), (2, "a"), (1, 1), (2, "b"), (1, 2)]) == [
        (0, []),
        (1, [("a", 1)]),
        (2, [("a", 1), ("b", 0)]),
    ]


def test_an_ordered_harness_takes_pairs() -> None:
    with pytest.raises(ConfigurationError, match="has two inputs: use process1, process2 or process_pairs"):
        ordered().process([1])
    with pytest.raises(ConfigurationError, match="or with ordered=True for one that takes broadcast"):
        keyed().process_pairs([(1, 1)])
    with pytest.raises(ConfigurationError, match="ordered=True is for functions that take broadcast"):
        OperatorHarness(MapFunction.of(str, what="map"), ordered=True)
