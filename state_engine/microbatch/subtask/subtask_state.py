"""Keyed state in a subtask: read from the files of the path at the start, written as one file of changes at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.functions.function_calls import has_timers
from state_engine.core.keys.key_groups import KeyGroupRange, key_group_range
from state_engine.core.state.descriptors import TIMERS, StateDescriptor
from state_engine.core.state.evolution import recorded_schema
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.state.state_table import Change, KeyedEntries
from state_engine.core.state.stored_states import StoredStates
from state_engine.core.time.timers import TimersDescriptor
from state_engine.core.types.columns import one_chunk
from state_engine.microbatch.subtask.subtask_input import Keys
from state_engine.microbatch.subtask.subtask_spec import SubtaskSpec
from state_engine.microbatch.subtask.subtask_timers import SubtaskTimers
from state_engine.storage.state.changelog import TouchedState
from state_engine.storage.state.changelog_write import changelog_table, write_changes
from state_engine.storage.state.listed_files import Hashes, KeyHashes
from state_engine.storage.state.local_copies import OperatorCopies
from state_engine.storage.state.located_files import StateFile, files_holding
from state_engine.storage.state.state_rows import Read
from state_engine.storage.stores.files import PutFile, is_local
from state_engine.storage.stores.kept_files import PROCESS_CACHE


class SubtaskKeyedState:
    """Keyed state of one operator in one subtask.

    Args:
        at_once: touched keys whose state is in memory at once, on its way into a backend that spills.
    """

    def __init__(self, spec: SubtaskSpec, subtask: int, keys: Keys, *, at_once: int = 20_000) -> None:
        self._spec, self._at_once = spec, at_once
        own = self.key_groups = key_group_range(spec.max_parallelism, spec.parallelism, subtask)
        self._files = own_files(spec, own)
        self._touched_once: list[TouchedState] = []
        self._timers = SubtaskTimers(spec, own, self._files)
        self._stored = StoredStates(
            spec.uid, spec.recorded_states, spec.earlier_states, dropped=spec.dropped_states
        )
        self.keys = keys

    def with_due_timers(self) -> None:
        """Add the keys that have a timer which this batch may fire; they need no row to be touched."""
        spec = self._spec
        if spec.key_schema is None or not has_timers(spec.function):
            return
        may_be_due = self._timers.may_be_due()
        due = self._due(may_be_due) if len(may_be_due) else None
        if due is None:
            return
        struct = one_chunk(due["key"])
        row_of = dict(zip(spec.key_schema.decode_struct(struct), range(due.num_rows), strict=True))
        added = [key for key in row_of if key not in self.keys.index_of]
        rows = due.take(pa.array([row_of[key] for key in added], pa.int64()))
        self.keys = self.keys.and_also(added, one_chunk(rows["key"]).flatten(), rows["key_hash"].to_numpy())

    def _due(self, may_be_due: Hashes) -> pa.Table | None:
        """Timers that this batch may fire; where they are few, what is read for that is not read again."""
        if self._spec.backend.spills or len(may_be_due) > self._at_once:
            return self._timers.due()
        touched = self._touched(np.concatenate([self.keys.touched, may_be_due]))
        self._touched_once.append(touched)
        timers = touched.table(TimersDescriptor())
        if timers is None:
            return None
        asked = KeyHashes(may_be_due).hold(timers["key_hash"].to_numpy())
        return self._timers.due(timers.filter(pa.array(asked)))

    def load(self, descriptor: StateDescriptor) -> Any:
        """Entries of a state for the keys of the batch: a dict, or for a backend that spills one by one."""
        spec = self._spec
        stored = self._stored.of(descriptor)
        if stored.read is None:
            return {}
        if spec.backend.spills:
            return self._in_parts(stored.descriptor, stored.read)
        if not self._touched_once:
            self._touched_once.append(self._touched(self.keys.touched))
        return self._loaded(self._touched_once[0], stored.descriptor, stored.read)

    def schema(self, descriptor: StateDescriptor) -> StateSchema:
        return recorded_schema(self._stored.of(descriptor).descriptor)

    def _in_parts(self, descriptor: StateDescriptor, read: Read) -> Iterator[tuple[Any, Any]]:
        hashes = KeyHashes(self.keys.touched).ordered
        for start in range(0, len(hashes), self._at_once):
            part = self._touched(hashes[start : start + self._at_once])
            yield from self._loaded(part, descriptor, read).items()

    def _loaded(self, state: TouchedState, descriptor: StateDescriptor, read: Read) -> dict[Any, Any]:
        entries, touched = state.load(descriptor, read), self.keys.index_of
        if descriptor.stored_as == TIMERS:
            self._timers.saw((key in touched, of_key) for key, of_key in entries.items())
        if entries.keys() <= touched.keys():
            return entries
        return {key: of_key for key, of_key in entries.items() if key in touched}

    def _touched(self, hashes: Hashes) -> TouchedState:
        """What is stored of keys with these hashes, which not all need be touched ones."""
        files = files_holding(self._files, hashes, self._spec.max_parallelism)
        return TouchedState(files, hashes, self._spec.known_key_schema)

    def next_timers_ms(self, table: KeyedEntries | None) -> dict[str, int]:
        """Time of the first timer that is left, by domain; ``table`` holds those of the keys of the batch.

        Args:
            table: None where the function keeps no timers: what is stored stays.
        """
        touched = np.array([], np.int64) if table is None else self.keys.touched
        first = self._timers.first_of_others(KeyHashes(touched))
        for timers in () if table is None else table.entries.values():
            for time, domain in timers:
                first[domain] = min(time, first.get(domain, time))
        return first

    def write(
        self,
        changes: Sequence[tuple[StateDescriptor, list[Change]]],
        *,
        subtask: int,
        attempt: int,
        key_type: pa.DataType,
        put: PutFile,
    ) -> list[DataFile]:
        """Write the changes of the batch as one file that no reader sees yet; none where nothing changed."""
        spec, keys = self._spec, self.keys
        columns = [c.cast(f.type) for c, f in zip(keys.columns, key_type, strict=True)]
        table = changelog_table(
            [(self._stored.of(descriptor).descriptor, changed) for descriptor, changed in changes],
            key_type=key_type,
            index_of=keys.index_of,
            keys=pa.StructArray.from_arrays(columns, fields=list(key_type)),
            hashes=keys.hashes,
            max_parallelism=spec.max_parallelism,
        )
        if table is None:
            return []
        uri = spec.layout.changelog(spec.uid)
        return [write_changes(table, uri, write_id=spec.write_id, subtask=subtask, attempt=attempt, put=put)]


def own_files(spec: SubtaskSpec, own: KeyGroupRange) -> list[StateFile]:
    """The files of the path that may hold entries of a subtask's key groups, with their local copies.

    The process keeps little ones on a disk, until the path does not list them any more.
    """
    layout, uid = spec.layout, spec.uid
    listed = {f.listed.uri for f in spec.state_files}
    PROCESS_CACHE.keep_only(listed, below=[layout.base(uid), layout.changelog(uid)])
    copies = OperatorCopies(spec.local_copies, layout, uid, spec.state_files, spec.max_parallelism)
    own_ones = [f for f in spec.state_files if f.key_group_max >= own.start and f.key_group_min <= own.end]
    return [_kept(f, copies.limits.least_rows) for f in copies.attached(own_ones)]


def _kept(file: StateFile, large: int) -> StateFile:
    """The file, to be kept by the process where it is a little one on a disk."""
    if file.listed.rows >= large or not is_local(file.listed.uri):
        return file
    return replace(file, listed=replace(file.listed, kept=True))
