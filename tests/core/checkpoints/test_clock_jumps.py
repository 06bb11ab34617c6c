"""Clocks that jump ahead are refused, and a clock that is behind is noticed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.clock_jumps import BEHIND_MS, check_jump, is_behind
from state_engine.core.errors import SetupError
from tests.core.checkpoints.rows import checkpoint

DAY_MS = 86_400_000
MADE = datetime(2026, 3, 1, tzinfo=UTC)
MADE_MS = round(MADE.timestamp() * 1000)


def row(clock_ms: int) -> CheckpointRow:
    return replace(checkpoint(7, 6), clock_ms=clock_ms, created_at=MADE)


@pytest.mark.parametrize(
    ("clock_ms", "parent_ms", "is_refused"),
    [
        (MADE_MS + 366 * DAY_MS, MADE_MS, False),
        (MADE_MS + 366 * DAY_MS + 1, MADE_MS, True),
        (MADE_MS + 3650 * DAY_MS, MADE_MS, True),
        (MADE_MS, 0, False),  # clocks of tests and of recorded input may be of any time before
        (MADE_MS + 3651 * DAY_MS, MADE_MS + 3650 * DAY_MS, False),  # was accepted before
        (0, MADE_MS, False),
        (10**18, MADE_MS, True),
    ],
)
def test_a_jump_beyond_the_bound_is_refused(clock_ms: int, parent_ms: int, is_refused: bool) -> None:
    def check() -> None:
        check_jump(clock_ms, row(parent_ms), machine_ms=MADE_MS, bound_ms=366 * DAY_MS, job="totals")

    if not is_refused:
        check()
        return
    with pytest.raises(SetupError, match=r"job 'totals': the clock .*checkpoint 7 .*2026-03-01"):
        check()


def test_the_first_checkpoint_is_compared_with_the_machine() -> None:
    check_jump(MADE_MS, None, machine_ms=MADE_MS, bound_ms=DAY_MS, job="totals")
    with pytest.raises(SetupError, match="the clock of this machine says 2026-03-01"):
        check_jump(MADE_MS + 2 * DAY_MS, None, machine_ms=MADE_MS, bound_ms=DAY_MS, job="totals")


def test_a_clock_that_is_behind() -> None:
    assert not is_behind(MADE_MS, row(MADE_MS + BEHIND_MS))
    assert is_behind(MADE_MS, row(MADE_MS + BEHIND_MS + 1))
    assert not is_behind(MADE_MS, row(0))
