"""Deletion vectors: which rows of a data file do not count any more, as Delta's protocol stores them.

A vector holds positions of rows as a 64-bit Roaring bitmap. It stands inline in the log, as text of base 85, or in a
file of vectors beside the data. Delta's ``PROTOCOL.md``, "Deletion Vector Format", defines both.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4
from zlib import crc32

from pyroaring import BitMap64

from state_engine.core.errors import DamagedFileError
from state_engine.storage.delta.action_json import Action
from state_engine.storage.stores.files import join, open_location

MAGIC = 1681511377
"""What a serialized vector begins with, as 32 bits."""
_VERSION = b"\x01"
_CHARACTERS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_OF_PYTHON = _CHARACTERS + b"!#$%&()*+-;<=>?@^_`{|}~"
_OF_DELTA = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_DELTA, _TO_PYTHON = bytes.maketrans(_OF_PYTHON, _OF_DELTA), bytes.maketrans(_OF_DELTA, _OF_PYTHON)


def serialized(positions: BitMap64) -> bytes:
    """A vector in Delta's portable form.

    Example:
        >>> deserialized(serialized(BitMap64([1, 2**33]))) == BitMap64([1, 2**33])
        True
    """
    return MAGIC.to_bytes(4, "little") + bytes(positions.serialize())


def deserialized(stored: bytes) -> BitMap64:
    """What ``serialized`` made, or another writer of Delta; raises ValueError where it is something else."""
    if int.from_bytes(stored[:4], "little") != MAGIC:
        raise ValueError("it does not begin as a vector does")
    return BitMap64.deserialize(stored[4:])


def as_text(content: bytes) -> str:
    """Bytes as text of base 85, in the characters of ZeroMQ; padded with zeros to groups of four bytes.

    Example:
        >>> as_text(bytes.fromhex("864FD26FB559F75B"))
        'HelloWorld'
    """
    padded = content + bytes(-len(content) % 4)
    return base64.b85encode(padded).translate(_TO_DELTA).decode()


def from_text(text: str) -> bytes:
    return base64.b85decode(text.encode().translate(_TO_PYTHON))


def inline(positions: BitMap64) -> Action:
    """The descriptor of a vector that stands in the log."""
    stored = serialized(positions)
    return {
        "storageType": "i",
        "pathOrInlineDv": as_text(stored),
        "sizeInBytes": len(stored),
        "cardinality": len(positions),
    }


def written(table: str, vectors: Sequence[BitMap64]) -> tuple[list[Action], str]:
    """Write vectors to one new file of a table."""
    name = uuid4()
    content, descriptors = bytearray(_VERSION), []
    for positions in vectors:
        stored = serialized(positions)
        descriptors.append(
            {
                "storageType": "u",
                "pathOrInlineDv": as_text(name.bytes),
                "offset": len(content),
                "sizeInBytes": len(stored),
                "cardinality": len(positions),
            }
        )
        content += len(stored).to_bytes(4, "big") + stored + crc32(stored).to_bytes(4, "big")
    path = _file_name(name)
    open_location(join(table, path)).write(bytes(content))
    return descriptors, path


def read_vector(table: str, descriptor: Mapping[str, Any]) -> BitMap64:
    """The positions that a descriptor stands for.

    Raises:
        FileNotFoundError: its file is gone.
    """
    size, text = int(descriptor["sizeInBytes"]), str(descriptor["pathOrInlineDv"])
    if descriptor["storageType"] == "i":
        return _parsed(from_text(text)[:size], table)
    uri = _uri_of(table, str(descriptor["storageType"]), text)
    content = open_location(uri).read()
    start = int(descriptor.get("offset") or 1)
    stored = content[start + 4 : start + 4 + size]
    if content[start : start + 4] != size.to_bytes(4, "big"):
        raise _damaged(uri)
    if content[start + 4 + size : start + 8 + size] != crc32(stored).to_bytes(4, "big"):
        raise _damaged(uri)
    return _parsed(stored, uri)


def showing_only(table: str, hidden: Action | None, *, but: Action | None, of: int) -> Action | None:
    """A vector that shows only the rows which ``hidden`` hides and ``but`` does not.

    Args:
        hidden, but: as in an ``add`` of the table; None hides nothing.

    Returns:
        As in an ``add``; None where there is no such row.
    """
    if hidden is None:
        return None
    shown = read_vector(table, hidden) - (read_vector(table, but) if but else BitMap64())
    return inline(BitMap64(range(of)) - shown) if shown else None


def _uri_of(table: str, storage: str, text: str) -> str:
    if storage == "p":
        return text if "://" in text else f"file://{text.removeprefix('file:')}"
    directory, encoded = text[:-20], text[-20:]
    name = _file_name(UUID(bytes=from_text(encoded)))
    return join(table, directory, name) if directory else join(table, name)


def _file_name(name: UUID) -> str:
    return f"deletion_vector_{name}.bin"


def _parsed(stored: bytes, uri: str) -> BitMap64:
    try:
        return deserialized(stored)
    except ValueError as error:
        raise _damaged(uri) from error


def _damaged(uri: str) -> DamagedFileError:
    return DamagedFileError(
        f"{uri}: a deletion vector is damaged, so which rows count is not known; nothing was written. Put the file "
        "back from a backup, or rebuild the table with `statelake rebuild-table`"
    )
