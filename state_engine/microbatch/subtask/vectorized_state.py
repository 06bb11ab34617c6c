"""Keyed state of a subtask as columns: values and entries of the keys of the batch, from and to the same files.

The counterpart of ``subtask_state``, which serves functions per element. No key and no value becomes a Python object:
the keys of the batch have numbers, and stored entries find theirs by whole columns. Decisions 0075 and 0112.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.functions.vectorized_functions import INPUT
from state_engine.core.keys.canonical import decode_keys
from state_engine.core.keys.entry_codes import key_codes
from state_engine.core.keys.key_arrays import key_groups_of
from state_engine.core.keys.key_groups import key_group_range
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.operator.column_states import Changed, ChangedEntries, MapEntries, StateColumn
from state_engine.core.operator.vectorized_operator import VectorizedRows
from state_engine.core.state.descriptors import TIMERS, MapStateDescriptor, StateDescriptor
from state_engine.core.state.evolution import recorded_schema
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.state.state_table import DELETE, PUT
from state_engine.core.state.stored_states import StoredStates
from state_engine.core.time.timers import EVENT, PROCESSING, TimersDescriptor
from state_engine.core.types.column_forms import in_form
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.every_type import TypeInformation
from state_engine.core.types.type_parsing import arrow_type
from state_engine.microbatch.routing.routed import HASH
from state_engine.microbatch.routing.routed import INPUT as ROUTED_INPUT
from state_engine.microbatch.subtask.subtask_input import Hashes, columns_of, key_columns_of
from state_engine.microbatch.subtask.subtask_spec import SubtaskReport, SubtaskSpec
from state_engine.microbatch.subtask.subtask_state import own_files
from state_engine.microbatch.subtask.subtask_timers import SubtaskTimers, Timers
from state_engine.sources.frames import EVENT_TIME, WATERMARK
from state_engine.sources.stream_columns import column_of_kinds
from state_engine.storage.layout import state_column
from state_engine.storage.state.changelog_write import (
    StateChanges,
    changelog_of,
    file_order,
    timestamps_ms,
    write_changes,
)
from state_engine.storage.state.listed_files import KeyHashes
from state_engine.storage.state.located_files import files_holding
from state_engine.storage.state.newest_entries import NewestEntries, NewestParts
from state_engine.storage.stores.files import PutFile


@dataclass(frozen=True)
class VectorizedKeys:
    """The keys of a batch, each once, in the order of files of changes, which saves sorting."""

    of_rows: np.ndarray
    columns: list[pa.Array]
    hashes: Hashes

    @classmethod
    def of(
        cls, events: pa.Table, spec: SubtaskSpec, report: SubtaskReport, due: pa.Table | None
    ) -> VectorizedKeys:
        """Those of rows, and of timers; raises StatelakeError where one is in another subtask's key group."""
        storage = list(spec.known_key_schema.storage)
        columns, hashes = [pa.nulls(0, f.type) for f in storage], np.zeros(0, np.int64)
        if events.num_rows:
            columns, hashes = key_columns_of(events, spec, report)
        rows = len(hashes)
        if due is not None:
            of_timers = one_chunk(due["key"]).flatten()
            columns = [
                pa.concat_arrays([c.cast(f.type), other.cast(f.type)])
                for c, other, f in zip(columns, of_timers, storage, strict=True)
            ]
            hashes = np.concatenate([hashes, due["key_hash"].to_numpy()])
        codes, row_of = key_codes(columns, hashes)
        number = len(row_of)
        of_keys = hashes[row_of]
        order = file_order(of_keys, key_groups_of(of_keys, spec.max_parallelism))
        row_of = row_of[order]
        place = np.empty(number, np.int64)
        place[order] = np.arange(number)
        firsts = pa.array(row_of)
        stored = [c.take(firsts).cast(f.type) for c, f in zip(columns, storage, strict=True)]
        report.keys = number if due is None else len(np.unique(codes[:rows]))
        return cls(place[codes[:rows]], stored, hashes[row_of])

    def declared(self, schema: KeySchema) -> pa.Table:
        """The keys as the job declares them, a column for each of theirs."""
        columns = [_declared(c, kind) for c, kind in zip(self.columns, schema.types, strict=True)]
        return pa.table(columns, names=list(schema.names))


