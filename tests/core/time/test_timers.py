"""Timers: when and in which order they fire, and what they may do, however the input is cut into batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.errors import StateAccessError, ValueTypeError
from state_engine.core.functions.every_function import MAX_TIMESTAMP, MIN_TIMESTAMP, KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.operator.outputs import ElementOutputs, ElementRefused, TimerOrigin
from state_engine.core.state.descriptors import (
    TIMERS,
    ListStateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.state.ttl import StateTtlConfig
from state_engine.core.time.timer_service import TimerService
from state_engine.core.time.timers import AT_ONCE, EVENT, IN_TIME, PROCESSING, Timer
from state_engine.core.types.durations import Time, TimeDomain
from state_engine.testing import KeyedHarness
from tests.core.state.handles import Bench

Context = KeyedProcessFunction.Context
OnTimerContext = KeyedProcessFunction.OnTimerContext
EVENT_TIME, PROCESSING_TIME = TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME


class Do(NamedTuple):
    """An element: at its time, its key sets and deletes timers of both kinds, and may fail."""

    key: str
    at: int
    event: tuple[int, ...] = ()
    processing: tuple[int, ...] = ()
    delete: tuple[int, ...] = ()
    fail: bool = False


class Timed(KeyedProcessFunction):
    """Obeys its elements, and reports every timer; a timer at a time that ends in 3 sets others."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.log = runtime_context.get_list_state(ListStateDescriptor("log", str))

    def process_element(self, value: Do, ctx: Context) -> Iterable[Any]:
        timers = ctx.timer_service()
        for time in value.event:
            timers.register_event_time_timer(time)
        for time in value.processing:
            timers.register_processing_time_timer(time)
        for time in value.delete:
            timers.delete_event_time_timer(time)
        yield from self._logged(f"{value.key}@{value.at}")
        if value.fail:
            raise RuntimeError("on purpose")

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Any]:
        timers = ctx.timer_service()
        assert ctx.timestamp() == timestamp
        if ctx.time_domain() is EVENT_TIME:
            assert timers.current_watermark() >= timestamp
        yield from self._logged(f"{ctx.get_current_key()}!{ctx.time_domain().name[0]}{timestamp}")
        if timestamp % 10 == 3:
            timers.register_event_time_timer(timestamp - 2)
            timers.register_event_time_timer(timestamp + 5)
            timers.register_processing_time_timer(timestamp // 2)
        if timestamp % 10 == 7:
            raise RuntimeError("on purpose")

    def _logged(self, what: str) -> Iterable[str]:
        self.log.add(what)
        yield f"{what}#{len(self.log.get())}"


def timed(**options: Any) -> KeyedHarness:
    given: dict[str, Any] = {"timestamp_of": lambda do: do.at, "max_out_of_orderness_ms": 0, "clock_ms": 50}
    return KeyedHarness(Timed(), key_by=lambda do: do.key, **(given | options))


def test_a_keys_due_timers_fire_before_its_next_element_and_the_rest_at_the_end() -> None:
    harness = timed()
    outputs = harness.process(
        [Do("a", 0, event=(10, 20, 40)), Do("b", 5, event=(12,)), Do("a", 20), Do("a", 30)]
    )
    # the element at 20 moves the watermark to 19, behind itself
    assert outputs == ["a@0#1", "b@5#1", "a@20#2", "a!E10#3", "b!E12#2", "a@30#4", "a!E20#5"]
    assert harness.state(TIMERS) == {"a": {Timer(40, "event"): True}}
    assert harness.process([Do("c", 40)]) == ["c@40#1"]
    assert harness.process([Do("c", 41)]) == ["c@41#2", "a!E40#6"]
    assert harness.state(TIMERS) == {}


def test_the_watermark_stays_behind_the_elements() -> None:
    harness = timed(max_out_of_orderness_ms=10)
    assert harness.process([Do("a", 0, event=(10,)), Do("a", 20)]) == ["a@0#1", "a@20#2"]
    assert harness.process([Do("a", 21)]) == ["a@21#3", "a!E10#4"]


class Watermarks(KeyedProcessFunction):
    """The watermark before every element and in every timer."""

    def process_element(self, value: Do, ctx: Context) -> Iterable[Any]:
        for time in value.event:
            ctx.timer_service().register_event_time_timer(time)
        assert ctx.current_watermark() == ctx.timer_service().current_watermark()
        yield value.at, ctx.timer_service().current_watermark()

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Any]:
        yield "timer", timestamp, ctx.timer_service().current_watermark()


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("cuts", [set(), {1, 2, 3, 4, 5}, {2, 4}])
def test_an_element_sees_the_watermark_of_all_elements_before_it(parallelism: int, cuts: set[int]) -> None:
    """Elements of other keys and subtasks count, in this batch and before; the last does not move it back."""
    elements = [
        Do("a", 100, event=(100, 120)), Do("b", 90), Do("c", 100), Do("a", 125), Do("d", 110), Do("a", 130),
    ]  # fmt: skip
    harness = KeyedHarness(
        Watermarks(), key_by=lambda do: do.key, timestamp_of=lambda do: do.at, max_out_of_orderness_ms=4,
        parallelism=parallelism,
    )  # fmt: skip
    outputs = [o for batch in batches_of(elements, cuts) for o in harness.process(batch)]
    assert outputs == [
        (100, MIN_TIMESTAMP), (90, 95), (100, 95), (125, 95), ("timer", 100, 100), ("timer", 120, 120),
        (110, 120), (130, 120),
    ]  # fmt: skip


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_a_timer_fires_after_all_elements_of_its_time(at_once: int) -> None:
    """So a ride of exactly two hours raises no alarm, and an element as old as the newest is not late."""
    harness = timed()
    elements = [Do("a", 0, event=(20,)), Do("b", 20), Do("a", 20, delete=(20,))]
    for at in range(0, 3, at_once):
        harness.process(elements[at : at + at_once])
    assert harness.process([Do("b", 50)]) == ["b@50#2"]


