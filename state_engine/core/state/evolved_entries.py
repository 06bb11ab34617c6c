"""Entries of keyed state in memory, brought to a later declaration: what reading stored files again does on the engine.

Values go the way they go there: into the stored column of the type they were written with, and from it into the
declared type. Which changes are supported, :mod:`.evolution` decides. Plays the part of a Flink serializer that reads
old bytes, for tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from state_engine.core.state.descriptors import MapStateDescriptor, StateDescriptor
from state_engine.core.state.evolution import column_type_of, evolve
from state_engine.core.state.ttl import Stamped
from state_engine.core.types.every_type import DictType, ListType, StructType, TypeInformation
from state_engine.core.types.stored_form import conform
from state_engine.core.types.type_text import type_to_text

Entries = dict[Any, Any]


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
