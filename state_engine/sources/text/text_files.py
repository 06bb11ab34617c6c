"""The text of files, in chunks: unpacked as their names say, and decoded by the encoding of the options.

Bytes that are no UTF-8 go through as they are, so that the row that holds them is refused and no other; with another
encoding they are an error of the file. Plays the part of Hadoop's ``LineRecordReader`` with its codecs.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, cast

import pyarrow as pa

from state_engine.core.errors import BadFileError, StorageError
from state_engine.spark.placement import USUAL
from state_engine.storage.stores.files import open_location

PACKED = (".gz", ".bz2", ".deflate", ".zst")
"""Ends of the names of files that are unpacked."""
_UNREAD = (".lz4", ".snappy", ".xz", ".zip", ".7z", ".lzo")
_BOM = "\ufeff"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_UNPACK = "pack it with gzip (.gz) or zstd (.zst)"
_NO_TEXT = {
    b"\x1f\x8b": "a file of gzip does: end its name with .gz",
    b"BZh91AY&SY": "a file of bzip2 does: end its name with .bz2",
    b"\x28\xb5\x2f\xfd": "a file of zstd does: end its name with .zst",
    b"\xfd7zXZ\0": f"a file of xz does: {_UNPACK}",
    b"\x04\x22\x4d\x18": f"a file of lz4 does: {_UNPACK}",
    b"PK\x03\x04": "a ZIP archive or a workbook of a spreadsheet does: unpack it, or save it as CSV",
    b"PAR1\x15": "a Parquet file does: set format='parquet'",
    b"Obj\x01": "an Avro file does: write it as Parquet, CSV or JSON",
}
"""How files begin that are no text, and what they are."""


def is_packed(uri: str) -> bool:
    """Whether a file is unpacked before it is read."""
    return uri.endswith(PACKED)


def text_chunks(
    uri: str, encoding: str, *, start: int = 0, end: int | None = None, at_once: int = USUAL.chunk_bytes
) -> Iterator[str]:
    """The text of a file, or of its lines that begin within a range of bytes.

    Args:
        start, end: bytes, of a file that is not packed and whose lines end with the byte of a line end.
        at_once: how many bytes are read at a time.
    """
    decode = codecs.getincrementaldecoder(encoding)(
        errors="surrogateescape" if encoding == "utf-8" else "strict"
    )
    with _damage(uri), _opened(uri) as stream:
        chunks = iter(partial(stream.read, at_once), b"")
        content = chunks if start == 0 and end is None else _lines_of(stream, start, end, at_once)
        first = start == 0
        for chunk in content:
            if first:
                _check_is_text(uri, chunk, encoding)
            text = decode.decode(chunk)
            yield text.removeprefix(_BOM) if first else text
            first = first and not text
        yield decode.decode(b"", final=True)


def _check_is_text(uri: str, begins: bytes, encoding: str) -> None:
    """Refuse a file that begins as one of another form, which would come as rows that nobody wrote."""
    if encoding == "utf-8" and begins.startswith(_UTF16):
        raise BadFileError(f"{uri}: it begins as UTF-16 does: set the option encoding to UTF-16", uri)
    what = next((text for start, text in _NO_TEXT.items() if begins.startswith(start)), None)
    if what is not None:
        raise BadFileError(f"{uri}: it begins as {what}", uri)


@contextmanager
def _damage(uri: str) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise BadFileError(
            f"{uri}: byte {error.start} of a part of it is not {error.encoding}: set the option encoding", uri
        ) from error
    except (EOFError, zlib.error, OSError) as error:
        if not is_packed(uri) or getattr(error, "errno", None) is not None or isinstance(error, StorageError):
            raise
        raise BadFileError(f"{uri}: it cannot be unpacked, as its name says it can: {error}", uri) from error


@contextmanager
def _opened(uri: str) -> Iterator[IO[bytes]]:
    if uri.endswith(_UNREAD):
        end = uri.rsplit(".", 1)[-1]
        raise BadFileError(
            f"{uri}: files that are packed as .{end} cannot be read: {_UNPACK}",
            uri,
        )
    with open_location(uri).opened() as file:
        if uri.endswith(".gz"):
            yield cast("IO[bytes]", gzip.GzipFile(fileobj=file))
        elif uri.endswith(".bz2"):
            yield cast("IO[bytes]", bz2.BZ2File(file))
        elif uri.endswith(".zst"):
            yield pa.CompressedInputStream(file, "zstd")
        elif uri.endswith(".deflate"):
            yield cast("IO[bytes]", _Inflated(file))
        else:
            yield file


class _Inflated:
    """Bytes that zlib has packed, in one stream or several; EOFError where one does not end."""

    def __init__(self, file: Any) -> None:
        self._file, self._zlib = file, zlib.decompressobj()

    def read(self, size: int) -> bytes:
        """Some bytes; none at the end."""
        while packed := self._zlib.unused_data or self._file.read(size):
            if self._zlib.eof:
                self._zlib = zlib.decompressobj()
            if plain := self._zlib.decompress(packed):
                return plain
        if not self._zlib.eof:
            raise EOFError("it ends before the end of its stream")
        return b""


def _lines_of(stream: IO[bytes], start: int, end: int | None, at_once: int) -> Iterator[bytes]:
    """The lines that begin from ``start`` on and before ``end``."""
    at, begun = max(start - 1, 0), start == 0
    stream.seek(at)
    while chunk := stream.read(at_once):
        first = 0 if begun else chunk.find(b"\n") + 1
        begun = begun or first > 0
        last = -1 if end is None else chunk.find(b"\n", max(end - 1 - at, 0))
        if begun and last >= 0:
            yield chunk[first : last + 1]
            return
        if begun:
            yield chunk[first:]
        at += len(chunk)
