"""The timers in one file of a path, in parts that are read when they may hold a timer that counts.

Of a Parquet file the parts are its row groups, which statistics describe. Of a local copy, whose timers are sorted by
time, they are stretches of time, short ones first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.storage.state.listed_files import open_state_file
from state_engine.storage.state.local_copies import LocalCopy
from state_engine.storage.state.located_files import StateFile
from state_engine.storage.state.timer_columns import TIMERS_COLUMN, TimerColumns, Window
from state_engine.storage.stores.parquet_reading import OpenParquet

_TIME, _DOMAIN = f"{TIMERS_COLUMN}.key.time", f"{TIMERS_COLUMN}.key.domain"
_GROWTH = 16
"""So many times as many blocks of a copy are in a stretch as in the one before."""


def timers_of(file: StateFile) -> TimersOfFile:
    """The timers in a file, from its local copy where it has one."""
    copy = file.listed.copy
    return ParquetTimers(file) if copy is None or not copy.is_there() else CopiedTimers(copy)


def read_timers(parts: Sequence[TimersPart]) -> list[TimerColumns]:
    """The columns of parts, each read once, and those of one file together."""
    unread: dict[int, list[TimersPart]] = {}
    for part in parts:
        if part.columns is None:
            unread.setdefault(id(part.source), []).append(part)
    for of_file in unread.values():
        of_file[0].source.read(of_file)
    return [part.columns for part in parts if part.columns is not None]


@dataclass(eq=False)
class _RowGroup:
    """A row group that holds timers.

    Attributes:
        times: the first and the last time in it; None where that is not known.
    """

    source: ParquetTimers
    number: int
    times: tuple[int, int] | None
    domains: tuple[str, str] | None
    columns: TimerColumns | None = None
    """None until they are read."""

    def may_have(self, window: Window) -> bool:
        """Whether there may be a timer with a time in the window."""
        return any(
            self.times is None or (self.times[0] <= last and self.times[1] >= first)
            for domain, (first, last) in window.items()
            if self.may_be(domain)
        )

    def may_be(self, domain: str) -> bool:
        return self.domains is None or self.domains[0] <= domain <= self.domains[1]

    def first(self, since_ms: int) -> int:
        """The first time that a timer in it may have, where none has one before ``since_ms``."""
        return since_ms if self.times is None else max(self.times[0], since_ms)


class ParquetTimers:
    """The timers in the file itself."""

    def __init__(self, file: StateFile) -> None:
        self._listed = file.listed

    def within(self, window: Window) -> list[_RowGroup]:
        """The parts that may hold a timer with a time in the window."""
        return [group for group in self._row_groups if group.may_have(window)]

    def since(self, domain: str, since_ms: int) -> list[_RowGroup]:
        """All of the domain: those whose times have all passed are not worth looking for."""
        return [group for group in self._row_groups if group.may_be(domain)]

    def read(self, parts: Sequence[TimersPart]) -> None:
        """Read the columns of parts of this file."""
        groups = sorted(
            (part for part in parts if isinstance(part, _RowGroup)), key=lambda group: group.number
        )
        one_domain = all(_is_one(group.domains) for group in groups)
        names = ["key_hash", _TIME if one_domain else f"{TIMERS_COLUMN}.key"]
        table, start = self._file.read_row_groups([group.number for group in groups], names), 0
        for group in groups:
            rows = self._file.rows_of(group.number)
            part = table.slice(start, rows).combine_chunks()
            domain = None if group.domains is None or not one_domain else group.domains[0]
            group.columns = TimerColumns.of_table(part, domain).counting(self._listed.counts)
            start += rows

    @cached_property
    def _file(self) -> OpenParquet:
        return open_state_file(self._listed)

    @cached_property
    def _row_groups(self) -> list[_RowGroup]:
        """Those that hold timers."""
        file = self._file
        if TIMERS_COLUMN not in file.schema.names:
            return []
        of_each = zip(file.limits(_TIME), file.limits(_DOMAIN), strict=True)
        return [
            _RowGroup(self, number, times, domains)
            for number, (times, domains) in enumerate(of_each)
            if not file.is_null(_TIME, number)
        ]


@dataclass(eq=False)
class _Stretch:
    """The timers of a domain in a copy, from a time up to another one, both inclusive."""

    source: CopiedTimers
    domain: str
    start_ms: int
    end_ms: int
    columns: TimerColumns | None = None

    def first(self, since_ms: int) -> int:
        return max(self.start_ms, since_ms)


class CopiedTimers:
    """The timers in the local copy of a file of a base, which counts as a whole; methods as of ``ParquetTimers``."""

    def __init__(self, copy: LocalCopy) -> None:
        self._copy = copy

    def within(self, window: Window) -> list[_Stretch]:
        return [_Stretch(self, domain, first, last) for domain, (first, last) in window.items()]

    def since(self, domain: str, since_ms: int) -> list[_Stretch]:
        """A block, and then stretches that grow."""
        starts, firsts = [since_ms], self._copy.first_times(domain)
        at, blocks = int(np.searchsorted(firsts, since_ms, side="right")), 1
        while at < len(firsts):
            if firsts[at] > starts[-1]:
                starts.append(int(firsts[at]))
            at, blocks = at + blocks * _GROWTH, blocks * _GROWTH
        ends = [start - 1 for start in starts[1:]] + [MAX_TIMESTAMP]
        return [_Stretch(self, domain, *times) for times in zip(starts, ends, strict=True)]

    def read(self, parts: Sequence[TimersPart]) -> None:
        """A few blocks of each."""
        for part in parts:
            if isinstance(part, _Stretch):
                columns = self._copy.timers(part.domain, part.start_ms, part.end_ms)
                kept = columns.within({part.domain: (part.start_ms, part.end_ms)})
                part.columns = columns.those(kept)


def _is_one(domains: tuple[str, str] | None) -> bool:
    return domains is not None and domains[0] == domains[1]


TimersOfFile = ParquetTimers | CopiedTimers
TimersPart = _RowGroup | _Stretch
"""Some of the timers in a file."""
