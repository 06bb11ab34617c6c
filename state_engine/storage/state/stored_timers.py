"""Timers in the files of a path, looked at by column: which keys have one that is due, and when the first one is.

A timer is an entry of the map state ``_timers``, and its time is a column of its own in files of bases and of changes.
By the statistics of that column most row groups are left unread; of the others, the column is read and compared as a
whole. Whether a timer is still there by the end of the path is asked for the few keys that this leaves, in a fold of
columns. So what is due costs what is due, and timers that wait cost statistics. Plays the part of the queues over all
key groups of Flink's ``InternalTimerServiceImpl``, which keep the first timer on top. Decision 0069.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.state.evolution import recorded_schema
from state_engine.core.time.timers import EVENT, TIMERS, TimersDescriptor
from state_engine.core.time.watermarks import MAX_TIMESTAMP
from state_engine.core.types.columns import one_chunk
from state_engine.storage.layout import state_column
from state_engine.storage.parquet_reading import OpenParquet
from state_engine.storage.state.base import NOTHING_EXPIRES_MS, BaseSpec, entries_of, read_entries
from state_engine.storage.state.changelog import Hashes, KeyHashes, SomeKeys, open_state_file
from state_engine.storage.state.located_files import StateFile

Window = Mapping[str, tuple[int, int]]
"""By domain, a first and a last time, both inclusive; a domain that is not there is not asked for."""

_COLUMN = state_column(TIMERS)
_TIME, _DOMAIN = f"{_COLUMN}.key.time", f"{_COLUMN}.key.domain"
_SCHEMA = recorded_schema(TimersDescriptor())
_MORE = 16
"""Where the timer that seemed to be the first is gone by the end of the path, so many times as many are looked at."""


@dataclass(frozen=True)
class _Columns:
    """Changes or entries of timers, row for row.

    Attributes:
        hashes: of their keys.
        times: of the timers.
        are_event: whether they are event-time timers; else they are processing-time timers.
    """

    hashes: Hashes
    times: Hashes
    are_event: Hashes

    def within(self, window: Window) -> Hashes:
        """Which rows have a time in the window."""
        inside = np.zeros(len(self.times), bool)
        for domain, (first, last) in window.items():
            inside |= self.of(domain) & (self.times >= first) & (self.times <= last)
        return inside

    def of(self, domain: str) -> Hashes:
        """Which rows are of a domain."""
        return self.are_event if domain == EVENT else ~self.are_event


@dataclass(eq=False)
class _RowGroup:
    """A row group that holds timers.

    Attributes:
        file, state_file, number: where it is.
        times: the first and the last time in it; None where that is not known.
        domains: the first and the last domain in it.
        columns: of its timers, once they are read.
    """

    file: OpenParquet
    state_file: StateFile
    number: int
    times: tuple[int, int] | None
    domains: tuple[str, str] | None
    columns: _Columns | None = None

    def may_have(self, window: Window) -> bool:
        """Whether there may be a timer with a time in the window."""
        return any(
            self.times is None or (self.times[0] <= last and self.times[1] >= first)
            for domain, (first, last) in window.items()
            if self.may_be(domain)
        )

    def may_be(self, domain: str) -> bool:
        """Whether there may be a timer of the domain."""
        return self.domains is None or self.domains[0] <= domain <= self.domains[1]

    def first(self, since_ms: int) -> int:
        """The first time that a timer in it may have, where none has one before ``since_ms``."""
        return since_ms if self.times is None else max(self.times[0], since_ms)


class StoredTimers:
    """The timers of some keys as of the end of a path.

    Args:
        files: of the path that may hold them: those of bases, then changes in path order.
        own: keys whose timers count.
        key_type: stored type of the key struct.
        max_parallelism: of the path's end.
    """

    def __init__(
        self, files: Sequence[StateFile], own: SomeKeys, key_type: pa.DataType, max_parallelism: int
    ) -> None:
        self._files, self._own, self._max_parallelism = files, own, max_parallelism
        self._spec = BaseSpec(
            uri="",
            base_id="",
            key_type=key_type,
            states=(_SCHEMA,),
            max_parallelism=max_parallelism,
            clock_ms=NOTHING_EXPIRES_MS,
            watermark_ms=None,
        )

    def within(self, window: Window) -> pa.Table | None:
        """The timers with a time in the window, as entries of a base; None where none has."""
        return _those_within(self._timers_of(self.hashes(window)), window)

    def hashes(self, window: Window) -> Hashes:
        """Hashes of keys that may have a timer with a time in the window: a file said so, and a later one may not."""
        groups = _read([group for group in self._row_groups if group.may_have(window)])
        parts = [columns.hashes[columns.within(window)] for columns in groups]
        hashes = np.unique(np.concatenate([np.array([], np.int64), *parts]))
        own: Hashes = hashes[self._own.hold(hashes)]
        return own

    def among(self, changes: pa.Table, window: Window) -> pa.Table | None:
        """The same as ``within``, of the keys of some changes in path order, of which all are there."""
        none = pa.nulls(changes.num_rows, pa.timestamp("us", "UTC"))
        return _those_within(
            entries_of(self._spec, _SCHEMA, changes.append_column("updated_at", none)), window
        )

    def first(self, domain: str, since_ms: int, without: KeyHashes) -> int | None:
        """Time of the first timer of a domain; None where there is none.

        Args:
            since_ms: a time before which there is none.
            without: keys whose timers do not count.
        """
        waiting = [group for group in self._row_groups if group.may_be(domain)]
        waiting.sort(key=lambda group: -group.first(since_ms))
        # of these any timer may be the first; each of the others holds its first time
        at_once = [group for group in waiting if group.first(since_ms) == since_ms]
        del waiting[len(waiting) - len(at_once) :]
        (times, hashes), wanted = self._since(at_once, domain, since_ms, without), 1
        while True:
            until = _place(times, wanted)
            while waiting and waiting[-1].first(since_ms) <= until:
                first = [g for g in waiting[-wanted:] if g.first(since_ms) <= until]
                del waiting[-len(first) :]
                more_times, more_hashes = self._since(first, domain, since_ms, without)
                times, hashes = np.concatenate([times, more_times]), np.concatenate([hashes, more_hashes])
                until = _place(times, wanted)
            if not len(times):
                return None
            asked = times <= until
            timers = self._timers_of(np.unique(hashes[asked]))
            if timers is not None:
                there = _columns_of(timers)
                left = there.times[there.within({domain: (since_ms, until)})]
                if len(left):
                    return int(left.min())
            times, hashes, wanted = times[~asked], hashes[~asked], wanted * _MORE

    @cached_property
    def _row_groups(self) -> list[_RowGroup]:
        """Those that hold timers."""
        groups = []
        for state_file in self._files:
            file = open_state_file(state_file.listed)
            if _COLUMN in file.schema.names:
                of_each = zip(file.limits(_TIME), file.limits(_DOMAIN), strict=True)
                groups += [
                    _RowGroup(file, state_file, number, times, domains)
                    for number, (times, domains) in enumerate(of_each)
                    if not file.is_null(_TIME, number)
                ]
        return groups

    def _since(
        self, groups: Sequence[_RowGroup], domain: str, since_ms: int, without: KeyHashes
    ) -> tuple[Hashes, Hashes]:
        """Times and hashes of the rows that may stand for the first timer."""
        none = np.array([], np.int64)
        times, hashes = [none], [none]
        for columns in _read(groups):
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
        groups = set(np.mod(hashes, self._max_parallelism).tolist())
        files = [f.listed for f in self._files if not f.is_base or f.key_group_min in groups]
        entries = read_entries(self._spec, files, KeyHashes(hashes))
        return entries[0] if entries else None


def _those_within(timers: pa.Table | None, window: Window) -> pa.Table | None:
    if timers is None:
        return None
    due = timers.filter(pa.array(_columns_of(timers).within(window)))
    return due.combine_chunks() if due.num_rows else None


def _read(groups: Sequence[_RowGroup]) -> list[_Columns]:
    """The columns of row groups, each read once, and those of one file together."""
    unread: dict[int, list[_RowGroup]] = {}
    for group in groups:
        if group.columns is None:
            unread.setdefault(id(group.file), []).append(group)
    for of_file in unread.values():
        of_file.sort(key=lambda group: group.number)
        file, one_domain = of_file[0].file, all(_is_one(group.domains) for group in of_file)
        names = ["key_hash", _TIME if one_domain else f"{_COLUMN}.key"]
        table, start = file.read_row_groups([group.number for group in of_file], names), 0
        for group in of_file:
            rows = file.rows_of(group.number)
            part = table.slice(start, rows).combine_chunks()
            columns = _columns_of(part, None if group.domains is None or not one_domain else group.domains[0])
            counts, start = group.state_file.listed.counts, start + rows
            if counts is not None:
                kept = counts.hold(columns.hashes)
                columns = _Columns(columns.hashes[kept], columns.times[kept], columns.are_event[kept])
            group.columns = columns
    return [group.columns for group in groups if group.columns is not None]


def _place(times: Hashes, place: int) -> int:
    """The time that so many are up to, counted from the first; later than any where there are not as many."""
    if place > len(times):
        return MAX_TIMESTAMP
    return int(np.partition(times, place - 1)[place - 1])


def _is_one(domains: tuple[str, str] | None) -> bool:
    return domains is not None and domains[0] == domains[1]


def _columns_of(table: pa.Table, domain: str | None = None) -> _Columns:
    """The rows of timers in a table of changes or entries.

    Args:
        domain: of all of them, where it was not read.
    """
    timer = one_chunk(table[_COLUMN]).field("key")
    times = pc.struct_field(timer, "time")
    there = pc.is_valid(times)
    if domain is None:
        are_event = pc.equal(pc.struct_field(timer, "domain"), EVENT).filter(there)
    else:
        are_event = pa.repeat(domain == EVENT, pc.sum(there).as_py() or 0)
    return _Columns(
        table["key_hash"].filter(there).to_numpy(),
        times.filter(there).to_numpy(),
        are_event.to_numpy(zero_copy_only=False),
    )
