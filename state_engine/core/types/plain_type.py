"""``PlainType``: any plain Python value, for state whose element type nobody declared.

``ListCheckpointed`` returns a list and declares nothing, so its elements carry their types with them. Plain are None,
bool, int, float, str, bytes, date, datetime, Decimal, and tuples, lists and dicts of these; any other value is refused.
As JSON they look as one would write them; what JSON cannot express is an object with one key that begins with ``$``.
Takes the place of Java serialization in Flink's ``ListCheckpointed``: readable, and never a pickle.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from state_engine.core.types.every_type import TypeInformation
from state_engine.core.types.scalar_types import FINER, is_boolean


class PlainType(TypeInformation):
    """Plain Python values; datetimes with a zone are kept in UTC.

    Example:
        >>> PlainType().to_text((1, b"x"))
        '{"$tuple": [1, {"$bytes": "eA=="}]}'
        >>> PlainType().from_text('{"$tuple": [1, {"$bytes": "eA=="}]}')
        (1, b'x')
    """

    arrow = storage = pa.string()
    mutable = True

    def normalise(self, value: Any) -> Any:
        if value is None or isinstance(value, bool):
            return value
        if is_boolean(value):
            return bool(value)
        if type(value) in _CONTAINERS:
            return _CONTAINERS[type(value)](self.normalise, value)
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, bytes | bytearray):
            return bytes(value)
        if getattr(value, "nanosecond", 0):
            raise self._refuse(value, f": {FINER}")
        try:
            if isinstance(value, float | Decimal | date):
                return _scalar(value)
            if hasattr(value, "__index__"):
                return int(value.__index__())
        except (TypeError, ValueError):  # an array of numpy, NaT of pandas
            pass
        raise self._refuse(
            value, ": declare the type of the elements, for example state_type = int in the class"
        )

    def copy(self, value: Any) -> Any:
        return _CONTAINERS[type(value)](self.copy, value) if type(value) in _CONTAINERS else value

    def to_arrow(self, values: list[Any], *, storage: bool) -> pa.Array:
        return pa.array([None if v is None else self.to_text(v) for v in values], pa.string())

    def from_arrow(self, array: pa.Array) -> list[Any]:
        return [None if text is None else self.from_text(text) for text in array.to_pylist()]

    def to_text(self, value: Any) -> str:
        return json.dumps(_tagged(value), ensure_ascii=False, allow_nan=False)

    def from_text(self, text: str) -> Any:
        return _untagged(json.loads(text))

    def __str__(self) -> str:
        return "plain"

    def _text(self, value: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise self._refuse(value, f": {error}") from None
        return str.__str__(value)  # a member of an enum is its value, whatever it prints as


def _scalar(value: Any) -> Any:
    if isinstance(value, datetime):
        local = datetime(*value.timetuple()[:6], value.microsecond, fold=value.fold)
        return local if value.utcoffset() is None else local.replace(tzinfo=value.tzinfo).astimezone(UTC)
    if isinstance(value, date):
        return date(value.year, value.month, value.day)
    return Decimal(value) if isinstance(value, Decimal) else float(value)


_Each = Callable[[Any], Any]
_CONTAINERS: dict[type, Callable[[_Each, Any], Any]] = {
    list: lambda each, value: [each(v) for v in value],
    tuple: lambda each, value: tuple(each(v) for v in value),
    dict: lambda each, value: {each(k): each(v) for k, v in value.items()},
}


def _tagged(value: Any) -> Any:
    """A normal value as what JSON can hold."""
    if isinstance(value, list):
        return [_tagged(v) for v in value]
    if isinstance(value, dict):
        if all(isinstance(k, str) and not k.startswith("$") for k in value):
            return {k: _tagged(v) for k, v in value.items()}
        return {"$dict": [[_tagged(k), _tagged(v)] for k, v in value.items()]}
    if isinstance(value, tuple):
        return {"$tuple": [_tagged(v) for v in value]}
    if isinstance(value, bytes):
        return {"$bytes": b64encode(value).decode()}
    if isinstance(value, date):
        return {"$datetime" if isinstance(value, datetime) else "$date": value.isoformat()}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    return value


_UNTAG: dict[str, Callable[[Any], Any]] = {
    "$dict": lambda pairs: {_untagged(k): _untagged(v) for k, v in pairs},
    "$tuple": lambda parts: tuple(_untagged(p) for p in parts),
    "$bytes": b64decode,
    "$date": date.fromisoformat,
    "$datetime": datetime.fromisoformat,
    "$decimal": Decimal,
    "$float": float,
}


def _untagged(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_untagged(p) for p in plain]
    if not isinstance(plain, dict):
        return plain
    tag = next(iter(plain), "")
    if tag.startswith("$"):
        return _UNTAG[tag](plain[tag])
    return {k: _untagged(v) for k, v in plain.items()}
