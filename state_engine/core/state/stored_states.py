"""Which stored state a declared one is: by its name, or by the name that it had before it was renamed.

Rows of a state and its column bear the name that it was stored under first. A rename keeps that name, so it writes
nothing; and a state that is declared again after it was dropped gets another one, so that its old entries, which older
checkpoints still read, do not come back. Names of storage that users cannot give (they begin with a digit) keep the two
apart. What may change in a state's type, :mod:`.evolution` decides. Flink finds states by name only. Decision 0015.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from state_engine.core.errors import StateMigrationError
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.evolution import evolve_state, value_type_of
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.types.column_names import unused


@dataclass(frozen=True)
class RecordedState:
    """How a declared state is stored.

    Attributes:
        descriptor: the declaration, with the names that state and fields have in storage.
        read: gives a stored column the form that the descriptor's type takes; None where nothing is stored.
    """

    descriptor: StateDescriptor
    read: Callable[[Any], Any] | None = None
    changes: tuple[str, ...] = ()


@dataclass
class StoredStates:
    """The stored states of one operator, for those that its function declares.

    Args:
        recorded: states as of the parent checkpoint, by name, those included that are dropped.
        earlier: what was ever stored under a name, on the path to the parent, by name of storage.
    """

    operator: str
    recorded: Mapping[str, StateSchema] = field(default_factory=dict)
    earlier: Mapping[str, Iterable[StateSchema]] = field(default_factory=dict)
    dropped: Iterable[str] = ()
    _known: dict[str, RecordedState] = field(default_factory=dict)

    def of(self, descriptor: StateDescriptor) -> RecordedState:
        """How a state is stored; the same answer for the same name."""
        if descriptor.name not in self._known:
            self._known[descriptor.name] = self._of(descriptor)
        return self._known[descriptor.name]

    @property
    def asked(self) -> set[str]:
        """The names of storage of the states that were declared by now."""
        return {stored.descriptor.stored_as for stored in self._known.values()}

    def _of(self, descriptor: StateDescriptor) -> RecordedState:
        what = f"operator '{self.operator}': state '{descriptor.name}'"
        if descriptor.name in self.dropped:
            raise StateMigrationError(
                f"{what} is declared by the function and dropped by drop_states: leave one of them out"
            )
        recorded = self._recorded(descriptor, what)
        if recorded is None:
            taken = {*self.earlier, *(s.column_name for s in self.recorded.values())}
            name = unused(descriptor.stored_as, taken, lambda name, n: f"{n}__{name}")
            return RecordedState(descriptor.stored(name, descriptor.value_type))
        other = next(
            (n for n, s in self._known.items() if s.descriptor.stored_as == recorded.column_name), None
        )
        if other is not None:
            raise StateMigrationError(
                f"{what} is declared beside '{other}', and both name the stored state '{recorded.name}': "
                "only one of them can. Give the other one another name"
            )
        earlier = self.earlier.get(recorded.column_name, ())
        evolution = evolve_state(recorded, descriptor, operator=self.operator, earlier=earlier)
        changes = evolution.changes
        if recorded.name != descriptor.name:
            changes = (f"state '{recorded.name}' is renamed to '{descriptor.name}'", *changes)
        stored = descriptor.stored(recorded.column_name, value_type_of(evolution.type, descriptor.shape))
        return RecordedState(stored, evolution.read, changes)

    def _recorded(self, descriptor: StateDescriptor, what: str) -> StateSchema | None:
        own, former = self.recorded.get(descriptor.name), descriptor.former_name
        if former is None or former not in self.recorded or former in self.dropped:
            return own
        if own is None:
            return self.recorded[former]
        if own.stored_as is not None:  # the rename is done, and a new state bears the old name
            return own
        raise StateMigrationError(
            f"{what} is renamed from '{former}', and the checkpoint holds both, which cannot become one. If the rename "
            f"is done, leave renamed_from out; to give the state '{former}' up, drop_states('{former}')"
        )


def kept_states(
    recorded: Iterable[StateSchema], declared: Iterable[StateSchema], *, dropped: Iterable[str] = ()
) -> list[StateSchema]:
    """The states that a checkpoint holds: those declared, and those that its parent held and nobody dropped."""
    now = {schema.name: schema for schema in declared}
    stored, dropped_names = {schema.column_name for schema in now.values()}, set(dropped)
    before = {s.name: s for s in recorded if s.column_name not in stored and s.name not in dropped_names}
    return list((before | now).values())
