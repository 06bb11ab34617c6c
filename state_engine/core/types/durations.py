"""``Time``, ``Duration`` and ``Instant``: spans and points of time in milliseconds, in PyFlink's spelling.

Mirror ``org.apache.flink.api.common.time.Time``, ``java.time.Duration`` and ``java.time.Instant``. ``TimeDomain`` names
the one of the two clocks that a timer belongs to.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from state_engine.core.errors import ConfigurationError

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000


class TimeDomain(Enum):
    """Which clock a timer waits for. Mirrors ``org.apache.flink.streaming.api.TimeDomain``."""

    EVENT_TIME = 0
    PROCESSING_TIME = 1


@dataclass(frozen=True, order=True)
class _Span:
    """A span of time. Two are equal, or compare, only where both are of the same class."""

    _milliseconds: int

    def __post_init__(self) -> None:
        if type(self._milliseconds) is not int:
            raise ConfigurationError(
                f"{type(self).__name__} takes a whole number of milliseconds, not {self._milliseconds!r}"
            )

    def __str__(self) -> str:
        return f"{self._milliseconds} ms"


def _times(count: int, unit: int) -> int:
    if type(count) is not int:
        raise ConfigurationError(
            f"a span of time takes a whole number, not {count!r}: use a smaller unit for parts"
        )
    return count * unit


class Time(_Span):
    """A span of time.

    Example:
        >>> Time.minutes(2).to_milliseconds()
        120000
    """

    def to_milliseconds(self) -> int:
        """The span in milliseconds."""
        return self._milliseconds

    @staticmethod
    def milliseconds(milliseconds: int) -> Time:
        """A span of so many milliseconds."""
        return Time(milliseconds)

    @staticmethod
    def seconds(seconds: int) -> Time:
        """A span of so many seconds."""
        return Time(_times(seconds, _SECOND))

    @staticmethod
    def minutes(minutes: int) -> Time:
        """A span of so many minutes."""
        return Time(_times(minutes, _MINUTE))

    @staticmethod
    def hours(hours: int) -> Time:
        """A span of so many hours."""
        return Time(_times(hours, _HOUR))

    @staticmethod
    def days(days: int) -> Time:
        """A span of so many days."""
        return Time(_times(days, _DAY))


class Duration(_Span):
    """A span of time as ``java.time.Duration`` names it.

    Example:
        >>> Duration.of_seconds(3).to_millis()
        3000
    """

    def to_millis(self) -> int:
        """The span in milliseconds."""
        return self._milliseconds

    @staticmethod
    def of_days(days: int) -> Duration:
        """A span of so many days."""
        return Duration(_times(days, _DAY))

    @staticmethod
    def of_hours(hours: int) -> Duration:
        """A span of so many hours."""
        return Duration(_times(hours, _HOUR))

    @staticmethod
    def of_minutes(minutes: int) -> Duration:
        """A span of so many minutes."""
        return Duration(_times(minutes, _MINUTE))

    @staticmethod
    def of_seconds(seconds: int) -> Duration:
        """A span of so many seconds."""
        return Duration(_times(seconds, _SECOND))

    @staticmethod
    def of_millis(millis: int) -> Duration:
        """A span of so many milliseconds."""
        return Duration(millis)

    @staticmethod
    def of_nanos(nanos: int) -> Duration:
        """A span of so many nanoseconds, cut to whole milliseconds: the engine's clocks know no less."""
        return Duration(_times(nanos, 1) // 1_000_000)


@dataclass(frozen=True, order=True)
class Instant:
    """A point in time: seconds since 1970 in UTC, and nanoseconds.

    Example:
        >>> Instant.of_epoch_milli(1_500).to_epoch_milli(), Instant.of_epoch_milli(1_500)
        (1500, Instant(seconds=1, nanos=500000000))
    """

    seconds: int
    nanos: int = 0

    def to_epoch_milli(self) -> int:
        """Milliseconds since 1970 in UTC."""
        return self.seconds * _SECOND + self.nanos // 1_000_000

    @staticmethod
    def of_epoch_milli(epoch_milli: int) -> Instant:
        """The instant so many milliseconds after 1970 in UTC."""
        seconds, millis = divmod(epoch_milli, _SECOND)
        return Instant(seconds, millis * 1_000_000)


Span = Time | Duration | timedelta | int | str
"""A span of time in any spelling; see ``to_milliseconds``."""
_UNITS = (
    ("ms", 1),
    ("s|sec|seconds?", _SECOND),
    ("min|minutes?", _MINUTE),
    ("h|hours?", _HOUR),
    ("d|days?", _DAY),
)


def to_milliseconds(span: Span) -> int:
    """Milliseconds of a span in any spelling; a number is milliseconds already.

    Args:
        span: a Time, a Duration, a timedelta, milliseconds, or a number with a unit as text: ms, s, min, h or d.

    Example:
        >>> to_milliseconds("30 min"), to_milliseconds(timedelta(seconds=2)), to_milliseconds(7)
        (1800000, 2000, 7)
    """
    if isinstance(span, Time | Duration):
        return span._milliseconds
    if isinstance(span, timedelta):
        return span // timedelta(milliseconds=1)
    if isinstance(span, str):
        return _of_text(span)
    if type(span) is not int:
        raise ConfigurationError(
            f"{span!r} is not a span of time: give milliseconds, a timedelta, a Time, or text such as '30 min'"
        )
    return span


def _of_text(text: str) -> int:
    for unit, milliseconds in _UNITS:
        if match := re.fullmatch(rf"(\d+)\s*(?:{unit})", text.strip()):
            return int(match[1]) * milliseconds
    raise ConfigurationError(
        f"{text!r} is not a span of time: write a whole number and a unit, such as '500 ms', '90 s', '30 min', '6 h' "
        "or '2 d'"
    )
