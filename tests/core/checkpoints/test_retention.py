"""Which checkpoints stay restorable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.checkpoints.checkpoint import CheckpointRow, PinnedCheckpoint
from state_engine.core.checkpoints.retention import RetentionPlan, RetentionPolicy, plan, restore_refusal
from state_engine.core.errors import ConfigurationError
from tests.core.checkpoints.histories import START, History, histories
from tests.core.checkpoints.rows import checkpoint, tree


def line(*kinds: str) -> dict[int, CheckpointRow]:
    """Rows of these kinds, each on the one before, a minute apart."""
    return {
        i: checkpoint(i, i - 1 or None, kind=kind, created_at=START + timedelta(minutes=i))
        for i, kind in enumerate(kinds, start=1)
    }


def minute_ms(minute: int) -> int:
    return int((START + timedelta(minutes=minute)).timestamp() * 1000)


def planned(rows: Mapping[int, CheckpointRow], policy: RetentionPolicy, **more: Any) -> RetentionPlan:
    return plan(tree(rows), policy, now_ms=minute_ms(100), **more)


C = "checkpoint"


def test_the_last_checkpoints_along_the_path_are_kept() -> None:
    assert planned(line(C, C, C, C), RetentionPolicy(keep_last=2)) == RetentionPlan((3, 4), (1, 2))
    assert planned(line(C, C), RetentionPolicy()) == RetentionPlan((1, 2), ())
    assert planned({}, RetentionPolicy()) == RetentionPlan((), ())


def test_operations_do_not_count_and_stay_with_the_checkpoint_that_they_follow() -> None:
    rows = line(C, "compaction", C, "retention", "rescale", C, "compaction")
    assert planned(rows, RetentionPolicy(keep_last=1)).keep == (6, 7)
    assert planned(rows, RetentionPolicy(keep_last=2)).keep == (3, 4, 5, 6, 7)
    assert planned(rows, RetentionPolicy(keep_last=9)).keep == (1, 2, 3, 4, 5, 6, 7)
    assert planned(line("import", "compaction", C), RetentionPolicy(keep_last=2)).expired == ()
    assert planned(line("bootstrap", "compaction", C), RetentionPolicy(keep_last=2)).expired == ()


def test_a_transform_counts_so_that_what_it_took_away_can_go() -> None:
    rows = line(C, C, "transform", "compaction")
    assert planned(rows, RetentionPolicy(keep_last=1)).keep == (3, 4)


def test_the_head_is_kept_though_no_checkpoint_stands_before_it() -> None:
    assert planned(line("rescale", "rescale"), RetentionPolicy(keep_last=1)) == RetentionPlan((2,), (1,))


def test_an_abandoned_path_goes_unless_it_is_young() -> None:
    rows = line(C, C, C) | {4: checkpoint(4, 1, kind="restore", created_at=START + timedelta(minutes=4))}
    assert planned(rows, RetentionPolicy(keep_last=5)).expired == (2, 3)
    young = RetentionPolicy(keep_last=5, keep_younger_than_ms=97 * 60_000 + 1)
    assert planned(rows, young).expired == (2,)
    not_quite = RetentionPolicy(keep_last=5, keep_younger_than_ms=97 * 60_000)
    assert planned(rows, not_quite).expired == (2, 3)


def test_what_savepoints_pin_is_kept_until_it_is_unpinned() -> None:
    rows = line(C, C, C, C)
    rows[5] = checkpoint(
        5, 4, kind="retention", pinned=[PinnedCheckpoint("a", 1, "/a"), PinnedCheckpoint("b", 2, "/b")]
    )
    assert planned(rows, RetentionPolicy(keep_last=1)).keep == (1, 2, 4, 5)
    rows[6] = checkpoint(6, 5, kind="retention", unpinned=["a"])
    assert planned(rows, RetentionPolicy(keep_last=1)).expired == (1, 3)
    rows[7] = checkpoint(7, 6, kind="retention", pinned=[PinnedCheckpoint("a", 3, "/a")])
    assert {name: pin.checkpoint_id for name, pin in tree(rows).pins.items()} == {"a": 3, "b": 2}


def test_a_restore_takes_no_pin_away() -> None:
    rows = line(C, C)
    rows[3] = checkpoint(3, 2, kind="retention", pinned=[PinnedCheckpoint("a", 2, "/a")])
    rows[4] = checkpoint(4, 1, kind="restore", replaced_id=3)
    assert planned(rows, RetentionPolicy(keep_last=1)).keep == (1, 2, 4)


def test_heads_of_replays_are_kept_until_they_are_promoted_or_given_up() -> None:
    rows = line(C, C, C) | {4: checkpoint(4, 1, branch="replay"), 5: checkpoint(5, 4, branch="replay")}
    one = RetentionPolicy(keep_last=1)
    assert planned(rows, one) == RetentionPlan((3, 5), (1, 2, 4))
    assert planned(rows, one, drop_branches=["replay", "main"]) == RetentionPlan((3,), (1, 2, 4, 5))
    assert planned(rows, RetentionPolicy(keep_younger_than_ms=10**9), drop_branches=["replay"]).expired == (
        5,
    )
    promoted = rows | {6: checkpoint(6, 5, kind="promote", replaced_id=3), 7: checkpoint(7, 6)}
    assert planned(promoted, one) == RetentionPlan((7,), (1, 2, 3, 4, 5, 6))


def test_of_a_partitioned_job_the_last_checkpoint_of_each_partition_is_kept() -> None:
    rows = line(C, C, "compaction", C, C, "compaction", C)
    for checkpoint_id, day in {1: "mon", 2: "mon", 4: "tue", 5: "tue", 7: "wed"}.items():
        rows[checkpoint_id] = replace(rows[checkpoint_id], partition=day)
    assert planned(rows, RetentionPolicy(keep_last=2)).keep == (5, 6, 7)
    assert planned(rows, RetentionPolicy(keep_last=3)).keep == (2, 3, 5, 6, 7)


@settings(max_examples=300)
@given(histories(), st.integers(1, 4))
def test_what_must_stay_is_never_expired(history: History, keep_last: int) -> None:
    rows = history.rows
    retention = planned(rows, RetentionPolicy(keep_last=keep_last))
    assert set(retention.keep) | set(retention.expired) | tree(rows).expired == set(rows)
    assert not set(retention.keep) & set(retention.expired)
    assert not set(retention.expired) & tree(rows).expired
    must = {pin.checkpoint_id for pin in tree(rows).pins.values()}
    if history.head:
        must.add(history.head.checkpoint_id)
        on_path = [r.checkpoint_id for r in tree(rows).path(history.head.checkpoint_id) if r.kind == C]
        must |= set(on_path[-keep_last:]) - tree(rows).expired
    assert must <= set(retention.keep)
    assert not must & tree(rows).expired


def test_an_expired_checkpoint_is_refused_with_what_is_left() -> None:
    rows = line(C, C, "compaction", C) | {5: checkpoint(5, 4, kind="retention", retired=[1])}
    refusal = restore_refusal(tree(rows), 1)
    assert refusal is not None
    assert "checkpoint 1 was expired by row 5 on 2013-01-01 00:00" in refusal
    assert "Take one of [2, 4], or a savepoint" in refusal
    assert restore_refusal(tree(rows), 2) is None
    assert restore_refusal(tree(rows), 9) == "there is no checkpoint 9; known ids: 1 to 5"
    assert restore_refusal(tree({}), 1) == "there is no checkpoint 1; there are none yet"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keep_last": 0}, "keep_last must be at least 1, not 0"),
        ({"keep_last": True}, "not True"),
        ({"keep_last": 2.5}, "not 2.5"),
        ({"keep_younger_than_ms": -1}, "keep_younger_than_ms must be at least 0, not -1"),
    ],
)
def test_a_policy_that_is_none_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RetentionPolicy(**settings)
