"""Which checkpoint a query reads, and which of its entries it returns."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.checkpoints.time_travel import (
    DeclaredState,
    Expiry,
    declared_state,
    expiry_of,
    moment,
    path_as_of,
    why_missing,
)
from state_engine.core.errors import ConfigurationError, MissingFilesError
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.state.ttl import Stamped, StateTtlConfig, TtlTime, expired, horizon
from state_engine.core.types.durations import Time
from tests.core.checkpoints.rows import checkpoint, operator, tree

START = datetime(2013, 1, 1, tzinfo=UTC)


def at(minutes: int) -> datetime:
    return START + timedelta(minutes=minutes)


# 1 ← 2 ← 3 was left by a restore to 1: 1 ← 4 ← 5; 6 is on a branch
ROWS = {
    i: checkpoint(i, parent, created_at=at(i), branch=branch)
    for i, parent, branch in (
        (1, None, "main"), (2, 1, "main"), (3, 2, "main"), (4, 1, "main"), (5, 4, "main"), (6, 5, "mended")
    )
}  # fmt: skip


def ids(**options: Any) -> list[int]:
    return [row.checkpoint_id for row in path_as_of(tree(ROWS), job="j", root="r", **options)]


def test_an_id_is_found_on_any_path_and_a_time_on_that_of_the_head() -> None:
    assert ids() == [1, 4, 5]
    assert ids(checkpoint_id=3) == [1, 2, 3]
    assert ids(checkpoint_id=6) == [1, 4, 5, 6]
    rows = {minutes: ids(as_of=at(minutes)) for minutes in (1, 2, 3, 4, 9)}
    assert rows == {1: [1], 2: [1], 3: [1], 4: [1, 4], 9: [1, 4, 5]}


def test_times_without_a_zone_are_utc() -> None:
    assert ids(as_of="2013-01-01T00:04:00") == [1, 4]
    assert ids(as_of="2013-01-01 00:03:59.999999") == [1]
    assert ids(as_of="2013-01-01T02:04:00+02:00") == [1, 4]
    assert ids(as_of=datetime(2013, 1, 1, 0, 5)) == [1, 4, 5]
    assert moment(datetime(2013, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == START
    assert ids(as_of="2013-01-02") == [1, 4, 5]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"as_of": "noon"}, "'noon' is not a time"),
        (
            {"as_of": "2012-12-31"},
            "no checkpoint at 2012-12-31T00:00:00Z: its first one, 1, .* 2013-01-01T00:01:00Z",
        ),
        ({"as_of": "2013-01-02", "checkpoint_id": 1}, "not both"),
        ({"checkpoint_id": 7}, "there is no checkpoint 7; known ids: 1 to 6"),
    ],
    ids=["no_time", "too_early", "both", "no_id"],
)
def test_what_cannot_be_looked_at_is_reported(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ids(**options)


def test_a_job_without_checkpoints_is_reported() -> None:
    with pytest.raises(ConfigurationError, match="job 'j' has no checkpoint in r yet: run it first"):
        path_as_of(tree({}), job="j", root="r", as_of="2013-01-01")


def test_missing_files_of_a_checkpoint_that_was_expired_are_reported_as_such() -> None:
    error = MissingFilesError("f is gone")
    assert why_missing(error, tree(ROWS), tree(ROWS).path(3)) is error
    expired = tree(ROWS | {7: checkpoint(7, 5, kind="retention", retired=[2, 3])})
    assert "checkpoint 3 has expired" in str(why_missing(error, expired, expired.path(3)))
    assert why_missing(error, expired, expired.path(4)) is error


def declared(
    ttl: StateTtlConfig | None, *, clock_ms: int, watermark_ms: int | None, key: str = "k"
) -> DeclaredState:
    schema = StateSchema("total", "value", "bigint", ttl.to_json() if ttl else "")
    one = replace(operator(), states=[schema], key_schema=f"`{key}` string, `b` bigint")
    row = checkpoint(1, clock_ms=clock_ms, watermark_ms=watermark_ms, operators=[one])
    return declared_state([row], "counter", "total")


@given(
    ttl_ms=st.integers(1, 2**63 - 1),
    clock_ms=st.integers(0, 2**50),
    watermark_ms=st.none() | st.integers(-(2**62), 2**62),
    event_time=st.booleans(),
    stamp=st.none() | st.integers(0, 2**50),
)
def test_what_is_hidden_is_what_has_expired(
    ttl_ms: int, clock_ms: int, watermark_ms: int | None, event_time: bool, stamp: int | None
) -> None:
    """By the one rule of core.ttl, for any configuration that never returns what has expired."""
    builder = StateTtlConfig.new_builder(Time.milliseconds(ttl_ms))
    if event_time:
        builder.set_ttl_time_characteristic(TtlTime.EventTime)
    state = declared(builder.build(), clock_ms=clock_ms, watermark_ms=watermark_ms)
    expiry = expiry_of(state, include_expired=False)
    hidden = stamp is not None and expiry.hidden_ms is not None and stamp <= expiry.hidden_ms
    now_ms = watermark_ms if event_time else clock_ms
    assert hidden == expired(Stamped(1, stamp), horizon(now_ms, ttl_ms))
    assert expiry_of(state, include_expired=True) == Expiry(ttl_ms)


def test_nothing_is_hidden_that_the_job_may_see() -> None:
    assert expiry_of(declared(None, clock_ms=5, watermark_ms=None), include_expired=False) == Expiry()
    shown = StateTtlConfig.new_builder(Time.milliseconds(2)).return_expired_if_not_cleaned_up().build()
    assert expiry_of(declared(shown, clock_ms=5, watermark_ms=None), include_expired=False) == Expiry(2)


@pytest.mark.parametrize(
    ("key", "metadata", "names"),
    [
        ("k", True, ["k", "b"]),
        ("Value", False, ["key_Value", "b"]),
        ("expires_at", False, ["expires_at", "b"]),
        ("expires_at", True, ["key_expires_at", "b"]),
    ],
)
def test_a_key_column_with_the_name_of_another_is_kept_apart(
    key: str, metadata: bool, names: list[str]
) -> None:
    state = declared(None, clock_ms=0, watermark_ms=None, key=key)
    assert state.key_names(metadata=metadata) == names