_NO_KEYS = VectorizedKeys(np.array([], np.int64), [], np.array([], np.int64))
"""Of a batch without rows and due timers."""


def vectorized_rows(events: pa.Table, keys: VectorizedKeys, spec: SubtaskSpec) -> VectorizedRows:
    """Rows of a subtask, in total order, as a function over columns gets them."""
    timed, routed = spec.routed.event_time, spec.routed
    rows, inputs = pa.table({}), list[tuple[np.ndarray, pa.Table]]()
    if len(routed.inputs) == 1:
        rows = columns_of(events, routed.inputs[0])
    elif routed.inputs:
        rows = pa.table({INPUT: events[ROUTED_INPUT]})
        for number, one in enumerate(routed.inputs):
            places = np.flatnonzero(events[ROUTED_INPUT].to_numpy() == number)
            inputs.append((places, columns_of(events.take(pa.array(places)), one)))
    return VectorizedRows(
        rows,
        keys.of_rows,
        keys.declared(spec.known_key_schema),
        keys.hashes,
        timestamps=one_chunk(events[EVENT_TIME]) if timed else None,
        watermarks=one_chunk(events[WATERMARK]) if timed else None,
        kinds=column_of_kinds(events) if routed.changing else None,
        inputs=tuple(inputs),
    )


