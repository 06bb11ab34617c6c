"""Rows of CSV and JSON files and of records of text, by one function wherever they are read.

A few are read by the driver, more by tasks; Spark neither scans them nor has its options a say. What does not fit the
declared columns is refused with the column and the value; the letter of a record is all that it takes to read it again
by the same rules. Plays the part of Flink's ``StreamFormat`` with its ``DeserializationSchema``. Decision 0092.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import pyarrow as pa

from state_engine.core.counted_nouns import counted
from state_engine.core.errors import BadFileError, ValueTypeError
from state_engine.core.json_text import parsed_json
from state_engine.core.types.every_type import StructType
from state_engine.core.types.invalid_text import text_or_bytes
from state_engine.core.types.spark_types import spark_schema
from state_engine.sources.base import PLACES, REFUSED_ROWS, SourceFrame
from state_engine.sources.file_columns import names_in_file
from state_engine.sources.file_ranges import OPENING_BYTES, FileRange, Piece, in_tasks
from state_engine.sources.rows import TaskRows, batched
from state_engine.sources.text.csv_records import CsvDialect
from state_engine.sources.text.json_records import JsonDialect
from state_engine.sources.text.options import TextFormat, TextOptions
from state_engine.sources.text.text_columns import columns_of, csv_column, json_column
from state_engine.sources.text.text_files import is_packed, text_chunks
from state_engine.sources.text.text_values import FieldNames, short
from state_engine.spark.placement import USUAL, Limits, Placement, placement_of
from state_engine.spark.read_failures import RefusedRecordError, reading_file
from state_engine.spark.spark_names import T
from state_engine.storage.stores.in_threads import in_threads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_HEADED = b"\xffstatelake text\xff"
"""Begins the letter of a record that its file says more of: the names of its header and its directory as JSON, a line
end, and the record."""
_PACKED_SHARE = 10
"""Packed text is about so many times as much."""
_BATCH_ROWS = 2**14
_FILES_AHEAD, _SMALL_BYTES = 64, 2**18
"""So many files of at most that size are read at a time, for a store takes long to open each."""


class Record(NamedTuple):
    """One record.

    Attributes:
        values: what it says for each declared column, not converted yet.
        problem: why it is refused; empty where it is not.
    """

    text: str
    values: tuple[Any, ...]
    problem: str
    head: bytes = b""

    @property
    def letter(self) -> bytes:
        """All that it takes to read it again."""
        return self.head + self.text.encode("utf-8", "surrogateescape")


class Placed(NamedTuple):
    """A record with the place of its file, its row there, and what the file is called."""

    file: int
    row: int
    uri: str
    record: Record


class TextRows:
    """Reads text as rows of declared columns."""

    def __init__(
        self, format_: TextFormat, columns: StructType, options: TextOptions, limits: Limits = USUAL
    ) -> None:
        self._columns, self._options = StructType(columns.names, columns.types), options
        self._limits = limits
        self.schema = pa.schema([*columns.arrow, *PLACES])
        self._is_csv = format_ == "csv"
        column = csv_column if self._is_csv else json_column
        self._readers = [
            column(n, t, options.rules) for n, t in zip(columns.names, columns.types, strict=True)
        ]

    # -- where they are read -------------------------------------------------------------------------------------------

    def of_files(
        self, spark: SparkSession, ranges: Sequence[FileRange], *, keep_refused: bool
    ) -> SourceFrame:
        """The rows of files, with the hidden columns of a slice.

        Raises:
            BadFileError: the driver cannot read a file; tasks say so where they run.
            RefusedRecordError: a record does not fit, and ``keep_refused`` is not set.
        """
        sizes = [one.size * (_PACKED_SHARE if is_packed(one.uri) else 1) for one in ranges]
        if placement_of(self._limits, stored_bytes=sum(sizes)) is Placement.DRIVER:
            pieces = [Piece(place, one.uri, 0, None, one.size) for place, one in enumerate(ranges)]
            return self._of_driver(self._records(pieces), keep_refused)
        tasks = self._tasks(ranges, sizes, spark.sparkContext.defaultParallelism)
        rows = TaskRows(self.schema, len(tasks), partial(self._good, tasks, keep_refused))
        return SourceFrame(rows, self._refused_frame(spark, tasks) if keep_refused else None)

    def of_letters(self, letters: Mapping[int, bytes], *, keep_refused: bool) -> SourceFrame:
        """The rows of letters, each as a file of its own at its place.

        Raises:
            RefusedRecordError: a record does not fit, and ``keep_refused`` is not set.
        """
        rows = (
            Placed(place, row, f"the dead letter {letter!r}", record)
            for place, letter in letters.items()
            for row, record in enumerate(self._of_letter(letter))
        )
        return self._of_driver(rows, keep_refused)

    def _of_driver(self, rows: Iterable[Placed], keep_refused: bool) -> SourceFrame:
        good = [self.schema.empty_table()]
        bad: list[pa.Table] = []
        for some in batched(rows, _BATCH_ROWS):
            table, refused = self._read(some, keep_refused)
            good.append(table)
            bad += [refused] if refused.num_rows else []
        return SourceFrame(
            pa.concat_tables(good).combine_chunks(), pa.concat_tables(bad).combine_chunks() if bad else None
        )

    def _refused_frame(self, spark: SparkSession, tasks: Sequence[Sequence[Piece]]) -> DataFrame:
        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for task in (task for batch in batches for task in batch.column(0).to_pylist()):
                for some in batched(self._records(tasks[task]), _BATCH_ROWS):
                    yield from self._read(some, True)[1].to_batches()

        schema = T.StructType.fromJson(spark_schema(REFUSED_ROWS))
        return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, schema)

    def _tasks(self, ranges: Sequence[FileRange], sizes: Sequence[int], cores: int) -> list[list[Piece]]:
        total = sum(sizes) + len(sizes) * OPENING_BYTES
        size = self._limits.bytes_of_a_task(total, cores)
        pieces: list[Piece] = []
        for place, one in enumerate(ranges):
            if self._options.splittable and not is_packed(one.uri) and one.size > size:
                starts = range(0, one.size, size)
                pieces += [Piece(place, one.uri, at, at + size, min(size, one.size - at)) for at in starts]
            else:
                pieces.append(Piece(place, one.uri, 0, None, sizes[place]))
        return in_tasks(pieces, -(-total // size))

    def _good(
        self, tasks: Sequence[Sequence[Piece]], keep_refused: bool, task: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        for some in batched(self._records(tasks[task]), _BATCH_ROWS):
            yield from self._read(some, keep_refused)[0].select(list(columns)).to_batches()

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _read(self, some: Sequence[Placed], keep_refused: bool) -> tuple[pa.Table, pa.Table]:
        """The rows of records that fit, and those that do not.

        Raises:
            RefusedRecordError: one does not fit, and ``keep_refused`` is not set.
        """
        good = [one for one in some if not one.record.problem]
        arrays, problems = columns_of(self._readers, [one.record.values for one in good])
        places = [pa.array([one[i] for one in good], kind) for i, kind in enumerate(PLACES.types)]
        table = pa.Table.from_arrays([*arrays, *places], schema=self.schema)
        if not problems and len(good) == len(some):
            return table, REFUSED_ROWS.empty_table()
        bad = [(one, one.record.problem) for one in some if one.record.problem]
        bad += [(good[place], problem) for place, problem in problems.items()]
        bad.sort(key=lambda pair: pair[0][:2])
        if not keep_refused:
            one, problem = bad[0]
            raise RefusedRecordError.of(one.uri, f"row {one.row}: {problem}")
        fit = table.take(pa.array([place for place in range(len(good)) if place not in problems], pa.int64()))
        letters = [_letter(one, problem) for one, problem in bad]
        return fit, pa.Table.from_pylist(letters, REFUSED_ROWS)

    def _records(self, pieces: Iterable[Piece]) -> Iterator[Placed]:
        for some in batched(pieces, _FILES_AHEAD):
            small = [one for one in some if one.bytes <= _SMALL_BYTES]
            ahead = dict(zip(small, in_threads(self._content, small), strict=True))
            for piece in some:
                yield from self._of_piece(piece, ahead.pop(piece, None))

    def _of_piece(self, piece: Piece, content: Sequence[str] | None) -> Iterator[Placed]:
        chunks = self._chunks(piece) if content is None else content
        records = self._csv(chunks, piece.uri) if self._is_csv else self._json(chunks, piece.uri)
        with reading_file(piece.uri):
            # every record takes a byte, so those of the piece before have smaller numbers
            for row, record in enumerate(records, piece.start):
                yield Placed(piece.place, row, piece.uri, record)

    def _content(self, piece: Piece) -> list[str]:
        with reading_file(piece.uri):
            return list(self._chunks(piece))

    def _chunks(self, piece: Piece) -> Iterator[str]:
        encoding, at_once = self._options.encoding, self._limits.chunk_bytes
        return text_chunks(piece.uri, encoding, start=piece.start, end=piece.end, at_once=at_once)

    def _of_letter(self, letter: bytes) -> Iterable[Record]:
        said, line = _taken_apart(letter)
        text, uri = line.decode("utf-8", "surrogateescape"), f"{said.get('directory', '')}/"
        if not self._is_csv:
            return self._json([text], uri)
        names = said.get("names")
        try:
            return list(self._csv([text], uri, names=names, letter=True))
        except BadFileError as error:  # the columns of its file are none of those that are declared by now
            return [Record(text, (), str(error), _head(names, uri))]

    def _json(self, chunks: Iterable[str], uri: str) -> Iterator[Record]:
        head = _head(None, uri)
        fields = FieldNames(self._columns.names, self._options.rules.names)
        for text, value, problem in JsonDialect(self._options).records(chunks):
            values: tuple[Any, ...] = ()
            if not problem:
                try:
                    values = fields.values(value)
                except ValueTypeError as error:
                    problem = str(error)
            yield Record(text, values, problem, head)

    def _csv(
        self, chunks: Iterable[str], uri: str, *, names: list[str] | None = None, letter: bool = False
    ) -> Iterator[Record]:
        dialect = CsvDialect(self._options)
        records = dialect.records(chunks, uri)
        if self._options.header and not letter:
            first = next(records, None)
            if first is not None and first[0].startswith("sep=") and len(first[0]) == len("sep=;"):
                self._check_separator(first[0], uri)
                first = next(records, None)
            if first is None:
                return
            names = self._header(dialect, first, uri)
        width = len(self._columns.names) if names is None else len(names)
        places = None if names is None else _places(names, self._columns.names, self._options, uri)
        head = _head(names, uri)
        for text, problem in records:
            fields = () if problem else dialect.fields(text)
            if not problem and len(fields) != width:
                problem = f"it has {counted(len(fields), 'field')}, and {width} are expected"
            elif places is not None and not problem:
                fields = [None if place is None else fields[place] for place in places]
            yield Record(text, tuple(fields), problem, head)

    def _check_separator(self, line: str, uri: str) -> None:
        """Check what a spreadsheet says above the header: its separator."""
        said, ours = line.removeprefix("sep="), self._options.separator
        if said != ours:
            raise BadFileError(f"{uri}: its first line says {line!r}: set the option sep to {said!r}", uri)

    def _header(self, dialect: CsvDialect, first: tuple[str, str], uri: str) -> list[str] | None:
        text, problem = first
        if problem:
            raise BadFileError(f"{uri}: its header {short(text)}: {problem}", uri)
        names = [field or "" for field in dialect.fields(text)]
        return None if self._options.by_position else names


def _places(names: list[str], declared: Sequence[str], options: TextOptions, uri: str) -> list[int | None]:
    given = names_in_file(uri, names, declared, options.rules.names)
    if not given:
        raise BadFileError(
            f"{uri}: its header {names} names none of the declared columns {list(declared)}: declare these names, or "
            "set the option enforceSchema to true to go by position", uri,
        )  # fmt: skip
    return [names.index(given[name]) if name in given else None for name in declared]


def directory_of(letter: bytes) -> str:
    """The directory of the file that a letter's record is of; empty where that says nothing."""
    return str(_taken_apart(letter)[0].get("directory", ""))


