"""What the first and last bytes of a file show: whether it is the same as another, and whether a Parquet file is whole.

A file is looked at when it is consumed, and later only where its time changed and its size did not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

from state_engine.storage.files import open_location

ENDS_BYTES = 64 * 1024
"""How much of either end the digest is of."""
_MAGIC = (b"PAR1", b"PARE")
"""What a Parquet file ends with, once its footer is written; the second of an encrypted one."""


@dataclass(frozen=True)
class FileEnds:
    """Both ends of a file.

    Attributes:
        digest: of its first and last 64 KiB, as hexadecimal text.
        parquet_footer: whether it ends as a Parquet file does.
    """

    digest: str
    parquet_footer: bool


@lru_cache(maxsize=20_000)
def file_ends(uri: str, size: int, mtime_ms: int) -> FileEnds:
    """Look at a file; once for its size and time of change.

    Raises:
        OSError: it cannot be read, or is shorter than its size.
    """
    at = open_location(uri)
    with at.opened() as file:
        first = file.read_at(min(size, 2 * ENDS_BYTES), 0)
        last = first if size <= 2 * ENDS_BYTES else file.read_at(ENDS_BYTES, size - ENDS_BYTES)
    digest = hashlib.sha256(first if last is first else first[:ENDS_BYTES] + last)
    return FileEnds(digest.hexdigest()[:32], size >= 12 and last[-4:] in _MAGIC)


def digest_of(uri: str, size: int, mtime_ms: int) -> str:
    """The digest of a file's ends; empty where it cannot be read."""
    try:
        return file_ends(uri, size, mtime_ms).digest
    except OSError:
        return ""
