"""A few rows of Parquet files, read by the driver: planning a scan of them takes Spark longer than reading them.

Only what Spark would read as the very same values is read here; anything else (a missing or misspelt column, another
type, old dates, a damaged file) is left to Spark, which converts it or says what is wrong. Decision 0013.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN
from state_engine.sources.file_ranges import FileRange
from state_engine.storage.files import open_location

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FEW_BYTES, FEW_ROWS = 2**18, 20_000
"""Files up to this size together, with up to as many rows: columns that repeat take little space."""
_PLAIN = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
"""Types in Arrow, by their names in Spark."""
_SAME = {pa.string(): (pa.string(), pa.large_string())}
"""Types in files that are read as a type, where it is not that type alone."""
_OLD = date(1900, 1, 1)
"""Spark may shift dates before this, or refuse them, by who wrote the file."""


def few_rows(ranges: Sequence[FileRange], schema: StructType) -> pa.Table | None:
    """The rows of these ranges with the hidden columns of a slice; None where they are many, or not plainly readable.

    Args:
        schema: that the rows must have.
    """
    kinds = {f.name: _PLAIN.get(f.dataType.simpleString()) for f in schema.fields}
    fields = [pa.field(name, kind) for name, kind in kinds.items() if kind is not None]
    if sum(r.size for r in ranges) > FEW_BYTES or len(fields) < len(schema.fields):
        return None
    wanted, left, tables = pa.schema(fields), FEW_ROWS, []
    for place, one in enumerate(ranges):
        table = _read(one, wanted, left)
        if table is None:
            return None
        left -= table.num_rows
        places = pa.repeat(pa.scalar(place, pa.int32()), table.num_rows)
        rows = pa.array(np.arange(one.start, one.start + table.num_rows))
        tables.append(table.append_column(FILE_COLUMN, places).append_column(ROW_COLUMN, rows))
    return pa.concat_tables(tables).combine_chunks()


def _read(one: FileRange, wanted: pa.Schema, at_most: int) -> pa.Table | None:
    """The rows of one range."""
    at = open_location(one.uri)
    try:
        with at.parquet() as file:
            if file.metadata.num_rows > at_most or not _has(file.schema_arrow, wanted):
                return None
            table = file.read(columns=wanted.names, use_threads=False)
    except (OSError, pa.ArrowException):
        return None
    table = table.select(wanted.names).cast(wanted)
    end = table.num_rows if one.end is None else one.end
    table = table.slice(one.start, end - one.start)
    return None if any(_is_old(column) for column in table.columns) else table


def _has(schema: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether every column is there under its exact name and type, and no other that Spark takes for the same."""
    if len({name.lower() for name in schema.names}) < len(schema.names):
        return False
    return all(
        name in schema.names and schema.field(name).type in _SAME.get(kind, (kind,))
        for name, kind in zip(wanted.names, wanted.types, strict=True)
    )


def _is_old(column: pa.ChunkedArray) -> bool:
    if not pa.types.is_temporal(column.type):
        return False
    first = pc.min(column).as_py()
    if isinstance(first, datetime):
        return first.replace(tzinfo=UTC) < datetime(_OLD.year, 1, 1, tzinfo=UTC)
    return first is not None and first < _OLD
