"""States as columns: what is stored for the keys of a batch, and what changed in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.vectorized_functions import KEY, TIME
from state_engine.core.keys.entry_codes import entry_codes, last_rows, leaves
from state_engine.core.stable_order import stable_order
from state_engine.core.state.descriptors import (
    MapStateDescriptor,
    SortedMapStateDescriptor,
    StateDescriptor,
)
from state_engine.core.time.timers import EVENT, PROCESSING, TimersDescriptor
from state_engine.core.types.pickled_type import holds_pickles
from state_engine.core.types.timestamps import MAX_TIMESTAMP

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True)
class StateColumn:
    """What is stored of one state for the keys of a batch, one after the other.

    Attributes:
        values: of the declared type; null where nothing is stored.
        at_ms: when each was accessed last; None where the state has no time to live.
    """

    values: pa.Array
    at_ms: pa.Array | None = None


@dataclass(frozen=True)
class MapEntries:
    """Entries of a map state, row for row; those that are stored: of a key together, in the order of its handle.

    Attributes:
        keys: numbers of their keys.
        map_keys, values: of the declared types; of changes a null value stands for one that is removed.
    """

    keys: Numbers
    map_keys: pa.Array
    values: pa.Array

    @classmethod
    def none(cls, descriptor: MapStateDescriptor) -> MapEntries:
        nothing = pa.nulls(0, descriptor.key_type.arrow), pa.nulls(0, descriptor.value_type.arrow)
        return cls(np.zeros(0, np.int64), *nothing)

    def those(self, rows: Numbers) -> MapEntries:
        mask = pa.array(rows)
        return MapEntries(self.keys[rows], self.map_keys.filter(mask), self.values.filter(mask))

    def in_order(self, descriptor: MapStateDescriptor) -> MapEntries:
        """Those of a key together; of a sorted map by map key."""
        order = self._order(by_map_key=isinstance(descriptor, SortedMapStateDescriptor))
        if (np.diff(order) == 1).all():
            return self
        rows = pa.array(order)
        return MapEntries(self.keys[order], self.map_keys.take(rows), self.values.take(rows))

    def _order(self, *, by_map_key: bool) -> Numbers:
        if not by_map_key:
            return stable_order(self.keys)
        if len(self.keys) and pa.types.is_integer(self.map_keys.type) and not self.map_keys.null_count:
            map_keys = self.map_keys.to_numpy()
            least = int(map_keys.min())
            span = int(map_keys.max()) - least + 1
            if (int(self.keys.max()) + 1) * span <= MAX_TIMESTAMP:  # one number says both; each is there once
                order: Numbers = np.argsort(self.keys * span + (map_keys - least))
                return order
        columns = [pa.array(self.keys), *leaves(self.map_keys)]
        names = [str(at) for at in range(len(columns))]
        by = [(name, "ascending") for name in names]
        sorted_rows: Numbers = pc.sort_indices(pa.table(columns, names=names), sort_keys=by).to_numpy()
        return sorted_rows


@dataclass(frozen=True)
class ChangedColumn:
    """What changed in a state with one value a key.

    Attributes:
        values: of the declared type; null where it is cleared.
        at_ms: when they were written; None where the state has no time to live.
        added: how many entries there are more than before.
    """

    descriptor: StateDescriptor
    keys: Numbers
    values: pa.Array
    at_ms: int | None = None
    added: int = 0


@dataclass(frozen=True)
class ChangedEntries:
    """What changed in a map state; ``added`` as of ``ChangedColumn``."""

    descriptor: MapStateDescriptor
    entries: MapEntries
    added: int = 0
    at_ms: None = None

    @property
    def keys(self) -> Numbers:
        return self.entries.keys

    @property
    def values(self) -> pa.Array:
        """The value of each entry; null where it is removed."""
        return self.entries.values


Changed = ChangedColumn | ChangedEntries


class StoredColumns(Protocol):
    """What is stored for the keys of a batch."""

    def load(self, descriptor: StateDescriptor) -> StateColumn:
        """The values of a state with one value a key."""

    def entries(self, descriptor: MapStateDescriptor) -> MapEntries:
        """The entries of a map state."""


def changed_entries(
    descriptor: MapStateDescriptor, stored: MapEntries, given: MapEntries, *, twice: str
) -> ChangedEntries:
    """The net changes that puts and removals make; what is not there need not be removed.

    Args:
        given: each entry once.
        twice: the message where one is there twice.

    Raises:
        ConfigurationError: one is there twice.
    """
    before = len(stored.keys)
    keys = pa.array(np.concatenate([stored.keys, given.keys]))
    codes = entry_codes([keys, pa.concat_arrays([stored.map_keys, given.map_keys])])
    of_given = codes[before:]
    if len(of_given) and np.bincount(of_given).max() > 1:
        raise ConfigurationError(twice)
    was = _marked(codes[:before], int(codes.max(initial=-1)) + 1)[of_given]
    there = given.values.is_valid().to_numpy(zero_copy_only=False)
    matters = there | was
    made = given if matters.all() else given.those(matters)
    return ChangedEntries(descriptor, made, int(there[~was].sum()) - int((~there[was]).sum()))


class Timers:
    """Timers of the keys of a batch, which are entries of a map state.

    Args:
        end_ms: the watermark at the end of the batch, by which event-time timers are due.

    Attributes:
        first_of_clock: time of the first timer of processing time; None where there is none.
    """

    def __init__(self, stored: MapEntries, end_ms: int) -> None:
        times = stored.map_keys.field("time").to_numpy(zero_copy_only=False)
        are_event = pc.equal(stored.map_keys.field("domain"), EVENT).to_numpy(zero_copy_only=False)
        self._keys, self._times = stored.keys[are_event], times[are_event]
        self.first_of_clock = int(times[~are_event].min()) if not are_event.all() else None
        self._are_due = self._times <= end_ms

    @property
    def due(self) -> pa.Table:
        return pa.table({KEY: self._keys[self._are_due], TIME: self._times[self._are_due]})

    def changed(
        self, keys: Numbers, times: Numbers, deleted: Numbers, *, both: str
    ) -> tuple[ChangedEntries, dict[str, int]]:
        """The changes where due timers go, some are set and some deleted; and the first time that is left, by domain.

        Args:
            keys, times, deleted: event-time timers that are set, or deleted.
            both: the message where one is set and deleted.

        Raises:
            ConfigurationError: one is set and deleted.
        """
        number = len(self._keys)
        keys, times = np.concatenate([self._keys, keys]), np.concatenate([self._times, times])
        codes = entry_codes([pa.array(keys), pa.array(times)])
        size = int(codes.max(initial=-1)) + 1
        known, due = _marked(codes[:number], size), _marked(codes[:number][self._are_due], size)
        put, gone = _marked(codes[number:][~deleted], size), _marked(codes[number:][deleted], size)
        if (put & gone).any():
            raise ConfigurationError(both)
        after, place = known & ~due & ~gone | put, last_rows(codes)
        first = {} if self.first_of_clock is None else {PROCESSING: self.first_of_clock}
        if after.any():
            first[EVENT] = int(times[place[after]].min())
        changed = place[known != after]
        entries = MapEntries(
            keys[changed],
            pa.StructArray.from_arrays(
                [pa.array(times[changed]), pa.repeat(EVENT, len(changed))],
                fields=list(TimersDescriptor().key_type.arrow),
            ),
            pa.array(np.ones(len(changed), bool), mask=known[known != after]),
        )
        added = int(after.sum()) - int(known.sum())
        return ChangedEntries(TimersDescriptor(), entries, added), first


def _marked(codes: Numbers, size: int) -> Numbers:
    marks = np.zeros(size, bool)
    marks[codes] = True
    return marks


def check_state(descriptor: StateDescriptor, *, where: str) -> None:
    """Refuse a state that a function over columns cannot have. Raises ConfigurationError."""
    what = f"{where}: state '{descriptor.name}'"
    if descriptor.shape == "list":
        raise ConfigurationError(
            f"{what} is a list state, and a VectorizedKeyedFunction has one value for each key, or a map: use a "
            "ValueStateDescriptor, a MapStateDescriptor, or a KeyedProcessFunction for this state"
        )
    kinds = [descriptor.value_type]
    if isinstance(descriptor, MapStateDescriptor):
        kinds.append(descriptor.key_type)
        if descriptor.ttl is not None:
            raise ConfigurationError(
                f"{what} is a map whose entries expire, each at its time, which a VectorizedKeyedFunction does not "
                "see: leave the time to live out and remove entries by timers, or use a KeyedProcessFunction"
            )
    if any(map(holds_pickles, kinds)):
        raise ConfigurationError(
            f"{what} holds pickled objects, which have no columns: declare a type with columns, or use a "
            "KeyedProcessFunction"
        )
    if descriptor.ttl is not None and descriptor.ttl.lifetime.by_event_time:
        raise ConfigurationError(
            f"{what} expires by event time, which goes on from row to row, and a VectorizedKeyedFunction sees all rows "
            "at once: let it expire by processing time, or use a KeyedProcessFunction"
        )
