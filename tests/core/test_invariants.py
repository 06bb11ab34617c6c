"""What must hold between a checkpoint and its parent: every predicate, broken once."""

from __future__ import annotations

import pytest

from state_engine.core.checkpoint import CheckpointRow
from state_engine.core.invariants import _RULES, violations
from tests.core.rows import changes, checkpoint, operator, progress

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
        "1 rows in its files, 2 entries counted",
    ),
]


def test_a_right_row_breaks_nothing() -> None:
    assert violations(CHILD, PARENT) == []
    assert violations(checkpoint(1, None), None) == []


@pytest.mark.parametrize(("name", "row", "detail"), BROKEN)
def test_each_predicate_is_broken_alone_and_says_how(name: str, row: CheckpointRow, detail: str) -> None:
    (found,) = violations(row, PARENT)
    assert found.name == name
    assert detail in found.detail


def test_every_predicate_is_broken_once() -> None:
    assert {name for name, _, _ in BROKEN} == set(_RULES)


def test_all_broken_predicates_are_told_together() -> None:
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
