"""Text that is not UTF-8: which rows hold some, and how their values are shown without losing a byte.

Parquet and Delta hold text as bytes that nobody checked, and Arrow hands them on; only Python's decoding fails. So rows
are looked at before they are decoded. A value is shown as JSON can hold it: bytes, and text that is none, are
``{"base64": …}``.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from state_engine.core.types.walk import Convert, converter, walked

_BYTES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}


def invalid_text(columns: Mapping[str, pa.ChunkedArray | pa.Array]) -> dict[int, str]:
    r"""Rows in which a column holds text that is not UTF-8, at any depth, in order, and the first such column of each.

    Example:
        >>> good_and_bad = pa.array([b"caf\xc3\xa9", b"caf\xe9"]).view(pa.string())
        >>> invalid_text({"k": pa.array([1, 2]), "name": good_and_bad})
        {1: 'name'}
    """
    invalid: dict[int, str] = {}
    for name, column in columns.items():
        if not _holds_text(column.type):
            continue
        first = 0
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            if not _is_valid(chunk):
                # copies: of a slice of lists or records, all that it is a slice of would be looked at
                for row in _invalid_rows(chunk.take(pa.array(range(len(chunk)))), first):
                    invalid.setdefault(row, name)
            first += len(chunk)
    return dict(sorted(invalid.items()))


def shown(column: pa.ChunkedArray | pa.Array, row: int) -> Any:
    r"""One value as JSON can hold it, but for dates and the like, which are as Python has them.

    Example:
        >>> shown(pa.array([b"caf\xe9"]).view(pa.string()), 0)
        {'base64': 'Y2Fm6Q=='}
        >>> shown(pa.array([["a", None]]), 0)
        ['a', None]
    """
    one = column.slice(row, 1)
    if not (_holds_text(one.type) or _holds_bytes(one.type)):
        return one[0].as_py()
    plain = converter(one.type, _shown_leaf, entries=lambda _, pairs: [list(pair) for pair in pairs])
    return plain(one.cast(_with_bytes(one.type))[0].as_py())


def _is_valid(column: pa.Array) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _invalid_rows(column: pa.Array, first: int) -> list[int]:
    """By halves: almost always there is none."""
    if _is_valid(column):
        return []
    if len(column) == 1:
        return [first]
    half = len(column) // 2
    low, high = (column.take(pa.array(range(*ends))) for ends in ((0, half), (half, len(column))))
    return _invalid_rows(low, first) + _invalid_rows(high, first + half)


def _parts(kind: pa.DataType) -> list[pa.DataType]:
    return [kind.field(i).type for i in range(kind.num_fields)]


def _holds_text(kind: pa.DataType) -> bool:
    return kind in _BYTES or any(map(_holds_text, _parts(kind)))


def _holds_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or any(map(_holds_bytes, _parts(kind)))


def _with_bytes(kind: pa.DataType) -> pa.DataType:
    """The type with bytes for text."""
    return walked(
        kind,
        leaf=lambda part: _BYTES.get(part, part),
        record=lambda part, types: pa.struct(
            [pa.field(f.name, t, f.nullable) for f, t in zip(part, types, strict=True)]
        ),
        sequence=lambda _, element: pa.list_(element),
        mapping=lambda _, key, value: pa.map_(key, value),
    )


def _shown_leaf(kind: pa.DataType) -> Convert:
    """From a value of a type with bytes for text to one that JSON can hold."""
    if kind in _BYTES:
        return text_or_bytes
    return lambda value: marked(value) if isinstance(value, bytes) else value


def text_or_bytes(value: bytes) -> Any:
    """Text, where it is UTF-8; else the bytes, marked."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return marked(value)


def marked(value: bytes) -> dict[str, str]:
    """Bytes as JSON can hold them."""
    return {"base64": b64encode(value).decode()}
