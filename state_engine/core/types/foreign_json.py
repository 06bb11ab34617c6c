"""Values of JSON texts as what a declared type takes: JSON has no dates, no bytes and no decimals.

A number that would need a unit (a timestamp) is refused: whoever wrote it knows whether it is seconds or microseconds.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from state_engine.core.errors import ValueTypeError
from state_engine.core.types.every_type import StructType, TypeInformation

_EPOCH = date(1970, 1, 1)


def json_value(value: Any, kind: TypeInformation) -> Any:
    """What ``json.loads`` gave, as a normal value of a type.

    Args:
        value: fractions may be Decimals (``parse_float=Decimal``), which keeps all of their digits.
        kind: fields of a struct that are absent are null; others than it has are passed over.

    Raises:
        ValueTypeError: it is none.

    Example:
        >>> from state_engine.core.types.type_parsing import to_type
        >>> kind = to_type("at date, price decimal(9,2)", parameter="p")
        >>> json_value({"at": "2026-01-02", "price": "1.50", "new": 7}, kind)
        (datetime.date(2026, 1, 2), Decimal('1.50'))
    """
    if value is None:
        return None
    if isinstance(kind, StructType):
        return _record(value, kind)
    if pa.types.is_list(kind.arrow) and isinstance(value, list):
        return [json_value(one, kind.element) for one in value]  # type: ignore[attr-defined]
    if pa.types.is_map(kind.arrow) and isinstance(value, dict):
        return kind.normalise({k: json_value(v, kind.value) for k, v in value.items()})  # type: ignore[attr-defined]
    for is_one, convert in _CONVERTED:
        if is_one(kind.arrow):
            value = convert(value, kind)
            break
    return kind.normalise(value)


def _record(value: Any, kind: StructType) -> tuple[Any, ...]:
    if not isinstance(value, dict):
        raise ValueTypeError(f"{value!r} is not an object with the fields {list(kind.names)}")
    parts = []
    for name, one in zip(kind.names, kind.types, strict=True):
        try:
            parts.append(json_value(value.get(name), one))
        except ValueTypeError as error:
            raise ValueTypeError(f"field '{name}': {error}") from None
    return tuple(parts)


def _date(value: Any, kind: TypeInformation) -> Any:
    """ISO text, or days since 1970."""
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            return _EPOCH + timedelta(days=value)
        return date.fromisoformat(value)
    except (ValueError, TypeError, OverflowError):
        raise ValueTypeError(f'{value!r} is not a date such as "2026-01-02" or a number of days') from None


def _timestamp(value: Any, kind: TypeInformation) -> Any:
    """ISO text: with an offset, or without one where the type has no time zone."""
    if isinstance(value, int):
        raise ValueTypeError(
            f"{value!r} is a number, which does not say its unit: declare the field as bigint, and convert it in a map"
        )
    try:
        at = datetime.fromisoformat(value)
    except (ValueError, TypeError):
        raise ValueTypeError(f'{value!r} is not a time such as "2026-01-02T03:04:05Z"') from None
    if kind.arrow.tz is None:
        return at if at.tzinfo is None else at.astimezone(UTC).replace(tzinfo=None)
    if at.tzinfo is None:
        raise ValueTypeError(f"{value!r} has no offset from UTC: declare the field as timestamp_ntz")
    return at


def _decimal(value: Any, kind: TypeInformation) -> Any:
    try:
        return Decimal(value) if isinstance(value, str) else value
    except InvalidOperation:
        raise ValueTypeError(f"{value!r} is not a decimal") from None


def _double(value: Any, kind: TypeInformation) -> Any:
    return float(value) if isinstance(value, Decimal) else value


def _bytes(value: Any, kind: TypeInformation) -> Any:
    try:
        return b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise ValueTypeError(f"{value!r} is not base64") from None


_CONVERTED: list[tuple[Callable[[pa.DataType], bool], Callable[[Any, TypeInformation], Any]]] = [
    (pa.types.is_date, _date),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_floating, _double),
    (pa.types.is_binary, _bytes),
]
