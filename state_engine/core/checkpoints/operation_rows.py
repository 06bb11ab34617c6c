"""Rows of ``checkpoints`` that no micro-batch makes: restore, rescale, retention and the like.

Such a row continues another one: it holds what that one stands for, and what the operation changes. It reads nothing
and stages nothing of its own. Decision 0033.
"""

from __future__ import annotations

from dataclasses import replace

from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.write_ids import WriteAttempt


def continuing(
    parent: CheckpointRow,
    kind: CheckpointKind,
    checkpoint_id: int,
    attempt: WriteAttempt,
    *,
    requested_by: str,
) -> CheckpointRow:
    """A row of ``main`` that changes nothing of what its parent stands for."""
    return replace(
        without_work(parent),
        checkpoint_id=checkpoint_id,
        parent_id=parent.checkpoint_id,
        branch=MAIN,
        kind=kind,
        write_id=attempt.write_id,
        created_at=attempt.created_at,
        requested_by=requested_by,
        operators=[operator.unwritten() for operator in parent.operators],
        operator_state_files=[],
        sources=[replace(s, position_from=s.position_to, rows=0) for s in parent.sources],
    )


def without_work(row: CheckpointRow) -> CheckpointRow:
    """A row without what its own commit read, put out and did to other rows; what it stands for stays."""
    return replace(
        row,
        rows_in=0,
        rows_refused=0,
        late_rows=0,
        backfill="",
        drained=False,
        sinks=[],
        dead_letters=[],
        durations_ms={},
        metrics={},
        expectations=[],
        gates=[],
        delta_versions={},
        replaced_id=None,
        retired=[],
        pinned=[],
        unpinned=[],
    )
