"""``python_values``: values of an Arrow column for people and programs to read, those that Python cannot hold as text.

Arrow and Spark hold years before 1 and beyond 9999, Python's dates do not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

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


def _counted(kind: pa.DataType) -> pa.DataType:
    """The type with numbers in place of dates and timestamps."""
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
