"""Times of the examples, and pictures of characters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

DAY = datetime(2026, 1, 5, tzinfo=UTC)
_WIDTH = 60


def at(clock: str, day: int = 0) -> datetime:
    """A time of the first day, or of a later one.

    Example:
        >>> at("09:30").isoformat()
        '2026-01-05T09:30:00+00:00'
    """
    hours, minutes = map(int, clock.split(":"))
    return DAY + timedelta(days=day, hours=hours, minutes=minutes)


def bars(values: Mapping[str, float]) -> list[str]:
    r"""A bar for each value.

    Example:
        >>> print(*bars({"a": 1, "bc": 2}), sep="\n")
        a  ██████████████████████████████ 1
        bc ████████████████████████████████████████████████████████████ 2
    """
    most, wide = max([*values.values(), 1]), max(map(len, values), default=0)
    return [
        f"{name:<{wide}} {'█' * round(_WIDTH * value / most)} {value:g}" for name, value in values.items()
    ]


def spans(
    lanes: Mapping[str, Iterable[tuple[datetime, datetime, str]]], first: datetime, last: datetime
) -> list[str]:
    r"""Spans of time on a line for each lane, each with a word inside.

    Example:
        >>> print(*spans({"ada": [(at("06:00"), at("18:00"), "2")]}, at("00:00"), at("00:00", day=1)), sep="\n")
        ada                [2────────────────────────────]
    """
    wide = max(map(len, lanes), default=0)
    lines = []
    for name, of in lanes.items():
        line = [" "] * (_WIDTH + 1)
        for start, end, word in of:
            left, right = (round(_WIDTH * ((t - first) / (last - first))) for t in (start, end))
            right = max(right, left + len(word) + 1)
            line[left : right + 1] = [*f"[{word}{'─' * (right - left - 1 - len(word))}]"]
        lines.append(f"{name:<{wide}} {''.join(line)}".rstrip())
    return lines
