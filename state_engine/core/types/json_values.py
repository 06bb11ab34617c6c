"""Values of a declared type as JSON texts and back: how elements of operator state are stored.

One text an element, which any SQL engine can take apart. The form follows the storage type, so a type that was widened,
or got or lost fields, reads what was written before: whole numbers, booleans, strings and finite floats are themselves;
``NaN``, ``Infinity``, ``-Infinity`` and decimals are strings; dates and timestamps are ISO 8601, with ``Z`` where they
are instants; bytes are base64; a struct is an object by field name; a list is an array; a map is an array of objects
with ``key`` and ``value``, in its order. Equal values of one type have equal texts, so comparing texts shows
whether state changed. Plays the part of Flink's ``PartitionableListState`` serializers.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from state_engine.core.errors import ConfigurationError, StatelakeError, ValueTypeError
from state_engine.core.types.every_type import TypeInformation
from state_engine.core.types.plain_type import PlainType
from state_engine.core.types.type_text import type_to_text
from state_engine.core.types.walk import Convert, converter


def to_json(kind: TypeInformation, values: Sequence[Any]) -> tuple[str, ...]:
    """Normal values of a type, one JSON text each.

    Example:
        >>> from state_engine.core.types.type_parsing import to_type
        >>> to_json(to_type(tuple[int, bytes], parameter="p"), [(1, b"x"), (2, None)])
        ('{"f0": 1, "f1": "eA=="}', '{"f0": 2, "f1": null}')
    """
    if isinstance(kind, PlainType):
        return tuple(kind.to_text(v) for v in values)
    plain = _writer(kind.storage)
    stored = kind.to_arrow(list(values), storage=True).to_pylist()
    return tuple(json.dumps(plain(v), ensure_ascii=False, allow_nan=False) for v in stored)


def from_json(kind: TypeInformation, texts: Sequence[str]) -> list[Any]:
    """The values of texts that ``to_json`` made, as declared.

    Example:
        >>> from state_engine.core.types.type_parsing import to_type
        >>> from_json(to_type(list[float], parameter="p"), ['[1.5, null, "NaN"]'])
        [[1.5, None, nan]]
    """
    try:
        if isinstance(kind, PlainType):
            return [kind.normalise(kind.from_text(text)) for text in texts]
        value = _reader(kind.storage)
        values = kind.from_arrow(pa.array([value(json.loads(text)) for text in texts], kind.storage))
        return [kind.normalise(v) for v in values]
    except StatelakeError:
        raise
    except Exception as error:  # a text may come with a savepoint from anywhere, and hold anything
        raise ValueTypeError(
            f"a stored element is not of the type {type_text(kind)} ({type(error).__name__}: {error}), so Statelake "
            "did not write it: restore an earlier checkpoint, or another savepoint"
        ) from error


def for_json(kind: pa.DataType) -> Convert:
    """What turns a value in an Arrow array of a type into what JSON can hold; a map into an object.

    Others read these texts, so maps are what they are to them; ``to_json`` keeps keys that are no texts, and their
    order.

    Example:
        >>> for_json(pa.map_(pa.int64(), pa.binary()))([(7, b"x")])
        {'7': 'eA=='}
    """
    return converter(
        kind,
        lambda part: _scalar(part)[0],
        entries=lambda _, pairs: {scalar_text(key): value for key, value in pairs},
    )


def scalar_text(value: Any) -> str:
    """What JSON can hold, as bare text.

    Example:
        >>> scalar_text("x"), scalar_text(True)
        ('x', 'true')
    """
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def type_text(kind: TypeInformation) -> str:
    return str(kind) if isinstance(kind, PlainType) else type_to_text(kind)


def _writer(kind: pa.DataType) -> Convert:
    """From a value in an Arrow array of this type to what JSON can hold."""
    return converter(
        kind,
        lambda part: _scalar(part)[0],
        entries=lambda _, pairs: [{"key": key, "value": value} for key, value in pairs],
    )


def _reader(kind: pa.DataType) -> Convert:
    """The way back of ``_writer``: a field that was not there yet when the text was written is null."""
    return converter(
        kind,
        lambda part: _scalar(part)[1],
        entries=lambda _, pairs: pairs,
        pairs=lambda value: [(entry["key"], entry["value"]) for entry in value],
    )


def _scalar(kind: pa.DataType) -> tuple[Convert, Convert]:
    """How values of a type without parts are written and read."""
    p = pa.types
    if p.is_integer(kind) or p.is_boolean(kind) or p.is_string(kind):
        return _same, _same
    if p.is_floating(kind):
        return _float_text, float
    if p.is_binary(kind):
        return lambda v: b64encode(v).decode(), b64decode
    if p.is_date(kind):
        return date.isoformat, date.fromisoformat
    if p.is_timestamp(kind):
        return lambda v: v.isoformat().replace("+00:00", "Z"), datetime.fromisoformat
    if p.is_decimal(kind):
        return lambda v: format(v, "f"), Decimal
    raise ConfigurationError(f"values of the Arrow type {kind} cannot be stored in operator state")


def _same(value: Any) -> Any:
    return value


def _float_text(value: float) -> Any:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
