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


def of_clock(zone: str, hours: int) -> Callable[[int], list[Interval]]:
    """Windows that begin when a clock shows a multiple of some hours, or is put past one; minute by minute."""
    clock, minute = ZoneInfo(zone), 60_000

    def shows(at: int) -> int:
        """Minutes that the clock shows since its year 1."""
        local = datetime.fromtimestamp(at / 1000, clock).replace(tzinfo=None)
        return (local - datetime.min) // timedelta(minutes=1)

    @cache
    def begins(at: int) -> bool:
        before, now, size = shows(at - minute), shows(at), hours * 60
        return now % size == 0 or now // size > before // size

    def windows(at: int) -> list[Interval]:
        start, end = at // minute * minute, at // minute * minute + minute
        while not begins(start):
            start -= minute
        while not begins(end):
            end += minute
        return [(start, end)]

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
