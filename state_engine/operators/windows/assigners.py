"""Which windows a row belongs to: ``Tumbling``, ``Sliding``, ``Cumulating`` and ``Session``; and what a window is.

An assigner is a value: it says where windows lie, and nothing about when they end or what is computed. Mirrors Flink's
``WindowAssigner`` classes, and the slices of its SQL windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.time.local_times import zone_of
from state_engine.core.types.durations import Span, to_milliseconds
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.operators.windows.calendar import (
    DAY_MS,
    CalendarGrid,
    ClockGrid,
    FixedGrid,
    Grid,
    Longs,
    OverlappingGrid,
)
from state_engine.operators.windows.window_sizes import Size, is_of_calendar, size_of

_LEAST_OF_A_CLOCK_MS = 60_000


class TimeWindow(NamedTuple):
    """A window of event time; milliseconds. Mirrors ``org.apache.flink...windowing.windows.TimeWindow``.

    Attributes:
        end: exclusive.

    Example:
        >>> TimeWindow(0, 5).intersects(TimeWindow(5, 9)), TimeWindow(0, 5).cover(TimeWindow(5, 9))
        (True, TimeWindow(start=0, end=9))
    """

    start: int
    end: int

    def max_timestamp(self) -> int:
        """The last millisecond in it."""
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Whether both overlap or touch."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """The smallest window with both of them."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """The start of the tumbling window with a time.

        Example:
            >>> TimeWindow.get_window_start_with_offset(-1, 0, 5)
            -5
        """
        return timestamp - (timestamp - offset) % window_size


class CountWindow(NamedTuple):
    """A window of so many rows of a key. Mirrors ``pyflink.datastream.window.CountWindow``.

    Attributes:
        id: number of the window among those of its key, from 0.
    """

    id: int

    def max_timestamp(self) -> int:
        """The largest long: it ends by no time."""
        return MAX_TIMESTAMP


class GlobalWindow(NamedTuple):
    """The one window of all rows of a key. Mirrors ``pyflink.datastream.window.GlobalWindow``."""

    @staticmethod
    def get() -> GlobalWindow:
        """The window."""
        return GlobalWindow()

    def max_timestamp(self) -> int:
        """The largest long: it never ends."""
        return MAX_TIMESTAMP


class _Aligned:
    """Windows that lie at the same times for all keys."""

    size: Span
    offset: Span
    time_zone: str | None

    @cached_property
    def _size(self) -> Size:
        return self._sized(self.size, "size")

    @cached_property
    def _every(self) -> Size:
        return self._sized(self._step, "every")

    @property
    def _step(self) -> Span:
        return self.size

    @property
    def _by_clock(self) -> bool:
        """Whether windows follow a clock and a calendar, and not the milliseconds since 1970."""
        return self.time_zone is not None or is_of_calendar(self.size) or is_of_calendar(self._step)

    def _sized(self, span: Span, name: str) -> Size:
        return size_of(span, what=f"{name} of {self!r}", in_days=self._by_clock)

    @cached_property
    def _offset_ms(self) -> int:
        if isinstance(self.offset, str) and self.offset.startswith("-"):
            return -to_milliseconds(self.offset[1:])
        return to_milliseconds(self.offset)

    def _grid(self, size: Size, offset_ms: int) -> Grid:
        if abs(offset_ms) >= size.least_ms:
            raise ConfigurationError(f"{self!r}: the offset must be shorter than {size}; give a shorter one")
        if not self._by_clock:
            return FixedGrid(size.number, offset_ms)
        if self.time_zone is not None and not isinstance(self.time_zone, str):
            raise ConfigurationError(
                f"time_zone of {self!r} must be the name of a zone, such as 'Europe/Rome'"
            )
        zone = zone_of(self.time_zone or "UTC")
        if size.unit != "ms":
            return CalendarGrid(zone, offset_ms, unit=size.unit, number=size.number)
        if size.number < _LEAST_OF_A_CLOCK_MS or size.number > DAY_MS:
            raise ConfigurationError(
                f"{self!r}: with a time_zone, windows last at least a minute, and those longer than a day whole days; "
                "leave time_zone out, or choose another size"
            )
        return ClockGrid(zone, offset_ms, step_ms=size.number)

    def _shape(self, kind: str, *sizes: Size) -> str:
        return f"{kind} {' every '.join(map(str, sizes))} {self._offset_ms:+} {self.time_zone or 'UTC'}"


@dataclass(frozen=True)
class Tumbling(_Aligned):
    """Windows of one size, one behind the other.

    Args:
        size: a span, or a calendar unit as text: ``"1 week"``, ``"1 month"``, ``"1 quarter"``, ``"1 year"``. Without a
            ``time_zone`` a day is 24 hours, and windows are counted from 1970-01-01T00:00Z, so those of ``"7 days"``
            begin on Thursdays; weeks begin on Mondays.
        offset: how much later windows begin; a span, also a negative one, as ``"-1 day"``.
        time_zone: then days are those of its calendar, and shorter windows follow its clock.

    Raises:
        ConfigurationError: the size is not above 0, the offset is not below it, there is no such zone.

    Example:
        >>> Tumbling("5 s").windows_of(7_000)
        [TimeWindow(start=5000, end=10000)]
    """

    size: Span
    offset: Span = 0
    time_zone: str | None = None

    def __post_init__(self) -> None:
        self._cells  # noqa: B018 - checks

    @cached_property
    def _cells(self) -> Grid:
        return self._grid(self._size, self._offset_ms)

    @property
    def shape(self) -> str:
        """Size, offset and zone as text, see ``Function.shape``."""
        return self._shape("tumbling", self._size)

    def windows_of(self, at_ms: int) -> list[TimeWindow]:
        """The windows of a row, by its event time in milliseconds; the earliest first."""
        return [_window(self._cells.floor(at_ms), self._cells.after(at_ms))]

    def slice_of(self, at_ms: int) -> int:
        """The start of the part of a window with a row; the rows of a part have the same windows."""
        return self._cells.floor(at_ms)

    def slices_of(self, at_ms: Longs) -> Longs:
        """``slice_of`` of many rows."""
        return self._cells.floors(at_ms)

    def slice_end_of(self, at_ms: int) -> int:
        """The end of that part."""
        return self._cells.after(at_ms)


@dataclass(frozen=True)
class Sliding(_Aligned):
    """Windows of one size that begin at equal distances, and so overlap.

    In a zone a window ends when the clock shows its start plus the size. One below a day ends sooner where the clock is
    put back and shows its start again, or whole sizes before it, so hours stay hours. A window never ends before one
    that began earlier. Starts that the clock skips are one start, at the moment at which it skips them. So no
    two windows have the same ``window_start``.

    Args:
        size, offset, time_zone: as of ``Tumbling``.
        every: the distance, not above the size. In a zone, and with calendar units, the size is a multiple of it, and
            a day is, where it is shorter.

    Raises:
        ConfigurationError: as ``Tumbling`` does; ``every`` is not above 0, above the size, or does not divide it where
            it must.

    Example:
        >>> Sliding("5 s", every="2 s").windows_of(7_000)
        [TimeWindow(start=4000, end=9000), TimeWindow(start=6000, end=11000)]
    """

    size: Span
    every: Span
    offset: Span = 0
    time_zone: str | None = None

    def __post_init__(self) -> None:
        size, every = self._size, self._every
        if every.least_ms > size.least_ms:
            raise ConfigurationError(
                f"{self!r}: every is longer than the size, so rows between two windows would have none; use Tumbling, "
                "or a longer size"
            )
        if self._by_clock and not size.multiple_of(every):
            raise ConfigurationError(
                f"{self!r}: with a time_zone or calendar units the size must be a multiple of every, both in the same "
                "unit"
            )
        if self._by_clock and every.unit == "ms" and not every.divides_a_day:
            raise ConfigurationError(
                f"{self!r}: with a time_zone or calendar units a day must be a whole number of every, because windows "
                "begin at midnight; choose another every, or leave time_zone out"
            )
        self._slices  # noqa: B018 - checks

    @property
    def _step(self) -> Span:
        return self.every

    @cached_property
    def _starts(self) -> Grid:
        grid = self._grid(self._every, self._offset_ms)
        if isinstance(grid, ClockGrid):
            return OverlappingGrid(grid.zone, grid.offset_ms, grid.step_ms, self._size.least_ms)
        return grid

    @cached_property
    def _slices(self) -> Grid:
        if self._by_clock:
            return self._starts
        self._starts  # noqa: B018 - checks the offset
        return FixedGrid(gcd(self._size.number, self._every.number), self._offset_ms)

    @property
    def shape(self) -> str:
        """Size, offset and zone as text, see ``Function.shape``."""
        return self._shape("sliding", self._size, self._every)

    def windows_of(self, at_ms: int) -> list[TimeWindow]:
        """The windows of a row, by its event time in milliseconds; the earliest first."""
        windows, start = [], self._starts.floor(at_ms)
        while (end := self._end_of(start)) > at_ms:
            windows.append(_window(start, end))
            start = self._starts.floor(start - 1)
        return windows[::-1]

    def slice_of(self, at_ms: int) -> int:
        """The start of the part of a window with a row; the rows of a part have the same windows."""
        return self._slices.floor(at_ms)

    def slices_of(self, at_ms: Longs) -> Longs:
        """``slice_of`` of many rows."""
        return self._slices.floors(at_ms)

    def slice_end_of(self, at_ms: int) -> int:
        """The end of that part."""
        return self._slices.after(at_ms)

    def _end_of(self, start: int) -> int:
        if isinstance(self._starts, FixedGrid):
            return start + self._size.number
        if isinstance(self._starts, OverlappingGrid):
            return self._starts.end_of(start)
        end = start
        for _ in range(self._size.in_units_of(self._every)):
            end = self._starts.after(end)
        return end


@dataclass(frozen=True)
class Cumulating(_Aligned):
    """Windows that begin together and end one after the other, up to a size: the day so far, every hour.

    Args:
        size, offset, time_zone: as of ``Tumbling``.
        every: how far the ends are apart. The size is a multiple of it: ``Cumulating("1 month", every="1 day")``. If it
            is months, the offset is shorter than the shortest of them.

    Raises:
        ConfigurationError: as ``Tumbling`` does; the size is not a multiple of ``every``.

    Example:
        >>> Cumulating("3 s", every="1 s").windows_of(1_500)
        [TimeWindow(start=0, end=2000), TimeWindow(start=0, end=3000)]
    """

    size: Span
    every: Span
    offset: Span = 0
    time_zone: str | None = None

    def __post_init__(self) -> None:
        if not self._size.divided_by(self._every):
            raise ConfigurationError(f"{self!r}: the size must be a multiple of every")
        self._whole, self._slices  # noqa: B018 - checks

    @property
    def _step(self) -> Span:
        return self.every

    @cached_property
    def _whole(self) -> Grid:
        return self._grid(self._size, self._offset_ms)

    @cached_property
    def _slices(self) -> Grid:
        if self._every.unit == "month":  # they differ, so a longer offset is no number of them and a rest
            return self._grid(self._every, self._offset_ms)
        return self._grid(self._every, self._offset_ms % self._every.least_ms)

    @property
    def shape(self) -> str:
        """Size, offset and zone as text, see ``Function.shape``."""
        return self._shape("cumulating", self._size, self._every)

    def windows_of(self, at_ms: int) -> list[TimeWindow]:
        """The windows of a row, by its event time in milliseconds; the earliest first."""
        return list(self._windows_of(at_ms))

    def _windows_of(self, at_ms: int) -> Iterator[TimeWindow]:
        start, last, end = self._whole.floor(at_ms), self._whole.after(at_ms), at_ms
        while end < last:
            end = min(self._slices.after(end), last)
            yield _window(start, end)

    def slice_of(self, at_ms: int) -> int:
        """The start of the part of a window with a row; the rows of a part have the same windows."""
        return max(self._slices.floor(at_ms), self._whole.floor(at_ms))

    def slices_of(self, at_ms: Longs) -> Longs:
        """``slice_of`` of many rows."""
        return np.maximum(self._slices.floors(at_ms), self._whole.floors(at_ms))

    def slice_end_of(self, at_ms: int) -> int:
        """The end of that part."""
        return min(self._slices.after(at_ms), self._whole.after(at_ms))


@dataclass(frozen=True)
class Session:
    """Windows that go on as long as rows of their key follow within a gap.

    A row at ``t`` with gap ``g`` has the window ``[t, t + g)``; windows that overlap or touch are one session. Of
    each key a number stays for a gap behind its last session; with a computed gap it stays for ever, because the next
    gap may be of any length.

    Args:
        gap: a span; or a callable that gives the span of an element, a different one for each if need be.

    Raises:
        ConfigurationError: the gap is not above 0.

    Example:
        >>> Session("30 min").window_of(None, 0)
        TimeWindow(start=0, end=1800000)
    """

    gap: Span | Callable[[Any], Span]

    def __post_init__(self) -> None:
        if not callable(self.gap) and to_milliseconds(self.gap) <= 0:
            raise ConfigurationError(f"{self!r}: a session needs a gap above 0")

    @property
    def shape(self) -> str:
        """The gap as text, see ``Function.shape``."""
        return f"session {'computed' if callable(self.gap) else to_milliseconds(self.gap)}"

    def window_of(self, element: Any, at_ms: int) -> TimeWindow:
        """The window of a row for itself. Raises ValueTypeError where the computed gap is not above 0."""
        gap_ms = to_milliseconds(self.gap(element) if callable(self.gap) else self.gap)
        if gap_ms <= 0:
            raise ValueTypeError(f"the gap of a session is {gap_ms} ms for {element!r}: it must be above 0")
        return _window(at_ms, at_ms + gap_ms)


def _window(start: int, end: int) -> TimeWindow:
    return TimeWindow(start, min(end, MAX_TIMESTAMP))
