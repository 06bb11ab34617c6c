"""Clean-up of expired items that are not read: a few entries per access or per record, and in full snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from state_engine.core.functions.every_function import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from state_engine.core.state.ttl import Stamped, StateTtlConfig
from state_engine.core.state.ttl_rule import without_expired
from state_engine.core.types.durations import Time
from state_engine.testing import KeyedHarness
from tests.core.state.steps import Steps, ttl, with_ttl


def incremental(size: int, *, every_record: bool = False) -> StateTtlConfig:
    return ttl(build=lambda b: b.disable_cleanup_in_background().cleanup_incrementally(size, every_record))


def values(config: StateTtlConfig, keys: int) -> Steps:
    """A value per key, written at 0."""
    steps = Steps(with_ttl(ValueStateDescriptor("s", int), config), restoring=False)
    for key in range(keys):
        steps.at(0, lambda s: s.update(1), key=key)
    return steps


def left(steps: Steps) -> list[Any]:
    steps.open()
    return sorted(steps._session[0].tables["s"].entries)  # type: ignore[index]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_access_looks_at_so_many_entries(size: int) -> None:
    steps = values(incremental(size), 10)
    steps.checkpoint()
    for accesses in range(1, 4):
        steps.at(100, lambda s: s.value(), key="another")
        assert left(steps) == list(range(size * accesses, 10))


def test_by_default_five_entries_an_access() -> None:
    steps = values(ttl(build=lambda b: b), 12)
    steps.checkpoint()
    steps.at(100, lambda s: s.value(), key="another")
    assert left(steps) == list(range(5, 12))


def test_no_clean_up_in_the_background_where_it_is_off() -> None:
    steps = values(ttl(), 3)
    for _ in range(5):
        steps.at(10**6, lambda s: s.value(), key="another")
    assert left(steps) == [0, 1, 2]
    assert steps.physical(0) == Stamped(1, 0)


def test_what_lives_stays_and_the_round_starts_again() -> None:
    steps = values(incremental(2), 4)
    steps.at(50, lambda s: s.update(2), key=1)
    steps.checkpoint()
    for _ in range(2):
        steps.at(120, lambda s: s.value(), key="another")
    assert left(steps) == [1]
    steps.at(149, lambda s: s.value(), key="another")
    assert left(steps) == [1]
    steps.at(150, lambda s: s.value(), key="another")
    assert left(steps) == []


def test_records_clean_up_only_where_asked() -> None:
    for every_record, expected in ((True, [2, 3]), (False, [0, 1, 2, 3])):
        steps = values(incremental(1, every_record=every_record), 4)
        steps.checkpoint()
        steps.at(100, key="another")
        steps.at(100, key="another")
        assert left(steps) == expected


def test_a_clean_up_looks_into_lists_and_maps() -> None:
    descriptors = [ListStateDescriptor("elements", int), MapStateDescriptor("entries", str, int)]
    steps = Steps(*[with_ttl(d, incremental(5)) for d in descriptors])
    steps.at(0, lambda elements, entries: (elements.add(1), entries.put("a", 1)), key=1)
    steps.at(50, lambda elements, entries: (elements.add(2), entries.put("b", 2)), key=1)
    steps.at(120, lambda elements, entries: (elements.get(), entries.get("x")), key=2)
    assert steps.stored["elements"] == {1: [Stamped(2, 50)]}
    assert steps.stored["entries"] == {1: {"b": Stamped(2, 50)}}
    steps.at(150, lambda elements, entries: (elements.get(), entries.get("x")), key=2)
    assert steps.stored == {"elements": {}, "entries": {}}


def test_the_current_key_is_not_cleaned_up_under_its_own_read() -> None:
    config = ttl(shows_expired=True, build=lambda b: b.cleanup_incrementally(10, True))
    steps = values(config, 3)
    assert steps.at(120, lambda s: s.value(), key=0) == 1
    assert steps.at(120, lambda s: s.value(), key=0) is None


class Writer(KeyedProcessFunction):
    """Element (key, what to do): write, nothing at all, or raise after an access."""

    def __init__(self, config: StateTtlConfig) -> None:
        self.config = config

    def open(self, runtime_context: RuntimeContext) -> None:
        self.state = runtime_context.get_state(with_ttl(ValueStateDescriptor("s", int), self.config))

    def process_element(self, value: tuple[str, str], ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        if value[1] == "write":
            self.state.update(1)
        elif value[1] == "raise":
            self.state.value()
            raise ValueError("on purpose")
        return []


def harness(config: StateTtlConfig) -> KeyedHarness:
    return KeyedHarness(Writer(config), key_by=lambda e: e[0], on_error="dead_letter")


def test_a_refused_element_takes_its_clean_up_back() -> None:
    subject = harness(incremental(5))
    subject.process([("a", "write")])
    subject.set_clock(100)
    subject.process([("b", "raise"), ("a", "nothing")])
    assert subject.state("s") == {"a": 1}


def test_a_refused_element_does_not_take_the_clean_up_of_the_one_before_back() -> None:
    steps = values(incremental(1, every_record=True), 1)
    steps.checkpoint()
    steps.open()
    steps.context.undo = []
    steps.at(100, key="another")
    steps.context.roll_back()
    assert left(steps) == []


def test_full_snapshots_leave_out_what_has_expired_and_the_running_state_keeps_it() -> None:
    off = StateTtlConfig.Builder.disable_cleanup_in_background
    builds: list[tuple[Callable[[Any], Any], dict[str, int]]] = [
        (lambda b: off(b).cleanup_full_snapshot(), {"b": 1}),
        (off, {"a": 1, "b": 1}),
    ]
    for build, expected in builds:
        config = ttl(build=build)
        subject = harness(config)
        subject.process([("a", "write")])
        subject.set_clock(60)
        subject.process([("b", "write")])
        subject.set_clock(100)
        restored = KeyedHarness.restored(Writer(config), subject.snapshot(), key_by=lambda e: e[0])
        assert restored.state("s") == expected
        assert subject.state("s") == {"a": 1, "b": 1}


OLD, NEW, TIMELESS = Stamped(1, 0), Stamped(2, 50), Stamped(3, None)
SHAPES: list[tuple[Callable[[], Any], Any, Any]] = [
    (lambda: ValueStateDescriptor("s", int), {1: OLD, 2: NEW, 3: TIMELESS}, {2: NEW, 3: TIMELESS}),
    (lambda: ListStateDescriptor("s", int), {1: [OLD], 2: [OLD, NEW, TIMELESS]}, {2: [NEW, TIMELESS]}),
    (
        lambda: MapStateDescriptor("s", str, int),
        {1: {"a": OLD}, 2: {"a": OLD, "b": NEW, "c": TIMELESS}},
        {2: {"b": NEW, "c": TIMELESS}},
    ),
]


@pytest.mark.parametrize(("make", "stored", "kept"), SHAPES)
@pytest.mark.parametrize("event_time", [False, True])
def test_without_expired(make: Callable[[], Any], stored: Any, kept: Any, event_time: bool) -> None:
    descriptor = with_ttl(make(), ttl(event_time=event_time))
    clocks: dict[str, Any] = {"clock_ms": 120, "watermark_ms": 0}
    if event_time:
        clocks = {"clock_ms": 10**9, "watermark_ms": 120}
    assert without_expired(descriptor, stored, **clocks) == kept


def test_without_a_time_to_live_or_a_watermark_nothing_has_expired() -> None:
    assert without_expired(ValueStateDescriptor("s", int), {1: 5}, clock_ms=10**9, watermark_ms=None) == {
        1: 5
    }
    by_event = with_ttl(ValueStateDescriptor("s", int), ttl(event_time=True))
    assert without_expired(by_event, {1: OLD}, clock_ms=10**9, watermark_ms=None) == {1: OLD}


def test_what_a_checkpoint_records_of_a_configuration() -> None:
    config = StateTtlConfig.new_builder(Time.hours(1)).update_ttl_on_read_and_write().use_event_time().build()
    assert config.to_json() == (
        '{"ttl_ms": 3600000, "update_type": "OnReadAndWrite", "visibility": "NeverReturnExpired", "time": "EventTime", '
        '"full_snapshot": false, "compaction": true}'
    )
