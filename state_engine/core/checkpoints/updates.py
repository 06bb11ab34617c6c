"""Updates and requirements: what a commit adds to the table of checkpoints, and where it may land, as plain values.

A commit is one row. ``AddCheckpoint`` gives it, further updates say what is special about it, and a requirement decides
whether it may land on the rows that are there by then. Values can be listed, logged and compared, and are tried without
a table; ``CheckpointLog.commit`` is the only place that carries them out. Follows the table updates and requirements of
Iceberg's catalog protocol. Decision 0033.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Protocol

from state_engine.core.checkpoints.checkpoint import (
    MAIN,
    CheckpointRow,
    DataFile,
    OperatorCheckpoint,
    OperatorStateRef,
    PinnedCheckpoint,
    StagedSink,
)
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.write_ids import WriteAttempt

# -- updates -----------------------------------------------------------------------------------------------------------


class Update(Protocol):
    """A change of the row that is to be committed."""

    def applied(self, row: CheckpointRow) -> CheckpointRow:
        """The row with the change."""


@dataclass(frozen=True)
class AddCheckpoint:
    """Adds a row: of a micro-batch, the first of a job, or ``continuing`` of an operation. First in every commit."""

    row: CheckpointRow

    def applied(self, row: CheckpointRow) -> CheckpointRow:
        return self.row


@dataclass(frozen=True)
class MoveHead:
    """The head leaves its path, and the sinks follow.

    Attributes:
        sinks: what is withdrawn from each sink, and what comes (back).
        backfill: the backfill that this ends, as text; empty for none.
    """

    replaced_id: int
    sinks: Sequence[StagedSink]
    backfill: str = ""

    def applied(self, row: CheckpointRow) -> CheckpointRow:
        return replace(row, replaced_id=self.replaced_id, sinks=list(self.sinks), backfill=self.backfill)


@dataclass(frozen=True)
class SetOperators:
    """Operators whose state lies elsewhere from this row on: in new bases, or with changes that the row lists."""

    operators: Sequence[OperatorCheckpoint]

    def applied(self, row: CheckpointRow) -> CheckpointRow:
        """The row with these instead of its own, and behind them those that it does not know."""
        own = {o.uid: o for o in self.operators}
        kept = [own.pop(o.uid, o) for o in row.operators]
        return replace(row, operators=[*kept, *own.values()])


@dataclass(frozen=True)
class DropOperators:
    """Operators leave, with all that is stored of them."""

    uids: tuple[str, ...]

    def applied(self, row: CheckpointRow) -> CheckpointRow:
        return replace(
            row,
            operators=[one for one in row.operators if one.uid not in self.uids],
            operator_state=[ref for ref in row.operator_state if ref.operator not in self.uids],
            rescaled=[one for one in row.rescaled if one.uid not in self.uids],
            operator_watermarks_ms=self._without(row.operator_watermarks_ms),
            kept_states=self._without(row.kept_states),
        )

    def _without(self, by_uid: Mapping[str, Any]) -> dict[str, Any]:
        return {uid: value for uid, value in by_uid.items() if uid not in self.uids}


@dataclass(frozen=True)
class StatePositions:
    """The positions of sources are stated whole, in a file of the row."""

    operator_state: Sequence[OperatorStateRef]
    file: DataFile

    def applied(self, row: CheckpointRow) -> CheckpointRow:
        return replace(row, operator_state=list(self.operator_state), operator_state_files=[self.file])


@dataclass(frozen=True)
class Expire:
    """Checkpoints that can no longer be restored.

    Example:
        >>> Expire([1, 2])
        Expire(ids=[1, 2])
    """

    ids: Sequence[int]

    def applied(self, row: CheckpointRow) -> CheckpointRow:
        return replace(row, retired=list(self.ids))


@dataclass(frozen=True)
class Pin:
    """A checkpoint stays restorable, for a savepoint."""

    pin: PinnedCheckpoint

    def applied(self, row: CheckpointRow) -> CheckpointRow:
        return replace(row, pinned=[self.pin])


@dataclass(frozen=True)
class Unpin:
    """Retention may have the checkpoint of a savepoint again."""

    name: str

    def applied(self, row: CheckpointRow) -> CheckpointRow:
        return replace(row, unpinned=[self.name])


@dataclass(frozen=True)
class SettleTable:
    """A published table that others had changed was rebuilt from the state, or accepted as it is; nothing else changes.

    Attributes:
        table: as a row records it; its policy says which of the two.
    """

    table: StagedSink

    def applied(self, row: CheckpointRow) -> CheckpointRow:
        return replace(row, sinks=[self.table])


@dataclass(frozen=True)
class LeaveOut:
    """Files of the table itself that leave it in the same commit, because their rows are damaged; for repairs."""

    names: Sequence[str]

    def applied(self, row: CheckpointRow) -> CheckpointRow:
        """The row as it is: only the table changes."""
        return row


def row_of(updates: Sequence[Update]) -> CheckpointRow:
    """The row that updates make, as it was planned. Raises TypeError where ``AddCheckpoint`` is not the first."""
    first, *others = updates
    if not isinstance(first, AddCheckpoint):
        raise TypeError(f"a commit begins with AddCheckpoint, not with {first}")
    return reduce(lambda row, update: update.applied(row), others, first.row)


# -- requirements ------------------------------------------------------------------------------------------------------


class Requirement(Protocol):
    """Decides whether a row may land on the rows that are there now."""

    def landing(self, row: CheckpointRow, history: History) -> CheckpointRow | None:
        """The row as it may be committed on these rows; None where it may not."""


@dataclass(frozen=True)
class NewestIs:
    """No row came since the plan was made, of any branch. For all that was planned on the rows as a whole.

    Attributes:
        checkpoint_id: the newest row of the plan; 0 for a job that has none.
    """

    checkpoint_id: int

    def landing(self, row: CheckpointRow, history: History) -> CheckpointRow | None:
        return row if history.newest_id == self.checkpoint_id else None


@dataclass(frozen=True)
class OnlyBackgroundSince:
    """On its branch only compaction and retention came since a micro-batch was planned; it goes on the newest then.

    What other branches did is no matter. The bases in force are those of the row that it lands on.

    Attributes:
        parent_id: what the micro-batch continues; None for the first of a job or of a branch.
    """

    parent_id: int | None
    branch: str

    def landing(self, row: CheckpointRow, history: History) -> CheckpointRow | None:
        """The row on the newest row of its branch."""
        if self.parent_id is None:  # there is nothing that it could be put upon
            return row if row.checkpoint_id > history.newest_id else None
        parent = history.may_reparent(self.parent_id, self.branch)
        return reparented(row, parent, checkpoint_id=history.next_id) if parent is not None else None


def reparented(row: CheckpointRow, parent: CheckpointRow, *, checkpoint_id: int) -> CheckpointRow:
    """The row on its parent, or a newer one that only cleaned up: the bases in force are that row's."""
    bases = {o.uid: o.bases for o in parent.operators}
    operators = [replace(o, bases=bases.get(o.uid, [])) for o in row.operators]
    return replace(row, checkpoint_id=checkpoint_id, parent_id=parent.checkpoint_id, operators=operators)


def continuing(
    parent: CheckpointRow,
    kind: CheckpointKind,
    checkpoint_id: int,
    attempt: WriteAttempt,
    *,
    requested_by: str,
) -> CheckpointRow:
    """A row of ``main`` that no micro-batch makes, and that changes nothing of what its parent stands for.

    It holds that, reads nothing and stages nothing of its own.
    """
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
