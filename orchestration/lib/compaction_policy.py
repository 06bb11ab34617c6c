"""Whether a job is worth a compaction: by how much is read beside the bases, told from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from state_engine.core.checkpoint import CheckpointRow
from state_engine.core.collection import keyed_state_files

MOST_CHANGELOG_FILES = 64
"""Every subtask opens them all."""
MOST_CHANGES_PER_ENTRY = 1.0
"""More changes than entries in the bases: half of what is read is not up to date."""
FEWEST_FILES = 8
"""Less is cheap to read, whatever is in it."""


@dataclass(frozen=True)
class CompactionDue:
    """What reading the state takes, and whether folding it is worth it.

    Attributes:
        worth_it: whether to compact.
        reason: why, or why not.
        changelog_files, changelog_rows, base_rows: over all operators.
    """

    worth_it: bool
    reason: str
    changelog_files: int = 0
    changelog_rows: int = 0
    base_rows: int = 0


def compaction_due(path: Sequence[CheckpointRow]) -> CompactionDue:
    """Whether the state at the end of a path is worth a compaction."""
    if not path:
        return CompactionDue(False, "the job never ran")
    per_operator = [keyed_state_files(path, operator.uid) for operator in path[-1].operators]
    changes = [file for one in per_operator for _, file in one.changelog]
    rows = sum(file.rows for file in changes)
    entries = sum(file.rows for one in per_operator for file in one.base)
    told = f"{len(changes)} files with {rows:,} changes beside bases with {entries:,} entries"
    worth_it = len(changes) >= MOST_CHANGELOG_FILES or (
        len(changes) >= FEWEST_FILES and rows > MOST_CHANGES_PER_ENTRY * entries
    )
    return CompactionDue(worth_it, told, len(changes), rows, entries)
