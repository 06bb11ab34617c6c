"""The one seam through which subtasks and driver reach files: ``pyarrow.fs``, for local and remote locations.

A location is a URI or a local path. Spark and Kernel get the URI; pyarrow gets a file system and a path on it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlparse

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


def write_parquet(table: pa.Table, uri: str) -> int:
    """Write one Parquet file, making its directory; returns its size in bytes."""
    at = open_location(uri)
    if is_local(uri):
        os.makedirs(os.path.dirname(at.path), exist_ok=True)
    pq.write_table(table, at.path, filesystem=at.fs, compression="zstd", use_dictionary=_dictionary(table))
    return int(at.info().size)


def write_csv(table: pa.Table, uri: str) -> int:
    """Write one CSV file with a header line, making its directory; returns its size in bytes."""
    at = open_location(uri)
    if is_local(uri):
        os.makedirs(os.path.dirname(at.path), exist_ok=True)
    with at.fs.open_output_stream(at.path) as stream:
        pacsv.write_csv(table, stream)
    return int(at.info().size)


def read_parquet(uri: str, columns: list[str] | None = None) -> pa.Table:
    """Read one Parquet file whole."""
    at = open_location(uri)
    return pq.ParquetFile(at.path, filesystem=at.fs).read(columns=columns, use_threads=False)


def _dictionary(table: pa.Table) -> list[str]:
    """Columns worth a dictionary: only text, which repeats; numbers pay for it and gain little."""
    return [f.name for f in table.schema if pa.types.is_string(f.type) or pa.types.is_dictionary(f.type)]
