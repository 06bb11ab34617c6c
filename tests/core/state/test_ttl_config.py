"""Time to live by event time, and its configuration."""

from __future__ import annotations

import math
from typing import Any

import pytest

from state_engine.core.errors import ConfigurationError, StateAccessError
from state_engine.core.state.descriptors import ValueStateDescriptor
from state_engine.core.state.ttl import Stamped, StateTtlConfig
from state_engine.core.state.ttl_cleanup import TtlCleanup
from state_engine.core.types.durations import Duration, Time
from tests.core.state.models import KINDS
from tests.core.state.steps import Steps, ttl, with_ttl


def test_event_time_is_never_less_than_the_watermark() -> None:
    steps = Steps(with_ttl(ValueStateDescriptor("s", int), ttl(event_time=True)), event_time=True)
    steps.at(10, lambda s: s.update(1), watermark=40)
    assert steps.at(10, lambda s: s.value(), watermark=139) == 1
    assert steps.at(10, lambda s: s.value(), watermark=140) is None


def test_before_event_time_is_known_nothing_expires() -> None:
    steps = Steps(with_ttl(ValueStateDescriptor("s", int), ttl(event_time=True)), event_time=True)
    steps.at(None, lambda s: s.update(1))  # type: ignore[arg-type]
    assert steps.physical() == Stamped(1, None)
    assert steps.at(10**12, lambda s: s.value()) == 1


def test_event_time_needs_a_source_with_event_time() -> None:
    steps = Steps(with_ttl(ValueStateDescriptor("s", int), ttl(event_time=True)))
    with pytest.raises(StateAccessError, match=r"'s' expires by event time.*source\(event_time="):
        steps.at(0, lambda s: s.update(1))


def test_the_configuration_is_as_built() -> None:
    config = (
        StateTtlConfig.new_builder(Time.seconds(1))
        .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
        .set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)
        .set_ttl_time_characteristic(StateTtlConfig.TtlTimeCharacteristic.ProcessingTime)
        .set_ttl(Time.milliseconds(10_000))
        .cleanup_full_snapshot()
        .cleanup_incrementally(10, True)
        .cleanup_in_rocksdb_compact_filter(1000, Duration.of_days(2))
        .disable_cleanup_in_background()
        .build()
    )
    assert config.get_update_type() is StateTtlConfig.UpdateType.OnReadAndWrite
    assert config.get_state_visibility() is StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp
    assert config.get_ttl_time_characteristic() is StateTtlConfig.TtlTimeCharacteristic.ProcessingTime
    assert config.get_ttl() == Time.milliseconds(10_000)
    cleanup = config.get_cleanup_strategies()
    assert not cleanup.is_cleanup_in_background()
    assert cleanup.in_full_snapshot()
    incremental = cleanup.get_incremental_cleanup_strategy()
    assert incremental is not None
    assert (incremental.get_cleanup_size(), incremental.run_cleanup_for_every_record()) == (10, True)
    filtered = cleanup.get_rocksdb_compact_filter_cleanup_strategy()
    assert filtered is not None
    assert filtered.get_query_time_after_num_entries() == 1000
    assert filtered.get_periodic_compaction_time() == Duration.of_days(2)


def test_cleanup_strategies_by_default() -> None:
    plain = StateTtlConfig.new_builder(Time.hours(1)).build().get_cleanup_strategies()
    incremental, filtered = (
        plain.get_incremental_cleanup_strategy(),
        plain.get_rocksdb_compact_filter_cleanup_strategy(),
    )
    assert incremental is not None
    assert filtered is not None
    assert (incremental.get_cleanup_size(), incremental.run_cleanup_for_every_record()) == (5, False)
    assert filtered.get_query_time_after_num_entries() == 1000
    assert filtered.get_periodic_compaction_time() == Duration.of_days(30)
    assert plain.is_cleanup_in_background()
    assert not plain.in_full_snapshot()
    off = ttl().get_cleanup_strategies()
    assert off.get_incremental_cleanup_strategy() is None
    assert off.get_rocksdb_compact_filter_cleanup_strategy() is None


@pytest.mark.parametrize("span", [Time.milliseconds(0), Time.seconds(-1)])
def test_a_time_to_live_is_longer_than_nothing(span: Time) -> None:
    with pytest.raises(ConfigurationError, match="a time to live must be longer than nothing"):
        StateTtlConfig.new_builder(span).build()


@pytest.mark.parametrize("size", [0, -1])
def test_a_clean_up_looks_at_something(size: int) -> None:
    with pytest.raises(ConfigurationError, match=f"cleanup_size must be at least 1, not {size}"):
        TtlCleanup.IncrementalCleanupStrategy(size, False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [None, 100, Time.hours(1), math.inf])
def test_only_a_configuration_enables_ttl(kind: str, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="state 's': enable_time_to_live takes a StateTtlConfig"):
        KINDS[kind].make().enable_time_to_live(wrong)
