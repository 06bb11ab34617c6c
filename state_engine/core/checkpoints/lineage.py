"""The tree of checkpoints, like git's log: branches, their heads, paths, and what may be committed on what.

Pure functions over the rows of the ``checkpoints`` table. A branch's head is its highest id; a restore appends a row
whose parent is an older one, so the path is what parents say and not the order of ids. Along a path ids grow. Flink
has no counterpart: its checkpoints form a line.
"""

from __future__ import annotations

from collections.abc import Mapping

from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow, OperatorCheckpoint
from state_engine.core.errors import ConfigurationError

Rows = Mapping[int, CheckpointRow]


def head(rows: Rows, branch: str = MAIN) -> CheckpointRow | None:
    """The newest row of a branch; None where it has none."""
    ids = [i for i, row in rows.items() if row.branch == branch]
    return rows[max(ids)] if ids else None


def branches(rows: Rows) -> dict[str, CheckpointRow]:
    """The head of every branch there ever was, by name."""
    return {row.branch: row for _, row in sorted(rows.items())}


def open_branches(rows: Rows) -> dict[str, CheckpointRow]:
    """The heads of branches that may still grow: ``main``, and replays neither promoted nor given up.

    A replay is promoted when a row of ``main`` continues its head, and given up when its head is retired.
    """
    ended = retired(rows) | {row.parent_id for row in rows.values() if row.branch == MAIN}
    return {
        name: row for name, row in branches(rows).items() if name == MAIN or row.checkpoint_id not in ended
    }


def next_id(rows: Rows) -> int:
    """The id that the next committed row gets, over all branches; the first is 1."""
    return max(rows, default=0) + 1


def path(rows: Rows, checkpoint_id: int | None) -> list[CheckpointRow]:
    """The rows from the first checkpoint to the given one, oldest first; empty for None.

    Raises:
        ConfigurationError: there is no such checkpoint.
    """
    found: list[CheckpointRow] = []
    at = checkpoint_id
    while at is not None:
        if at not in rows:
            known = f"{min(rows)} to {max(rows)}" if rows else "none yet"
            raise ConfigurationError(f"there is no checkpoint {at}; known ids: {known}")
        found.append(rows[at])
        at = rows[at].parent_id
    return found[::-1]


def common_ancestor(rows: Rows, a: int, b: int) -> CheckpointRow | None:
    """The newest row on the paths of both; None where they began apart, as after an import."""
    both = {row.checkpoint_id for row in path(rows, a)}
    return next((row for row in reversed(path(rows, b)) if row.checkpoint_id in both), None)


def abandoned(rows: Rows) -> set[int]:
    """Ids that are on the path to no branch's head."""
    reached = {row.checkpoint_id for top in branches(rows).values() for row in path(rows, top.checkpoint_id)}
    return set(rows) - reached


def abandoned_by(rows: Rows) -> dict[int, int]:
    """For every row of ``main`` that is not on its head's path: the row that moved the head away from it."""
    top = head(rows)
    on_path = {row.checkpoint_id for row in path(rows, top.checkpoint_id if top else None)}
    found: dict[int, int] = {}
    for i, row in sorted(rows.items()):
        if row.replaced_id is None:
            continue
        stays = {one.checkpoint_id for one in path(rows, row.parent_id)}
        left = (one.checkpoint_id for one in path(rows, row.replaced_id))
        found |= {one: i for one in left if one not in stays and one not in on_path}
    return found


def rows_since(rows: Rows, checkpoint_id: int) -> list[CheckpointRow]:
    """The rows committed after a given one, over all branches, oldest first."""
    return [row for i, row in sorted(rows.items()) if i > checkpoint_id]


def retired(rows: Rows) -> set[int]:
    """Checkpoints that can no longer be restored; for good, whatever path the row that retired them is on."""
    return {i for row in rows.values() for i in row.retired}


def may_reparent(rows: Rows, parent_id: int | None, branch: str = MAIN) -> CheckpointRow | None:
    """The row that a micro-batch begun on a given parent may be committed upon now; None where its work is lost.

    Only ``compaction`` and ``retention`` may have come in between on its branch; what other branches did is no matter.

    Args:
        rows: as they are now.
        parent_id: what the micro-batch continues; None for the first of a job.
        branch: that it runs on.
    """
    if parent_id is None or parent_id not in rows or parent_id in retired(rows):
        return None
    since = [row for row in rows_since(rows, parent_id) if row.branch == branch]
    if any(not row.kind.is_in_background for row in since):
        return None
    found = since[-1] if since else rows[parent_id]
    return found if rows[parent_id] in path(rows, found.checkpoint_id) else None


def may_apply_compaction(rows: Rows, compacted_id: int, row: CheckpointRow) -> bool:
    """Whether a compaction may be committed upon the parent that its row names; if not, its work is dropped.

    The checkpoint that it folded must be on the path of that parent and not be older than a base in force there for
    the same key groups, those included whose old base is only to stand for that checkpoint, and the max parallelism
    must be what it was.

    Args:
        rows: as they are now.
        compacted_id: the checkpoint whose state the new base holds.
        row: the row to commit; its new bases bear its ``write_id``.
    """
    since = [r for r in path(rows, row.parent_id) if r.checkpoint_id >= compacted_id]
    if not since or since[0].checkpoint_id != compacted_id:
        return False
    for operator in row.operators:
        if all(base.base_id != row.write_id for base in operator.bases):
            continue
        known = [r.operator(operator.uid) for r in since]
        if any(o is None or o.max_parallelism != operator.max_parallelism for o in known):
            return False
        if _newer_base(known[-1], operator, compacted_id):
            return False
    return True


def _newer_base(parent: OperatorCheckpoint | None, operator: OperatorCheckpoint, compacted_id: int) -> bool:
    """Whether a base in force stands for a later checkpoint than the one that is to take its place."""
    new = [base for base in operator.bases if base.checkpoint_id == compacted_id]
    return any(
        old.checkpoint_id > compacted_id
        and old.key_group_start <= own.key_group_end
        and own.key_group_start <= old.key_group_end
        for old in (parent.bases if parent else [])
        for own in new
    )
