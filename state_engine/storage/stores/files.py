"""The one seam through which subtasks and driver reach files: ``pyarrow.fs``, for local and remote locations.

A location is a URI or a local path. Spark and Kernel get the URI; pyarrow gets a file system and a path on it.

Parquet files are written with checksums of their pages, and whoever writes one records the checksum of its footer: a
reader compares the footer before anything parses it, and pages as they are read, so what was damaged on the disk is an
error and never data. Decision 0021.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse
from uuid import uuid4
from zlib import crc32

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from state_engine.core.errors import ConfigurationError, DamagedFileError
from state_engine.core.json_text import parsed_json
from state_engine.storage.stores import durability
from state_engine.storage.stores.failures import storage_errors
from state_engine.storage.stores.object_stores import PROCESS_STORES, S3_SCHEMES

_TO_PYARROW = {"abfss": "abfs"}
_FEW_ROWS = 100
"""Of so few rows zstd takes longer to begin each column than to compress it, and saves nothing; so does its reader."""
_WRITERS = 8
"""Files of one subtask that are on their way to a store at once."""


def normal_uri(location: str | os.PathLike[str]) -> str:
    """An absolute URI without a trailing slash; a local path becomes ``file:///…`` with links resolved.

    Example:
        >>> normal_uri("s3a://bucket/state/")
        's3a://bucket/state'
    """
    text = os.fspath(location) if isinstance(location, str | os.PathLike) else None
    if not isinstance(text, str) or "\0" in text:
        raise ConfigurationError(f"a path must be text without a NUL, or a Path, not {location!r}")
    parsed = urlparse(text)
    if len(parsed.scheme) > 1 and parsed.scheme != "file":
        return text.rstrip("/")
    path = unquote(parsed.path) if parsed.scheme == "file" else text
    if not path:
        raise ConfigurationError("an empty path was given; a directory is needed")
    real = os.path.realpath(os.path.expanduser(path))
    if any(c in real for c in "%?#*[]{}\n"):
        raise ConfigurationError(
            f"the path {real!r} holds a character that Spark reads as a pattern: rename it"
        )
    return f"file://{real}"


def is_local(uri: str) -> bool:
    return uri.startswith("file:")


def local_path(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def join(uri: str, *parts: str) -> str:
    return "/".join([uri, *parts])


@dataclass(frozen=True)
class Location:
    """A file or directory on a pyarrow file system, and all that the engine does to one.

    What the storage refuses is raised as a ``StorageError``; what is not there as ``FileNotFoundError``.
    """

    fs: pafs.FileSystem
    path: str
    local: bool = False

    def inside(self, *names: str) -> Location:
        """What lies below."""
        return replace(self, path=join(self.path, *names)) if names else self

    def above(self) -> Location:
        """The directory that it lies in."""
        return replace(self, path=self.path.rsplit("/", 1)[0])

    # -- looking ---------------------------------------------------------------------------------------------------

    def info(self) -> pafs.FileInfo:
        """Type, size and time of last change."""
        with storage_errors(self.path, "looked at"):
            return self.fs.get_file_info(self.path)

    def is_file(self) -> bool:
        return bool(self.info().type == pafs.FileType.File)

    def is_directory(self) -> bool:
        return bool(self.info().type == pafs.FileType.Directory)

    def listing(self, *, recursive: bool = False, missing_ok: bool = False) -> list[pafs.FileInfo]:
        """What lies in a directory; nothing where there is none and ``missing_ok`` is set."""
        with storage_errors(self.path, "listed"):
            entries: list[pafs.FileInfo] = self.fs.get_file_info(
                pafs.FileSelector(self.path, allow_not_found=missing_ok, recursive=recursive)
            )
            return entries

    def files(self, *, recursive: bool = True) -> dict[str, pafs.FileInfo]:
        """The files in a directory and those below it, by their path from it; none where there is no directory."""
        entries = self.listing(recursive=recursive, missing_ok=True)
        return {
            info.path[len(self.path) :].lstrip("/"): info
            for info in entries
            if info.type == pafs.FileType.File
        }

    def names(self, *, missing_ok: bool = False) -> list[str]:
        """Names of what lies in a directory."""
        return [info.base_name for info in self.listing(missing_ok=missing_ok)]

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self) -> bytes:
        with storage_errors(self.path, "read"), self.fs.open_input_stream(self.path) as stream:
            content: bytes = stream.read()
            return content

    def read_json(self, **fields: type) -> dict[str, Any]:
        """The content of a small file that the engine wrote, an object."""
        return self.parsed(self.read(), **fields)

    def parsed(self, content: bytes, **fields: type) -> dict[str, Any]:
        """The object that a content of the file holds; raises DamagedFileError."""
        try:
            made = parsed_json(content)
            wrong = [n for n, kind in fields.items() if type(made[n]) is not kind]
            if not isinstance(made, dict) or wrong:
                raise ValueError(f"it has {wrong or 'fields'} of other types")
        except (ValueError, LookupError, TypeError) as error:
            raise DamagedFileError(
                f"{self.path} is empty, cut, or not what was written ({type(error).__name__}: {error}): nothing was "
                "done. Run again; if it stays so, put the file back from a backup"
            ) from None
        return made

    @contextmanager
    def reading(self) -> Iterator[pa.NativeFile]:
        """A file to read from its beginning on."""
        with storage_errors(self.path, "read"), self.fs.open_input_stream(self.path) as stream:
            yield stream

    @contextmanager
    def opened(self) -> Iterator[pa.NativeFile]:
        """A file to read at any place."""
        with storage_errors(self.path, "read"), self.fs.open_input_file(self.path) as file:
            yield file

    def parquet(self) -> pq.ParquetFile:
        """A Parquet file that others wrote, opened; for those of the engine see ``parquet_reading``."""
        with storage_errors(self.path, "read"):
            return pq.ParquetFile(
                self.path, filesystem=self.fs, page_checksum_verification=True, pre_buffer=not self.local
            )

    # -- changing --------------------------------------------------------------------------------------------------

    def write(self, content: bytes | pa.Buffer) -> None:
        """Write a file; a reader may see a part of it meanwhile, see ``write_whole``."""
        with self.writing() as stream:
            stream.write(content)

    def write_whole(self, content: bytes) -> None:
        """Write a file, whole or not at all, instead of the one before, and sync it."""
        if not self.local:
            self.write(content)  # an object appears when it is complete
            return
        aside = Location(self.fs, f"{self.path}.{uuid4().hex}", local=True)
        try:
            aside.write(content)
            durability.fsync_path(aside.path)
            aside.move(self.path)
        except OSError:
            with suppress(OSError):
                aside.delete()
            raise
        directory = os.path.dirname(self.path)
        durability.sync_directories([directory], below=directory)

    def write_new(self, content: bytes) -> None:
        """Write a local file that nobody wrote before, whole or not at all, and sync it.

        For files anywhere see ``DeltaKernel.write_new``.

        Raises:
            FileExistsError: somebody did.
        """
        aside = replace(self, path=f"{self.path}.{uuid4().hex}")
        try:
            aside.write(content)
            durability.fsync_path(aside.path)
            with storage_errors(self.path, "written"):
                os.link(aside.path, self.path)  # unlike a rename, it replaces nothing
        finally:
            with suppress(OSError):
                aside.delete()
        directory = os.path.dirname(self.path)
        durability.sync_directories([directory], below=directory)

    @contextmanager
    def writing(self) -> Iterator[pa.NativeFile]:
        """A file to write to, from its beginning on."""
        with storage_errors(self.path, "written"), self.fs.open_output_stream(self.path) as stream:
            yield stream

    def move(self, target: str) -> None:
        """Give a file or directory another path, instead of a file that is there."""
        with storage_errors(self.path, f"moved to {target}"):
            self.fs.move(self.path, target)

    def copy_to(self, target: Location) -> None:
        """Copy a file, also to another store."""
        with storage_errors(target.path, "written"):
            pafs.copy_files(
                self.path, target.path, source_filesystem=self.fs, destination_filesystem=target.fs
            )

    def delete(self) -> None:
        with storage_errors(self.path, "deleted"):
            self.fs.delete_file(self.path)

    def delete_directory(self) -> None:
        with storage_errors(self.path, "deleted"):
            self.fs.delete_dir(self.path)

    def make_directory(self) -> None:
        """Make a directory and those above it, where they are not there."""
        with storage_errors(self.path, "made"):
            self.fs.create_dir(self.path, recursive=True)


def local_files() -> pafs.FileSystem:
    return pafs.LocalFileSystem()


def open_location(uri: str) -> Location:
    if is_local(uri):
        return Location(local_files(), uri.removeprefix("file://"), local=True)
    scheme, rest = uri.split("://", 1)
    if scheme in S3_SCHEMES:
        return Location(PROCESS_STORES.file_system(rest.split("/", 1)[0]), rest)
    return Location(*_remote(f"{_TO_PYARROW.get(scheme, scheme)}://{rest}"))


def parquet_files(uri: str) -> dict[str, pafs.FileInfo]:
    """Parquet files in a directory and those below it, by their path from it, but for those of the logs of tables."""
    files = open_location(uri).files()
    return {
        p: info for p, info in files.items() if p.endswith(".parquet") and "_delta_log" not in p.split("/")
    }


def _remote(uri: str) -> tuple[pafs.FileSystem, str]:
    fs_and_path: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(uri)
    return fs_and_path


def sync_uris(uris: Iterable[str], *, below: str) -> None:
    """Wait until files, and the names of the directories up to that of ``below``, are on the disk; local ones only."""
    if is_local(below):
        durability.sync_files([uri.removeprefix("file://") for uri in uris], below=str(local_path(below)))


PutFile = Callable[[str, pa.Buffer], None]
"""Writes the content of a file to a URI: ``put_file``, or what ``side_by_side`` gives."""


@dataclass(frozen=True)
class WrittenFile:
    """What is known of a file that was written.

    Attributes:
        footer: CRC-32 of its footer, see ``footer_of``; None where the format has none.
    """

    uri: str
    bytes: int
    footer: int | None = None


def write_parquet(
    table: pa.Table,
    uri: str | Callable[[int], str],
    *,
    row_group: int | None = None,
    short_lived: bool = False,
    put: PutFile | None = None,
) -> WrittenFile:
    """Write one Parquet file, making its directory; leaves nothing where that fails.

    Args:
        uri: where it goes; or a function that gives it for the checksum of the footer, to be in the name of the file.
        row_group: rows of a row group, for a file of which a reader wants a few; None for as many as Arrow takes.
        short_lived: whether it is read soon and then no more; on a disk, processor time counts for more than its size.
        put: see ``side_by_side``: it may be there later; None to write it at once.
    """
    quickly = short_lived and isinstance(uri, str) and is_local(uri)
    out = pa.BufferOutputStream()
    pq.write_table(
        table,
        out,
        compression="snappy" if quickly or table.num_rows <= _FEW_ROWS else "zstd",
        use_dictionary=_dictionary(table),
        write_page_checksum=True,
        row_group_size=row_group,
    )
    data = out.getvalue()
    footer = footer_of(data)
    uri = uri if isinstance(uri, str) else uri(footer)
    (put or put_file)(uri, data)
    return WrittenFile(uri, data.size, footer)


def footer_of(content: pa.Buffer) -> int:
    """CRC-32 of the footer of a Parquet file, its length and the mark at the end included."""
    return crc32(content.slice(max(content.size - footer_bytes(content), 0)))


def footer_bytes(content: pa.Buffer) -> int:
    """Length of the footer that the last eight bytes of a Parquet file give, these included."""
    end = content.slice(max(content.size - 8, 0)).to_pybytes()
    return int.from_bytes(end[:4], "little") + 8


def write_csv(table: pa.Table, uri: str, *, put: PutFile | None = None) -> WrittenFile:
    """Write one CSV file with a header line, see ``write_parquet``."""
    out = pa.BufferOutputStream()
    pacsv.write_csv(table, out)
    data = out.getvalue()
    (put or put_file)(uri, data)
    return WrittenFile(uri, data.size)


@contextmanager
def side_by_side() -> Iterator[PutFile]:
    """Gives a function that writes files to stores side by side; at the end of the block all of them are there.

    Files on a local disk are written at once, one after the other.
    """
    begun: list[Future[None]] = []
    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="statelake-write") as pool:

        def put(uri: str, data: pa.Buffer) -> None:
            if is_local(uri):
                put_file(uri, data)
            else:
                begun.append(pool.submit(put_file, uri, data))

        yield put
    for one in begun:
        one.result()


def put_file(uri: str, data: pa.Buffer) -> None:
    """Write the content of a file, making its directory; leaves nothing where that fails."""
    at = open_location(uri)
    if at.local:  # object stores have no directories
        at.above().make_directory()
    with _or_nothing(at):
        at.write(data)


@contextmanager
def _or_nothing(at: Location) -> Iterator[None]:
    """Delete the part of a file that was written before an error: on a full disk it would be in the way."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            if at.is_file():  # never a device
                at.delete()
        raise


def _dictionary(table: pa.Table) -> list[str]:
    """Columns worth a dictionary: only text, which repeats; numbers pay for it and gain little."""
    return [f.name for f in table.schema if pa.types.is_string(f.type) or pa.types.is_dictionary(f.type)]
