"""Time to live: each update type and visibility, on every state, with and without a restore between the steps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    SortedMapStateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.state.ttl import Stamped, StateTtlConfig, cleaned_until_us, expired, horizon
from state_engine.core.types.durations import Time
from tests.core.state.steps import Steps, ttl, with_ttl
from tests.core.state.ttl_kinds import BOTH, CLOCKS, EVERY_KIND, KINDS, Kind, Life


@EVERY_KIND
@BOTH
@CLOCKS
def test_written_items_live_from_their_last_write(kind: Kind, restoring: bool, event_time: bool) -> None:
    life = Life(kind, restoring, ttl(event_time=event_time), event_time)
    life.write(0, 1)
    assert life.shows(20, 1)
    life.write(50, 2)
    assert life.shows(120, 2)
    life.write(170, 3)
    assert life.shows(220, 3)
    assert life.steps.physical() is not None
    assert life.read(300) is None
    assert life.steps.physical() is None


@EVERY_KIND
@BOTH
def test_expired_items_that_are_still_there_are_returned_once(kind: Kind, restoring: bool) -> None:
    life = Life(kind, restoring, ttl(shows_expired=True))
    life.write(0, 1)
    assert life.shows(120, 1)
    assert life.read(120) is None
    assert life.steps.physical() is None


@EVERY_KIND
@BOTH
@CLOCKS
def test_reading_renews_where_it_is_reported_to(kind: Kind, restoring: bool, event_time: bool) -> None:
    life = Life(kind, restoring, ttl(on_read=True, event_time=event_time), event_time)
    life.write(0, 1)
    assert life.shows(50, 1)
    assert life.shows(120, 1)
    assert life.read(250) is None


@EVERY_KIND
@BOTH
def test_reading_renews_and_expired_items_are_returned_once(kind: Kind, restoring: bool) -> None:
    life = Life(kind, restoring, ttl(on_read=True, shows_expired=True))
    life.write(0, 1)
    assert life.shows(90, 1)
    assert life.shows(180, 1)
    assert life.shows(280, 1)
    assert life.read(280) is None


@EVERY_KIND
@BOTH
def test_an_item_expires_when_its_time_is_over_and_not_before(kind: Kind, restoring: bool) -> None:
    for now, alive in ((99, True), (100, False)):
        life = Life(kind, restoring, ttl())
        life.write(0, 1)
        assert life.shows(now, 1) is alive


@EVERY_KIND
@BOTH
def test_the_sum_of_time_and_ttl_does_not_overflow(kind: Kind, restoring: bool) -> None:
    life = Life(kind, restoring, ttl(ttl_ms=2**63 - 1))
    life.write(10, 1)
    assert life.shows(50, 1)


LONGS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1])


@given(at_ms=LONGS, ttl_ms=st.integers(1, 2**63 - 1), now_ms=LONGS)
def test_the_horizon_is_the_rule_of_flink(at_ms: int, ttl_ms: int, now_ms: int) -> None:
    """``TtlUtils.expired``: the sum of time and time to live, which stays a long, is not after now."""
    expires_ms = min(at_ms + ttl_ms, 2**63 - 1)
    assert expired(Stamped("a", at_ms), horizon(now_ms, ttl_ms)) == (expires_ms <= now_ms)


@given(at_ms=st.integers(-(2**53), 2**53), ttl_ms=st.integers(1, 2**63 - 1), now_ms=st.none() | LONGS)
def test_a_base_leaves_out_what_has_expired(at_ms: int, ttl_ms: int, now_ms: int | None) -> None:
    recorded = ttl(ttl_ms=ttl_ms, event_time=True).to_json()
    until_us = cleaned_until_us(recorded, clock_ms=0, watermark_ms=now_ms, full_snapshot=True)
    left_out = until_us is not None and at_ms * 1000 <= until_us
    assert left_out == expired(Stamped("a", at_ms), horizon(now_ms, ttl_ms))


@EVERY_KIND
@BOTH
def test_a_disabled_configuration_stores_no_time_and_never_expires(kind: Kind, restoring: bool) -> None:
    builder = StateTtlConfig.new_builder(Time.milliseconds(100))
    config = builder.set_update_type(StateTtlConfig.UpdateType.Disabled).build()
    assert not config.is_enabled()
    life = Life(kind, restoring, config)
    life.write(0, 1)
    assert life.shows(10**15, 1)
    assert "Stamped" not in repr(life.steps.physical())


@BOTH
def test_list_elements_expire_apart(restoring: bool) -> None:
    steps = Steps(with_ttl(ListStateDescriptor("s", int), ttl()), restoring=restoring)
    steps.at(0, lambda s: s.add_all([5, 7, 10]))
    assert steps.at(20, lambda s: s.get()) == [5, 7, 10]
    steps.at(50, lambda s: s.add_all([8, 9, 11]))
    assert steps.at(120, lambda s: s.get()) == [8, 9, 11]
    assert steps.physical() == [Stamped(8, 50), Stamped(9, 50), Stamped(11, 50)]
    steps.at(170, lambda s: s.add_all([1, 4]))
    assert steps.at(220, lambda s: s.get()) == [1, 4]
    assert steps.at(270, list) == []
    assert steps.physical() is None


@BOTH
def test_expired_list_elements_are_shown_until_all_have_expired(restoring: bool) -> None:
    steps = Steps(with_ttl(ListStateDescriptor("s", int), ttl(shows_expired=True)), restoring=restoring)
    steps.at(0, lambda s: s.add(5))
    steps.at(50, lambda s: s.add(8))
    assert steps.at(120, lambda s: s.get()) == [5, 8]
    assert steps.at(160, lambda s: s.get()) == [5, 8]
    assert steps.at(160, lambda s: s.get()) == []


@BOTH
def test_reducing_keeps_what_has_not_expired(restoring: bool) -> None:
    steps = Steps(with_ttl(KINDS["reducing"].make(), ttl()), restoring=restoring)
    steps.at(0, lambda s: s.add(5))
    steps.at(50, lambda s: s.add(7))
    assert steps.at(120, lambda s: s.get()) == 12
    steps.at(170, lambda s: s.add(6))
    assert steps.at(220, lambda s: s.get()) == 6


@pytest.mark.parametrize("kind", ["reducing", "aggregating", "folding"])
@BOTH
def test_adding_to_an_expired_value(kind: str, restoring: bool) -> None:
    for shows_expired, total in ((False, 6), (True, 18)):
        config = ttl(shows_expired=shows_expired)
        steps = Steps(with_ttl(KINDS[kind].make(), config), restoring=restoring)
        steps.at(0, lambda s: s.add(12))
        steps.at(170, lambda s: s.add(6))
        assert steps.at(180, lambda s: s.get()) == total


@pytest.mark.parametrize("make", [MapStateDescriptor, SortedMapStateDescriptor])
@BOTH
def test_map_entries_expire_apart(make: Any, restoring: bool) -> None:
    steps = Steps(with_ttl(make("s", int, int), ttl()), restoring=restoring)
    steps.at(0, lambda s: s.put_all({1: 10, 2: None}))
    steps.at(50, lambda s: s.put(3, 30))
    assert steps.at(60, lambda s: s.items()) == [(1, 10), (2, None), (3, 30)]
    assert steps.at(60, lambda s: (2 in s, s.get(2))) == (True, None)
    assert steps.at(120, lambda s: (s.get(1), 2 in s, 3 in s, s.is_empty())) == (None, False, True, False)
    assert steps.at(120, lambda s: s.keys()) == [3]
    assert steps.at(150, lambda s: s.is_empty()) is True
    assert steps.at(150, lambda s: s.values()) == []
    assert steps.physical() is None


@BOTH
def test_the_ends_of_a_sorted_map_have_not_expired(restoring: bool) -> None:
    steps = Steps(with_ttl(SortedMapStateDescriptor("s", int, int), ttl()), restoring=restoring)
    steps.at(0, lambda s: s.put_all({-5: 0, 9: 0}))
    steps.at(50, lambda s: s.put_all({-1: 1, 3: 1}))
    assert steps.at(99, lambda s: (s.first_entry(), s.last_entry())) == ((-5, 0), (9, 0))
    assert steps.at(100, lambda s: (s.first_entry(), s.last_entry())) == ((-1, 1), (3, 1))
    assert steps.at(120, lambda s: s.head_items(3)) == [(-1, 1)]
    assert steps.at(120, lambda s: s.tail_items(3)) == [(3, 1)]
    assert steps.at(120, lambda s: s.sub_items(-9, 9)) == [(-1, 1), (3, 1)]
    assert steps.at(150, lambda s: (s.first_entry(), s.last_entry())) == (None, None)


def test_an_expired_value_gives_the_default() -> None:
    steps = Steps(with_ttl(ValueStateDescriptor("s", list[int], default=[0]), ttl()))
    steps.at(0, lambda s: s.update([1]))
    steps.at(100, lambda s: s.value().append(5))
    assert steps.at(100, lambda s: s.value()) == [0]


def test_what_was_read_or_written_is_a_copy() -> None:
    steps, written = (
        Steps(with_ttl(ValueStateDescriptor("s", list[int]), ttl(on_read=True)), restoring=False),
        [1],
    )
    steps.at(0, lambda s: s.update(written))
    written.append(2)
    steps.at(0, lambda s: s.value()).append(3)
    assert steps.at(0, lambda s: s.value()) == [1]


@pytest.mark.parametrize("cleaned_up", [False, True])
def test_an_entry_that_is_put_anew_comes_last_whether_it_was_cleaned_up_or_not(cleaned_up: bool) -> None:
    """Where an expired entry is dropped depends on clean-up and compaction, which must not show in the order."""
    steps = Steps(with_ttl(MapStateDescriptor("m", str, int), ttl()), restoring=False)
    steps.at(0, lambda m: m.put("first", 1))
    steps.at(90, lambda m: m.put("second", 1))
    if cleaned_up:
        steps.at(120, lambda m: m.get("first"))
    steps.at(130, lambda m: m.put("first", 2))
    assert steps.at(130, lambda m: m.keys()) == ["second", "first"]
