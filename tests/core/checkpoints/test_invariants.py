"""Invariants between a checkpoint and its parent: each predicate is broken once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from state_engine.core.checkpoints.checkpoint import (
    BaseFile,
    BaseRange,
    CheckpointRow,
    OperatorCheckpoint,
    PinnedCheckpoint,
)
from state_engine.core.checkpoints.invariants import _RULES, _TREE_RULES, violations
from tests.core.checkpoints.histories import History, histories
from tests.core.checkpoints.rows import changes, checkpoint, in_base, operator, progress, tree

PARENT = checkpoint(3, 2, clock_ms=100, watermark_ms=50, sources=[progress("a", "b")])
CHILD = checkpoint(
    4, 3, clock_ms=100, watermark_ms=50, sources=[progress("b", "c")],
    operators=[operator(changes(0, (0, 63)), changes(1, (64, 127), rows=5))],
)  # fmt: skip

BROKEN = [
    ("ids grow", checkpoint(4, 2, clock_ms=100, watermark_ms=50), "parent_id is 2, the parent is 3"),
    ("ids grow", checkpoint(4, None, clock_ms=100, watermark_ms=50), "parent_id is None"),
    ("ids grow", checkpoint(3, 3, clock_ms=100, watermark_ms=50), "id 3 is not above its parent's 3"),
    ("clock never goes back", checkpoint(4, 3, clock_ms=99, watermark_ms=50), "99 is below the parent's 100"),
    (
        "watermark never goes back",
        checkpoint(4, 3, clock_ms=100, watermark_ms=49),
        "49 is below the parent's 50",
    ),
    ("watermark never goes back", checkpoint(4, 3, clock_ms=100, watermark_ms=None), "None is below"),
    (
        "source positions are contiguous",
        checkpoint(4, 3, clock_ms=100, watermark_ms=50, sources=[progress("a", "c")]),
        "source 'events' starts at a, the parent ended at b",
    ),
    (
        "every key in its own key group",
        checkpoint(4, 3, clock_ms=100, watermark_ms=50, operators=[operator(changes(0, (0, 64)))]),
        "subtask 0 owns key groups 0 to 63 and wrote 0 to 64",
    ),
    (
        "every key in its own key group",
        checkpoint(4, 3, clock_ms=100, watermark_ms=50, operators=[operator(changes(1, (63, 64)))]),
        "subtask 1 owns key groups 64 to 127 and wrote 63 to 64",
    ),
    (
        "every key in its own key group",
        checkpoint(4, 3, clock_ms=100, watermark_ms=50, operators=[operator(changes(1, (None, None)))]),
        "wrote None to None",
    ),
    (
        "counts add up",
        checkpoint(
            4, 3, clock_ms=100, watermark_ms=50, operators=[operator(changes(0, (0, 1)), changed_entries=2)]
        ),
        "1 row in its files, 2 entries counted",
    ),
]

FACTS: dict[str, Any] = {"clock_ms": 100, "watermark_ms": 50}


def based(*bases: BaseRange, files: list[BaseFile] | None = None) -> OperatorCheckpoint:
    return replace(operator(), bases=list(bases), base_files=files or [])


def compacted(*bases: BaseRange, files: list[BaseFile] | None = None) -> CheckpointRow:
    return checkpoint(4, 3, kind="compaction", write_id="w4", operators=[based(*bases, files=files)], **FACTS)


BROKEN += [
    (
        "only micro-batches and transforms change state",
        checkpoint(4, 3, kind=kind, operators=[operator(changes(0, (0, 1)))], **FACTS),
        f"a row of kind '{kind}' lists changes of ['counter']",
    )
    for kind in ("restore", "promote", "compaction", "retention", "rescale", "import", "bootstrap")
]
BROKEN += [
    (
        "transforms change nothing else",
        checkpoint(4, 3, kind="transform", sources=[progress("b", "c")], **FACTS),
        "a transform moves sources from {'events': 'b'} to {'events': 'c'}",
    ),
    (
        "transforms change nothing else",
        checkpoint(4, 3, kind="transform", sources=[progress("b", "b")], replaced_id=2, **FACTS),
        "moves the head",
    ),
]
BROKEN += [
    (
        "bases are disjoint",
        compacted(BaseRange(64, 127, "b", 1), BaseRange(0, 64, "a", 1)),
        "base b holds key groups 64 to 127, of 128 those from 65 on are left",
    ),
    ("bases are disjoint", compacted(BaseRange(5, 4, "b", 1)), "5 to 4"),
    ("bases are disjoint", compacted(BaseRange(0, 128, "b", 1)), "0 to 128"),
    ("bases are disjoint", compacted(BaseRange(-1, 5, "b", 1)), "-1 to 5"),
    (
        "base files are the attempt's own",
        compacted(BaseRange(0, 127, "w3", 2), files=[in_base((0, 1))]),
        "holds key groups 0 to 1, the bases of this attempt []",
    ),
    (
        "base files are the attempt's own",
        compacted(BaseRange(0, 63, "w4", 2), files=[in_base((63, 64))]),
        "holds key groups 63 to 64, the bases of this attempt [(0, 63)]",
    ),
    (
        "base files are the attempt's own",
        compacted(BaseRange(0, 63, "w4", 2), files=[in_base((None, None))]),
        "records no key groups",
    ),
]
BROKEN += [
    ("partitions are contiguous", checkpoint(4, 3, **FACTS, **facts), message)
    for facts, message in (
        ({"partition": "d"}, "partition 'd' has the bounds (None, None)"),
        ({"partition_start_ms": 0}, "partition '' has the bounds (0, None)"),
    )
]

# 1 - 2 - 3 (head of main) - and a replay that began at 1: 1 - 4; a savepoint pins 2
TREE = {
    1: checkpoint(1),
    2: checkpoint(2, 1),
    3: checkpoint(3, 2, kind="retention", pinned=[PinnedCheckpoint("before", 2, "/s")]),
    4: checkpoint(4, 1, branch="replay"),
}
EXPIRED = TREE | {5: checkpoint(5, 3, kind="retention", retired=[1])}

BASE = OperatorCheckpoint("counter", 1, 128, "struct<`k`: bigint>", [], [], [BaseRange(0, 127, "w5", 4)], 0)
BROKEN_IN_THE_TREE = [
    ("ids are new", checkpoint(4, 3), TREE, "id 4 is not above the newest, 4"),
    (
        "compactions fit the path",
        checkpoint(5, 3, kind="compaction", operators=[BASE]),
        TREE,
        "its bases stand for [4], which does not fit the path of 3",
    ),
    ("on the branch", checkpoint(5, 2), TREE, "it continues 2, the head of 'main' is 3"),
    ("on the branch", checkpoint(5, None), TREE, "it continues None, the head of 'main' is 3"),
    ("on the branch", checkpoint(5, 2, kind="compaction"), TREE, "it continues 2"),
    ("on the branch", checkpoint(5, 2, kind="transform"), TREE, "it continues 2, the head of 'main' is 3"),
    ("on the branch", checkpoint(5, None, kind="bootstrap"), TREE, "the head of 'main' is 3"),
    ("on the branch", checkpoint(5, 1, branch="replay"), TREE, "it continues 1, the head of 'replay' is 4"),
    ("on the branch", checkpoint(5, 4), TREE, "it continues 4, the head of 'main' is 3"),
    ("on the branch", checkpoint(5, 2, kind="restore", replaced_id=2), TREE, "it replaces 2, the head is 3"),
    ("on the branch", checkpoint(5, 4, kind="promote"), TREE, "it replaces None, the head is 3"),
    (
        "on the branch",
        checkpoint(5, 1, kind="restore", branch="replay", replaced_id=4),
        TREE,
        "a row of kind 'restore' is on branch 'replay'",
    ),
    (
        "continues existing rows",
        checkpoint(6, 1, kind="restore", replaced_id=5),
        EXPIRED,
        "it continues 1, which was expired",
    ),
    ("continues existing rows", checkpoint(6, 1, branch="new"), EXPIRED, "it continues 1, which was expired"),
    (
        "continues existing rows",
        checkpoint(6, 5, kind="retention", pinned=[PinnedCheckpoint("a", 1, "/a")]),
        EXPIRED,
        "it pins [1], which are expired or not there",
    ),
    (
        "continues existing rows",
        checkpoint(6, 5, kind="retention", pinned=[PinnedCheckpoint("a", 9, "/a")]),
        EXPIRED,
        "it pins [9]",
    ),
    ("expires nothing needed", checkpoint(5, 3, kind="retention", retired=[1, 3]), TREE, "it expires [3]"),
    ("expires nothing needed", checkpoint(5, 3, kind="retention", retired=[2, 5, 9]), TREE, "[2, 5, 9]"),
    (
        "expires nothing needed",
        checkpoint(5, 3, kind="retention", retired=[1], pinned=[PinnedCheckpoint("a", 1, "/a")]),
        TREE,
        "it expires [1]",
    ),
]


def test_a_right_row_breaks_nothing() -> None:
    assert violations(CHILD, PARENT) == []
    assert violations(checkpoint(1, None), None) == []


@pytest.mark.parametrize(("name", "row", "detail"), BROKEN)
def test_each_predicate_is_broken_alone_and_says_how(name: str, row: CheckpointRow, detail: str) -> None:
    (violation,) = violations(row, PARENT)
    assert violation.name == name
    assert detail in violation.detail


def test_every_predicate_is_broken_once() -> None:
    assert {name for name, _, _ in BROKEN} == set(_RULES)
    assert {name for name, *_ in BROKEN_IN_THE_TREE} == set(_TREE_RULES)


@pytest.mark.parametrize(("name", "row", "rows", "detail"), BROKEN_IN_THE_TREE)
def test_each_predicate_of_the_tree_is_broken_alone_and_says_how(
    name: str, row: CheckpointRow, rows: dict[int, CheckpointRow], detail: str
) -> None:
    parent = rows[row.parent_id] if row.parent_id else None
    (violation,) = violations(row, parent, tree(rows))
    assert violation.name == name
    assert detail in violation.detail
    assert violations(row, parent) == []


@pytest.mark.parametrize(
    "row",
    [
        checkpoint(5, None, kind="import"),
        checkpoint(5, 3, kind="retention", retired=[1, 4]),  # which gives the replay up
        checkpoint(5, 3, kind="retention", retired=[2], unpinned=["before"]),
    ],
)
def test_what_fits_into_the_tree_breaks_nothing(row: CheckpointRow) -> None:
    assert violations(row, TREE[row.parent_id] if row.parent_id else None, tree(TREE)) == []


@settings(max_examples=200)
@given(histories())
def test_every_history_keeps_all_invariants(history: History) -> None:
    for i, row in history.rows.items():
        before = history.rows.before(i)
        assert violations(row, before[row.parent_id] if row.parent_id else None, before) == []


def test_all_broken_predicates_are_reported_together() -> None:
    row = checkpoint(3, 3, clock_ms=0, watermark_ms=0)
    assert [v.name for v in violations(row, PARENT)] == [
        "ids grow",
        "clock never goes back",
        "watermark never goes back",
    ]


def test_the_first_checkpoint_has_no_parent() -> None:
    assert [v.name for v in violations(checkpoint(2, 1), None)] == ["ids grow"]


def test_a_source_that_is_new_may_start_anywhere() -> None:
    row = checkpoint(
        4, 3, clock_ms=100, watermark_ms=50, sources=[progress("b", "b"), progress("x", "y", name="new")]
    )
    assert violations(row, PARENT) == []


def test_a_watermark_may_begin_late() -> None:
    assert violations(checkpoint(2, 1, watermark_ms=-5), checkpoint(1)) == []


def test_partitions_follow_each_other() -> None:
    def row(i: int, start_ms: int, *, kind: str = "checkpoint") -> CheckpointRow:
        bounds = {"partition_start_ms": start_ms, "partition_end_ms": start_ms + 10}
        return checkpoint(i, i - 1, kind=kind, partition=f"p{start_ms}", **bounds)

    parent = replace(row(1, 0), parent_id=None)
    assert violations(row(2, 10), parent) == violations(row(2, 0), parent) == []
    assert violations(row(2, 0, kind="compaction"), parent) == []
    for wrong, message in (
        (row(2, 20), "'p20' does not begin where its parent's, 'p0', ended"),
        (row(2, -10), "'p-10' does not begin"),
        (row(2, 10, kind="rescale"), "'rescale' goes on from partition 'p0' to 'p10'"),
        (checkpoint(2, 1), "partition '' does not begin"),
    ):
        (violation,) = violations(wrong, parent)
        assert violation.name == "partitions are contiguous"
        assert message in violation.detail


def _sources(**watermarks: int | None) -> list[Any]:
    return [replace(progress("a", "a", name=name), watermark_ms=at) for name, at in watermarks.items()]


@pytest.mark.parametrize(
    ("watermark", "before", "now", "why"),
    [
        (None, {"a": 50}, {"a": None}, ""),
        (None, {"a": 50, "b": None}, {"a": 60, "b": None}, ""),
        (10, {"a": 50, "b": None}, {"a": 60, "b": 10}, ""),
        (None, {"a": 50}, {"a": 50, "b": None}, ""),
        (None, {"a": 50}, {}, ""),
        (None, {"a": 50}, {"a": 50}, "watermark None is below the parent's 50"),
        (40, {"a": 50, "b": 60}, {"a": 50, "b": 60}, "watermark 40 is below the parent's 50"),
        (50, {"a": 50, "b": 60}, {"a": 50, "b": 55}, "watermark 55 of source 'b' is below the parent's 60"),
    ],
    ids=[
        "taken away",
        "declared, no row yet",
        "given",
        "a new source",
        "a source less",
        "lost",
        "lower",
        "of a source",
    ],
)
def test_sources_may_be_given_event_time_and_lose_it(
    watermark: int | None, before: dict[str, int | None], now: dict[str, int | None], why: str
) -> None:
    parent = checkpoint(1, watermark_ms=50, sources=_sources(**before))
    broken = violations(checkpoint(2, 1, watermark_ms=watermark, sources=_sources(**now)), parent)
    assert [v for v in broken if "watermark" in str(v)] == broken
    assert (why in str(broken[0])) if why else broken == []
