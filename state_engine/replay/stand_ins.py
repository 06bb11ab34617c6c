"""``StandIns``: what stands for the values of some columns, so that a person's data leaves no trace in a test.

The first value of a column gets the first stand-in of its type, and so on: equal values have equal stand-ins, different
ones different ones, and the same history always gives the same. None of them is made from the value that it stands for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from state_engine.core.errors import ConfigurationError
from state_engine.core.state.ttl import Stamped
from state_engine.replay.python_literals import fields_of

SHORT = 3
"""Texts with fewer characters are replaced where they are the whole value, and not inside of others."""
SMALL = 1000
"""Numbers below that are replaced in the columns alone, for they are likely to be counts elsewhere."""

_CONTAINERS = (list, tuple, set, frozenset)


class StandIns:
    """Replaces values.

    Args:
        columns: names of fields, at any depth.

    Example:
        >>> from state_engine import Row
        >>> stand_ins = StandIns(["user"])
        >>> stand_ins.learn(Row(user="ann@mail", amount=10))
        >>> stand_ins.replaced([Row(user="ann@mail", amount=10), "ann@mail:3", 10])
        [Row(user='user-1', amount=10), 'user-1:3', 10]
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._seen: set[str] = set()
        self._known: dict[tuple[type, Any], Any] = {}
        self._numbers: dict[str, int] = {}
        self._integers: dict[int, int] = {}
        self._names: set[str] = set()

    def learn(self, value: Any) -> None:
        if self._columns:
            self._walked(value, None, self._learnt)

    def check(self) -> None:
        """Raise ConfigurationError for a column that nothing had."""
        if missing := [name for name in self._columns if name not in self._seen]:
            raise ConfigurationError(
                f"no input, key, state or output has a field {missing[0]!r} to replace; fields are "
                f"{sorted(self._names)}"
            )

    def replaced(self, value: Any) -> Any:
        return self._walked(value, None, self._leaf) if self._columns else value

    def replaced_json(self, text: str) -> str:
        return json.dumps(self.replaced(json.loads(text)), ensure_ascii=False) if self._columns else text

    def _walked(self, value: Any, column: str | None, leaf: Callable[[Any, str | None], Any]) -> Any:
        """The value with others in the place of its leaves; ``column`` is the one of the columns that it is in."""

        def inside(name: Any, part: Any) -> Any:
            known = name in self._columns
            self._seen |= {name} if known else set()
            return self._walked(part, name if known else column, leaf)

        kind = type(value)
        if kind is Stamped:
            return Stamped(self._walked(value.value, column, leaf), value.at)
        if kind is dict:  # a map has no fields, and its keys may be secret
            return {self._walked(name, column, leaf): inside(name, one) for name, one in value.items()}
        if kind in _CONTAINERS:
            return kind(self._walked(one, column, leaf) for one in value)
        fields = fields_of(value)
        if fields is None:
            return leaf(value, column)
        self._names |= fields.keys()
        parts = {name: inside(name, part) for name, part in fields.items()}
        if isinstance(value, tuple):  # rows and named tuples keep their class
            return tuple.__new__(kind, parts.values())
        return replace(value, **parts)

    def _learnt(self, leaf: Any, column: str | None) -> Any:
        if column is not None and leaf is not None and (type(leaf), leaf) not in self._known:
            self._known[type(leaf), leaf] = self._stand_in(column, leaf)
        return leaf

    def _stand_in(self, column: str, leaf: Any) -> Any:
        number = self._numbers[column] = self._numbers.get(column, 0) + 1
        kind = type(leaf)
        if kind is int:
            return self._integer(leaf)
        if kind is float:
            return float(self._integer(int(leaf))) if leaf - leaf == 0 else leaf
        if kind is Decimal and leaf.is_finite():
            sign, digits, exponent = leaf.as_tuple()
            unscaled = self._integer(int("".join(map(str, digits))))
            return Decimal((sign, tuple(map(int, str(unscaled))), exponent))
        if kind not in _MADE:
            raise ConfigurationError(
                f"the column {column!r} holds a {kind.__name__}, which cannot be replaced: that takes text, numbers, "
                "dates, times or bytes"
            )
        return _MADE[kind](column, number, leaf)

    def _integer(self, value: int) -> int:
        """The next number with as many digits."""
        digits = len(str(abs(value)))
        place = self._integers[digits] = self._integers.get(digits, -1) + 1
        made = int(10 ** (digits - 1)) + place
        return -made if value < 0 else made

    def _leaf(self, value: Any, column: str | None) -> Any:
        kind = type(value)
        if kind is str:
            return self._known.get((str, value)) or self._in_text(value)
        small = kind in (int, float, Decimal) and abs(value) < SMALL
        if kind in _LEAVES:
            return value if small and column is None else self._known.get((kind, value), value)
        if value is None or kind is bool or isinstance(value, Enum):
            return value
        raise ConfigurationError(
            f"a {kind.__name__} cannot be looked into, and may hold values that --replace names: leave --replace "
            "out, or let the state or element be a dataclass"
        )

    def _in_text(self, text: str) -> str:
        known = {
            one: stand_in
            for (kind, one), stand_in in self._known.items()
            if kind is str and len(one) >= SHORT
        }
        if not known:
            return text
        longest_first = sorted(known, key=len, reverse=True)
        return re.sub("|".join(map(re.escape, longest_first)), lambda match: known[match[0]], text)


_MADE: dict[type, Callable[[str, int, Any], Any]] = {
    str: lambda column, number, _: f"{column}-{number}",
    bytes: lambda column, number, _: f"{column}-{number}".encode(),
    datetime: lambda _, number, leaf: datetime(2000, 1, 1, tzinfo=leaf.tzinfo) + timedelta(number),
    date: lambda _, number, leaf: date(2000, 1, 1) + timedelta(number),
    time: lambda _, number, leaf: (datetime(2000, 1, 1) + timedelta(seconds=number)).time(),
    timedelta: lambda _, number, leaf: timedelta(number),
    UUID: lambda _, number, leaf: UUID(int=number),
}
_LEAVES = (int, float, Decimal, *_MADE)
