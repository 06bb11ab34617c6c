"""Columns of tables on their way to elements: as one chunk, and decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from state_engine.core.row import rows_from_columns
from state_engine.core.type_parsing import arrow_type


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def elements(
    table: pa.Table | pa.RecordBatch,
    columns: Sequence[str],
    *,
    names: Sequence[str] | None = None,
    scalar: bool,
) -> list[Any]:
    """The rows of a table as functions see them.

    Args:
        columns: of the table, in order.
        names: what functions see the columns as; by default their own names.
        scalar: whether the one column is seen bare.

    Example:
        >>> elements(pa.table({"a": [1, 2], "b": ["x", "y"]}), ["a", "b"], scalar=False)
        [Row(a=1, b='x'), Row(a=2, b='y')]
    """
    arrays = [_array(table[c]) for c in columns]
    decoded = [arrow_type(a.type).from_arrow(a) for a in arrays]
    return decoded[0] if scalar else rows_from_columns(tuple(columns if names is None else names), decoded)


def _array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return one_chunk(column) if isinstance(column, pa.ChunkedArray) else column