def test_without_event_time_only_the_given_watermark_fires() -> None:
    harness = timed(max_out_of_orderness_ms=None)
    assert harness.process([Do("a", 0, event=(10,)), Do("a", 100)]) == ["a@0#1", "a@100#2"]
    assert harness.process([]) == []
    harness.set_watermark(9)
    assert harness.process([]) == []
    harness.set_watermark(10)
    assert harness.process([]) == ["a!E10#3"]


def test_processing_timers_wait_for_the_clock() -> None:
    harness = timed(clock_ms=5)
    assert harness.process([Do("a", 0, processing=(5, 6)), Do("a", 0)]) == ["a@0#1", "a!P5#2", "a@0#3"]
    harness.set_clock(6)
    assert harness.process([]) == ["a!P6#4"]


def test_a_timer_set_twice_is_one_and_a_deleted_one_is_none() -> None:
    harness = timed()
    harness.process([Do("a", 0, event=(10, 10, 20)), Do("a", 1, event=(10,), delete=(20, 99))])
    assert harness.process([Do("b", 30)]) == ["b@30#1", "a!E10#3"]


def test_a_timer_deleted_and_set_again_fires_once() -> None:
    harness = timed()
    harness.process([Do("a", 0, event=(10,)), Do("a", 1, delete=(10,)), Do("a", 2, event=(10,))])
    assert harness.process([Do("b", 30)]) == ["b@30#1", "a!E10#4"]


def test_timers_that_timers_set_fire_in_the_same_batch_where_they_are_due() -> None:
    harness = timed(clock_ms=6)
    outputs = harness.process([Do("a", 0, event=(13,)), Do("b", 19)])
    assert outputs == ["a@0#1", "b@19#1", "a!E13#2", "a!P6#3", "a!E11#4", "a!E18#5"]
    assert harness.state("log")["a"] == ["a@0", "a!E13", "a!P6", "a!E11", "a!E18"]


def test_at_the_end_timers_fire_by_time_and_then_by_the_hash_of_their_key() -> None:
    keys = [f"k{n}" for n in range(20)]
    harness, other = timed(), timed(parallelism=3)
    for h in (harness, other):
        h.process([Do(k, 0, event=(20, 10)) for k in keys])
    fired = harness.process([Do("z", 30)])[1:]
    assert [f.split("!")[1][:3] for f in fired] == ["E10"] * 20 + ["E20"] * 20
    first, second = ([f.split("!")[0] for f in part] for part in (fired[:20], fired[20:]))
    assert first == second != keys
    assert other.process([Do("z", 30)])[1:] == fired


def test_draining_fires_event_time_timers_only() -> None:
    seen: list[tuple[int, int]] = []

    class Renews(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Context) -> None:
            ctx.timer_service().register_event_time_timer(1000)
            ctx.timer_service().register_processing_time_timer(2000)

        def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Any:
            watermark = ctx.timer_service().current_watermark()
            if watermark < MAX_TIMESTAMP:
                ctx.timer_service().register_event_time_timer(timestamp + 1000)
            seen.append((timestamp, watermark))
            return [timestamp]

    harness = KeyedHarness(Renews(), key_by=lambda v: v)
    harness.process([1])
    harness.set_watermark(1000)
    assert harness.process([]) == [1000]
    assert harness.drain() == [2000]
    assert seen == [(1000, 1000), (2000, MAX_TIMESTAMP)]
    assert harness.state(TIMERS) == {1: {Timer(2000, PROCESSING): True}}
    harness.set_clock(2000)
    assert harness.process([]) == [2000]
    assert harness.state(TIMERS) == {1: {Timer(3000, EVENT): True}}  # the watermark stayed where it was


