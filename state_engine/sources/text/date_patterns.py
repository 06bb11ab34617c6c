"""Dates and times by a pattern such as ``dd/MM/yyyy HH:mm``, with the letters of Java's ``DateTimeFormatter``.

A pattern is compiled into a regular expression once. A text that does not fit it whole is refused. Nothing comes from
the clock or from the process: without a time it is midnight, without a day the first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from state_engine.core.errors import ConfigurationError

ZONE = r"Z|UTC|GMT|[+-]\d{1,2}(?::?\d\d(?::?\d\d)?)?|[A-Z][A-Za-z_]+(?:/[A-Za-z_+\-0-9]+)*"
_OFFSET = re.compile(r"([+-])(\d{1,2})(?::?(\d\d)(?::?(\d\d))?)?", re.ASCII)
_MONTHS = [
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
]  # fmt: skip
_DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_TOKEN = re.compile(r"''|'((?:[^']|'')*)'|([A-Za-z])\2*|\[|\]|[^A-Za-z'\[\]]+")
_UTC_NAMES = ("Z", "UTC", "GMT")


@dataclass(frozen=True)
class DatePattern:
    """A compiled pattern.

    Attributes:
        regex: of whole texts, with a group for each part.
    """

    text: str
    regex: re.Pattern[str]

    def moment(self, text: str) -> datetime:
        """What a text says, with its zone if it names one. Raises ValueError where it does not fit the pattern.

        Example:
            >>> date_pattern("d.M.yyyy[ HH:mm]", option="dateFormat").moment("5.1.2024")
            datetime.datetime(2024, 1, 5, 0, 0)
        """
        match = self.regex.fullmatch(text)
        if match is None:
            raise ValueError(f"it does not fit the pattern {self.text!r}")
        return _moment(match.groupdict())


@lru_cache
def date_pattern(pattern: str, *, option: str) -> DatePattern:
    """A pattern, compiled.

    Args:
        pattern: of Java's letters: y u M d H h k a m s S E X x Z z V, text in quotes, optional parts in brackets.
        option: that it was given for; the error names it.
    """
    parts: list[str] = []
    names: set[str] = set()
    at = 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            raise _unknown(option, pattern, f"a quote at {at} is not closed")
        at = token.end()
        letters = token.group()
        if letters in "[]":
            parts.append("(?:" if letters == "[" else ")?")
        elif not letters[0].isalpha():
            quoted = "'" if letters == "''" else (token.group(1) or letters).replace("''", "'")
            parts.append(re.escape(quoted))
        else:
            name, regex = _part(letters, option, pattern)
            if name in names:
                raise _unknown(option, pattern, f"{letters!r} is there twice")
            names.add(name)
            parts.append(f"(?P<{name}>{regex})")
    if not names & {"year", "year2"}:
        raise _unknown(option, pattern, "it has no year")
    if "hour12" in names and "half" not in names:
        raise _unknown(option, pattern, "h goes to 12, and no a says which half of the day: H goes to 23")
    try:
        compiled = re.compile("".join(parts), re.ASCII | re.IGNORECASE)
    except re.error:
        raise _unknown(option, pattern, "its brackets do not match") from None
    return DatePattern(pattern, compiled)


def zone_of(name: str) -> tzinfo:
    """The zone of a name or an offset. Raises ValueError where there is none.

    Example:
        >>> zone_of("+02:00")
        datetime.timezone(datetime.timedelta(seconds=7200))
    """
    if name.upper() in _UTC_NAMES:
        return UTC
    offset = _OFFSET.fullmatch(name)
    if offset is None:
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            raise ValueError(f"there is no time zone {name!r}") from None
    hours, minutes, seconds = (int(part or 0) for part in offset.groups()[1:])
    if hours > 18 or minutes > 59 or seconds > 59:
        raise ValueError(f"there is no offset {name!r}")
    distance = timedelta(hours=hours, minutes=minutes, seconds=seconds)
    return timezone(-distance if offset.group(1) == "-" else distance)


def microseconds(fraction: str) -> int:
    """The fraction of a second. Raises ValueError where it has digits behind the sixth."""
    if fraction[6:].strip("0"):
        raise ValueError("it has digits behind the microsecond, which would be lost")
    return int(fraction[:6].ljust(6, "0"))


def _part(letters: str, option: str, pattern: str) -> tuple[str, str]:
    letter, count = letters[0], len(letters)
    digits = r"\d{1,2}" if count == 1 else r"\d{2}"
    if letter in "yu":
        return ("year2", r"\d{2}") if count == 2 else ("year", r"\d{4}")
    if letter in "ML" and count > 2:
        return "month_name", "|".join(name[:3] if count == 3 else name for name in _MONTHS)
    if letter == "E":
        return "day_name", "|".join(name[:3] if count < 4 else name for name in _DAYS)
    if letter == "S":
        return "fraction", r"\d{1,9}"
    if letter == "a":
        return "half", "am|pm"
    if letter in "XxZzVO":
        return "zone", ZONE
    name = {"M": "month", "L": "month", "d": "day", "H": "hour", "k": "hour24", "h": "hour12", "m": "minute",
            "s": "second"}.get(letter)  # fmt: skip
    if name is None or count > 2:
        raise _unknown(option, pattern, f"{letters!r} is not known")
    return name, digits


def _moment(parts: Mapping[str, str | None]) -> datetime:
    def number(name: str, otherwise: int = 0) -> int:
        return otherwise if parts.get(name) is None else int(parts[name] or 0)

    year = number("year") if parts.get("year") is not None else 2000 + number("year2")
    month_name = parts.get("month_name")
    month = number("month", 1) if month_name is None else _index(_MONTHS, month_name) + 1
    hour, half = number("hour", number("hour24") % 24), parts.get("half")
    half = None if half is None else half.lower()
    if parts.get("hour12") is not None:
        if not 1 <= number("hour12") <= 12:
            raise ValueError("the hour is not between 1 and 12")
        if half is None:
            raise ValueError("it says neither am nor pm")
        hour = number("hour12") % 12 + (12 if half == "pm" else 0)
    elif half is not None and half != ("pm" if hour >= 12 else "am"):
        raise ValueError(f"{hour} o'clock is not {half}")
    zone = parts.get("zone")
    made = datetime(
        year, month, number("day", 1), hour, number("minute"), number("second"),
        microseconds(parts.get("fraction") or ""), None if zone is None else zone_of(zone),
    )  # fmt: skip
    day_name = parts.get("day_name")
    if day_name is not None and _index(_DAYS, day_name) != made.weekday():
        raise ValueError(f"that day is not a {day_name}")
    return made


def _index(names: list[str], given: str) -> int:
    return next(place for place, name in enumerate(names) if name.startswith(given.lower()))


def _unknown(option: str, pattern: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"the pattern {option}={pattern!r} cannot be read: {why}. Use the letters y M d H h a m s S E X, as in "
        "'dd/MM/yyyy HH:mm:ss.SSS'; or declare the column as string, and convert it in a transform"
    )
