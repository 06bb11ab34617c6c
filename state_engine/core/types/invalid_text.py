"""Text that is not UTF-8: which rows hold some, and how their values are shown without losing a byte.

Parquet and Delta hold text as bytes that nobody checked, and Arrow hands them on; only Python's decoding fails. So rows
are looked at before they are decoded. A value is shown as JSON can hold it: bytes, and text that is none, are
``{"base64": …}``.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
"""What stores text."""


def invalid_text(columns: Mapping[str, pa.ChunkedArray | pa.Array]) -> dict[int, str]:
    r"""Rows in which a column holds text that is not UTF-8, at any depth, in order, and the first such column of each.

    Example:
        >>> good_and_bad = pa.array([b"caf\xc3\xa9", b"caf\xe9"]).view(pa.string())
        >>> invalid_text({"k": pa.array([1, 2]), "name": good_and_bad})
        {1: 'name'}
    """
    invalid: dict[int, str] = {}
    for name, column in columns.items():
        if holds_text(column.type):
            for row in rows_that_fail(column, _is_valid):
                invalid.setdefault(row, name)
    return dict(sorted(invalid.items()))


def rows_that_fail(column: pa.ChunkedArray | pa.Array, is_good: Callable[[pa.Array], bool]) -> list[int]:
    """The rows of a column that fail a check of whole arrays; almost always there is none."""
    rows, first = list[int](), 0
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        if not is_good(chunk):
            # copies: of a slice of lists or records, all that it is a slice of would be looked at
            rows += _failing(chunk.take(pa.array(range(len(chunk)))), first, is_good)
        first += len(chunk)
    return rows


def _is_valid(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _failing(column: pa.Array, first: int, is_good: Callable[[pa.Array], bool]) -> list[int]:
    """By halves."""
    if is_good(column):
        return []
    if len(column) == 1:
        return [first]
    half = len(column) // 2
    low, high = (column.take(pa.array(range(*ends))) for ends in ((0, half), (half, len(column))))
    return _failing(low, first, is_good) + _failing(high, first + half, is_good)


def _parts(kind: pa.DataType) -> list[pa.DataType]:
    return [kind.field(i).type for i in range(kind.num_fields)]


def holds_text(kind: pa.DataType) -> bool:
    return kind in BYTES or any(map(holds_text, _parts(kind)))


def text_or_bytes(value: bytes) -> Any:
    """Text, where it is UTF-8; else the bytes, marked."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return marked(value)


def marked(value: bytes) -> dict[str, str]:
    """Bytes as JSON can hold them."""
    return {"base64": b64encode(value).decode()}
