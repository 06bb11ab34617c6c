"""Columns of tables on their way to elements: as one chunk, and decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from state_engine.core.types.every_type import StructType, TypeInformation
from state_engine.core.types.row import rows_from_columns
from state_engine.core.types.type_parsing import arrow_type


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def in_one_chunk(table: pa.Table) -> pa.Table:
    """A table in which each column is one chunk, also where it has no rows.

    >>> in_one_chunk(pa.table({"a": pa.chunked_array([], pa.int64())}))["a"].num_chunks
    1
    """
    arrays = [one_chunk(column) for column in table.columns]
    return pa.Table.from_arrays(arrays, schema=table.schema)


def to_bytes(table: pa.Table) -> bytes:
    """A table for another process; ``from_bytes`` makes it a table again."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table)
    return bytes(out.getvalue())


def from_bytes(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()


def elements(
    table: pa.Table | pa.RecordBatch,
    columns: Sequence[str],
    *,
    names: Sequence[str] | None = None,
    scalar: bool,
    declared: StructType | None = None,
) -> list[Any]:
    """The rows of a table as functions see them.

    Args:
        names: what functions see the columns as; by default their own names.
        declared: the columns as the stream declares them; without, the types that follow from their Arrow types.

    Example:
        >>> elements(pa.table({"a": [1, 2], "b": ["x", "y"]}), ["a", "b"], scalar=False)
        [Row(a=1, b='x'), Row(a=2, b='y')]
    """
    arrays = [_array(table[c]) for c in columns]
    kinds = [arrow_type(a.type) for a in arrays] if declared is None else declared.types
    decoded = [kind.from_arrow(a) for kind, a in zip(kinds, arrays, strict=True)]
    if scalar:
        return decoded[0]
    if declared is None or declared.made_by == "row":
        return rows_from_columns(tuple(columns if names is None else names), decoded)
    return declared.from_columns(decoded)


def to_table(values: list[Any], declared: StructType, *, scalar: bool) -> pa.Table:
    """Normal elements of a stream as columns, as they go to sinks and to the next operator.

    Example:
        >>> from state_engine.core.types.every_type import IntegerType
        >>> to_table([1, 2], StructType(["value"], [IntegerType(pa.int64())]), scalar=True)["value"].to_pylist()
        [1, 2]
    """
    records = [(v,) for v in values] if scalar else values
    kind = StructType(declared.names, declared.types) if scalar else declared
    array = kind.to_arrow(records, storage=False)
    return pa.Table.from_arrays(array.flatten(), schema=pa.schema(list(kind.arrow)))


def as_in_a_stream(values: list[Any], kind: TypeInformation) -> list[Any]:
    """Normal elements as the next operator gets them, which is as the engine hands them on.

    Example:
        >>> from state_engine.core.types.every_type import IntegerType
        >>> as_in_a_stream([1, 2], IntegerType(pa.int64()))
        [1, 2]
    """
    scalar = not isinstance(kind, StructType)
    declared = kind if isinstance(kind, StructType) else StructType(["value"], [kind])
    table = to_table(values, declared, scalar=scalar)
    return elements(table, table.column_names, scalar=scalar, declared=declared)


def _array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return one_chunk(column) if isinstance(column, pa.ChunkedArray) else column
