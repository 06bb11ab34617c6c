"""How an operator goes on: what lies on the path of checkpoints between its last run and the next one.

Four questions are answered here, all from the rows alone: whether its state is handed out as after a restore; from
which checkpoint its function continues; of which completed checkpoints its ``CheckpointListener`` is notified; and
which forms its keyed states ever had. A listener is notified at the start of the next micro-batch in which its operator
runs, before any element: never before the commit, in order, and at least once, for a batch that fails repeats its
notifications. Plays the part of Flink's ``CheckpointCoordinator`` towards tasks that it restores and notifies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorStateRef
from state_engine.core.incremental_fold import IncrementalFold
from state_engine.core.state.state_schema import StateSchema


def restored_since_last_run(path: Sequence[CheckpointRow], ref: OperatorStateRef) -> bool:
    """Whether the job was restored or imported after the operator's last run.

    Args:
        path: rows from the first checkpoint to the parent, oldest first.
    """
    return any(row.kind.restores_state for row in _after_last_run(path, ref.last_run))


def restored_checkpoint_id(path: Sequence[CheckpointRow]) -> int | None:
    """Id of the micro-batch that a path ends with, for ``get_restored_checkpoint_id``; None where there is none.

    Rows of compactions, restores and the like are passed over; an imported savepoint counts as what it is the copy of,
    and so does what a job began with otherwise.
    """
    own = (row for row in reversed(path) if row.kind.is_micro_batch or row.kind.begins_job)
    return next((row.checkpoint_id for row in own), None)


def completed_since_last_run(path: Sequence[CheckpointRow], ref: OperatorStateRef | None) -> list[int]:
    """Ids of which the operator's listeners are notified now, oldest first: of its last run, and of all since.

    The ids before were notified when that last run began, and it was committed. An operator that no checkpoint knows
    is notified of none.

    Args:
        path: rows from the first checkpoint to the parent, oldest first.
        ref: what the parent holds of the operator; None where it does not know it.
    """
    if ref is None:
        return []
    last = [row for row in path if row.write_id == ref.last_run]
    rows = [*last, *_after_last_run(path, ref.last_run)]
    return [row.checkpoint_id for row in rows if row.kind.is_micro_batch]


def _after_last_run(path: Sequence[CheckpointRow], last_run: str) -> Sequence[CheckpointRow]:
    """The rows after the one that an attempt committed; all where it is not on the path, as after an import."""
    at = next((i for i in range(len(path) - 1, -1, -1) if path[i].write_id == last_run), -1)
    return path[at + 1 :]


def earlier_states(uid: str, path: Sequence[CheckpointRow]) -> dict[str, list[StateSchema]]:
    """The forms that an operator's states ever had on a path, by name of storage, oldest first."""
    by_column: dict[str, list[StateSchema]] = {}
    for schema in _FORMS.of(path).get(uid, ()):
        by_column.setdefault(schema.column_name, []).append(schema)
    return by_column


def _with_rows(forms: Forms, rows: Sequence[CheckpointRow]) -> Forms:
    longer = dict(forms)
    for operator in (operator for row in rows for operator in row.operators):
        known = longer.get(operator.uid, ())
        new = tuple(schema for schema in operator.states if schema not in known)
        if new:
            longer[operator.uid] = known + new
    return longer


Forms = Mapping[str, tuple[StateSchema, ...]]
"""By operator, the forms of all its states, oldest first."""
_FORMS: IncrementalFold[CheckpointRow, Forms] = IncrementalFold(_with_rows, {}, weakly=True)
