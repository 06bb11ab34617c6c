"""The harness: batches, subtasks, clocks, snapshots and refusals, as on the engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from state_engine import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    ValueStateDescriptor,
)
from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.keys.key_groups import assign_to_key_group, subtask_for_key_group
from state_engine.testing import KeyedHarness

Context = KeyedProcessFunction.Context


class Count(KeyedProcessFunction):
    """How often a key was seen, with all values of the context."""

    def __init__(self) -> None:
        self.opened = 0

    def open(self, runtime_context: RuntimeContext) -> None:
        self.opened += 1
        assert self.opened == 1, "a subtask and batch work on their own copy"
        self.runtime = runtime_context
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int, default=0))

    def process_element(self, value: Any, ctx: Context) -> Iterable[Any]:
        if value == "bad":
            raise RuntimeError("on purpose")
        self.seen.update(self.seen.value() + 1)
        yield value, self.seen.value()


def count(**options: Any) -> KeyedHarness:
    return KeyedHarness(Count(), key_by=lambda v: v, **options)


def test_batches_share_state() -> None:
    harness = count()
    assert harness.process(["a", "b", "a"]) == [("a", 1), ("b", 1), ("a", 2)]
    assert harness.process(["a"]) == [("a", 3)]
    assert harness.process([]) == []
    assert harness.state("seen") == {"a": 3, "b": 1}


def test_outputs_keep_the_order_of_elements_at_any_parallelism() -> None:
    elements = [f"k{n % 7}" for n in range(50)]
    assert count(parallelism=5).process(elements) == count().process(elements)


def test_keys_are_on_the_subtask_that_owns_their_group() -> None:
    harness = count(parallelism=3, max_parallelism=64)
    for n in range(50):
        group = assign_to_key_group(n, 64)
        assert harness.subtask_of(n) == subtask_for_key_group(64, 3, group)


def test_functions_learn_their_subtask_clock_and_parameters() -> None:
    class ReadsContext(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self.runtime = runtime_context

        def process_element(self, value: Any, ctx: Context) -> Iterable[Any]:
            timers = ctx.timer_service()
            yield (
                self.runtime.get_index_of_this_subtask(),
                self.runtime.get_number_of_parallel_subtasks(),
                self.runtime.get_job_parameter("mode"),
                ctx.timestamp(),
                timers.current_processing_time(),
                timers.current_watermark(),
            )

    harness = KeyedHarness(
        ReadsContext(),
        key_by=lambda v: v,
        parallelism=2,
        clock_ms=5,
        timestamp_of=lambda v: v * 10,
        parameters={"mode": "x"},
    )
    assert harness.process([1]) == [(harness.subtask_of(1), 2, "x", 10, 5, -(2**63))]
    harness.set_clock(7)
    harness.set_watermark(3)
    assert harness.process([1])[0][4:] == (7, 3)


def test_a_snapshot_is_not_changed_by_later_batches() -> None:
    harness = count()
    harness.process(["a"])
    snapshot = harness.snapshot()
    harness.process(["a"])
    restored = KeyedHarness.restored(Count(), snapshot, key_by=lambda v: v, parallelism=4)
    assert restored.process(["a"]) == [("a", 2)]
    assert harness.process(["a"]) == [("a", 3)]
    assert KeyedHarness.restored(Count(), snapshot, key_by=lambda v: v).state("seen") == {"a": 1}


def test_a_snapshot_carries_the_clocks() -> None:
    harness = count(clock_ms=9)
    harness.set_watermark(4)
    snapshot = harness.snapshot()
    assert (snapshot.clock_ms, snapshot.watermark_ms) == (9, 4)
    assert KeyedHarness.restored(Count(), snapshot, key_by=lambda v: v).clock_ms == 9


def test_what_state_returns_is_the_callers() -> None:
    class Keeps(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self.map = runtime_context.get_map_state(MapStateDescriptor("m", str, list[int]))

        def process_element(self, value: Any, ctx: Context) -> None:
            self.map.put("a", [1])

    harness = KeyedHarness(Keeps(), key_by=lambda v: v)
    harness.process([1])
    harness.state("m")[1]["a"].append(2)
    assert harness.state("m") == {1: {"a": [1]}}


def test_an_unknown_state_is_reported_with_those_that_are_there() -> None:
    harness = count()
    with pytest.raises(ConfigurationError, match=r"no state 'nope' yet; states: \[\]"):
        harness.state("nope")
    harness.process(["a"])
    with pytest.raises(ConfigurationError, match=r"states: \['seen'\]"):
        harness.state("nope")


def test_under_fail_the_functions_own_error_comes_out_and_nothing_is_kept() -> None:
    harness = count()
    harness.process(["a"])
    with pytest.raises(RuntimeError, match="on purpose"):
        harness.process(["a", "bad"])
    assert harness.state("seen") == {"a": 1}


def test_under_dead_letter_refused_elements_are_collected() -> None:
    harness = count(on_error="dead_letter")
    assert harness.process(["a", "bad", "b"]) == [("a", 1), ("b", 1)]
    (refusal,) = harness.refused
    assert (refusal.key, refusal.error) == ("bad", "RuntimeError: on purpose")
    assert harness.state("seen") == {"a": 1, "b": 1}


def test_outputs_are_normalised_where_a_type_is_given() -> None:
    harness = count(output_type="value string, seen double")
    assert [type(seen) for _, seen in harness.process(["a"])] == [float]
    with pytest.raises(ValueTypeError, match="field 'value'"):
        count(output_type="value bigint, seen bigint").process(["a"])


def test_what_is_no_backend_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="backend must be a StateBackend"):
        count(backend="rocksdb")


def test_restored_state_goes_on_at_another_parallelism_with_the_same_checkpoint_ids() -> None:
    harness = count(parallelism=3)
    harness.process(list("abcabc"))
    snapshot = harness.snapshot()
    other = KeyedHarness.restored(Count(), snapshot, key_by=lambda v: v, parallelism=5)
    assert other.process(list("abc")) == [("a", 3), ("b", 3), ("c", 3)]
    assert (snapshot.checkpoint_id, other.snapshot().checkpoint_id) == (1, 2)
    assert (snapshot.elements, other.snapshot().elements) == (6, 9)


class Marks(KeyedCoProcessFunction):
    """ReadsContext the watermark before every element, and wakes up at its time."""

    def process_element1(self, value: int, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        ctx.timer_service().register_event_time_timer(value)
        yield "mark", ctx.timer_service().current_watermark()

    process_element2 = process_element1

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield "woke", timestamp


def both(**options: Any) -> KeyedHarness:
    return KeyedHarness(Marks(), key_by=lambda value: "k", **options)


NONE_YET = -(2**63)


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_two_inputs_have_a_watermark_each_and_the_smaller_one_counts(cut: int) -> None:
    """As in Flink; whatever is in one batch."""
    harness = both(timestamp_of=lambda value: value, max_out_of_orderness_ms=0)
    pairs = [(1, 100), (2, 50), (1, 10), (2, 200), (2, 300)]
    outputs = [out for at in range(0, 5, cut) for out in harness.process_pairs(pairs[at : at + cut])]
    assert [out for out in outputs if out[0] == "mark"] == [
        ("mark", NONE_YET), ("mark", NONE_YET), ("mark", 49), ("mark", 49), ("mark", 99),
    ]  # fmt: skip
    assert sorted(out for out in outputs if out[0] == "woke") == [("woke", 10), ("woke", 50)]
    assert harness.snapshot().watermarks_ms == (99, 299)
    again = KeyedHarness.restored(
        Marks(), harness.snapshot(), key_by=lambda value: "k", timestamp_of=lambda value: value,
        max_out_of_orderness_ms=0,
    )  # fmt: skip
    assert sorted(again.process1([301])) == [("mark", 99), ("woke", 100), ("woke", 200)]


def test_watermarks_of_two_inputs_are_set_one_by_one() -> None:
    harness = both(timestamp_of=lambda value: value)
    harness.process1([10])
    harness.set_watermark1(20)
    assert harness.process_pairs([]) == []
    harness.set_watermark2(10)
    assert harness.process_pairs([]) == [("woke", 10)]
    assert harness.process2([30]) == [("mark", 10)]
    harness.set_watermark(30)
    assert harness.process_pairs([]) == [("woke", 30)]
    with pytest.raises(ConfigurationError, match="Count has one input: use set_watermark"):
        count().set_watermark1(5)


def test_an_input_without_event_times_holds_back_no_watermark() -> None:
    harness = both(timestamp_of=(lambda value: value, None), max_out_of_orderness_ms=0)
    assert harness.process_pairs([(1, 10), (2, 5), (1, 7)]) == [
        ("mark", NONE_YET), ("mark", 9), ("woke", 5), ("mark", 9), ("woke", 7),
    ]  # fmt: skip


def test_the_watermark_follows_the_elements_only_where_it_is_asked_to() -> None:
    still = count(timestamp_of=lambda v: 100)
    still.process(["a"])
    assert still.snapshot().watermark_ms == -(2**63)
    moved = count(timestamp_of=lambda v: 100 if v == "late" else 50, max_out_of_orderness_ms=30)
    moved.process(["late", "a"])
    assert moved.snapshot().watermark_ms == 69
    moved.process(["a"])
    assert moved.snapshot().watermark_ms == 69


def test_an_idle_input_holds_back_nothing_until_its_next_element() -> None:
    harness = both(timestamp_of=lambda value: value, max_out_of_orderness_ms=0)
    harness.process_pairs([(1, 100), (2, 50)])
    harness.set_idle2()
    assert harness.process_pairs([]) == [("woke", 50)]
    assert harness.process1([200]) == [("mark", 99), ("woke", 100)]
    assert (harness.snapshot().watermark_ms, harness.snapshot().watermarks_ms) == (199, (199, 49))
    again = KeyedHarness.restored(
        Marks(), harness.snapshot(), key_by=lambda value: "k", timestamp_of=lambda value: value,
        max_out_of_orderness_ms=0,
    )  # fmt: skip
    # it counts again with its next element, and the watermark does not go back
    assert again.process_pairs([(2, 60), (1, 300)]) == [("mark", 199), ("woke", 60), ("mark", 199)]
    assert again.process2([250]) == [("mark", 199), ("woke", 200)]
    assert again.snapshot().watermark_ms == 249
    with pytest.raises(ConfigurationError, match="has one input, and while it is idle the watermark stays"):
        count().set_idle1()


def test_where_both_inputs_are_idle_the_watermark_stays() -> None:
    harness = both(timestamp_of=lambda value: value, max_out_of_orderness_ms=0)
    harness.process_pairs([(1, 100), (2, 50)])
    harness.set_idle1()
    harness.set_idle2()
    assert harness.process_pairs([]) == []
    assert harness.snapshot().watermark_ms == 49
    harness.set_idle1(False)
    assert harness.process_pairs([]) == [("woke", 50)]