def test_timers_survive_a_restore_at_another_parallelism() -> None:
    harness = timed()
    harness.process([Do(k, 0, event=(10,), processing=(60,)) for k in "abcdef"])
    options = {"key_by": lambda do: do.key, "timestamp_of": lambda do: do.at, "max_out_of_orderness_ms": 0}
    other = KeyedHarness.restored(Timed(), harness.snapshot(), parallelism=4, **options)
    assert other.process([Do("z", 10)]) == harness.process([Do("z", 10)])
    other.set_clock(60)
    assert sorted(o[:4] for o in other.process([])) == [f"{k}!P6" for k in "abcdef"]


def test_a_failing_timer_is_consumed_and_leaves_no_other_trace() -> None:
    class Fails(Timed):
        def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Any]:
            ctx.timer_service().register_event_time_timer(timestamp + 1000)
            ctx.timer_service().delete_event_time_timer(20)
            yield from super().on_timer(timestamp, ctx)

    harness = KeyedHarness(
        Fails(), key_by=lambda d: d.key, timestamp_of=lambda d: d.at, max_out_of_orderness_ms=0, on_error="dead_letter"
    )  # fmt: skip
    outputs = harness.process([Do("a", 0, event=(17, 20)), Do("a", 18)])
    assert outputs == ["a@0#1", "a@18#2"]
    (refused,) = harness.refused
    assert (refused.index, refused.key, refused.place) == (None, "a", "timer at 17 ms (event time)")
    assert refused.error == "timer at 17 ms (event time): RuntimeError: on purpose"
    assert "on_timer" in refused.traceback_text
    assert harness.state(TIMERS) == {"a": {Timer(20, "event"): True}}
    assert harness.state("log") == {"a": ["a@0", "a@18"]}


def test_a_failing_element_takes_its_timers_back_but_not_those_that_fired_before_it() -> None:
    harness = timed(on_error="dead_letter")
    outputs = harness.process(
        [Do("a", 0, event=(10, 50)), Do("b", 20), Do("a", 20, event=(5, 60), delete=(50,), fail=True)]
    )
    assert outputs == ["a@0#1", "b@20#1", "a!E10#2"]
    assert harness.state(TIMERS) == {"a": {Timer(50, "event"): True}}
    assert [r.index for r in harness.refused] == [2]
    assert harness.process([Do("a", 70, event=(5,))]) == ["a@70#3", "a!E5#4", "a!E50#5"]


def test_under_fail_a_failing_timer_ends_the_batch() -> None:
    harness = timed()
    harness.process([Do("a", 0, event=(17,))])
    with pytest.raises(RuntimeError, match="on purpose"):
        harness.process([Do("b", 18)])
    assert harness.state(TIMERS) == {"a": {Timer(17, "event"): True}}


AT_50: dict[str, Any] = {"output": str, "clock_ms": 50}


def test_outputs_know_the_timer_they_came_from() -> None:
    bench, out = Bench(**{TIMERS: {"c": {Timer(40, PROCESSING): True}}}), ElementOutputs()
    operator = bench.operator(Timed(), **AT_50)
    elements = [Do("a", 0, event=(-5, 10)), Do("b", 5), Do("a", 20)]
    before = [MIN_TIMESTAMP, -1, 15]
    operator.process([e.key for e in elements], elements, [e.at for e in elements], out, watermarks=before)
    operator.fire_rest(20, out)
    assert list(zip(out.values, out.origins, strict=True)) == [
        ("a@0#1", 0),
        ("b@5#1", 1),
        ("a!E-5#2", TimerOrigin(IN_TIME, -5, "a")),
        ("a!E10#3", TimerOrigin(IN_TIME, 10, "a")),
        ("a@20#4", 2),
        ("c!P40#1", TimerOrigin(AT_ONCE, 40, "c")),
    ]


def test_a_refused_timer_is_reported_where_it_ends_the_batch() -> None:
    bench, out = Bench(**{TIMERS: {"c": {Timer(47, PROCESSING): True}}}), ElementOutputs()
    operator = bench.operator(Timed(), **AT_50)
    with pytest.raises(ElementRefused, match=r"timer at 47 ms \(processing time\): RuntimeError") as caught:
        operator.fire_rest(0, out)
    assert (caught.value.refusal.index, caught.value.refusal.key) == (None, "c")
    assert caught.value.refusal.timer == Timer(47, PROCESSING)


