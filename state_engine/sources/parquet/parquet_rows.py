"""Rows of Parquet files, read where that costs least: a few by the driver, more by tasks, both with Arrow, or by Spark.

Planning a scan of a few rows takes Spark longer than reading them; and what tasks read with Arrow, Spark neither scans
nor turns into rows and back. Whoever reads them, they are the same rows: Arrow reads only what Spark would give as the
very same values, judged by the footers. Anything else (a missing or misspelt column, another type, old dates, a damaged
footer) is left to Spark, which converts it or says what is wrong. Plays the part of Spark's ``FilePartition``. Decision
0040.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from state_engine.sources.base import FILE_COLUMN, PLACES, ROW_COLUMN
from state_engine.sources.file_ranges import FileRange, Piece, in_tasks
from state_engine.sources.rows import Given, TaskRows
from state_engine.spark.placement import USUAL, Limits, Placement, limits_of, placement_of
from state_engine.spark.read_failures import reading_file
from state_engine.storage.stores.files import is_local, open_location
from state_engine.storage.stores.in_threads import in_threads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


_MOST_FILES = 20_000
"""The driver looks at the footers of so many, a tenth of a millisecond each; those of more files are left to Spark's
tasks. Spark knows a file by an expression that names all of them, and plans for minutes where they are thousands."""
_JOINED_ROWS = 2**14
"""Rows of small files are joined up to so many: to route a batch costs more than to route a row."""
_BATCH_BYTES = 2**24
"""What a task has in memory at a time of what it reads."""
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


def parquet_rows(
    spark: SparkSession, ranges: Sequence[FileRange], schema: StructType, scan: Callable[[], DataFrame]
) -> Given:
    """The rows of ranges of files with the hidden columns of a slice.

    Args:
        scan: gives the same rows as Spark reads them, whatever the files are.
    """
    limits = limits_of(spark)
    few = few_rows(ranges, schema, limits)
    if few is not None:
        return few
    cores = spark.sparkContext.defaultParallelism
    many = task_rows(ranges, schema, cores=cores, scan=scan, limits=limits)
    return scan() if many is None else many


def few_rows(ranges: Sequence[FileRange], schema: StructType, limits: Limits) -> pa.Table | None:
    """The rows of these ranges with the hidden columns of a slice; None if they are many, or not plainly readable."""
    wanted = plain_schema(schema)
    if wanted is None or not wanted.names:
        return None
    if placement_of(limits, stored_bytes=sum(r.size for r in ranges)) is not Placement.DRIVER:
        return None
    made, left, batches = pa.schema([*wanted, *PLACES]), limits.rows, list[pa.RecordBatch]()
    for place, one in enumerate(ranges):
        try:
            with open_location(one.uri).parquet() as file:
                groups = row_groups(file, wanted)
                if groups is None or file.metadata.num_rows > left:
                    return None
                for piece in _pieces(place, one, groups, limits.rows):
                    batches += _read_piece(file, piece, wanted, made.names)
                    left -= piece.end - piece.start
        except (OSError, pa.ArrowException):
            return None  # Spark says what is wrong
    return pa.Table.from_batches(batches, made).combine_chunks()


@dataclass(frozen=True)
class RowsOfGroup(Piece):
    """Rows of one row group.

    Attributes:
        number, first: of the group, and of its first row.
        at_once: rows to read at a time.
    """

    end: int
    number: int
    first: int
    at_once: int


def task_rows(
    ranges: Sequence[FileRange],
    schema: StructType,
    *,
    cores: int,
    scan: Callable[[], DataFrame],
    limits: Limits = USUAL,
) -> TaskRows | None:
    """The rows of these ranges with the hidden columns of a slice, as tasks read them; None where Spark has to."""
    wanted = plain_schema(schema)
    if wanted is None or not wanted.names or len(ranges) > _MOST_FILES:
        return None
    of_files = list(in_threads(partial(_row_groups, wanted), ranges))
    pieces: list[RowsOfGroup] = []
    for place, (one, groups) in enumerate(zip(ranges, of_files, strict=True)):
        if groups is None:
            return None
        pieces += _pieces(place, one, groups, limits.read_at_once)
    total = sum(piece.cost for piece in pieces)
    tasks = in_tasks(pieces, -(-total // limits.bytes_of_a_task(total, cores)))
    near = all(is_local(one.uri) for one in ranges)
    return TaskRows(pa.schema([*wanted, *PLACES]), len(tasks), partial(_read, tasks, wanted), scan, near)


def _row_groups(wanted: pa.Schema, one: FileRange) -> list[RowGroup] | None:
    try:
        with open_location(one.uri).parquet() as file:
            return row_groups(file, wanted)
    except (OSError, pa.ArrowException):
        return None  # Spark says what is wrong


def _pieces(place: int, one: FileRange, groups: Sequence[RowGroup], most_rows: int) -> Iterator[RowsOfGroup]:
    for number, group in enumerate(groups):
        end = group.first + group.rows
        inside = max(one.start, group.first), end if one.end is None else min(one.end, end)
        if inside[0] < inside[1]:
            at_once = min(most_rows, max(_BATCH_BYTES * group.rows // max(group.bytes, 1), 1))
            yield RowsOfGroup(place, one.uri, *inside, group.bytes, number, group.first, at_once)


def _read(
    tasks: Sequence[Sequence[RowsOfGroup]], schema: pa.Schema, task: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    yield from _joined(_of_pieces(tasks[task], schema, columns))


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in fewer batches where they are small."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= _JOINED_ROWS:
            yield from _as_one(waiting)
            waiting, rows = [], 0
    if waiting:
        yield from _as_one(waiting)


def _as_one(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def _of_pieces(
    pieces_of_task: Sequence[RowsOfGroup], schema: pa.Schema, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    names = [name for name in schema.names if name in columns] or schema.names[
        :1
    ]  # they say how many rows there are
    wanted = pa.schema([schema.field(name) for name in names])
    for uri, pieces in groupby(pieces_of_task, key=lambda piece: piece.uri):
        with reading_file(uri), open_location(uri).parquet() as file:
            for piece in pieces:
                yield from _read_piece(file, piece, wanted, columns)


def _read_piece(
    file: pq.ParquetFile, piece: RowsOfGroup, wanted: pa.Schema, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    first = piece.first
    read = file.iter_batches(
        piece.at_once, row_groups=[piece.number], columns=wanted.names, use_threads=False
    )
    for batch in read:
        start, end = max(piece.start - first, 0), min(piece.end - first, batch.num_rows)
        if start < end:
            rows = batch.slice(start, end - start)
            arrays = {field.name: rows.column(field.name).cast(field.type) for field in wanted}
            arrays[FILE_COLUMN] = pa.repeat(pa.scalar(piece.place, pa.int32()), rows.num_rows)
            arrays[ROW_COLUMN] = pa.array(np.arange(first + start, first + end))
            yield pa.record_batch({name: arrays[name] for name in columns})
        first += batch.num_rows


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
