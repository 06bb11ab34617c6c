"""``MemoryState``: the stored entries of keyed state, in plain dicts.

What changes of a micro-batch are folded into, and what the next one is loaded from: the part that Delta tables play on
the engine, for tests. Plays the part of Flink's ``MemCheckpointStreamFactory``. Entries go to a later declaration the
way they go there: into the stored column of the type they were written with, and from it into the declared type.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from state_engine.core.state.change_folding import fold
from state_engine.core.state.descriptors import TIMERS, MapStateDescriptor, StateDescriptor
from state_engine.core.state.evolution import column_type_of, evolve, recorded_schema
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.state.state_table import Change
from state_engine.core.state.stored_states import StoredStates
from state_engine.core.state.ttl import Stamped
from state_engine.core.state.ttl_rule import without_expired
from state_engine.core.types.every_type import DictType, ListType, StructType, TypeInformation
from state_engine.core.types.stored_form import conform
from state_engine.core.types.type_text import type_to_text

Entries = dict[Any, Any]


@dataclass
class MemoryState:
    """Entries by state and key, with the descriptors they were written with."""

    entries: dict[str, Entries] = field(default_factory=dict)
    descriptors: dict[str, StateDescriptor] = field(default_factory=dict)
    _schemas: dict[str, tuple[StateDescriptor, StateSchema]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def load(self, descriptor: StateDescriptor, keys: Iterable[Any], *, operator: str) -> Entries:
        """The entries of some keys, as a copy, in the form of a declaration that may be a later one."""
        known = self._known(descriptor, operator)[0]
        if known is None:
            return {}
        stored = self.entries[known]
        entries = copy.deepcopy({key: stored[key] for key in keys if key in stored})
        return as_declared(entries, self.descriptors[known], descriptor)

    def fold(self, descriptor: StateDescriptor, changes: Iterable[Change]) -> None:
        """Take in the changes of a micro-batch, made with a declaration that ``load`` has let pass."""
        name = descriptor.name
        known, stored_as = self._known(descriptor)
        entries, was = (
            ({}, descriptor) if known is None else (self.entries.pop(known), self.descriptors.pop(known))
        )
        self.entries[name] = as_declared(entries, was, descriptor)
        self.descriptors[name] = descriptor.stored(stored_as, descriptor.value_type)
        fold(descriptor.shape, self.entries[name], changes)

    def _known(self, descriptor: StateDescriptor, operator: str = "") -> tuple[str | None, str]:
        """The name under which a state is kept, None where it is not, and the name that it is stored as."""
        recorded = {name: self._schema_of(name, declared) for name, declared in self.descriptors.items()}
        stored_as = StoredStates(operator, recorded).of(descriptor).descriptor.stored_as
        known = (name for name, declared in self.descriptors.items() if declared.stored_as == stored_as)
        return next(known, None), stored_as

    def _schema_of(self, name: str, declared: StateDescriptor) -> StateSchema:
        if name not in self._schemas or self._schemas[name][0] is not declared:
            self._schemas[name] = declared, recorded_schema(declared)
        return self._schemas[name][1]

    def copied(self) -> MemoryState:
        return MemoryState(copy.deepcopy(self.entries), dict(self.descriptors))

    def without_expired(self, *, clock_ms: int, watermark_ms: int | None) -> MemoryState:
        """A copy as a full snapshot has it: where a state asks for that, what has expired is left out."""
        kept = self.copied()
        for name, descriptor in kept.descriptors.items():
            if descriptor.ttl is not None and descriptor.ttl.get_cleanup_strategies().in_full_snapshot():
                kept.entries[name] = without_expired(
                    descriptor, kept.entries[name], clock_ms=clock_ms, watermark_ms=watermark_ms
                )
        return kept

    def values(self, name: str) -> Entries:
        """The entries of one state by key, as users see them: a value, a list, or a dict."""
        descriptor, entries = self.descriptors[name], copy.deepcopy(self.entries[name])
        if descriptor.ttl is None:
            return entries
        return {key: UNSTAMPED[descriptor.shape](stored) for key, stored in entries.items()}

    def keys_with_timers(self) -> list[Any]:
        return list(self.entries.get(TIMERS, ()))


UNSTAMPED: dict[str, Callable[[Any], Any]] = {
    "value": lambda item: item.value,
    "list": lambda items: [item.value for item in items],
    "map": lambda items: {key: item.value for key, item in items.items()},
}


def as_declared(entries: Entries, was: StateDescriptor, now: StateDescriptor) -> Entries:
    """Entries written with one declaration, in the form of a later one that ``evolve_state`` has let pass.

    What was written without a time to live has no time: it lives until it is written again.

    Example:
        >>> from state_engine.core.state.descriptors import ValueStateDescriptor
        >>> was = ValueStateDescriptor("last", "struct<delay: int>")
        >>> now = ValueStateDescriptor("last", "struct<origin: string, delay: bigint>")
        >>> as_declared({"N1": was.value_type.normalise((7,))}, was, now)
        {'N1': Row(origin=None, delay=7)}
    """
    if (was.ttl is None) == (now.ttl is None) and _alike(column_type_of(was), column_type_of(now)):
        return entries
    items = list(_items(entries, now.shape))
    plain = items if was.ttl is None else [item.value for item in items]
    read = _read(plain, was.value_type, now.value_type)
    if now.ttl is not None:
        times = [None if was.ttl is None else item.at for item in items]
        read = [Stamped(value, at) for value, at in zip(read, times, strict=True)]
    made = iter(read)
    if now.shape == "value":
        return {key: next(made) for key in entries}
    if now.shape == "list":
        return {key: [next(made) for _ in stored] for key, stored in entries.items()}
    before, after = (cast(MapStateDescriptor, descriptor).key_type for descriptor in (was, now))
    map_keys = iter(_read([k for stored in entries.values() for k in stored], before, after))
    return {key: {next(map_keys): next(made) for _ in stored} for key, stored in entries.items()}


def _items(entries: Entries, shape: str) -> Iterator[Any]:
    """All values, list elements or map values, key by key."""
    if shape == "value":
        yield from entries.values()
        return
    for stored in entries.values():
        yield from stored.values() if shape == "map" else stored


def _read(values: list[Any], was: TypeInformation, now: TypeInformation) -> list[Any]:
    evolution = evolve(type_to_text(was), now)  # fields of another name are found by their alias
    return evolution.type.from_arrow(conform(was.to_arrow(values, storage=True), evolution.storage))


def _alike(was: TypeInformation, now: TypeInformation) -> bool:
    """Whether values of one type are values of the other one as they are, their classes included."""
    return type_to_text(was) == type_to_text(now) and _classes(was) == _classes(now)


def _classes(kind: TypeInformation) -> list[Any]:
    if isinstance(kind, ListType):
        return _classes(kind.element)
    if isinstance(kind, DictType):
        return _classes(kind.key) + _classes(kind.value)
    if isinstance(kind, StructType):
        return [kind.made_by, *(inner for part in kind.types for inner in _classes(part))]
    return []