def test_a_function_without_on_timer_has_no_timers() -> None:
    class Sets(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Context) -> None:
            ctx.timer_service().register_event_time_timer(value)
            ctx.timer_service().delete_processing_time_timer(value)

    bench, out = Bench(), ElementOutputs()
    operator = bench.operator(Sets(), **AT_50)
    operator.process(["a"], [5], [None], out)
    operator.fire_rest(MAX_TIMESTAMP, out, drain=True)
    assert TIMERS not in bench.store.tables
    assert out.values == []


@pytest.mark.parametrize("time", [1.5, "1", True, None, 2**63])
def test_a_time_that_is_none_is_refused(time: Any) -> None:
    class Sets(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Context) -> None:
            ctx.timer_service().register_processing_time_timer(value)

    with pytest.raises(ValueTypeError, match="register_processing_time_timer takes a time in whole"):
        KeyedHarness(Sets(), key_by=lambda v: 1).process([time])


def test_timers_need_a_key() -> None:
    class Keeps(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Context) -> Any:
            kept.append(ctx.timer_service())

    kept: list[TimerService] = []
    KeyedHarness(Keeps(), key_by=lambda v: v).process([1])
    with pytest.raises(StateAccessError, match="register_event_time_timer was called without a current key"):
        kept[0].register_event_time_timer(1)


times = st.integers(0, 120)
dos = st.builds(
    Do,
    key=st.sampled_from("abcd"),
    at=st.integers(0, 100),
    event=st.lists(times, max_size=2).map(tuple),
    processing=st.lists(times, max_size=1).map(tuple),
    delete=st.lists(times, max_size=1).map(tuple),
    fail=st.sampled_from([False, False, False, True]),
)


def batches_of(elements: list[Do], cuts: set[int]) -> list[list[Do]]:
    ends = sorted(c for c in cuts if 0 < c < len(elements))
    return [elements[a:b] for a, b in zip([0, *ends], [*ends, len(elements)], strict=True)]


def results(elements: list[Do], cuts: set[int], *, delay: int, parallelism: int, restore: bool) -> Any:
    options: dict[str, Any] = {
        "key_by": lambda do: do.key,
        "timestamp_of": lambda do: do.at,
        "max_out_of_orderness_ms": delay,
        "on_error": "dead_letter",
        "parallelism": parallelism,
    }
    harness, outputs, refused = KeyedHarness(Timed(), clock_ms=50, **options), [], []
    for batch in batches_of(elements, cuts):
        outputs += harness.process(batch)
        refused += harness.refused
        if restore:
            harness = KeyedHarness.restored(Timed(), harness.snapshot(), **options)
        harness.refused = []
    harness.set_clock(90)
    outputs += harness.process([])
    outputs += harness.drain()
    refused += harness.refused
    return outputs, harness.state("log"), harness.state(TIMERS), sorted((r.key, r.error) for r in refused)


@given(
    st.lists(dos, min_size=1, max_size=12),
    st.sets(st.integers(1, 11)),
    st.sampled_from([0, 7]),
    st.sampled_from([1, 4]),
    st.booleans(),
)
def test_no_cut_into_batches_changes_anything(
    elements: list[Do], cuts: set[int], delay: int, parallelism: int, restore: bool
) -> None:
    whole = results(elements, set(), delay=delay, parallelism=1, restore=False)
    assert results(elements, set(range(12)), delay=delay, parallelism=1, restore=False) == whole
    assert results(elements, cuts, delay=delay, parallelism=parallelism, restore=restore) == whole


def test_event_time_to_live_goes_by_the_timer() -> None:
    class Expires(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            descriptor = ValueStateDescriptor("seen", int)
            config = StateTtlConfig.new_builder(Time.milliseconds(100)).disable_cleanup_in_background()
            descriptor.enable_time_to_live(
                config.set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.EventTime).build()
            )
            self.seen = runtime_context.get_state(descriptor)

        def process_element(self, value: Any, ctx: Context) -> None:
            self.seen.update(value)
            ctx.timer_service().register_event_time_timer(value + 99)
            ctx.timer_service().register_event_time_timer(value + 100)

        def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Any:
            return [(timestamp, self.seen.value())]

    options: dict[str, Any] = {"timestamp_of": lambda v: v, "max_out_of_orderness_ms": 0}
    harness = KeyedHarness(Expires(), key_by=lambda v: v, **options)
    assert harness.process([5, 200]) == [(104, 5), (105, None)]
    apart = KeyedHarness(Expires(), key_by=lambda v: v, **options)
    assert apart.process([5]) + apart.process([200]) == [(104, 5), (105, None)]
