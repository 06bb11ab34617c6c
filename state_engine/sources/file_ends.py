"""What the first and last bytes of a file show: whether it is the same as another, and whether a Parquet file is whole.

A file is looked at when it is consumed, and later only where its time changed and its size did not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

from state_engine.storage.stores.files import open_location

ENDS_BYTES = 64 * 1024
"""How much of either end the digest is of."""
_KEPT = 64
"""Files whose ends are kept, because a footer is read from them next: 12 MiB at most."""
_MAGIC = (b"PAR1", b"PARE")
"""What a Parquet file ends with, once its footer is written; the second of an encrypted one."""


@dataclass(frozen=True)
class FileEnds:
    """Both ends of a file.

    Attributes:
        digest: of its first and last 64 KiB, as hexadecimal text.
        foreign: whether it begins as no Parquet file does, not even one that is being copied into space kept for it.
    """

    digest: str
    parquet_footer: bool
    foreign: bool


@lru_cache(maxsize=20_000)
def file_ends(uri: str, size: int, mtime_ms: int) -> FileEnds:
    """Look at a file; once for its size and time of change."""
    first, last = bytes_of_ends(uri, size, mtime_ms)
    digest = hashlib.sha256(first if last is first else first[:ENDS_BYTES] + last)
    begins = first[:4]
    foreign = any(begins) and not any(magic.startswith(begins) for magic in _MAGIC)
    return FileEnds(digest.hexdigest()[:32], size >= 12 and last[-4:] in _MAGIC, foreign)


@lru_cache(maxsize=_KEPT)
def bytes_of_ends(uri: str, size: int, mtime_ms: int) -> tuple[bytes, bytes]:
    """The first and the last bytes of a file; twice the whole of a file of at most 128 KiB. Raises OSError."""
    with open_location(uri).opened() as file:
        first = file.read_at(min(size, 2 * ENDS_BYTES), 0)
        return first, first if size <= 2 * ENDS_BYTES else file.read_at(ENDS_BYTES, size - ENDS_BYTES)


def digest_of(uri: str, size: int, mtime_ms: int) -> str:
    """The digest of a file's ends; empty where it cannot be read."""
    try:
        return file_ends(uri, size, mtime_ms).digest
    except OSError:
        return ""
