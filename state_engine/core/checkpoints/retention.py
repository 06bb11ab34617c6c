"""``RetentionPolicy``: which checkpoints stay restorable, and which the next ``retention`` row expires.

An expired checkpoint is never restored again, so what only it needs may be collected (:mod:`.collection`). Its row
stays for ever. Mirrors Flink's ``state.checkpoints.num-retained`` and ``ExternalizedCheckpointRetention``.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.history import History
from state_engine.core.choices import check_count


@dataclass(frozen=True)
class RetentionPolicy:
    """Which checkpoints to keep, besides those that savepoints pin and the heads of branches.

    Args:
        keep_last: how many along the path to the head; of a job in time partitions, the last one of each of so many
            partitions. At least 1.
        keep_younger_than_ms: keep whatever is younger, also on paths that a restore left, so that it can be undone;
            None for no such rule.

    Raises:
        ConfigurationError: a number that is none, or too small.
    """

    keep_last: int = 10
    keep_younger_than_ms: int | None = None

    def __post_init__(self) -> None:
        check_count(self.keep_last, what="keep_last")
        if self.keep_younger_than_ms is not None:
            check_count(self.keep_younger_than_ms, what="keep_younger_than_ms", least=0)


@dataclass(frozen=True)
class RetentionPlan:
    """What a policy comes to.

    Attributes:
        expired: ids that were restorable and shall not be any more, ascending: for the ``retention`` row.
    """

    keep: tuple[int, ...]
    expired: tuple[int, ...]


def plan(
    history: History,
    policy: RetentionPolicy,
    *,
    now_ms: int,
    drop_branches: Collection[str] = (),
) -> RetentionPlan:
    """What to keep and what to expire. To be planned again whenever another row was committed first.

    Args:
        now_ms: time of the attempt, in milliseconds since 1970.
        drop_branches: replays that nobody is going to promote: their heads are expired, which ends them.
    """
    top = history.head
    if top is None:
        return RetentionPlan((), ())
    gone = history.expired
    keep = _last(history.path(top.checkpoint_id), policy.keep_last)
    if policy.keep_younger_than_ms is not None:
        since_ms = now_ms - policy.keep_younger_than_ms
        keep |= {i for i, row in history.items() if row.created_at.timestamp() * 1000 > since_ms}
    for name, row in history.open_branches.items():
        if name == MAIN or name not in drop_branches:
            keep.add(row.checkpoint_id)
        else:
            keep.discard(row.checkpoint_id)
    keep |= {pin.checkpoint_id for pin in history.pins.values()}
    keep -= gone
    return RetentionPlan(tuple(sorted(keep)), tuple(sorted(set(history) - keep - gone)))


_SETTLED = {"rebuild": "table rebuilt", "keep": "table accepted"}
"""Of rows that settle a table, by the recorded policy of one that shows a state; that of a sink has none."""


def shown_kind(row: CheckpointRow) -> str:
    """The kind of a row as people are shown it: rows of retention may be about savepoints or tables."""
    if row.kind is CheckpointKind.RETENTION and not row.retired:
        if row.pinned:
            return "savepoint"
        if row.unpinned:
            return "savepoint gone"
        if row.sinks:
            return _SETTLED[json.loads(row.sinks[0].schema).get("policy", "keep")]
    return row.kind.value


def restore_refusal(history: History, checkpoint_id: int) -> str | None:
    """Why a checkpoint cannot be restored, copied or replayed from, and what to do instead; None where it can.

    To be asked again whenever another row was committed first.
    """
    if checkpoint_id not in history:
        known = f"known ids: {min(history)} to {max(history)}" if history else "there are none yet"
        return f"there is no checkpoint {checkpoint_id}; {known}"
    by = next((row for row in history.values() if checkpoint_id in row.retired), None)
    if by is None:
        return None
    gone = history.expired
    kept = sorted(i for i, row in history.items() if row.kind.is_counted and i not in gone)
    return (
        f"checkpoint {checkpoint_id} was expired by row {by.checkpoint_id} on {by.created_at:%Y-%m-%d %H:%M} and its "
        f"files may be gone. Take one of {kept}, or a savepoint"
    )


def _last(on_path: list[CheckpointRow], count: int) -> set[int]:
    """The last checkpoints of a path, or of each of the last partitions, with the operations that follow them."""
    keep: set[int] = set()
    operations: set[int] = set()
    partition = ""
    for row in reversed(on_path):
        operations.add(row.checkpoint_id)
        if not row.kind.is_counted:
            continue
        if not row.partition or row.partition != partition:
            keep |= operations
            partition, count = row.partition, count - 1
        operations = set()
        if not count:
            break
    return keep
