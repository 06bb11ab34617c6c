"""The kinds of a stream's rows in columns: the hidden column ``ROW_KIND``, which only streams that change have.

It stands beside the columns of the order, never among the user's: on the way from sources to subtasks, in files between
operators, in dead letters, and in files of sinks that accept changes. Plays the part of the header byte of ``RowData``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from state_engine.core.operator.element_kinds import rows_of_kinds, shown_changes
from state_engine.core.types.columns import elements
from state_engine.core.types.every_type import StructType
from state_engine.core.types.row import RowKind
from state_engine.sources.stream_columns import ROW_KIND

KIND_FIELD = pa.field(ROW_KIND, pa.int8())
"""The column."""
_KINDS = tuple(RowKind)


def kind_column(kinds: Iterable[RowKind]) -> pa.Array:
    """Kinds as the column.

    Example:
        >>> kind_column([RowKind.DELETE]).to_pylist()
        [3]
    """
    return pa.array([kind.value for kind in kinds], pa.int8())


def column_of_kinds(rows: pa.Table) -> pa.Array:
    """The column of rows; where they have none, all are inserts.

    Example:
        >>> column_of_kinds(pa.table({"id": [7]})).to_pylist()
        [0]
    """
    if ROW_KIND in rows.column_names:
        return rows[ROW_KIND]
    return pa.repeat(pa.scalar(RowKind.INSERT.value, pa.int8()), rows.num_rows)


def kinds_of(rows: pa.Table | pa.RecordBatch) -> list[RowKind]:
    """Kinds of rows that have the column; a null is an insert.

    Example:
        >>> kinds_of(pa.table({ROW_KIND: pa.array([3, None], pa.int8())}))
        [<RowKind.DELETE: 3>, <RowKind.INSERT: 0>]
    """
    return [_KINDS[value or 0] for value in rows[ROW_KIND].to_pylist()]


def with_kinds_of(rows: pa.Table | pa.RecordBatch, values: list[Any]) -> list[Any]:
    """Elements that were made of rows, as functions see them: a Row has its kind."""
    return rows_of_kinds(values, kinds_of(rows)) if ROW_KIND in rows.schema.names else values


def shown_elements(rows: pa.Table, *, scalar: bool, declared: StructType | None) -> list[Any]:
    """Rows of a sink's file as elements: where they have kinds, Rows of their kind or pairs of a kind and a value.

    Example:
        >>> rows = pa.table({"value": [7], ROW_KIND: pa.array([3], pa.int8())})
        >>> shown_elements(rows, scalar=True, declared=None)
        [ElementChange(kind=<RowKind.DELETE: 3>, value=7)]
    """
    names = [name for name in rows.column_names if name != ROW_KIND]
    values = elements(rows, names, scalar=scalar, declared=declared)
    return shown_changes(values, kinds_of(rows)) if ROW_KIND in rows.column_names else values
