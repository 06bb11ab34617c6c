"""Where a checkpoint holds operator state: the lists of every subtask with their digests, and the reference to them.

A list is found unchanged by its digest and then pointed to where it lies. Pure: what is written and read, and where, is
the storage's matter. Plays the part of Flink's ``OperatorStateHandle.StateMetaInfo`` and ``OperatorState``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from state_engine.core.checkpoints.checkpoint import OperatorStatePart, OperatorStateRef, OperatorStateSchema
from state_engine.core.errors import RescaleError, StateAccessError
from state_engine.core.operator_state.operator_snapshot import (
    BROADCAST,
    RAW_KEYED,
    RAW_OPERATOR,
    StateElements,
    SubtaskSnapshot,
    declared_states,
    raw_operator_refusal,
)

RAW = (RAW_OPERATOR, RAW_KEYED)
"""Schemes, and names, of what the engine does not look into."""
_BYTES = "binary"


@dataclass(frozen=True)
class StoredList:
    """One list of one subtask: the rows of the table that hold it, in order."""

    name: str
    scheme: str
    type: str
    positions: Sequence[int]
    items: Sequence[str | bytes]

    def digest(self) -> str:
        """Differs where an element, its position or the number of elements does."""
        hashed = blake2b(digest_size=16)
        for position, item in zip(self.positions, self.items, strict=True):
            data = item.encode() if isinstance(item, str) else item
            hashed.update(b"%d:%d:" % (position, len(data)))
            hashed.update(data)
        return hashed.hexdigest()


def stored_lists(snapshot: SubtaskSnapshot) -> Iterator[StoredList]:
    """All that a subtask leaves to be stored, managed and raw; raw state only where there is any."""
    for state in snapshot.states:
        yield StoredList(state.name, state.scheme, state.type, range(len(state.elements)), state.elements)
    if snapshot.raw_operator:
        yield StoredList(RAW_OPERATOR, RAW_OPERATOR, _BYTES, [0], [snapshot.raw_operator])
    if snapshot.raw_keyed:
        groups, data = zip(*snapshot.raw_keyed, strict=True)
        yield StoredList(RAW_KEYED, RAW_KEYED, _BYTES, groups, data)


def stored_part(parent: OperatorStateRef | None, one: StoredList, subtask: int) -> OperatorStatePart | None:
    """The part of the parent checkpoint that may hold this very list."""
    for state in parent.states if parent else []:
        if (state.name, state.scheme, state.type) == (one.name, one.scheme, one.type):
            return next((p for p in state.parts if p.subtask == subtask), None)
    return None


def build_ref(
    operator: str,
    declared: Sequence[Sequence[OperatorStateSchema]],
    *,
    write_id: str,
    parent: OperatorStateRef | None,
) -> OperatorStateRef:
    """Where the operator state of all subtasks lies after this micro-batch.

    Args:
        declared: by subtask, the states of that subtask, each with its one part.
    """
    snapshots = {
        i: SubtaskSnapshot(tuple(StateElements(s.name, s.scheme, s.type) for s in own))
        for i, own in enumerate(declared)
    }
    states = []
    for name, state in sorted(declared_states(operator, snapshots).items()):
        parts = [part for own in declared for s in own if s.name == name for part in s.parts]
        if state.scheme == BROADCAST:
            if len(parts) < len(declared) and not any(part.elements for part in parts):
                continue  # the subtasks that had elements asked for it, and no rule has come yet
            parts = [_one_copy(operator, name, parts, len(declared))]
        states.append(OperatorStateSchema(name, state.scheme, state.type, parts))
    same = parent is not None and (parent.states, parent.parallelism) == (states, len(declared))
    return OperatorStateRef(
        operator=operator,
        write_id=parent.write_id if parent is not None and same else write_id,
        elements=sum(part.elements for state in states for part in state.parts),
        parallelism=len(declared),
        states=states,
        last_run=write_id,
    )


def check_rescale(ref: OperatorStateRef, parallelism: int) -> None:
    """Raise RescaleError where an operator's state cannot be given out to another number of subtasks."""
    raw = [p for s in ref.states if s.scheme == RAW_OPERATOR for p in s.parts if p.elements]
    if raw and parallelism != ref.parallelism:
        raise RescaleError(raw_operator_refusal(ref.operator, len(raw), ref.parallelism, parallelism))


def schemas_from_json(raw: Iterable[Mapping[str, Any]]) -> list[OperatorStateSchema]:
    """States that went through ``dataclasses.asdict`` and JSON, as they were."""
    return [
        OperatorStateSchema(s["name"], s["scheme"], s["type"], [OperatorStatePart(**p) for p in s["parts"]])
        for s in raw
    ]


def _one_copy(
    operator: str, name: str, parts: list[OperatorStatePart], parallelism: int
) -> OperatorStatePart:
    """The part of subtask 0, if all subtasks hold the same."""
    copies = {part.subtask: part.digest for part in parts}
    for subtask in range(parallelism):
        if copies.get(subtask) != copies.get(0):
            raise StateAccessError(
                f"operator '{operator}': broadcast state '{name}' is not the same in subtask 0 and subtask {subtask}. "
                "Declare it on every subtask, and change it only in process_broadcast_element and only by what follows "
                "from the broadcast elements"
            )
    return next(part for part in parts if part.subtask == 0)