def _head(names: list[str] | None, uri: str) -> bytes:
    directory = uri.rpartition("/")[0]
    said: dict[str, Any] = {} if names is None else {"names": names}
    said |= {"directory": directory} if "=" in directory else {}
    return _HEADED + json.dumps(said).encode() + b"\n" if said else b""


def _taken_apart(letter: bytes) -> tuple[dict[str, Any], bytes]:
    """What is said of a record, and its text; all of it is text where the head is not one that ``_head`` makes."""
    head, line_end, text = letter.removeprefix(_HEADED).partition(b"\n")
    try:
        said = parsed_json(head) if letter.startswith(_HEADED) and line_end else None
    except ValueError:
        said = None
    return (said, text) if _is_head(said) else ({}, letter)


def _is_head(said: Any) -> TypeGuard[dict[str, Any]]:
    if not isinstance(said, dict):
        return False
    names, directory = said.get("names", []), said.get("directory", "")
    return isinstance(directory, str) and isinstance(names, list) and all(isinstance(n, str) for n in names)


def _letter(one: Placed, problem: str) -> dict[str, Any]:
    text = text_or_bytes(one.record.text.encode("utf-8", "surrogateescape"))
    shown = text if isinstance(text, str) else json.dumps(text)
    parts = (one.record.letter, one.file, one.row, f"SourceError: {problem}", shown)
    return dict(zip(REFUSED_ROWS.names, parts, strict=True))
