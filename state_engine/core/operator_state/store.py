"""``OperatorStateStore``: the states of one operator that belong to a subtask and not to a key.

Every state is a list per subtask of elements that can be redistributed one by one; broadcast state is a map of which
every subtask has a copy. The handles are those of keyed state with one key for the whole subtask, so values are
normalised when they are written, reads are fresh copies, and a refused element takes its writes back here, too. State
that was restored and that nobody asked for stays as it is. A declared type may differ from the stored one as far as
:mod:`.evolution` supports it; the state is then written again. Mirrors Flink's ``OperatorStateStore`` and
``DefaultOperatorStateBackend``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, overload

from state_engine.core.errors import (
    ConfigurationError,
    StateAccessError,
    StateMigrationError,
    ValueTypeError,
)
from state_engine.core.operator_state.broadcast_state import BroadcastState, ReadOnlyBroadcastState
from state_engine.core.operator_state.operator_snapshot import (
    BROADCAST,
    EVEN_SPLIT,
    RAW_KEYED,
    RAW_OPERATOR,
    UNION,
    StateElements,
    SubtaskSnapshot,
)
from state_engine.core.state.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from state_engine.core.state.evolution import Evolution, MapEntryType, evolve
from state_engine.core.state.list_state import ListState
from state_engine.core.state.map_state import MapState
from state_engine.core.state.state_table import KeyContext, KeyedEntries
from state_engine.core.types.every_type import TypeInformation
from state_engine.core.types.json_values import from_json, to_json, type_text
from state_engine.core.types.plain_type import PlainType

LIST_CHECKPOINTED = "list_checkpointed"
"""Name of the state that holds the list of a ``ListCheckpointed`` function."""
_PLAIN = str(PlainType())
_RESERVED = (LIST_CHECKPOINTED, RAW_OPERATOR, RAW_KEYED)


class OperatorStateStore:
    """The operator state of one subtask.

    Args:
        operator: uid of the operator, for messages.
        restored: what the subtask starts with; None where it starts with nothing.
        context: the current element, whose refusal also takes back what it wrote here.

    Example:
        >>> store = OperatorStateStore("sink")
        >>> buffered = store.get_list_state(ListStateDescriptor("buffered", int))
        >>> buffered.add_all([1, 2])
        >>> store.snapshot()
        (StateElements(name='buffered', scheme='even_split', type='bigint', elements=('1', '2')),)
    """

    def __init__(
        self, operator: str, restored: SubtaskSnapshot | None = None, context: KeyContext | None = None
    ) -> None:
        self._operator = operator
        # a handle asks its context for a key and for the list of undo actions, and for nothing else
        self._scope = cast(KeyContext, _SubtaskScope(context or KeyContext()))
        self._restored = {state.name: state for state in (restored.states if restored else ())}
        self._registered: dict[str, _Registered] = {}

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """A list that is dealt out evenly, in order, over the subtasks when the parallelism changes.

        Raises:
            StateAccessError: the name is taken by another state, or the descriptor is not of a list state.
            StateMigrationError: the checkpoint holds another type or scheme under this name.
            ConfigurationError: the descriptor has a time to live, or the name is reserved.
        """
        return cast(ListState, self._get(descriptor, EVEN_SPLIT).handle)

    def get_union_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """A list of which every subtask gets all elements when the parallelism changes, or after a restore.

        A micro-batch boundary is neither: there every subtask gets its own list back. Raises as get_list_state does.
        """
        return cast(ListState, self._get(descriptor, UNION).handle)

    @overload
    def get_broadcast_state(
        self, descriptor: MapStateDescriptor, *, read_only: Literal[False] = False
    ) -> BroadcastState: ...

    @overload
    def get_broadcast_state(
        self, descriptor: MapStateDescriptor, *, read_only: Literal[True]
    ) -> ReadOnlyBroadcastState: ...

    def get_broadcast_state(
        self, descriptor: MapStateDescriptor, *, read_only: bool = False
    ) -> BroadcastState | ReadOnlyBroadcastState:
        """A map of which every subtask has a copy, as ``BroadcastState``, or ``ReadOnlyBroadcastState`` if asked for.

        Raises as get_list_state does.
        """
        entries, where = self._get(descriptor, BROADCAST).handle, self._where(descriptor.name)
        return (ReadOnlyBroadcastState if read_only else BroadcastState)(entries, where=where)

    def get_registered_state_names(self) -> set[str]:
        """Names of the list states, also of restored ones that nobody asked for yet."""
        return {name for name, scheme in self._schemes().items() if scheme != BROADCAST}

    def get_registered_broadcast_state_names(self) -> set[str]:
        """Names of the broadcast states, also of restored ones that nobody asked for yet."""
        return {name for name, scheme in self._schemes().items() if scheme == BROADCAST}

    @property
    def asked(self) -> frozenset[str]:
        """Names of the states that were asked for, and those that they had before they were renamed."""
        former = {one.former_name for one in self.declared}
        return frozenset(self._registered) | {name for name in former if name is not None}

    @property
    def declared(self) -> tuple[DeclaredOwnState, ...]:
        """The states that were asked for, as they were declared."""
        return tuple(
            DeclaredOwnState(self._operator, one.declared, one.element_type, one.table.descriptor.former_name)
            for one in self._registered.values()
        )

    def list_checkpointed(self, element_type: TypeInformation) -> ListState:
        """The list of a ``ListCheckpointed`` function."""
        descriptor = ListStateDescriptor(LIST_CHECKPOINTED, element_type)
        return cast(ListState, self._get(descriptor, EVEN_SPLIT, own=True).handle)

    def fill(self, name: str, elements: Any) -> None:
        """Give a state that was asked for before its elements: a sequence, or for broadcast state a dict or pairs.

        Raises:
            ValueTypeError: an element is not of the declared type.
        """
        handle = self._registered[name].handle
        if isinstance(handle, ListState):
            if isinstance(elements, str | bytes | Mapping):
                raise ValueTypeError(f"a list is given as a sequence of its elements, not as {elements!r}")
            handle.update(list(elements))
        else:
            handle.clear()
            handle.put_all(elements)

    def snapshot(self) -> tuple[StateElements, ...]:
        """The states by name, as they are now; later writes do not change what is returned."""
        now = {name: state.elements(self._restored.get(name)) for name, state in self._registered.items()}
        states = self._restored | now
        return tuple(states[name] for name in sorted(states))

    def _schemes(self) -> dict[str, str]:
        registered = {name: state.declared.scheme for name, state in self._registered.items()}
        return {name: state.scheme for name, state in self._restored.items()} | registered

    def _get(self, descriptor: Any, scheme: str, *, own: bool = False) -> _Registered:
        self._check(descriptor, scheme, own)
        kind = _element_type(descriptor)
        declared = StateElements(descriptor.name, scheme, type_text(kind))
        known = self._registered.get(descriptor.name)
        if known is None:
            table = KeyedEntries(
                descriptor,
                {_KEY: loaded} if (loaded := self._load(declared, kind, descriptor.former_name)) else {},
            )
            known = _Registered(declared, kind, table, _HANDLES[descriptor.shape](table, self._scope))
            self._registered[descriptor.name] = known
        elif known.declared != declared:
            was, now = (_shown(one.scheme, one.type) for one in (known.declared, declared))
            raise StateAccessError(
                f"{self._where(descriptor.name)} is declared twice, as {was} and as {now}; give them different names"
            )
        return known

    def _check(self, descriptor: Any, scheme: str, own: bool) -> None:
        wanted = "map" if scheme == BROADCAST else "list"
        if getattr(descriptor, "kind", None) != wanted:
            raise StateAccessError(
                f"operator '{self._operator}': {descriptor!r} does not describe operator state of scheme {scheme}; "
                f"use a {wanted.capitalize()}StateDescriptor"
            )
        if descriptor.ttl is not None:
            raise ConfigurationError(
                f"{self._where(descriptor.name)}: operator state does not expire; leave out enable_time_to_live, "
                "or keep the values in keyed state"
            )
        if descriptor.name in _RESERVED and not own:
            raise ConfigurationError(
                f"{self._where(descriptor.name)}: the engine itself uses this name; choose another one"
            )

    def _load(self, declared: StateElements, kind: TypeInformation, former_name: str | None) -> Any:
        """What was restored of a state, as its handle keeps it."""
        stored = self._restored.get(declared.name)
        if stored is None and former_name in self._restored and former_name not in self._registered:
            stored = self._restored.pop(former_name)  # it is written anew, under its new name
        if stored is None:
            return None
        evolution = DeclaredOwnState(self._operator, declared, kind).evolution(stored.scheme, stored.type)
        elements = from_json(kind if evolution is None else evolution.type, stored.elements)
        return dict(elements) if declared.scheme == BROADCAST else elements

    def _where(self, name: str) -> str:
        return _where(self._operator, name)


@dataclass(frozen=True)
class DeclaredOwnState:
    """A state that a function asked for, as it declared it.

    Attributes:
        former_name: its name before, if the declaration has one.
    """

    operator: str
    declared: StateElements
    element_type: TypeInformation
    former_name: str | None = None

    @property
    def name(self) -> str:
        return self.declared.name

    def evolution(self, scheme: str, stored: str) -> Evolution | None:
        """How stored elements are read; None where they are of the declared type.

        Raises:
            StateMigrationError: the declaration would misread them.
        """
        declared, where = self.declared, _where(self.operator, self.name)
        if scheme != declared.scheme or (stored != declared.type and _PLAIN in (stored, declared.type)):
            raise StateMigrationError(
                f"{where} is stored as {_shown(scheme, stored)}, the function declares "
                f"{_shown(declared.scheme, declared.type)}. Restore the old declaration, or give the new state another "
                "name"
            )
        return None if stored == declared.type else evolve(stored, self.element_type, what=where)

    def changes_since(self, scheme: str, stored: str) -> tuple[str, ...]:
        """What changed of the elements, as texts; raises as ``evolution``."""
        evolution = self.evolution(scheme, stored)
        return () if evolution is None else evolution.changes


_KEY = ()
"""The one key of all operator state."""

_HANDLES: dict[str, Callable[[KeyedEntries, KeyContext], Any]] = {"list": ListState, "map": MapState}


class _SubtaskScope:
    """Stands in for the context of an element where the scope is the whole subtask."""

    key = _KEY

    def __init__(self, element: KeyContext) -> None:
        self._element = element

    @property
    def undo(self) -> list[Callable[[], Any]] | None:
        return self._element.undo


@dataclass(frozen=True)
class _Registered:
    declared: StateElements
    element_type: TypeInformation
    table: KeyedEntries
    handle: Any

    def elements(self, restored: StateElements | None) -> StateElements:
        """The list as it is now; ``restored`` itself where nothing changed."""
        same_type = restored is not None and restored.type == self.declared.type
        if restored is not None and same_type and next(self.table.changes(), None) is None:
            return restored
        now = self.table.entries.get(_KEY, ())
        values = list(now.items()) if isinstance(now, dict) else list(now)
        declared = self.declared
        return StateElements(
            declared.name, declared.scheme, declared.type, to_json(self.element_type, values)
        )


def _element_type(descriptor: StateDescriptor) -> TypeInformation:
    """The type of what is redistributed: an element, or an entry of a map."""
    if isinstance(descriptor, MapStateDescriptor):
        return MapEntryType(descriptor.key_type, descriptor.value_type)
    return descriptor.value_type


def _shown(scheme: str, kind: str) -> str:
    return f"{scheme} of {kind}"


def _where(operator: str, name: str) -> str:
    return f"operator '{operator}': state '{name}'"
