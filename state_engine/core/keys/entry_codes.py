"""Numbers for stored keys and map keys, so that entries are distinguished by whole columns and not one by one.

Keys of one number are equal as Python keeps them apart in a dict: 0.0 and -0.0 are one key, null is one, too. A hash
would only narrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Numbers = np.ndarray[Any, Any]
_LARGEST, _SAMPLE = 2**62, 1024
_TABLE, _TABLE_ROWS = 8, 2**16
"""Numbers up to so many times the rows, or up to so many, are counted in a table."""


def entry_codes(columns: Sequence[pa.Array]) -> Numbers:
    """A number from 0 on for each row: the same for rows that are equal in all columns, records field by field.

    Example:
        >>> keys = pa.array([{"a": 1, "b": None}, {"a": None, "b": 1}, {"a": 1, "b": None}])
        >>> entry_codes([keys]).tolist()
        [0, 1, 0]
    """
    codes, size = np.zeros(len(columns[0]), np.int64), 1
    for leaf in (leaf for column in columns for leaf in leaves(column)):
        if pa.types.is_floating(leaf.type):
            leaf = pc.add(leaf, pa.scalar(0.0, leaf.type))  # makes -0.0 to 0.0
        part, kinds = _codes_of(leaf)
        if size * kinds > _LARGEST:
            codes, size = _numbered(codes, size)
            part, kinds = _numbered(part, kinds)
        codes, size = codes * kinds + part, size * kinds
    return _numbered(codes, size)[0]


def _codes_of(leaf: pa.Array) -> tuple[Numbers, int]:
    """A number for each value of a column, and a number that all are below."""
    if pa.types.is_signed_integer(leaf.type) and len(leaf) and not leaf.null_count:
        values = leaf.to_numpy()
        least, most = int(values.min()), int(values.max())
        few = most - least < len(leaf)
        if few or (most - least < _LARGEST and not _repeats(values)):
            return values.astype(np.int64) - least, most - least + 1
    encoded = leaf.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), max(len(encoded.dictionary), 1)


def _repeats(values: Numbers) -> bool:
    """Whether values seem to repeat, so that a dictionary of them is small, and faster than sorting."""
    sample = values[:: max(len(values) // _SAMPLE, 1)]
    return len(np.unique(sample)) < len(sample) // 2


def _numbered(codes: Numbers, end: int) -> tuple[Numbers, int]:
    """Numbers from 0 to ``end`` as ranks among those that are there, and how many these are."""
    if end > max(_TABLE_ROWS, _TABLE * len(codes)):
        different, ranks = np.unique(codes, return_inverse=True)
        return ranks, len(different)
    there = np.zeros(end, bool)  # in a fifth of the time of numpy.unique, which sorts
    there[codes] = True
    return (np.cumsum(there) - 1)[codes], int(np.count_nonzero(there))


def last_rows(codes: Numbers, rows: Numbers | None = None) -> Numbers:
    """For each number of ``entry_codes`` the last row that has it; -1 where none has.

    Args:
        rows: those that count, in their order; None for all.

    Example:
        >>> last_rows(np.array([0, 1, 0])).tolist(), last_rows(np.array([0, 1, 0]), np.array([0])).tolist()
        ([2, 1], [0, -1])
    """
    rows = np.arange(len(codes)) if rows is None else rows
    last = np.full(int(codes.max()) + 1 if len(codes) else 0, -1)
    last[codes[rows]] = rows
    return last


def key_codes(columns: Sequence[pa.Array], hashes: Numbers) -> tuple[Numbers, Numbers]:
    """``entry_codes`` of keys whose hashes are known: a number for each row, and for each number a row that has it.

    Rows of one hash are compared; where their keys differ, the hashes say nothing.

    Example:
        >>> codes, rows = key_codes([pa.array(["a", "b", "a"])], np.array([7, -7, 7]))
        >>> codes.tolist(), len(rows)
        ([1, 0, 1], 2)
    """
    order = np.argsort(hashes)
    ordered = hashes[order]
    new = np.append(True, ordered[1:] != ordered[:-1])[: len(order)]
    codes = np.empty(len(order), np.int64)
    codes[order] = np.cumsum(new) - 1
    rows, others = order[new], order[~new]
    if len(others):
        of_row, of_number = ([c.take(pa.array(at)) for c in columns] for at in (others, rows[codes[others]]))
        if not equal_rows(of_row, of_number).all():
            codes = entry_codes(columns)
            rows = np.empty(int(codes.max()) + 1, np.int64)
            rows[codes] = np.arange(len(codes))
    return codes, rows


def equal_rows(left: Sequence[pa.Array], right: Sequence[pa.Array]) -> Numbers:
    """Which rows are equal in all columns, as ``entry_codes`` has it: null equals null, and NaN equals NaN.

    Example:
        >>> equal_rows([pa.array([1, None, None])], [pa.array([1, None, 2])]).tolist()
        [True, True, False]
    """
    equal = np.ones(len(left[0]), bool)
    for one, other in zip(left, right, strict=True):
        equal &= _equal(one.cast(other.type), other).to_numpy(zero_copy_only=False)
    return equal


def _equal(left: pa.Array, right: pa.Array) -> pa.Array:
    if pa.types.is_struct(left.type):
        same = pc.equal(left.is_valid(), right.is_valid())
        for one, other in zip(left.flatten(), right.flatten(), strict=True):
            same = pc.and_(same, _equal(one, other))
        return same
    same = pc.fill_null(pc.equal(left, right), False)
    if left.null_count and right.null_count:
        same = pc.or_(same, pc.and_(left.is_null(), right.is_null()))
    if pa.types.is_floating(left.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(left), pc.is_nan(right)), False))
    return same


def leaves(column: pa.Array) -> Iterator[pa.Array]:
    """The columns that a record consists of, those of records in it included; Arrow compares no records."""
    if not pa.types.is_struct(column.type):
        yield column
        return
    if column.null_count:
        yield column.is_valid()
    for child in column.flatten():
        yield from leaves(child)
