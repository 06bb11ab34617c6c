"""``Size``: how long a window is, in milliseconds or in units of a calendar."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from state_engine.core.errors import ConfigurationError
from state_engine.core.types.durations import Span, to_milliseconds
from state_engine.operators.windows.calendar import DAY_MS

_LEAST_DAYS = {"day": 1, "week": 7, "month": 28}
_OF_CALENDAR = re.compile(r"(\d+)\s*(week|month|quarter|year)s?")
_CALENDAR: dict[str, tuple[Literal["week", "month"], int]] = {
    "week": ("week", 1),
    "month": ("month", 1),
    "quarter": ("month", 3),
    "year": ("month", 12),
}


@dataclass(frozen=True)
class Size:
    """So many units.

    Example:
        >>> quarter, day = Size("month", 3), Size("day", 1)
        >>> str(quarter), quarter.divided_by(day), quarter.multiple_of(day), Size("week", 1).in_units_of(day)
        ('3 month', True, False, 7)
    """

    unit: Literal["ms", "day", "week", "month"]
    number: int

    @property
    def least_ms(self) -> int:
        """The least milliseconds that it lasts, on days of 24 hours."""
        return self.number * (1 if self.unit == "ms" else _LEAST_DAYS[self.unit] * DAY_MS)

    def divided_by(self, part: Size) -> bool:
        """Whether it always is a whole number of parts."""
        if self.unit == "month":
            return part.divides_a_day if part.unit != "month" else self.number % part.number == 0
        if part.unit == "month":
            return False
        return self.least_ms % part.least_ms == 0 and (
            part.unit != "ms" or self.unit == "ms" or part.divides_a_day
        )

    def multiple_of(self, part: Size) -> bool:
        """Whether it always is the same number of parts."""
        return (self.unit == "month") == (part.unit == "month") and self.divided_by(part)

    @property
    def divides_a_day(self) -> bool:
        """Whether a day is a whole number of it."""
        return self.unit in ("ms", "day") and DAY_MS % self.least_ms == 0

    def in_units_of(self, part: Size) -> int:
        """How many parts it has, where both count the same: months, or days and weeks."""
        return self.number // part.number if self.unit == "month" else self.least_ms // part.least_ms

    def __str__(self) -> str:
        return str(self.number) if self.unit == "ms" else f"{self.number} {self.unit}"


def is_of_calendar(span: Span) -> bool:
    """Whether a span is text with a unit of a calendar.

    Example:
        >>> is_of_calendar("2 weeks"), is_of_calendar("14 days")
        (True, False)
    """
    return isinstance(span, str) and _OF_CALENDAR.fullmatch(span.strip()) is not None


def size_of(span: Span, *, what: str, in_days: bool) -> Size:
    """The size that a span means.

    Args:
        what: name of the size, for messages.
        in_days: whether whole days are those of a calendar.

    Raises:
        ConfigurationError: it is not a span, or not above 0.

    Example:
        >>> str(size_of("1 year", what="size", in_days=False)), str(size_of("2 days", what="size", in_days=True))
        ('12 month', '2 day')
    """
    if isinstance(span, str) and (match := _OF_CALENDAR.fullmatch(span.strip())):
        unit, times = _CALENDAR[match[2]]
        size = Size(unit, int(match[1]) * times)
    else:
        ms = to_milliseconds(span)
        size = Size("day", ms // DAY_MS) if in_days and ms > 0 and ms % DAY_MS == 0 else Size("ms", ms)
    if size.number <= 0:
        raise ConfigurationError(f"{what} must be above 0")
    return size
