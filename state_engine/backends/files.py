"""The one seam through which subtasks and driver reach files: ``pyarrow.fs``, for local and remote locations.

A location is a URI or a local path. Spark and Kernel get the URI; pyarrow gets a file system and a path on it.

Parquet files are written with checksums of their pages, and whoever writes one records the checksum of its footer: a
reader compares the footer before anything parses it, and pages as they are read, so what was damaged on the disk is an
error and never data. See docs/decisions/0021-damaged-files.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse
from zlib import crc32

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from state_engine.core.errors import ConfigurationError

_LOCAL = pafs.LocalFileSystem()
_TO_PYARROW = {"s3a": "s3", "s3n": "s3", "abfss": "abfs"}


def normal_uri(location: str | os.PathLike[str]) -> str:
    """An absolute URI without a trailing slash; a local path becomes ``file:///…`` with links resolved.

    Example:
        >>> normal_uri("s3a://bucket/state/")
        's3a://bucket/state'
    """
    text = os.fspath(location)
    parsed = urlparse(text)
    if len(parsed.scheme) > 1 and parsed.scheme != "file":
        return text.rstrip("/")
    path = unquote(parsed.path) if parsed.scheme == "file" else text
    if not path:
        raise ConfigurationError("an empty path was given where a directory is needed")
    real = os.path.realpath(os.path.expanduser(path))
    if any(c in real for c in "%?#*[]{}\n"):
        raise ConfigurationError(
            f"the path {real!r} holds a character that Spark reads as a pattern: rename it"
        )
    return f"file://{real}"


def is_local(uri: str) -> bool:
    """Whether the URI is on the local file system."""
    return uri.startswith("file:")


def local_path(uri: str) -> Path:
    """The path of a ``file:`` URI."""
    return Path(uri.removeprefix("file://"))


def join(uri: str, *parts: str) -> str:
    """Append path components."""
    return "/".join([uri, *parts])


@dataclass(frozen=True)
class Location:
    """A file or directory on a pyarrow file system."""

    fs: pafs.FileSystem
    path: str

    def info(self) -> pafs.FileInfo:
        """Type, size and time of last change."""
        return self.fs.get_file_info(self.path)


def open_location(uri: str) -> Location:
    """The file system and path of a URI."""
    if is_local(uri):
        return Location(_LOCAL, uri.removeprefix("file://"))
    scheme, rest = uri.split("://", 1)
    fs, path = pafs.FileSystem.from_uri(f"{_TO_PYARROW.get(scheme, scheme)}://{rest}")
    return Location(fs, path)


@dataclass(frozen=True)
class WrittenFile:
    """What is known of a file that was written.

    Attributes:
        uri: where it is.
        bytes: size.
        footer: CRC-32 of its footer, see ``footer_of``; None where the format has none.
    """

    uri: str
    bytes: int
    footer: int | None = None


def write_parquet(table: pa.Table, uri: str | Callable[[int], str]) -> WrittenFile:
    """Write one Parquet file, making its directory.

    Args:
        uri: where it goes; or a function that gives it for the checksum of the footer, to be in the name of the file.
    """
    out = pa.BufferOutputStream()
    pq.write_table(
        table, out, compression="zstd", use_dictionary=_dictionary(table), write_page_checksum=True
    )
    data = out.getvalue()
    footer = footer_of(data)
    uri = uri if isinstance(uri, str) else uri(footer)
    at = open_location(uri)
    if is_local(uri):
        os.makedirs(os.path.dirname(at.path), exist_ok=True)
    with at.fs.open_output_stream(at.path) as stream:
        stream.write(data)
    return WrittenFile(uri, data.size, footer)


def footer_of(content: pa.Buffer) -> int:
    """CRC-32 of the footer of a Parquet file, its length and the mark at the end included.

    Args:
        content: of the file, or of its end.
    """
    return crc32(content.slice(max(content.size - footer_bytes(content), 0)))


def footer_bytes(content: pa.Buffer) -> int:
    """Length of the footer that the last eight bytes of a Parquet file tell, these included."""
    end = content.slice(max(content.size - 8, 0)).to_pybytes()
    return int.from_bytes(end[:4], "little") + 8


def write_csv(table: pa.Table, uri: str) -> WrittenFile:
    """Write one CSV file with a header line, making its directory."""
    at = open_location(uri)
    if is_local(uri):
        os.makedirs(os.path.dirname(at.path), exist_ok=True)
    with at.fs.open_output_stream(at.path) as stream:
        pacsv.write_csv(table, stream)
    return WrittenFile(uri, int(at.info().size))


def _dictionary(table: pa.Table) -> list[str]:
    """Columns worth a dictionary: only text, which repeats; numbers pay for it and gain little."""
    return [f.name for f in table.schema if pa.types.is_string(f.type) or pa.types.is_dictionary(f.type)]
