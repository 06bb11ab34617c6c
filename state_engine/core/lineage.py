"""The tree of checkpoints: heads of branches, and the path from the first checkpoint to a given one.

Pure functions over the rows of the ``checkpoints`` table. A branch's head is its highest id; a restore appends a row
whose parent is an older one, so the path is what parents say and not the order of ids.
"""

from __future__ import annotations

from collections.abc import Mapping

from state_engine.core.checkpoint import MAIN, CheckpointRow
from state_engine.core.errors import ConfigurationError

Rows = Mapping[int, CheckpointRow]


def head(rows: Rows, branch: str = MAIN) -> CheckpointRow | None:
    """The newest row of a branch; None where it has none."""
    ids = [i for i, row in rows.items() if row.branch == branch]
    return rows[max(ids)] if ids else None


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
