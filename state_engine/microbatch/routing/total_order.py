"""The total order of rows: by their order columns one after the other, nulls first, as Spark sorts them.

Values are compared by Arrow and never made objects of Python, which not all of them can be: text that is not UTF-8, an
instant after the year 9999. Whether such a row is an error is for the subtask to say, once the rows are in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Indices = np.ndarray[Any, np.dtype[np.int64]]


def order_indices(rows: pa.Table, columns: Sequence[str]) -> Indices:
    """The places of rows, in order by some columns; equal rows stay as they are.

    Example:
        >>> order_indices(pa.table({"a": [2, None, 1, 2], "b": [1, 1, 1, 0]}), ["a", "b"]).tolist()
        [1, 2, 3, 0]
    """
    return _sorted(rows, columns, _without_nulls(rows, columns))


def in_total_order(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Rows in order by some columns, each column one chunk; left alone where they are in order already."""
    arrays = _without_nulls(rows, columns)
    if arrays is not None and _ascending(arrays, len(rows)):
        return rows.combine_chunks()
    return rows.take(pa.array(_sorted(rows, columns, arrays))).combine_chunks()


def _sorted(rows: pa.Table, columns: Sequence[str], arrays: Sequence[Indices] | None) -> Indices:
    if not columns:
        return np.arange(len(rows))
    if arrays is not None:
        return np.asarray(np.lexsort(arrays[::-1]))
    keys = [(column, "ascending", "at_start") for column in columns]
    return np.asarray(pc.sort_indices(rows, sort_keys=keys).to_numpy())


def _without_nulls(rows: pa.Table, columns: Sequence[str]) -> list[Indices] | None:
    """Columns of whole numbers as numpy's; None where there are others."""
    own = [rows[column] for column in columns]
    if all(pa.types.is_integer(column.type) and not column.null_count for column in own):
        return [column.to_numpy() for column in own]
    return None


def _ascending(arrays: Sequence[Indices], rows: int) -> bool:
    later, tie = np.zeros(max(rows - 1, 0), bool), np.ones(max(rows - 1, 0), bool)
    for array in arrays:
        later |= tie & (array[1:] > array[:-1])
        tie &= array[1:] == array[:-1]
    return bool((later | tie).all())
