"""Values that Arrow and Spark hold and Python cannot: years before 1 and beyond 9999, and text that is not UTF-8.

``python_values`` gives those of a column for people and programs to read, ``undecodable`` the rows that no function can
be given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.types.invalid_text import (
    BYTES,
    holds_text,
    invalid_text,
    marked,
    rows_that_fail,
    text_or_bytes,
)
from state_engine.core.types.walk import Convert, converter, walked


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """As ``to_pylist``; where a date or a timestamp is beyond Python's, all of the column are text in ISO 8601.

    Example:
        >>> python_values(pa.array([1_709_251_200_000_000_000], pa.timestamp("us", "UTC")))
        ['56134-01-06T00:00:00.000000Z']
    """
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        counted = column.cast(_counted(column.type))
        turn = converter(column.type, _text, entries=lambda _, pairs: pairs)
        values = list(map(turn, counted.to_pylist()))
    return values


def python_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table, each column as ``python_values``."""
    columns = map(python_values, table.columns)
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def shown(column: pa.ChunkedArray | pa.Array, row: int) -> Any:
    r"""One value as JSON can hold it, but for dates and the like, which are as Python has them; or text.

    Example:
        >>> shown(pa.array([b"caf\xe9"]).view(pa.string()), 0)
        {'base64': 'Y2Fm6Q=='}
        >>> shown(pa.array([["a", None]]), 0)
        ['a', None]
    """
    one = column.slice(row, 1)
    if not (holds_text(one.type) or _holds_bytes(one.type)):
        return python_values(one)[0]
    plain = converter(one.type, _shown_leaf, entries=lambda _, pairs: [list(pair) for pair in pairs])
    return plain(python_values(one.cast(_with_bytes(one.type)))[0])


FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999 in milliseconds since 1970."""
_A_SECOND = {"D": (1, 86_400), "s": (1, 1), "ms": (10**3, 1), "us": (10**6, 1), "ns": (10**9, 1)}
"""By unit: how many are a second, or how many seconds one is."""


def undecodable(columns: Mapping[str, pa.ChunkedArray | pa.Array]) -> dict[int, tuple[str, str]]:
    """Rows with a value that Python has no object for, in order: the first such column of each, and what it holds.

    Example:
        >>> undecodable({"at": pa.array([0, 2**58], pa.timestamp("us"))})
        {1: ('at', '11103-08-29T17:22:31.711744, which is not within the years 1 to 9999')}
    """
    bad: dict[int, tuple[str, str]] = {}
    for name, column in columns.items():
        if _holds_time(column.type):
            for row in rows_that_fail(column, _within_python):
                (value,) = python_values(column.slice(row, 1))
                bad.setdefault(row, (name, f"{value}, which is not within the years 1 to 9999"))
    texts = {row: (name, "text that is not UTF-8") for row, name in invalid_text(columns).items()}
    return dict(sorted({**bad, **texts}.items())) if bad or texts else {}


def _holds_time(kind: pa.DataType) -> bool:
    return bool(_unit(kind)) or any(_holds_time(kind.field(i).type) for i in range(kind.num_fields))


def _within_python(column: pa.Array) -> bool:
    unit = _unit(column.type)
    if unit:
        ends = pc.min_max(column.cast(_NUMBERS[unit])).as_py()
        parts, seconds = _A_SECOND[unit]
        first, last = FIRST_MS // 1000 * parts // seconds, (LAST_MS + 1) // 1000 * parts // seconds
        return ends["min"] is None or (first <= ends["min"] and ends["max"] < last)
    if not column.type.num_fields:
        return True
    if pa.types.is_map(column.type):
        return _within_python(column.keys) and _within_python(column.items)
    parts_of = column.flatten()
    return all(map(_within_python, parts_of if isinstance(parts_of, list) else [parts_of]))


def _counted(kind: pa.DataType) -> pa.DataType:
    """The type with numbers instead of dates and timestamps."""
    return walked(
        kind,
        leaf=lambda part: _NUMBERS[_unit(part)] if _unit(part) else part,
        record=lambda part, fields: pa.struct([f.with_type(t) for f, t in zip(part, fields, strict=True)]),
        sequence=lambda part, element: pa.list_(part.value_field.with_type(element)),
        mapping=lambda part, key, item: pa.map_(
            part.key_field.with_type(key), part.item_field.with_type(item)
        ),
    )


def _unit(kind: pa.DataType) -> str:
    """What a date or a timestamp counts, as numpy says it; empty for other types."""
    if pa.types.is_date32(kind):
        return "D"
    return str(kind.unit) if pa.types.is_timestamp(kind) else ""


_NUMBERS = {"D": pa.int32(), "s": pa.int64(), "ms": pa.int64(), "us": pa.int64(), "ns": pa.int64()}


def _text(kind: pa.DataType) -> Convert:
    """What turns a number of a type, as ``_counted`` has it, into text."""
    unit: Any = _unit(kind)
    zone = "Z" if pa.types.is_timestamp(kind) and kind.tz is not None else ""
    return (lambda value: f"{np.datetime64(value, unit)}{zone}") if unit else (lambda value: value)


def _holds_bytes(kind: pa.DataType) -> bool:
    return (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or any(_holds_bytes(kind.field(i).type) for i in range(kind.num_fields))
    )


def _with_bytes(kind: pa.DataType) -> pa.DataType:
    return walked(
        kind,
        leaf=lambda part: BYTES.get(part, part),
        record=lambda part, types: pa.struct(
            [pa.field(f.name, t, f.nullable) for f, t in zip(part, types, strict=True)]
        ),
        sequence=lambda _, element: pa.list_(element),
        mapping=lambda _, key, value: pa.map_(key, value),
    )


def _shown_leaf(kind: pa.DataType) -> Convert:
    """From a value of a type with bytes for text to one that JSON can hold."""
    if kind in BYTES:
        return text_or_bytes
    return lambda value: marked(value) if isinstance(value, bytes) else value
