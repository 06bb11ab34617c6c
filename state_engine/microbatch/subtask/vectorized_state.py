"""Keyed state of a subtask as columns: a value for each key of the batch, read from and written to the same files.

What ``subtask_state`` is for functions per element. No key and no value becomes a Python object: the keys of the batch
have numbers, and stored entries find theirs by whole columns. Decision 0075.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.keys.canonical import decode_keys
from state_engine.core.keys.key_arrays import key_groups_of
from state_engine.core.keys.key_groups import key_group_range
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.operator.vectorized_operator import ChangedColumn, StateColumn, VectorizedRows
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.evolution import recorded_schema
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.state.state_table import DELETE, PUT
from state_engine.core.state.stored_states import StoredStates
from state_engine.core.types.column_forms import in_form
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.type_parsing import arrow_type
from state_engine.microbatch.subtask.subtask_input import Hashes, columns_of, key_columns_of
from state_engine.microbatch.subtask.subtask_spec import SubtaskReport, SubtaskSpec
from state_engine.microbatch.subtask.subtask_state import own_files
from state_engine.microbatch.subtask.subtask_timers import SubtaskTimers
from state_engine.sources.frames import EVENT_TIME, WATERMARK
from state_engine.storage.layout import state_column
from state_engine.storage.state.changelog_write import (
    StateChanges,
    changelog_of,
    file_order,
    timestamps_ms,
    write_changes,
)
from state_engine.core.keys.entry_codes import key_codes
from state_engine.storage.state.listed_files import KeyHashes
from state_engine.storage.state.located_files import files_holding
from state_engine.storage.state.newest_entries import NewestEntries
from state_engine.storage.stores.files import PutFile


@dataclass(frozen=True)
class VectorizedKeys:
    """The keys of a batch, each once, in the order of files of changes, which saves sorting."""

    of_rows: np.ndarray
    columns: list[pa.Array]
    hashes: Hashes

    @classmethod
    def of(cls, events: pa.Table, spec: SubtaskSpec, report: SubtaskReport) -> VectorizedKeys:
        """Those of rows; raises StatelakeError where one is in another subtask's key group."""
        columns, hashes = key_columns_of(events, spec, report)
        codes, row_of = key_codes(columns, hashes)
        number = len(row_of)
        of_keys = hashes[row_of]
        order = file_order(of_keys, key_groups_of(of_keys, spec.max_parallelism))
        row_of = row_of[order]
        place = np.empty(number, np.int64)
        place[order] = np.arange(number)
        rows = pa.array(row_of)
        storage = spec.known_key_schema.storage
        stored = [c.take(rows).cast(f.type) for c, f in zip(columns, storage, strict=True)]
        report.keys = number
        return cls(place[codes], stored, hashes[row_of])

    def declared(self, schema: KeySchema) -> pa.Table:
        """The keys as the job declares them, a column for each of theirs."""
        columns = [_declared(c, kind) for c, kind in zip(self.columns, schema.types, strict=True)]
        return pa.table(columns, names=list(schema.names))


NO_KEYS = VectorizedKeys(np.array([], np.int64), [], np.array([], np.int64))
"""Of a batch without rows."""


def vectorized_rows(events: pa.Table, keys: VectorizedKeys, spec: SubtaskSpec) -> VectorizedRows:
    """Rows of a subtask, in total order, as a function over columns gets them."""
    timed = spec.routed.event_time
    return VectorizedRows(
        columns_of(events, spec.routed),
        keys.of_rows,
        keys.declared(spec.known_key_schema),
        timestamps=one_chunk(events[EVENT_TIME]) if timed else None,
        watermarks=one_chunk(events[WATERMARK]) if timed else None,
    )


class VectorizedKeyedState:
    """Keyed state of one operator in one subtask, for the keys of its batch."""

    def __init__(self, spec: SubtaskSpec, subtask: int, keys: VectorizedKeys) -> None:
        self._spec, self._keys = spec, keys
        self._own = key_group_range(spec.max_parallelism, spec.parallelism, subtask)
        self._files = own_files(spec, self._own)
        self._stored = StoredStates(
            spec.uid, spec.recorded_states, spec.earlier_states, dropped=spec.dropped_states
        )

    def load(self, descriptor: StateDescriptor) -> StateColumn:
        """What is stored of a state for the keys of the batch."""
        stored, number = self._stored.of(descriptor), len(self._keys.hashes)
        entries = None if stored.read is None else self._entries.of(stored.descriptor, stored.read)
        stamped = descriptor.ttl is not None
        if entries is None:
            no_times = pa.nulls(number, pa.int64()) if stamped else None
            return StateColumn(pa.nulls(number, descriptor.value_type.arrow), no_times)
        values = entries.in_order(state_column(stored.descriptor.stored_as))
        kind = stored.descriptor.value_type
        if kind.completes:
            values = kind.to_arrow(kind.from_arrow(values), storage=True)
        values = in_form(values, descriptor.value_type, by_name=False)
        if not stamped:
            return StateColumn(values)
        micros = entries.in_order("updated_at").cast(pa.int64())
        return StateColumn(values, pc.divide(micros, 1000))

    def schema(self, descriptor: StateDescriptor) -> StateSchema:
        """How a state that was asked for is recorded."""
        return recorded_schema(self._stored.of(descriptor).descriptor)

    def next_timers_ms(self) -> dict[str, int]:
        """Time of the first timer that is left, by domain: a function over columns leaves all of them alone."""
        timers = SubtaskTimers(self._spec, self._own, self._files)
        return timers.first_of_others(KeyHashes(np.array([], np.int64)))

    def write(
        self, changes: list[ChangedColumn], *, subtask: int, attempt: int, put: PutFile
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
            keys=pa.StructArray.from_arrays(self._keys.columns, fields=list(key_type)),
            hashes=self._keys.hashes,
            max_parallelism=spec.max_parallelism,
        )
        uri = spec.layout.changelog(spec.uid)
        return [write_changes(table, uri, write_id=spec.write_id, subtask=subtask, attempt=attempt, put=put)]

    def _part(self, change: ChangedColumn) -> StateChanges:
        stored = self._stored.of(change.descriptor).descriptor
        there = change.values.is_valid()
        at_ms = pa.scalar(change.at_ms, pa.int64())
        return StateChanges(
            stored,
            change.keys,
            op=pc.if_else(there, PUT, DELETE),
            updated_at=timestamps_ms(pc.if_else(there, at_ms, pa.scalar(None, pa.int64()))),
            column=in_form(change.values, stored.value_type, stored=True, by_name=False),
        )

    @cached_property
    def _entries(self) -> NewestEntries:
        keys = self._keys
        files = files_holding(self._files, keys.hashes, self._spec.max_parallelism)
        return NewestEntries(files, keys.hashes, keys.columns)


def _declared(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return column.cast(kind)
    return arrow_type(kind).to_arrow(decode_keys(column, kind), storage=False)
