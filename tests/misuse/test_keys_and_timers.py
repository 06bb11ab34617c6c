"""Invalid keys, timers and times to live, and rows without event time: the class of each error, and its remedy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from state_engine import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessFunction,
    RuntimeContext,
    SortedMapStateDescriptor,
    StatefulJob,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
)
from state_engine.core.errors import (
    ConfigurationError,
    InvalidKeyError,
    InvalidNameError,
    StateAccessError,
    ValueTypeError,
)
from state_engine.core.keys.key_groups import assign_to_key_group
from state_engine.errors import UserFunctionError
from state_engine.testing import CollectSink, KeyedHarness, OperatorHarness, run_in_memory

NO_KEYS = [
    (None, "A key is None. Filter such elements out, or give them a key of their own"),
    (math.nan, "A key is NaN, which equals nothing. Filter such elements out"),
    (("a", math.nan), "A key is NaN, which equals nothing. Filter such elements out"),
    ([1], "A value of type list cannot be a key: .* A key can be an int, float"),
    ({"a": 1}, "A value of type dict cannot be a key: .* A key can be an int, float"),
    (2**63, "does not fit into 64 bits. Use a string or a Decimal"),
]


class Seen(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self.seen.update(1)


@pytest.mark.parametrize(("key", "message"), NO_KEYS)
def test_what_cannot_be_a_key_is_refused_before_anything_is_kept(key: Any, message: str) -> None:
    with pytest.raises(InvalidKeyError, match=message):
        assign_to_key_group(key, 128)
    harness = KeyedHarness(Seen(), key_by=lambda value: value)
    harness.process([1])
    with pytest.raises(InvalidKeyError, match=message):
        harness.process([2, key])
    assert harness.state("seen") == {1: 1}


def test_a_null_in_a_composite_key_is_a_key() -> None:
    harness = KeyedHarness(Seen(), key_by=lambda value: value)
    harness.process([(None, 1), (1, None), (1, 1)])
    assert harness.state("seen") == {(None, 1): 1, (1, None): 1, (1, 1): 1}


@pytest.mark.parametrize("kind", [list[int], dict[str, int]])
def test_a_type_that_cannot_be_a_key_is_no_key_of_a_map(kind: Any) -> None:
    for descriptor in (MapStateDescriptor, SortedMapStateDescriptor):
        with pytest.raises(InvalidKeyError, match=r"key_type_info of state 's': .*cannot be a key"):
            descriptor("s", kind, int)


def test_a_parallelism_above_the_number_of_key_groups_is_refused() -> None:
    with pytest.raises(
        ConfigurationError, match=r"parallelism 9 is greater than max parallelism 8.*Lower the parallelism"
    ):
        KeyedHarness(Seen(), key_by=lambda value: value, parallelism=9, max_parallelism=8)
    harness = KeyedHarness(Seen(), key_by=lambda value: value, parallelism=8, max_parallelism=8)
    harness.process([1])
    with pytest.raises(ConfigurationError, match="parallelism 9 is greater than max parallelism 8"):
        KeyedHarness.restored(
            Seen(), harness.snapshot(), key_by=lambda value: value, parallelism=9, max_parallelism=8
        )


TIMERS = [
    f"{what}_{domain}_time_timer" for what in ("register", "delete") for domain in ("event", "processing")
]


class TimersWithoutKeys(ProcessFunction):
    def process_element(self, value: str, ctx: ProcessFunction.Context) -> None:
        getattr(ctx.timer_service(), value)(5)


@pytest.mark.parametrize("method", TIMERS)
def test_timers_without_a_key_are_refused(method: str) -> None:
    shown = (
        f"{method} was called without a current key: timers exist only inside process_element and on_timer"
    )
    with pytest.raises(StateAccessError, match=f"{shown}.*use key_by first, and not open or close"):
        OperatorHarness(TimersWithoutKeys()).process([method])


@pytest.mark.parametrize("time", [1.5, "12:00", None, 2**63])
@pytest.mark.parametrize("method", TIMERS)
def test_a_time_that_is_none_is_refused(method: str, time: Any) -> None:
    class Sets(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
            getattr(ctx.timer_service(), method)(time)

    with pytest.raises(
        ValueTypeError, match=f"{method} takes a time in whole milliseconds.*cut a fraction with int"
    ):
        KeyedHarness(Sets(), key_by=lambda value: value).process(["a"])


class Reminds(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(5)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield ctx.get_current_key(), timestamp


def test_an_event_time_timer_without_event_time_is_kept_until_the_input_ends() -> None:
    """As in Flink: no watermark comes before the last one, so this is allowed, and it is reported nowhere."""
    harness = KeyedHarness(Reminds(), key_by=lambda value: value, clock_ms=10**15)
    assert harness.process(["a"]) == []
    assert harness.process([]) == []
    assert harness.drain() == [("a", 5)]


class ExpiresByEventTime(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        descriptor = ValueStateDescriptor("last", int)
        by_event_time = StateTtlConfig.TtlTimeCharacteristic.EventTime
        ttl = StateTtlConfig.new_builder(Time.seconds(1)).set_ttl_time_characteristic(by_event_time).build()
        descriptor.enable_time_to_live(ttl)
        self.last = runtime_context.get_state(descriptor)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self.last.update(1)


def test_a_time_to_live_that_cannot_be_is_refused() -> None:
    with pytest.raises(
        StateAccessError,
        match=r"state 'last' expires by event time.*give source\(event_time=.*or.*processing time",
    ):
        KeyedHarness(ExpiresByEventTime(), key_by=lambda value: value).process(["a"])
    for time in (Time.seconds(0), Time.milliseconds(-1)):
        with pytest.raises(ConfigurationError, match="a time to live must be longer than nothing, not"):
            StateTtlConfig.new_builder(time).build()
    with pytest.raises(ConfigurationError, match="cleanup_size must be at least 1, not 0"):
        StateTtlConfig.new_builder(Time.seconds(1)).cleanup_incrementally(0, False)
    with pytest.raises(
        ConfigurationError, match=r"state 'last': enable_time_to_live takes a StateTtlConfig.*make one with"
    ):
        ValueStateDescriptor("last", int).enable_time_to_live(Time.seconds(1))  # type: ignore[arg-type]


def test_a_state_without_a_good_name_or_type_is_refused() -> None:
    for name in ("", "x" * 256, "\ud800"):
        with pytest.raises(InvalidNameError, match="cannot name a state: use a text of 1 to 255 characters"):
            ValueStateDescriptor(name, int)
    with pytest.raises(
        ConfigurationError, match="value_type_info of state 'last' is missing: declare a type"
    ):
        ValueStateDescriptor("last", None)
    with pytest.raises(
        ConfigurationError, match=r"value_type_info of state 'last': .* is not a supported type; use"
    ):
        ValueStateDescriptor("last", object)
    with pytest.raises(
        ConfigurationError, match=r"PICKLED_BYTE_ARRAY is off.*Types.PICKLED_BYTE_ARRAY\(allow_pickle=True\)"
    ):
        ValueStateDescriptor("last", Types.PICKLED_BYTE_ARRAY())


ROWS = [("a", datetime(2026, 1, 1, tzinfo=UTC)), ("a", None)]
REMEDY = (
    "this row has no event time (its column 'at' is null), so ctx.timestamp() is None: put the time into the input, "
    "leave such rows out before key_by, or let the function say what None means"
)
Use = Callable[["ByTime", Any], object]
USES: dict[str, Use] = {
    "key of a map": lambda f, ctx: f.by_time.put(ctx.timestamp(), 1),
    "element of a list": lambda f, ctx: f.times.add(ctx.timestamp()),
    "timer": lambda f, ctx: ctx.timer_service().register_event_time_timer(ctx.timestamp()),
    "arithmetic": lambda f, ctx: ctx.timestamp() - 1,
    "comparison": lambda f, ctx: ctx.timestamp() > 0,
}


class ByTime(KeyedProcessFunction):
    by_time: Any
    times: Any

    def __init__(self, use: Use) -> None:
        self.use = use

    def open(self, runtime_context: RuntimeContext) -> None:
        self.by_time = runtime_context.get_map_state(MapStateDescriptor("by_time", int, int))
        self.times = runtime_context.get_list_state(ListStateDescriptor("times", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.use(self, ctx)
        yield value.k


def job(use: Use, **options: Any) -> StatefulJob:
    job = StatefulJob("visits", **options)
    rows = job.from_collection(ROWS, "k string, at timestamp", name="rows", event_time="at")
    rows.key_by("k").process(ByTime(use), uid="by_time", output_type="string").sink("out", CollectSink())
    return job


@pytest.mark.parametrize("use", USES)
def test_the_error_names_the_column_and_what_to_do(use: str) -> None:
    with run_in_memory(job(USES[use])) as run, pytest.raises(UserFunctionError) as raised:
        run.run()
    text = str(raised.value)
    assert """job 'visits', operator 'by_time', key {"k": "a"}, at source 'rows'""" in text
    assert REMEDY in text
    assert '(row {"k": "a", "at": null})' in text


@pytest.mark.parametrize("use", USES)
def test_a_letter_says_the_same(use: str) -> None:
    with run_in_memory(job(USES[use], on_error="dead_letter")) as run:
        run.run()
        assert run.sink("out") == ["a"]
        (letter,) = run.dead_letters()
        assert letter["error"].endswith(REMEDY)


def test_an_error_of_a_row_with_event_time_says_nothing_of_it() -> None:
    def fails(function: ByTime, ctx: Any) -> None:
        raise ValueError("None of it")

    with run_in_memory(job(fails)) as run, pytest.raises(UserFunctionError) as raised:
        run.run()
    assert "has no event time" not in str(raised.value)
