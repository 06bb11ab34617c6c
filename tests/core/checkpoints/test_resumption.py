"""What lies between an operator's last run and the next: restores, and checkpoints of which nobody was notified."""

from __future__ import annotations

import pytest

from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorStateRef
from state_engine.core.checkpoints.resumption import (
    completed_since_last_run,
    restored_checkpoint_id,
    restored_since_last_run,
)
from tests.core.checkpoints.rows import checkpoint, tree


def path(*kinds: str) -> list[CheckpointRow]:
    """Rows 1, 2, … of these kinds; row n was written by attempt wn."""
    return [checkpoint(n, n - 1 or None, kind=kind) for n, kind in enumerate(kinds, start=1)]


def ran(number: int) -> OperatorStateRef:
    """What a checkpoint holds of an operator that ran last in attempt wn, and changed nothing then."""
    return OperatorStateRef("sink", "w1", 0, last_run=f"w{number}")


C, R, I, K, T = "checkpoint", "restore", "import", "compaction", "retention"  # noqa: E741


@pytest.mark.parametrize(
    ("kinds", "last_run", "restored"),
    [
        ((C,), 1, False),
        ((C, K, T), 1, False),
        ((C, R), 1, True),
        ((C, R, K), 1, True),
        ((C, C, "rescale", "promote"), 2, False),
        ((C, R, C), 3, False),  # that batch was given the union already
        ((C, R, C), 1, True),  # it did not run in the batch after the restore
        ((I,), 7, True),  # its last run is on another root's path
        ((I, C), 2, False),
        ((C, "transform"), 1, False),
    ],
)
def test_whether_state_is_handed_out_as_after_a_restore(
    kinds: tuple[str, ...], last_run: int, restored: bool
) -> None:
    assert restored_since_last_run(path(*kinds), ran(last_run)) is restored


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ((), None),
        ((C,), 1),
        ((C, C, K, T), 2),
        ((C, R), 1),
        ((I,), 1),
        ((I, K), 1),
        ((K,), None),
        (("bootstrap",), 1),
        ((C, "transform"), 1),
    ],
)
def test_the_checkpoint_that_a_function_continues_from(kinds: tuple[str, ...], expected: int | None) -> None:
    assert restored_checkpoint_id(path(*kinds)) == expected


@pytest.mark.parametrize(
    ("kinds", "last_run", "expected"),
    [
        ((C,), 1, [1]),
        ((C, C, C), 3, [3]),
        ((C, K, C, T), 3, [3]),
        ((C, C, C, C), 2, [2, 3, 4]),  # it did not run in the last two
        ((C, R), 1, [1]),
        ((I, C), 9, [2]),
    ],
)
def test_what_listeners_in_subtasks_are_reported(
    kinds: tuple[str, ...], last_run: int, expected: list[int]
) -> None:
    assert completed_since_last_run(path(*kinds), ran(last_run)) == expected


def test_a_new_operator_is_reported_nothing() -> None:
    assert completed_since_last_run(path(C, C), None) == []


def test_every_checkpoint_is_reported_before_the_next_one_in_order_whatever_crashes() -> None:
    """Attempts that fail leave no row, so the next one reports the same checkpoints again."""
    rows: list[CheckpointRow] = []
    printed: list[int] = []
    for number, crashes in [(1, 0), (2, 1), (3, 0), (4, 2), (5, 0)]:
        for _ in range(crashes + 1):
            printed += completed_since_last_run(rows, ran(len(rows)) if rows else None)
        rows.append(checkpoint(number, number - 1 or None))
        assert max(printed, default=0) < number
    assert printed == [1, 1, 2, 3, 3, 3, 4]


def test_after_a_restore_the_checkpoint_restored_to_is_reported_again() -> None:
    rows = {row.checkpoint_id: row for row in path(C, C, C)} | {4: checkpoint(4, 1, kind=R)}
    assert completed_since_last_run(tree(rows).path(4), ran(1)) == [1]
