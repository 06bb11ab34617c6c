"""Which keyed states of two checkpoints are the same one: that which both have from a common ancestor, else by name.

So a state that was renamed in between is compared with itself, and a state that was declared anew under the name of one
that was dropped is not compared with that one. A replay from the beginning has today's names from its first checkpoint
on, stored under them, and is compared by them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.time_travel import DeclaredState, declared_states
from state_engine.core.types.type_text import shown_storage


@dataclass(frozen=True)
class StatePair:
    """A state at the ends of two paths; None where it is not there."""

    operator: str
    state: str
    old: DeclaredState | None
    new: DeclaredState | None
    inherited: bool = False

    @property
    def names(self) -> set[tuple[str, str]]:
        """Operator and state, by either name."""
        return {(self.operator, s.schema.name) for s in (self.old, self.new) if s is not None}

    def shown(self, side: DeclaredState) -> pa.DataType:
        """The type in which both sides are compared: fields that were renamed are called as on the new side."""
        like = self.new.schema.type if self.inherited and self.new is not None else None
        return shown_storage(side.schema.type, like=like)


def state_pairs(old: Sequence[CheckpointRow], new: Sequence[CheckpointRow]) -> list[StatePair]:
    """All keyed states at the end of either path, by operator and name."""
    shared = [a for a, b in zip(old, new, strict=False) if a.checkpoint_id == b.checkpoint_id]
    common = {_stored(s) for s in declared_states(shared)}
    before, after = declared_states(old), declared_states(new)
    by_stored = {_stored(s): s for s in before if _stored(s) in common}
    by_name = {_named(s): s for s in before if _stored(s) not in common}
    pairs = []
    for state in after:
        inherited = by_stored.pop(_stored(state), None)
        other = inherited or (None if _stored(state) in common else by_name.pop(_named(state), None))
        pairs.append(StatePair(*_named(state), other, state, inherited is not None))
    taken = {_named(s) for s in after}
    for state in (*by_stored.values(), *by_name.values()):
        uid, name = _named(state)
        while (uid, name) in taken:  # it was dropped, and another one has its name
            name = f"{name} (old)"
        taken.add((uid, name))
        pairs.append(StatePair(uid, name, state, None))
    return sorted(pairs, key=lambda pair: (pair.operator, pair.state))


def _stored(state: DeclaredState) -> tuple[str, str]:
    return state.operator.uid, state.schema.column_name


def _named(state: DeclaredState) -> tuple[str, str]:
    return state.operator.uid, state.schema.name