class VectorizedKeyedState:
    """Keyed state of one operator in one subtask, for the keys of its batch.

    Args:
        timers: whether the keys with a due timer belong to the batch.
    """

    def __init__(self, spec: SubtaskSpec, events: pa.Table, report: SubtaskReport, *, timers: bool) -> None:
        self._spec = spec
        own = key_group_range(spec.max_parallelism, spec.parallelism, report.subtask)
        self._files = own_files(spec, own)
        self._timers = SubtaskTimers(spec, own, self._files)
        self._stored = StoredStates(
            spec.uid, spec.recorded_states, spec.earlier_states, dropped=spec.dropped_states
        )
        may_be_due = self._timers.may_be_due() if timers else np.array([], np.int64)
        due = self._due(events, may_be_due) if len(may_be_due) else None
        keyed = spec.key_schema is not None and (events.num_rows or due is not None)
        self.keys = VectorizedKeys.of(events, spec, report, due) if keyed else _NO_KEYS

    def _due(self, events: pa.Table, may_be_due: Hashes) -> pa.Table | None:
        """Timers that this batch fires; what is read for that is not read again."""
        of_rows = events[HASH].to_numpy() if events.num_rows else may_be_due
        self._parts = self._parts_of(KeyHashes(np.concatenate([of_rows, may_be_due])).ordered)
        timers = self._stored.of(TimersDescriptor())
        assert isinstance(timers.descriptor, MapStateDescriptor)
        left = self._parts.of_map(timers.descriptor, timers.read)
        return None if left is None else self._timers.due_of(left.rows)

    def load(self, descriptor: StateDescriptor) -> StateColumn:
        stored, number = self._stored.of(descriptor), len(self.keys.hashes)
        entries = None if stored.read is None else self._entries.of(stored.descriptor, stored.read)
        stamped = descriptor.ttl is not None
        if entries is None:
            no_times = pa.nulls(number, pa.int64()) if stamped else None
            return StateColumn(pa.nulls(number, descriptor.value_type.arrow), no_times)
        values = entries.in_order(state_column(stored.descriptor.stored_as))
        values = _as_declared(values, stored.descriptor.value_type, descriptor.value_type)
        if not stamped:
            return StateColumn(values)
        micros = entries.in_order("updated_at").cast(pa.int64())
        return StateColumn(values, pc.divide(micros, 1000))

    def entries(self, descriptor: MapStateDescriptor) -> MapEntries:
        """The entries of a map state for the keys of the batch, those of a key together, in the order of its handle."""
        stored, entries = self._stored.of(descriptor), None
        was = stored.descriptor
        assert isinstance(was, MapStateDescriptor)
        if stored.read is not None:
            entries = self._entries.of_map(was, stored.read)
        if entries is None:
            return MapEntries.none(descriptor)
        keys, (map_keys, values) = entries[0], entries[1].flatten()
        if descriptor.stored_as == TIMERS:
            self._timers.saw(_first_timers(keys, map_keys))
        made = MapEntries(
            keys,
            _as_declared(map_keys, was.key_type, descriptor.key_type),
            _as_declared(values, was.value_type, descriptor.value_type),
        )
        return (made if (keys >= 0).all() else made.those(keys >= 0)).in_order(descriptor)

    def schema(self, descriptor: StateDescriptor) -> StateSchema:
        return recorded_schema(self._stored.of(descriptor).descriptor)

    def next_timers_ms(self, of_keys: dict[str, int] | None) -> dict[str, int]:
        """Time of the first timer that is left, by domain.

        Args:
            of_keys: the same of the keys of the batch; None where the function leaves timers alone.
        """
        hashes = self.keys.hashes if of_keys is not None else np.array([], np.int64)
        first = self._timers.first_of_others(KeyHashes(hashes))
        for domain, at_ms in (of_keys or {}).items():
            first[domain] = min(at_ms, first.get(domain, at_ms))
        return first

    def write(
        self, changes: Sequence[Changed], *, subtask: int, attempt: int, put: PutFile
    ) -> list[DataFile]:
        """Write the changes of the batch as one file that no reader sees yet; none where nothing changed."""
        spec = self._spec
        key_type = spec.known_key_schema.storage
        parts = [self._part(change) for change in changes if len(change.keys)]
        if not parts:
            return []
        table = changelog_of(
            parts,
            key_type=key_type,
            keys=pa.StructArray.from_arrays(self.keys.columns, fields=list(key_type)),
            hashes=self.keys.hashes,
            max_parallelism=spec.max_parallelism,
        )
        uri = spec.layout.changelog(spec.uid)
        return [write_changes(table, uri, write_id=spec.write_id, subtask=subtask, attempt=attempt, put=put)]

    def _part(self, change: Changed) -> StateChanges:
        stored = self._stored.of(change.descriptor).descriptor
        there = change.values.is_valid()
        column = in_form(change.values, stored.value_type, stored=True, by_name=False)
        if isinstance(change, ChangedEntries):
            assert isinstance(stored, MapStateDescriptor)
            map_keys = in_form(change.entries.map_keys, stored.key_type, stored=True, by_name=False)
            column = pa.StructArray.from_arrays([map_keys, column], fields=list(stored.column_type))
        at_ms = pa.scalar(change.at_ms, pa.int64())
        return StateChanges(
            stored,
            change.keys,
            op=pc.if_else(there, PUT, DELETE),
            updated_at=timestamps_ms(pc.if_else(there, at_ms, pa.scalar(None, pa.int64()))),
            column=column,
        )

    def _parts_of(self, hashes: Hashes) -> NewestParts:
        return NewestParts(files_holding(self._files, hashes, self._spec.max_parallelism), hashes)

    @cached_property
    def _parts(self) -> NewestParts:
        """The stored rows of the keys of the batch."""
        return self._parts_of(self.keys.hashes)

    @cached_property
    def _entries(self) -> NewestEntries:
        return NewestEntries(self._parts, self.keys.hashes, self.keys.columns)


def _first_timers(keys: np.ndarray, timers: pa.Array) -> list[tuple[bool, Timers]]:
    """The first timer of the keys of the batch by domain, and that of others with the hash of one."""
    times, domains = timers.field("time").to_numpy(zero_copy_only=False), timers.field("domain")
    first: list[tuple[bool, Timers]] = []
    for domain in (EVENT, PROCESSING):
        of_domain = pc.equal(domains, domain).to_numpy(zero_copy_only=False)
        for touched in (True, False):
            own = times[of_domain & ((keys >= 0) == touched)]
            if len(own):
                first.append((touched, [(int(own.min()), domain)]))
    return first


def _as_declared(column: pa.Array, stored: TypeInformation, declared: TypeInformation) -> pa.Array:
    if stored.completes:
        column = stored.to_arrow(stored.from_arrow(column), storage=True)
    return in_form(column, declared, by_name=False)


def _declared(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return column.cast(kind)
    return arrow_type(kind).to_arrow(decode_keys(column, kind), storage=False)
