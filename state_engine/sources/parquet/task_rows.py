"""Rows of Parquet files that tasks read with Arrow: Spark neither scans them nor turns them into rows and back.

Only what Spark would read as the very same values is read here, see ``plain_files``. The driver judges files by their
footers and gives every task about as many bytes of row groups. Plays the part of Spark's ``FilePartition``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from state_engine.sources.base import FILE_COLUMN, PLACES, ROW_COLUMN
from state_engine.sources.file_ranges import FileRange
from state_engine.sources.parquet.plain_files import RowGroup, plain_schema, row_groups
from state_engine.sources.rows import TaskRows
from state_engine.spark.placement import USUAL, Limits
from state_engine.spark.read_failures import reading_file
from state_engine.storage.stores.files import is_local, open_location
from state_engine.storage.stores.in_threads import in_threads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_MOST_FILES = 20_000
"""The driver looks at the footers of so many, a tenth of a millisecond each; those of more files are left to Spark's
tasks. Spark knows a file by an expression that names all of them, and plans for minutes where they are thousands."""
_OPENING_BYTES = 2**14
"""To open a file takes as long as to read so many bytes: many small ones are spread, too."""
_JOINED_ROWS = 2**14
"""Rows of small files are joined up to so many: to route a batch costs more than to route a row."""
_BATCH_BYTES = 2**24
"""What a task has in memory at a time of what it reads."""


@dataclass(frozen=True)
class Piece:
    """Rows of one row group.

    Attributes:
        start, end: the rows of the file that are wanted, the end exclusive.
        bytes: about how much there is to read.
    """

    place: int
    uri: str
    number: int
    first: int
    start: int
    end: int
    at_once: int
    bytes: int


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
    pieces: list[Piece] = []
    for place, (one, groups) in enumerate(zip(ranges, of_files, strict=True)):
        if groups is None:
            return None
        pieces += _pieces(place, one, groups, limits.read_at_once)
    tasks = in_tasks(pieces, cores, limits)
    near = all(is_local(one.uri) for one in ranges)
    return TaskRows(pa.schema([*wanted, *PLACES]), len(tasks), partial(_read, tasks, wanted), scan, near)


def in_tasks(pieces: Sequence[Piece], cores: int, limits: Limits = USUAL) -> list[list[Piece]]:
    """Pieces by task: the largest first, each to the task that has least; in a task, in the order of the files."""
    total = sum(map(_cost, pieces))
    size = limits.bytes_of_a_task(total, cores)
    tasks: list[list[Piece]] = [[] for _ in range(min(max(-(-total // size), 1), len(pieces)))]
    loads = [0] * len(tasks)
    for piece in sorted(pieces, key=lambda p: -p.bytes):
        least = loads.index(min(loads))
        tasks[least].append(piece)
        loads[least] += _cost(piece)
    return [sorted(task, key=lambda p: (p.place, p.number)) for task in tasks]


def _cost(piece: Piece) -> int:
    """What it takes to read a piece, in bytes."""
    return piece.bytes + _OPENING_BYTES


def _row_groups(wanted: pa.Schema, one: FileRange) -> list[RowGroup] | None:
    try:
        with open_location(one.uri).parquet() as file:
            return row_groups(file, wanted)
    except (OSError, pa.ArrowException):
        return None  # Spark says what is wrong


def _pieces(place: int, one: FileRange, groups: Sequence[RowGroup], most_rows: int) -> Iterator[Piece]:
    for number, group in enumerate(groups):
        end = group.first + group.rows
        inside = max(one.start, group.first), end if one.end is None else min(one.end, end)
        if inside[0] < inside[1]:
            at_once = min(most_rows, max(_BATCH_BYTES * group.rows // max(group.bytes, 1), 1))
            yield Piece(place, one.uri, number, group.first, *inside, at_once, group.bytes)


def _read(
    tasks: Sequence[Sequence[Piece]], schema: pa.Schema, task: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in the order of its pieces."""
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
    pieces_of_task: Sequence[Piece], schema: pa.Schema, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of pieces, as they are read."""
    names = [name for name in schema.names if name in columns] or schema.names[
        :1
    ]  # they say how many rows there are
    wanted = pa.schema([schema.field(name) for name in names])
    for uri, pieces in groupby(pieces_of_task, key=lambda piece: piece.uri):
        with reading_file(uri), open_location(uri).parquet() as file:
            for piece in pieces:
                yield from _read_piece(file, piece, wanted, columns)


def _read_piece(
    file: pq.ParquetFile, piece: Piece, wanted: pa.Schema, columns: Sequence[str]
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
