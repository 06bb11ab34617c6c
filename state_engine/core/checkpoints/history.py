"""``History``: the tree of checkpoints, like git's log: branches, heads, paths, and what may be committed on what.

A value made of the rows of the ``checkpoints`` table. A branch's head is its highest id; a restore appends a row whose
parent is an older one, so the path is what parents say and not the order of ids. Along a path ids grow. What is worked
out is kept, so it costs nothing to ask twice. Flink has no counterpart: its checkpoints form a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from state_engine.core.checkpoints.checkpoint import (
    MAIN,
    CheckpointRow,
    OperatorCheckpoint,
    PinnedCheckpoint,
)
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError


class History(Mapping[int, CheckpointRow]):
    """All committed rows as of one moment, by id, in the order of ids. Never changes.

    Args:
        rows: in any order; a mapping by id, or the rows themselves.
    """

    def __init__(self, rows: Mapping[int, CheckpointRow] | Iterable[CheckpointRow] = ()) -> None:
        given = rows.values() if isinstance(rows, Mapping) else rows
        ordered = sorted(given, key=lambda row: row.checkpoint_id)
        self._rows: dict[int, CheckpointRow] = {row.checkpoint_id: row for row in ordered}
        self._paths: dict[int, list[CheckpointRow]] = {}

    def __getitem__(self, checkpoint_id: int) -> CheckpointRow:
        return self._rows[checkpoint_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"History({counted(len(self), 'row')}, newest {self.newest_id})"

    def with_rows(self, rows: Iterable[CheckpointRow]) -> History:
        """The same with more rows, or with others instead of those of their ids."""
        return History({**self._rows, **{row.checkpoint_id: row for row in rows}})

    def before(self, checkpoint_id: int) -> History:
        """As it was when a row was committed."""
        return History(row for i, row in self._rows.items() if i < checkpoint_id)

    # -- ids and branches ------------------------------------------------------------------------------------------

    @cached_property
    def newest_id(self) -> int:
        """The highest id over all branches; 0 where there is no row."""
        return max(self._rows, default=0)

    @property
    def next_id(self) -> int:
        """The id that the next committed row gets, over all branches; the first is 1."""
        return self.newest_id + 1

    @property
    def head(self) -> CheckpointRow | None:
        """The newest row of ``main``; None where it has none."""
        return self.head_of(MAIN)

    def head_of(self, branch: str) -> CheckpointRow | None:
        """The newest row of a branch; None where it has none."""
        return self.branches.get(branch)

    @cached_property
    def branches(self) -> Mapping[str, CheckpointRow]:
        """The head of every branch there ever was, by name."""
        return {row.branch: row for row in self._rows.values()}

    @cached_property
    def open_branches(self) -> Mapping[str, CheckpointRow]:
        """The heads of branches that may still grow: ``main``, and replays neither promoted nor dropped.

        A replay is promoted when a row of ``main`` continues its head, and dropped when its head is expired.
        """
        ended = self.expired | {row.parent_id for row in self._rows.values() if row.branch == MAIN}
        heads = self.branches.items()
        return {name: row for name, row in heads if name == MAIN or row.checkpoint_id not in ended}

    # -- paths -----------------------------------------------------------------------------------------------------

    def path(self, checkpoint_id: int | None) -> list[CheckpointRow]:
        """The rows from the first checkpoint to the given one, oldest first; empty for None."""
        if checkpoint_id is None:
            return []
        if checkpoint_id not in self._paths:
            self._paths[checkpoint_id] = self._walked(checkpoint_id)
        return self._paths[checkpoint_id].copy()

    def _walked(self, checkpoint_id: int) -> list[CheckpointRow]:
        newest_first: list[CheckpointRow] = []
        at: int | None = checkpoint_id
        while at is not None:
            if at not in self._rows:
                known = f"{min(self._rows)} to {self.newest_id}" if self._rows else "none yet"
                raise ConfigurationError(f"there is no checkpoint {at}; known ids: {known}")
            newest_first.append(self._rows[at])
            at = self._rows[at].parent_id
        return newest_first[::-1]

    @property
    def main_path(self) -> list[CheckpointRow]:
        """The path to the head of ``main``; empty where it has none."""
        return self.path(self.head.checkpoint_id) if self.head else []

    def ids_to(self, checkpoint_id: int | None) -> set[int]:
        return {row.checkpoint_id for row in self.path(checkpoint_id)}

    def common_ancestor(self, a: int, b: int) -> CheckpointRow | None:
        """The newest row on the paths of both; None where they began apart, as after an import."""
        both = self.ids_to(a)
        return next((row for row in reversed(self.path(b)) if row.checkpoint_id in both), None)

    def leaving(self, old_head_id: int | None, new_parent_id: int | None) -> list[CheckpointRow]:
        """The rows on the path of an old head that are not on a new one, oldest first."""
        stay = self.ids_to(new_parent_id)
        return [row for row in self.path(old_head_id) if row.checkpoint_id not in stay]

    @cached_property
    def abandoned_by(self) -> Mapping[int, int]:
        """For every row of ``main`` that is not on its head's path: the row that moved the head away from it."""
        on_path = {row.checkpoint_id for row in self.main_path}
        moved: dict[int, int] = {}
        for i, row in self._rows.items():
            if row.replaced_id is not None:
                left = (one.checkpoint_id for one in self.leaving(row.replaced_id, row.parent_id))
                moved |= {one: i for one in left if one not in on_path}
        return moved

    # -- what may be restored --------------------------------------------------------------------------------------

    @cached_property
    def expired(self) -> frozenset[int]:
        """Checkpoints that can no longer be restored; for good, whatever path the row that expired them is on."""
        return frozenset(i for row in self._rows.values() for i in row.retired)

    @cached_property
    def pins(self) -> Mapping[str, PinnedCheckpoint]:
        """Savepoints whose checkpoints are kept, by name; no restore takes a pin away."""
        pins: dict[str, PinnedCheckpoint] = {}
        for row in self._rows.values():
            for name in row.unpinned:
                pins.pop(name, None)
            pins |= {pin.name: pin for pin in row.pinned}
        return pins

    # -- what may be committed -------------------------------------------------------------------------------------

    def may_reparent(self, parent_id: int | None, branch: str = MAIN) -> CheckpointRow | None:
        """The row that a micro-batch begun on a parent may be committed on now; None where its work is lost.

        Only ``compaction`` and ``retention`` may have come in between on its branch; what other branches did is no
        matter.

        Args:
            parent_id: what the micro-batch continues; None for the first of a job.
        """
        if parent_id is None or parent_id not in self._rows or parent_id in self.expired:
            return None
        since = [row for i, row in self._rows.items() if i > parent_id and row.branch == branch]
        if any(not row.kind.is_in_background for row in since):
            return None
        newest = since[-1] if since else self._rows[parent_id]
        return newest if parent_id in self.ids_to(newest.checkpoint_id) else None

    def may_apply_compaction(self, compacted_id: int, row: CheckpointRow) -> bool:
        """Whether a compaction may be committed on the parent that its row names; if not, its work is dropped.

        The checkpoint that it folded must be on the path of that parent and not be older than a base in force there for
        the same key groups, those included whose old base is only to stand for that checkpoint, and the max parallelism
        must be what it was.

        Args:
            compacted_id: the checkpoint whose state the new base holds.
            row: the row to commit; its new bases bear its ``write_id``.
        """
        since = [r for r in self.path(row.parent_id) if r.checkpoint_id >= compacted_id]
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
