"""Grids: the instants at which windows can begin or end, one after the other over all of time.

Without a zone the distances are fixed, from 1970-01-01T00:00Z. Days, weeks, months and years of a calendar, and what is
shorter in a zone, follow its wall clock: a time that the clock skips counts when it skips it. Windows between the
instants of a grid never overlap, and leave nothing out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from itertools import accumulate
from typing import Any, Literal, Protocol, TypeVar
from zoneinfo import ZoneInfo

import numpy as np

from state_engine.core.errors import ValueTypeError
from state_engine.core.time.local_times import instants, local_time

DAY_MS = 86_400_000
_MONDAY = date(1969, 12, 29).toordinal()
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_KEPT_DAYS = 64
Unit = Literal["day", "week", "month"]
Longs = np.ndarray[Any, np.dtype[np.int64]]
_T = TypeVar("_T")


class Grid(Protocol):
    """Instants in milliseconds."""

    def floor(self, at_ms: int) -> int:
        """The last one at or before a time."""

    def after(self, at_ms: int) -> int:
        """The first one behind a time."""

    def floors(self, at_ms: Longs) -> Longs:
        """``floor`` of many times."""


@dataclass(frozen=True)
class FixedGrid:
    """Instants at equal distances.

    Example:
        >>> grid = FixedGrid(10, offset_ms=3)
        >>> grid.floor(-1), grid.floor(3), grid.after(3)
        (-7, 3, 13)
    """

    step_ms: int
    offset_ms: int = 0

    def floor(self, at_ms: int) -> int:
        return at_ms - (at_ms - self.offset_ms) % self.step_ms

    def after(self, at_ms: int) -> int:
        return self.floor(at_ms) + self.step_ms

    def floors(self, at_ms: Longs) -> Longs:
        floors: Longs = at_ms - (at_ms - self.offset_ms) % self.step_ms
        return floors


@dataclass(frozen=True)
class _LocalGrid:
    """Instants that a wall clock gives; those around one time are found together, and kept."""

    zone: ZoneInfo
    offset_ms: int = 0
    _kept: dict[int, tuple[int, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def floor(self, at_ms: int) -> int:
        near = self._near(at_ms)
        return near[bisect_right(near, at_ms) - 1]

    def after(self, at_ms: int) -> int:
        near = self._near(at_ms)
        return near[bisect_right(near, at_ms)]

    def floors(self, at_ms: Longs) -> Longs:
        ordered, place = np.sort(at_ms), 0
        starts = list[int]()
        while place < len(ordered):  # once for each instant that is asked for
            starts.append(self.floor(int(ordered[place])))
            place = int(np.searchsorted(ordered, self.after(int(ordered[place]))))
        floors: Longs = np.array(starts, np.int64)[np.searchsorted(starts, at_ms, side="right") - 1]
        return floors

    def _near(self, at_ms: int) -> tuple[int, ...]:
        return self._of_day(at_ms, self._kept, self._instants_around)

    def _of_day(self, at_ms: int, kept: dict[int, _T], make: Callable[[int], _T]) -> _T:
        """What is kept for the day of a time, by the number of the day; ``make`` gives it where it is not there."""
        try:
            day = local_time(at_ms, self.zone).toordinal()
            if day not in kept:
                if len(kept) >= _KEPT_DAYS:
                    kept.clear()
                kept[day] = make(day)
            return kept[day]
        except (OverflowError, ValueError):
            raise ValueTypeError(
                f"the event time {at_ms} ms is outside of the years 1 to 9999, which have a calendar: filter such "
                "rows, or use a window without time_zone and without weeks, months and years"
            ) from None

    def _at(self, day: int, since_midnight_ms: int = 0) -> list[int]:
        """When the clock shows a time of a day, by the number of the day."""
        shown = datetime.combine(date.fromordinal(day), datetime.min.time())
        return instants(shown + timedelta(milliseconds=since_midnight_ms + self.offset_ms), self.zone)

    def _instants_around(self, day: int) -> tuple[int, ...]:
        raise NotImplementedError


@dataclass(frozen=True)
class ClockGrid(_LocalGrid):
    """Every instant at which a clock shows a multiple of a time since midnight; midnight always is one.

    Example:
        >>> grid = ClockGrid(ZoneInfo("America/Los_Angeles"), step_ms=4 * 3_600_000)
        >>> (grid.after(1615708800000) - 1615708800000) / 3_600_000  # the night that the clock is put forward
        3.0
    """

    step_ms: int = DAY_MS

    def _instants_around(self, day: int) -> tuple[int, ...]:
        shown = range(0, DAY_MS, self.step_ms)
        days = range(day - 2, day + 3)  # a clock that is put back, or an offset, reaches over midnight
        return tuple(sorted({at for one in days for since in shown for at in self._at(one, since)}))


@dataclass(frozen=True)
class OverlappingGrid(ClockGrid):
    """The instants of a clock, at each of which a window of a size begins.

    A window ends when the clock shows its start plus the size. If it is below a day, it ends sooner where the clock is
    put back and shows its start again, or whole sizes before it: the next instant of the tumbling windows that have the
    start. Ends rise: a window never ends before one that began earlier. An instant at which the clock skips several
    starts stands for one of them: for the last that is a multiple of the size since midnight, else for the last.

    Attributes:
        size_ms: a multiple of the step, which divides a day.

    Example:
        >>> hour = 3_600_000
        >>> grid = OverlappingGrid(ZoneInfo("Europe/Rome"), step_ms=hour, size_ms=4 * hour)
        >>> midnight = 1711839600000  # the clock is put forward two hours later
        >>> [(grid.end_of(midnight + since * hour) - midnight) // hour for since in (-1, 0, 1, 2)]
        [2, 3, 4, 6]
    """

    size_ms: int = DAY_MS
    _kept_ends: dict[int, dict[int, int]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def end_of(self, start: int) -> int:
        """The end of the window that begins at an instant."""
        return self._of_day(start, self._kept_ends, self._ends_around)[start]

    def _ends_around(self, day: int) -> dict[int, int]:
        starts = self._instants_around(day)
        return dict(zip(starts, accumulate(map(self._end_by_itself, starts), max), strict=True))

    def _end_by_itself(self, start: int) -> int:
        day, since = self._shown_at(start)
        end = min(at for at in self._at(day, since + self.size_ms) if at > start)
        put_back_ms = end - start - self.size_ms if self.size_ms < DAY_MS else 0
        sooner = (at for less in range(0, put_back_ms, self.size_ms) for at in self._at(day, since - less))
        return min((at for at in sooner if at > start), default=end)

    def _shown_at(self, start: int) -> tuple[int, int]:
        """The time of the clock for which an instant stands: its day, and milliseconds since midnight."""
        shown = local_time(start, self.zone).replace(tzinfo=None) - timedelta(milliseconds=self.offset_ms)
        day = shown.toordinal()
        since = (shown - datetime.combine(shown.date(), datetime.min.time())) // timedelta(milliseconds=1)
        whole = since - since % self.size_ms
        return day, whole if start in self._at(day, whole) else since - since % self.step_ms


@dataclass(frozen=True)
class CalendarGrid(_LocalGrid):
    """The first instant of every n-th day, week or month; days and months are counted from 1970, weeks from a Monday.

    Example:
        >>> quarter = CalendarGrid(ZoneInfo("UTC"), unit="month", number=3)
        >>> local_time(quarter.floor(1_720_000_000_000), quarter.zone).date()
        datetime.date(2024, 7, 1)
    """

    unit: Unit = "day"
    number: int = 1

    def _instants_around(self, day: int) -> tuple[int, ...]:
        period = self._period_of(day)
        return tuple(self._at(self._first_day(period + by))[0] for by in (-2, -1, 0, 1, 2))

    def _period_of(self, day: int) -> int:
        if self.unit == "month":
            on = date.fromordinal(day)
            return ((on.year - 1970) * 12 + on.month - 1) // self.number
        first, days = (_MONDAY, 7) if self.unit == "week" else (_EPOCH_DAY, 1)
        return (day - first) // (days * self.number)

    def _first_day(self, period: int) -> int:
        if self.unit == "month":
            months = period * self.number
            return date(1970 + months // 12, months % 12 + 1, 1).toordinal()
        first, days = (_MONDAY, 7) if self.unit == "week" else (_EPOCH_DAY, 1)
        return first + period * days * self.number
