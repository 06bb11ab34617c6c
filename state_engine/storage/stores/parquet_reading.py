"""Parquet files of the engine, read so that damage is an error: ``open_parquet`` and what it opens.

The size and the footer are compared with what was recorded before anything parses the footer: a parser that is given a
damaged one may return other rows, or end the process. Pages carry checksums, which are verified as they are read; and
what is read must have as many rows as the footer says. Files of older versions have neither; what cannot be read of
them is the same error, and what can be read is taken as it is. Plays the part of the block checksums of RocksDB.
Decision 0021.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import DamagedFileError
from state_engine.storage.stores.failures import storage_error, storage_errors
from state_engine.storage.stores.files import footer_bytes, footer_of, is_local, open_location

_OF_PARQUET = re.compile(
    r"parquet|thrift|page|checksum|compress|deserialize|unexpected end of stream|corrupt", re.I
)
"""What errors of parsing say, and errors of remote storage do not."""

SPARK_VERIFIES = {"parquet.page.verify-checksum.enabled": "true"}
"""Options of every Spark reader of our files: Spark does not verify pages otherwise. Delta's readers take them from the
session only."""


@dataclass(frozen=True)
class ReadSizes:
    """How much of a file is read at once.

    Attributes:
        whole: files up to this size are read at once: then nothing but their content can make parsing fail.
        end: so much of the end of a larger file is read first; footers are mostly shorter.
    """

    whole: int = 2**22
    end: int = 2**16


_USUAL = ReadSizes()


class OpenParquet:
    """An open file; see the module docstring."""

    def __init__(self, uri: str, file: pq.ParquetFile, *, of: str, in_memory: bool) -> None:
        self._uri, self._file, self._of, self._in_memory = uri, file, of, in_memory
        self.metadata: pq.FileMetaData = file.metadata
        self.schema: pa.Schema = file.schema_arrow
        self.row_groups: int = file.num_row_groups
        of_file = self.metadata.schema
        self._places = {of_file.column(at).path: at for at in range(len(of_file))}
        self._limits: dict[tuple[str, int], tuple[Any, Any] | None] = {}
        self._may_keep: Callable[[int], bool] | None = None
        self._rows: pa.Table | None = None
        self.kept_bytes = 0

    def keep_rows(self, may_keep: Callable[[int], bool]) -> None:
        """Keep all rows, once they are read, for the file is read again and again; ``kept_bytes`` is their size.

        Args:
            may_keep: says whether so many bytes may be kept. Only rows that are decoded have a size that is known: a
                text that repeats takes next to nothing in the file.
        """
        self._may_keep = may_keep

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows. Raises DamagedFileError."""
        if columns is None and self._rows is not None:
            return self._rows
        with _parsing(self._uri, self._of, in_memory=self._in_memory):
            table = self._file.read(columns=None if columns is None else list(columns), use_threads=False)
        whole = self._whole(table, self.metadata.num_rows)
        if columns is None and self._may_keep is not None and self._may_keep(whole.nbytes):
            self._rows, self.kept_bytes = whole, whole.nbytes
        return whole

    def read_row_groups(self, numbers: Sequence[int], columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of some row groups, in the order of the file. Raises DamagedFileError."""
        if len(numbers) == self.row_groups:
            return self.read(columns)
        wanted = None if columns is None else list(columns)
        with _parsing(self._uri, self._of, in_memory=self._in_memory):
            table = self._file.read_row_groups(list(numbers), columns=wanted, use_threads=False)
        return self._whole(table, sum(map(self.rows_of, numbers)))

    def decoded_bytes(self, numbers: Sequence[int]) -> int:
        """The size of some row groups before compression."""
        return sum(self.metadata.row_group(n).total_byte_size for n in numbers)

    def rows_of(self, number: int) -> int:
        rows: int = self.metadata.row_group(number).num_rows
        return rows

    def is_null(self, column: str, number: int) -> bool:
        """Whether a column is known to have no value in a row group."""
        at = self._places.get(column)
        if at is None:
            return False
        statistics = self.metadata.row_group(number).column(at).statistics
        return statistics is not None and statistics.null_count == self.rows_of(number)

    def limits(self, column: str, numbers: Sequence[int] | None = None) -> list[tuple[Any, Any] | None]:
        """The smallest and the largest value of a column in each row group; None where that is not known.

        Args:
            column: path of a column without columns in it, such as ``key.name``.
        """
        wanted = range(self.row_groups) if numbers is None else numbers
        return [self._limits_of(column, number) for number in wanted]

    def _limits_of(self, column: str, number: int) -> tuple[Any, Any] | None:
        """Asked for again and again where the file is kept."""
        if (column, number) not in self._limits:
            at = self._places.get(column)
            known = None if at is None else self.metadata.row_group(number).column(at).statistics
            self._limits[column, number] = (known.min, known.max) if known and known.has_min_max else None
        return self._limits[column, number]

    def sorted_row_groups(self, column: str, first: Any, last: Any) -> range:
        """The row groups that may hold values from ``first`` to ``last`` of a column by which the file is sorted.

        Looks at the statistics of a few row groups only. All, where these say nothing.
        """

        def before(number: int) -> bool:
            [limits] = self.limits(column, [number])
            return limits is not None and bool(limits[1] < first)

        def after(number: int) -> bool:
            [limits] = self.limits(column, [number])
            return limits is not None and bool(limits[0] > last)

        every = range(self.row_groups)
        start = bisect_left(every, True, key=lambda n: not before(n))
        return range(start, bisect_left(every, True, lo=start, key=after))

    def batches(self, rows: int) -> Iterator[pa.RecordBatch]:
        """All rows, some at a time. Raises DamagedFileError."""
        seen = 0
        with _parsing(self._uri, self._of, in_memory=self._in_memory):
            for batch in self._file.iter_batches(batch_size=rows, use_threads=False):
                seen += batch.num_rows
                yield batch
        if seen != self.metadata.num_rows:
            raise damaged(
                self._uri, f"{seen:,} of {counted(self.metadata.num_rows, 'row')} can be read", of=self._of
            )

    def close(self) -> None:
        self._file.close(force=True)

    def _whole(self, table: pa.Table, rows: int) -> pa.Table:
        if table.num_columns and any(len(column) != rows for column in table.columns):
            raise damaged(self._uri, f"{table.num_rows:,} of {counted(rows, 'row')} can be read", of=self._of)
        return table


def open_parquet(
    uri: str,
    *,
    size: int | None = None,
    footer: int | None = None,
    of: str = "",
    coded: Sequence[str] = (),
    sizes: ReadSizes = _USUAL,
) -> OpenParquet:
    """Open a file that the engine wrote.

    Args:
        size, footer: that were recorded when it was written; None where nothing was.
        of: for messages: what the file is part of, for example "checkpoint 7, operator 'sums'".
        coded: columns of few texts that are read as numbers into a dictionary, which is faster; where it has them.

    Raises:
        FileNotFoundError: it is gone.
    """
    at = open_location(uri)
    with storage_errors(at.path, "read"):
        file = at.fs.open_input_file(at.path)
        actual = file.size()
    whole = actual <= sizes.whole
    try:
        _check_size(uri, actual, size, of)
        with storage_errors(at.path, "read"):
            end = _end_of(file, actual if whole else sizes.end)
        if footer is not None and footer_of(end) != footer:
            raise damaged(uri, "its footer is not the one that was written", of=of)
        source = pa.BufferReader(end) if whole else file
        with _parsing(uri, of, in_memory=True):
            metadata = pq.read_metadata(pa.BufferReader(end))
            paths = {metadata.schema.column(at).path for at in range(len(metadata.schema))}
            opened = pq.ParquetFile(
                source,
                metadata=metadata,
                read_dictionary=[name for name in coded if name in paths],
                page_checksum_verification=True,
                pre_buffer=not whole and not is_local(uri),  # small reads of a store are joined
            )
    except BaseException:
        file.close()
        raise
    if whole:
        file.close()
    return OpenParquet(uri, opened, of=of, in_memory=whole or is_local(uri))


def open_recorded(uri: str, file: DataFile, *, of: str = "") -> OpenParquet:
    """Open a file as its checkpoint recorded it; see ``open_parquet``."""
    return open_parquet(uri, size=file.bytes or None, footer=file.footer, of=of)


def read_parquet(uri: str, *, size: int | None = None, footer: int | None = None, of: str = "") -> pa.Table:
    """All rows of a file; see ``open_parquet``."""
    return open_parquet(uri, size=size, footer=footer, of=of).read()


def check_footer(
    uri: str, *, size: int | None, footer: int | None, of: str = "", sizes: ReadSizes = _USUAL
) -> None:
    """Compare a file's size and footer with what was recorded, for readers that are not ours; parses nothing.

    Raises:
        FileNotFoundError: it is gone.
    """
    at = open_location(uri)
    with at.opened() as file:
        _check_size(uri, file.size(), size, of)
        if footer is not None and footer_of(_end_of(file, sizes.end)) != footer:
            raise damaged(uri, "its footer is not the one that was written", of=of)


def damaged(uri: str, why: str, *, of: str = "") -> DamagedFileError:
    """The error for a file that is not what was written."""
    return DamagedFileError(
        f"{of + ': ' if of else ''}{uri} is damaged: {why}. A bit flipped on the disk, or something rewrote the file; "
        "nothing of it was used. Put the file back from a backup, or restore a checkpoint that does not need it (one "
        "before it was written, or after a compaction since), or a savepoint into another root"
    )


def _check_size(uri: str, actual: int, recorded: int | None, of: str) -> None:
    if recorded is not None and actual != recorded:
        raise damaged(uri, f"it has {counted(actual, 'byte')}, {recorded:,} were recorded", of=of)


def _end_of(file: pa.NativeFile, wanted: int) -> pa.Buffer:
    """The end of a file: so many bytes, or as many as its footer has."""
    size = file.size()
    file.seek(max(size - wanted, 0))
    end = file.read_buffer(min(wanted, size))
    longer = min(footer_bytes(end), size)
    if longer > end.size:
        file.seek(size - longer)
        end = file.read_buffer(longer)
    return end


@contextmanager
def _parsing(uri: str, of: str, *, in_memory: bool) -> Iterator[None]:
    """Errors of parsing as DamagedFileError; those of reaching the file pass as they are."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        reaching = isinstance(error, MemoryError) or getattr(error, "errno", None) is not None
        if reaching or not (
            in_memory or isinstance(error, pa.ArrowInvalid) or _OF_PARQUET.search(str(error))
        ):
            refused = storage_error(error, uri, "read") if isinstance(error, OSError) else None
            raise (refused or error) from error.__cause__
        cause = " ".join(str(error).split()).rstrip(".")
        raise damaged(uri, f"it cannot be read ({cause})", of=of) from error
