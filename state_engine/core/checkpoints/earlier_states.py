"""Which forms the states of an operator ever had on the path to a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.incremental_fold import IncrementalFold
from state_engine.core.state.state_schema import StateSchema


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
