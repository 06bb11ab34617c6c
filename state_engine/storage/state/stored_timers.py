"""Timers in the files of a path, looked at by column: which keys have one that is due, and when the first one is.

A timer is an entry of the map state ``_timers``, and its time is a column of its own in files of bases and of changes.
By the statistics of that column most row groups are left unread; of the others, the column is read and compared as a
whole. Whether a timer is still there by the end of the path is asked for the few keys that this leaves, in a fold of
columns. So what is due costs what is due, and timers that wait cost statistics. Plays the part of the queues over all
key groups of Flink's ``InternalTimerServiceImpl``, which keep the first timer on top.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from state_engine.core.state.descriptors import TIMERS
from state_engine.core.state.evolution import recorded_schema
from state_engine.core.time.timers import TimersDescriptor
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.stored_form import conform
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.storage.state.base import BaseSpec, entries_of
from state_engine.storage.state.listed_files import Hashes, KeyHashes, SomeKeys
from state_engine.storage.state.located_files import StateFile, files_holding
from state_engine.storage.state.state_rows import parts_of
from state_engine.storage.state.timer_columns import TimerColumns, Window
from state_engine.storage.state.timer_files import TimersOfFile, TimersPart, read_timers, timers_of

_DESCRIPTOR = TimersDescriptor()
_SCHEMA = recorded_schema(_DESCRIPTOR)
_MORE = 16
"""Where the timer that seemed to be the first is gone by the end of the path, so many times as many are looked at."""


class StoredTimers:
    """The timers of some keys as of the end of a path.

    Args:
        files: of the path that may hold them: those of bases, then changes in path order.
    """

    def __init__(
        self, files: Sequence[StateFile], own: SomeKeys, key_type: pa.DataType, max_parallelism: int
    ) -> None:
        self._files, self._own, self._max_parallelism = files, own, max_parallelism
        self._spec = BaseSpec(key_type, (_SCHEMA,), max_parallelism)

    def within(self, window: Window) -> pa.Table | None:
        """The timers with a time in the window, as entries of a base; None where none has."""
        return those_within(self._timers_of(self.hashes(window)), window)

    def hashes(self, window: Window) -> Hashes:
        """Hashes of keys that may have a timer with a time in the window: a file said so, and a later one may not."""
        read = read_timers([part for source in self._sources for part in source.within(window)])
        parts = [columns.hashes[columns.within(window)] for columns in read]
        hashes = KeyHashes(np.concatenate([np.array([], np.int64), *parts])).ordered
        own: Hashes = hashes[self._own.hold(hashes)]
        return own

    def among(self, changes: pa.Table, window: Window) -> pa.Table | None:
        """The same as ``within``, of the keys of some changes of timers in path order, of which all are there."""
        return those_within(self._left(changes), window)

    def first(self, domain: str, since_ms: int, without: KeyHashes) -> int | None:
        """Time of the first timer of a domain; None where there is none.

        Args:
            without: keys whose timers do not count.
        """
        waiting = [part for source in self._sources for part in source.since(domain, since_ms)]
        waiting.sort(key=lambda part: -part.first(since_ms))
        # of these any timer may be the first; each of the others holds its first time
        at_once = [part for part in waiting if part.first(since_ms) == since_ms]
        del waiting[len(waiting) - len(at_once) :]
        (times, hashes), wanted = self._since(at_once, domain, since_ms, without), 1
        while True:
            until = _place(times, wanted)
            while waiting and waiting[-1].first(since_ms) <= until:
                first = [part for part in waiting[-wanted:] if part.first(since_ms) <= until]
                del waiting[-len(first) :]
                more_times, more_hashes = self._since(first, domain, since_ms, without)
                times, hashes = np.concatenate([times, more_times]), np.concatenate([hashes, more_hashes])
                until = _place(times, wanted)
            if not len(times):
                return None
            asked = times <= until
            timers = self._timers_of(KeyHashes(hashes[asked]).ordered)
            if timers is not None:
                there = TimerColumns.of_table(timers)
                left = there.times[there.within({domain: (since_ms, until)})]
                if len(left):
                    return int(left.min())
            times, hashes, wanted = times[~asked], hashes[~asked], wanted * _MORE

    @cached_property
    def _sources(self) -> list[TimersOfFile]:
        return [timers_of(file) for file in self._files]

    def _since(
        self, parts: Sequence[TimersPart], domain: str, since_ms: int, without: KeyHashes
    ) -> tuple[Hashes, Hashes]:
        """Times and hashes of the rows that may stand for the first timer."""
        none = np.array([], np.int64)
        times, hashes = [none], [none]
        for columns in read_timers(parts):
            kept = columns.of(domain) & (columns.times >= since_ms)
            times.append(columns.times[kept])
            hashes.append(columns.hashes[kept])
        all_times, all_hashes = np.concatenate(times), np.concatenate(hashes)
        own = self._own.hold(all_hashes) & ~without.hold(all_hashes)
        return all_times[own], all_hashes[own]

    def _timers_of(self, hashes: Hashes) -> pa.Table | None:
        """The timers of keys with these hashes that are left at the end of the path; None where none is."""
        if not len(hashes):
            return None
        files = files_holding(self._files, hashes, self._max_parallelism)
        parts = parts_of(files, KeyHashes(hashes), only=TIMERS)
        tables = []
        for part in parts:
            if (rows := part.rows(_DESCRIPTOR, None)) is not None:
                key = conform(one_chunk(rows["key"]), self._spec.key_type)
                tables.append(rows.set_column(rows.schema.get_field_index("key"), "key", key))
        return self._left(pa.concat_tables(tables)) if tables else None

    def _left(self, changes: pa.Table) -> pa.Table | None:
        """The entries that are left after changes of timers in path order; None where none is."""
        rows = changes.append_column("state", pa.repeat(_SCHEMA.column_name, changes.num_rows))
        rows = rows.append_column("updated_at", pa.nulls(changes.num_rows, pa.timestamp("us", "UTC")))
        return entries_of(self._spec, _SCHEMA, rows)


def those_within(timers: pa.Table | None, window: Window) -> pa.Table | None:
    """The timers with a time in the window; None where none has."""
    if timers is None:
        return None
    due = timers.filter(pa.array(TimerColumns.of_table(timers).within(window)))
    return due.combine_chunks() if due.num_rows else None


def _place(times: Hashes, place: int) -> int:
    """The time that so many are up to, counted from the first; later than any where there are not as many."""
    if place > len(times):
        return MAX_TIMESTAMP
    return int(np.partition(times, place - 1)[place - 1])
