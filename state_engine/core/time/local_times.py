"""Times on the wall clock of a zone, and the instants at which it shows them.

A clock that is put forward skips times, and one that is put back shows some twice.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from state_engine.core.errors import ConfigurationError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def zone_of(name: str) -> ZoneInfo:
    """The time zone of a name. Raises ConfigurationError where there is none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            f"there is no time zone {name!r}; use a name such as 'America/New_York'"
        ) from None


@lru_cache(maxsize=1024)  # the bounds of a window come out with each of its results
def instant(at_ms: int) -> datetime:
    """A time in milliseconds as a timestamp; raises OverflowError before the year 1 and after 9999."""
    return EPOCH + timedelta(milliseconds=at_ms)


def local_time(at_ms: int, zone: ZoneInfo) -> datetime:
    """What the clock of a zone shows at an instant; raises OverflowError before the year 1 and after 9999."""
    return instant(at_ms).astimezone(zone)


def instants(shown: datetime, zone: ZoneInfo) -> list[int]:
    """When the clock of a zone shows a time, in milliseconds: once or twice; for a skipped time, when it skips it.

    Args:
        shown: without a zone.

    Example:
        >>> rome = ZoneInfo("Europe/Rome")
        >>> [len(instants(datetime(2024, 10, 27, hour), rome)) for hour in (1, 2, 3)]
        [1, 2, 1]
        >>> instants(datetime(2024, 3, 31, 2, 30), rome) == instants(datetime(2024, 3, 31, 3), rome)
        True
    """
    first, second = (milliseconds_of(shown.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
    if second < first:
        return [_skipped_at(second, first, zone)]
    return [first] if first == second else [first, second]


def _skipped_at(before_ms: int, after_ms: int, zone: ZoneInfo) -> int:
    """The instant between two at which the clock is put forward."""
    offset = local_time(before_ms, zone).utcoffset()
    while after_ms - before_ms > 1:
        middle = (before_ms + after_ms) // 2
        if local_time(middle, zone).utcoffset() == offset:
            before_ms = middle
        else:
            after_ms = middle
    return after_ms


def milliseconds_of(at: datetime) -> int:
    """An instant in milliseconds since 1970; its fraction is cut."""
    return (at.astimezone(UTC) - EPOCH) // _MILLISECOND
