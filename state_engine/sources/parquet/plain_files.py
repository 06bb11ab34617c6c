"""Which Parquet files Arrow reads as the very values that Spark would give: judged by their footers, before any row is.

Anything else (a missing or misspelt column, another type, old dates, a damaged footer) is left to Spark, which converts
it or says what is wrong. Decision 0040.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

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
_SAME = {
    pa.string(): (pa.string(), pa.large_string()),
    # a whole number of microseconds; of nanoseconds that is not known
    pa.timestamp("us", "UTC"): (pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC")),
    pa.timestamp("us"): (pa.timestamp("us"), pa.timestamp("ms")),
}
"""Types in files that are read as a type, where it is not that type alone."""
_OLD = date(1900, 1, 1)
"""Spark may shift dates before this, or refuse them, by who wrote the file."""


@dataclass(frozen=True)
class RowGroup:
    """Rows of a file that lie together.

    Attributes:
        bytes: about how much they are in memory, all columns together.
    """

    first: int
    rows: int
    bytes: int


def plain_schema(schema: StructType) -> pa.Schema | None:
    """A schema in Arrow; None where it has a type that Arrow might read otherwise than Spark."""
    kinds = {f.name: _PLAIN.get(f.dataType.simpleString()) for f in schema.fields}
    fields = [pa.field(name, kind) for name, kind in kinds.items() if kind is not None]
    return pa.schema(fields) if len(fields) == len(schema.fields) else None


def has_columns(file: pq.ParquetFile, wanted: pa.Schema) -> bool:
    """Whether every column is there under its exact name and type, and no other that Spark takes for the same."""
    schema = file.schema_arrow
    if len({name.lower() for name in schema.names}) < len(schema.names):
        return False
    return all(
        name in schema.names and schema.field(name).type in _SAME.get(kind, (kind,))
        for name, kind in zip(wanted.names, wanted.types, strict=True)
    )


def row_groups(file: pq.ParquetFile, wanted: pa.Schema) -> list[RowGroup] | None:
    """The rows of a file; None where the footer does not say that all of them are plain."""
    metadata = file.metadata
    if not has_columns(file, wanted):
        return None
    names = [f.name for f in wanted if pa.types.is_temporal(f.type)]
    places = _places(metadata, names)
    if places is None:
        return None
    times = [
        (place, _old(file.schema_arrow.field(name).type)) for place, name in zip(places, names, strict=True)
    ]
    groups, first = [], 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if any(_may_be_old(group.column(place), group.num_rows, old) for place, old in times):
            return None
        groups.append(RowGroup(first, group.num_rows, group.total_byte_size))
        first += group.num_rows
    return groups


def has_old(column: pa.ChunkedArray) -> bool:
    """Whether a column has dates or times that Spark may see otherwise."""
    if not pa.types.is_temporal(column.type):
        return False
    first = pc.min(column)
    return bool(first.is_valid and first.value < _old(column.type))


def _places(metadata: pq.FileMetaData, names: Sequence[str]) -> list[int] | None:
    """Where columns stand among those that the file stores; None where that is not clear."""
    stored = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    if any(stored.count(name) != 1 for name in names):
        return None
    return [stored.index(name) for name in names]


def _may_be_old(column: pq.ColumnChunkMetaData, rows: int, old: int) -> bool:
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max:
        return statistics is None or not statistics.has_null_count or statistics.null_count < rows
    return bool(statistics.min_raw < old)


def _old(kind: pa.DataType) -> int:
    """From where on a date or time is not old, as files store it: Python has no objects for many that are."""
    first = _OLD if pa.types.is_date(kind) else datetime(_OLD.year, 1, 1, tzinfo=kind.tz and UTC)
    return int(pa.scalar(first, kind).value)
