"""What a source learns from the footers of Parquet files, number of rows and schema; and the options of a reader.

A source with options has Spark read its files. Names with a dot are Hadoop's own, such as
``parquet.encryption.kms.client.class``, and reach it as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from state_engine.core.choices import check_choice, unknown_option
from state_engine.core.errors import BadFileError, ConfigurationError, StorageError
from state_engine.core.types.spark_types import spark_schema
from state_engine.sources.file_ends import bytes_of_ends
from state_engine.sources.parquet.file_types import columns_of, inferred
from state_engine.sources.text.options import REFUSED_OF_FILES
from state_engine.spark.read_failures import way_out_of
from state_engine.spark.spark_names import T
from state_engine.storage.stores.files import open_location

if TYPE_CHECKING:
    from state_engine.sources.file_ranges import FileRange

_DAMAGED = re.compile("thrift|parquet|footer|crypt", re.IGNORECASE)
"""In what Arrow raises as an OSError where the bytes of a file are none of Parquet, or encrypted."""


@dataclass(frozen=True)
class Footer:
    """What the footer of a file says: number of rows, and columns as Spark has them."""

    rows: int
    columns: pa.Schema


def footer(one: FileRange) -> Footer:
    """The footer of a file, read once for its size and time of change; BadFileError where it cannot be read."""
    return _footer(one.uri, one.size, one.mtime_ms)


@lru_cache(maxsize=2000)
def _footer(uri: str, size: int, mtime_ms: int) -> Footer:
    try:
        last = bytes_of_ends(uri, size, mtime_ms)[1]
    except OSError:  # to be read, and explained, below
        last = b""
    with _parquet(uri, last) as file:
        if int.from_bytes(last[-8:-4], "little") > file.metadata.serialized_size:  # behind it is a signature
            raise pa.ArrowInvalid("columns are encrypted")
        if not file.metadata.num_columns:  # Spark cannot read it
            raise BadFileError(
                f"{uri}: it has no columns: write it again with its columns, remove it, or set "
                "on_bad_file='dead_letter' on its FileSource",
                uri,
            )
        _check_places(file.metadata, uri, size)
        return Footer(int(file.metadata.num_rows), columns_of(file))


def _check_places(metadata: pq.FileMetaData, uri: str, size: int) -> None:
    """Check that the footer is that of this file: Spark passes over rows that a footer has beyond the end of it.

    Of encrypted columns Arrow ends the process where it is asked for a place.
    """
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for place in {0, group.num_columns - 1}:
            column = group.column(place)
            start = column.dictionary_page_offset or column.data_page_offset
            if start < 4 or start + column.total_compressed_size > size:
                raise BadFileError(
                    f"{uri}: its footer has rows beyond the end of the file, so it is that of another file, or a part "
                    "is missing: write the file again, or set on_bad_file='dead_letter' on its FileSource",
                    uri,
                )


def parquet_row_count(uri: str) -> int:
    """Number of rows; raises SourceError where the file cannot be read."""
    with _parquet(uri) as file:
        return int(file.metadata.num_rows)


def parquet_schema(uri: str) -> T.StructType:
    """The schema that Spark gives the file; raises SourceError where it cannot read it."""
    with _parquet(uri) as file:
        return T.StructType.fromJson(spark_schema(inferred(uri, columns_of(file))))


@contextmanager
def _parquet(uri: str, last: bytes = b"") -> Iterator[pq.ParquetFile]:
    """A file.

    Args:
        last: bytes of it, if they are known; where they hold its footer, the file is not opened for it.
    """
    try:
        if last.endswith(b"PAR1") and int.from_bytes(last[-8:-4], "little") + 8 <= len(last):
            yield pq.ParquetFile(pa.BufferReader(last))
            return
        with open_location(uri).parquet() as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError) and not _is_damaged(error):
            raise  # of the storage, not of the file
        cause = str(error).strip()
        way_out = way_out_of(cause)
        message = f"{uri} cannot be read as Parquet ({cause}): {way_out[0].lower()}{way_out[1:]}"
        raise BadFileError(message, uri) from error


def _is_damaged(error: OSError) -> bool:
    """Whether the bytes are wrong; what the storage refuses has a number, and may name any path."""
    return not isinstance(error, StorageError) and error.errno is None and bool(_DAMAGED.search(str(error)))


_REBASE = ("EXCEPTION", "CORRECTED", "LEGACY")
_VALUES: dict[str, tuple[str, ...]] = {
    "mergeSchema": ("true", "false"),
    "datetimeRebaseMode": _REBASE,
    "int96RebaseMode": _REBASE,
    "recursiveFileLookup": ("true",),
    "ignoreCorruptFiles": ("false",),
    "ignoreMissingFiles": ("false",),
}
"""What each option takes; of the last three, what a ``FileSource`` does anyway."""


def check_parquet_options(given: Mapping[str, Any]) -> None:
    """Refuse options that Spark would pass over, and those that a ``FileSource`` cannot have."""
    values = {name.lower(): name for name in _VALUES}
    refused = {name.lower(): why for name, why in REFUSED_OF_FILES.items()}
    for name, value in sorted(given.items()):
        small = name.lower()
        if "." in name:
            continue
        if small in refused:
            raise ConfigurationError(f"FileSource: the option {name!r} {refused[small]}")
        if small not in values:
            raise unknown_option(name, _VALUES, what="FileSource: a reader of parquet")
        takes = _VALUES[values[small]]
        if str(value).lower() not in [word.lower() for word in takes]:
            check_choice(value, takes, what=f"FileSource: the option {name!r}")
