"""Time to live: when an item expires; what states with expiring items do is for ``test_state_models``."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.state.descriptors import ValueStateDescriptor
from state_engine.core.state.ttl import Stamped, cleaned_until_us, expired, horizon
from tests.core.state.steps import Steps, ttl, with_ttl

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
