"""What windows are, in plain Python: models that share no code with the operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple, Protocol, TypeVar
from zoneinfo import ZoneInfo

START = -(2**63)


class Event(NamedTuple):
    """A row; ``at`` is its event time in milliseconds."""

    k: str
    v: int
    x: float
    at: int


class HasTime(Protocol):
    """A row with its event time in milliseconds."""

    @property
    def at(self) -> int: ...


Timed = TypeVar("Timed", bound=HasTime)
Interval = tuple[int, int]
Table = dict[tuple[str, int, int], tuple[Any, ...]]
"""Results by key and bounds of the window."""


def watermarks_before(rows: Iterable[Timed], bound: int) -> Iterator[tuple[Timed, int]]:
    """Each row, and the watermark before it."""
    watermark = START
    for row in rows:
        yield row, watermark
        watermark = max(watermark, row.at - bound - 1)


def results(rows: Iterable[Event]) -> tuple[Any, ...]:
    """count, sum, average, least and greatest of ``v``, and the sum of ``x``."""
    given = list(rows)
    values = [row.v for row in given]
    mean = sum(values) / len(values)
    return len(given), sum(values), mean, min(values), max(values), math.fsum(row.x for row in given)


def tumbling(size: int, offset: int = 0) -> Callable[[int], list[Interval]]:
    return lambda at: [(s, s + size) for s in range(at - size + 1, at + 1) if (s - offset) % size == 0]


def sliding(size: int, every: int) -> Callable[[int], list[Interval]]:
    return lambda at: [(s, s + size) for s in range(at - size + 1, at + 1) if s % every == 0]


def cumulating(size: int, every: int) -> Callable[[int], list[Interval]]:
    def windows(at: int) -> list[Interval]:
        start = at // size * size
        return [(start, start + k * every) for k in range(1, size // every + 1) if at < start + k * every]

    return windows


class WallClock:
    """What a clock shows, minute by minute; boundaries are when it shows a multiple of a size, or is put past one."""

    def __init__(self, zone: str) -> None:
        self._zone = ZoneInfo(zone)
        self.passes, self.boundary = cache(self._passes), cache(self._boundary)
        self.next = cache(self._next)

    def _shows(self, minute: int) -> int:
        """Minutes that the clock shows since its year 1, at a minute since 1970."""
        local = datetime.fromtimestamp(minute * 60, self._zone).replace(tzinfo=None)
        return (local - datetime.min) // timedelta(minutes=1)

    def _passes(self, minute: int) -> range:
        """The times that the clock shows or skips as a minute begins: more than one where it is put forward."""
        before, now = self._shows(minute - 1), self._shows(minute)
        return range(min(before + 1, now), now + 1)

    def _boundary(self, minute: int, size: int) -> bool:
        return any(time % size == 0 for time in self.passes(minute))

    def last(self, minute: int, size: int) -> int:
        while not self.boundary(minute, size):
            minute -= 1
        return minute

    def _next(self, minute: int, size: int) -> int:
        minute += 1
        while not self.boundary(minute, size):
            minute += 1
        return minute


MINUTE_MS = 60_000


def of_clock(zone: str, size: int) -> Callable[[int], list[Interval]]:
    """Windows of so many minutes of a clock, side by side."""
    return cumulating_of_clock(zone, size, size)


@cache
def cumulating_of_clock(zone: str, size: int, every: int) -> Callable[[int], list[Interval]]:
    """Windows that begin at the boundaries of a size, and end at those of a part of it, in minutes."""
    clock = WallClock(zone)

    def windows(at: int) -> list[Interval]:
        minute = at // MINUTE_MS
        start, last, end = clock.last(minute, size), clock.next(minute, size), minute
        ends = []
        while end < last:
            end = clock.next(end, every)
            ends.append(end)
        return [(start * MINUTE_MS, end * MINUTE_MS) for end in ends]

    return windows


@cache
def sliding_of_clock(zone: str, size: int, every: int) -> Callable[[int], list[Interval]]:
    """Windows of a size below a day that begin at the boundaries of a part of it, in minutes.

    A window that begins at a time ``n`` of the clock ends when the clock next shows or skips a time that is a whole
    number of sizes away from ``n``; or when the one before it ends, if that is later.
    """
    clock = WallClock(zone)

    @cache
    def by_itself(start: int) -> int:
        starts = [time for time in clock.passes(start) if time % every == 0]
        of_size = [time for time in starts if time % size == 0]
        begins, end = max(of_size or starts), start + 1
        while not any((time - begins) % size == 0 for time in clock.passes(end)):
            end += 1
        return end

    @cache
    def end_of(start: int) -> int:
        return max(by_itself(one) for one in range(start - 2 * size, start + 1) if clock.boundary(one, every))

    def windows(at: int) -> list[Interval]:
        minute = at // MINUTE_MS
        starts = [one for one in range(minute - 2 * size, minute + 1) if clock.boundary(one, every)]
        return [(one * MINUTE_MS, end_of(one) * MINUTE_MS) for one in starts if end_of(one) > minute]

    return windows


@dataclass
class Windowed:
    """What comes of rows: those of each window in the order in which they came, and those that no window took."""

    rows: dict[tuple[str, int, int], list[Any]]
    late: list[Any] = field(default_factory=list)

    @property
    def table(self) -> Table:
        return {window: results(of) for window, of in self.rows.items()}


def aligned(
    rows: Iterable[Any], windows: Callable[[int], list[Interval]], *, bound: int, lateness: int
) -> Windowed:
    """Windows of a size: a row is in each of its windows that is not closed."""
    taken: dict[tuple[str, int, int], list[Event]] = {}
    late = []
    for row, watermark in watermarks_before(rows, bound):
        still_open = [(s, e) for s, e in windows(row.at) if e - 1 + lateness > watermark]
        for start, end in still_open:
            taken.setdefault((row.k, start, end), []).append(row)
        if not still_open:
            late.append(row)
    return Windowed(taken, late)


def sessions(rows: Iterable[Any], gap: Callable[[Any], int], *, bound: int, lateness: int) -> Windowed:
    """Sessions: what is linked by rows that overlap or touch, of the rows that reach no closed session.

    A row whose own session would be closed is taken inside of an open one only.
    """
    accepted: dict[str, list[Event]] = {}
    late = []
    for row, watermark in watermarks_before(rows, bound):
        start, end = row.at, row.at + gap(row)
        before = _linked(accepted.get(row.k, []), gap)
        touched = [one for one in before if start <= one[0][1] and end >= one[0][0]]
        closed = [one for one in touched if one[0][1] + lateness <= watermark]
        inside = any(bounds[0] <= start for bounds, _ in touched)
        if closed or (not inside and end + lateness <= watermark):
            late.append(row)
        else:
            accepted.setdefault(row.k, []).append(row)
    linked = {(k, *bounds): of for k, given in accepted.items() for bounds, of in _linked(given, gap)}
    return Windowed(linked, late)


def _linked(rows: list[Event], gap: Callable[[Event], int]) -> list[tuple[Interval, list[Event]]]:
    made: list[tuple[Interval, list[Event]]] = []
    for row in sorted(rows, key=lambda one: one.at):
        if made and row.at <= made[-1][0][1]:
            (start, end), of = made[-1]
            made[-1] = ((start, max(end, row.at + gap(row))), [*of, row])
        else:
            made.append(((row.at, row.at + gap(row)), [row]))
    return made
