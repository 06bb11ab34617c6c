"""``write_id``: the name of an attempt to write, what it holds, and the names of files that carry it.

A ``write_id`` is a version 7 UUID as 32 hexadecimal digits, so it orders by time and says when its attempt began, by
the clock of the storage: how old an attempt is does not depend on the clocks of runners. Names of files hold it, and in
sinks, where other jobs may write too, a mark of the owner beside it: so an orphan shows whose it is. Plays the part of
the checkpoint id in Flink's file names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b

MAX_ATTEMPT_AGE_MS = 12 * 60 * 60 * 1000
"""An attempt that began longer ago commits nothing: what it wrote may have been taken for orphans."""

LATE_ATTEMPT_AGE_MS = MAX_ATTEMPT_AGE_MS // 12
"""An attempt that began longer ago is late: before it commits it looks at every file that its row lists."""

MIN_ORPHAN_AGE_MS = 2 * MAX_ATTEMPT_AGE_MS
"""What no row lists and is younger may be of an attempt that is still at work."""

_UUID_7 = re.compile(r"(?<![0-9a-f])[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}(?![0-9a-f])")
_IN_A_SINK = re.compile(r"part-\d{5,}-([0-9a-f]{32})-([0-9a-f]{8})-\d+\.(?:parquet|csv)")


def write_id_in(name: str) -> str | None:
    """The one ``write_id`` that the name of a file holds; None where there is none, or more than one.

    Example:
        >>> write_id_in("part-00000-0196f3c0a1b2_no-0.parquet") is None
        True
        >>> write_id_in("part-00000-0196f3c0a1b27c3d8e4f5a6b7c8d9e0f-0.counter.parquet")
        '0196f3c0a1b27c3d8e4f5a6b7c8d9e0f'
    """
    ids = set(_UUID_7.findall(name))
    return ids.pop() if len(ids) == 1 else None


def written_at_ms(write_id: str) -> int | None:
    """When an attempt began, in milliseconds since 1970; None for a text that is no ``write_id``.

    Example:
        >>> written_at_ms("0196f3c0a1b27c3d8e4f5a6b7c8d9e0f")
        1747846209970
    """
    return int(write_id[:12], 16) if _UUID_7.fullmatch(write_id) else None


@dataclass(frozen=True)
class WriteAttempt:
    """An attempt to commit a row, and to write the files that it lists.

    Attributes:
        created_at: when it began, by the clock of the storage.
    """

    write_id: str
    created_at: datetime


def write_id_at(began_ms: int, randomness: int) -> str:
    """The name of an attempt.

    Args:
        began_ms: milliseconds since 1970, by the clock of the storage.
        randomness: of a random UUID: bits 0 to 61 and 64 to 75 are used.

    Example:
        >>> written_at_ms(write_id_at(1747846209970, 0x1234))
        1747846209970
    """
    low, high = randomness & (1 << 62) - 1, randomness >> 64 & 0xFFF
    return f"{began_ms << 80 | 7 << 76 | high << 64 | 2 << 62 | low:032x}"


def owner_mark(app: str) -> str:
    """The mark, eight hexadecimal digits, of one sink of one job in the names of its files.

    Args:
        app: application id of its transactions, ``<root id>/<job>/<sink>``.

    Example:
        >>> owner_mark("0123/delays/out")
        '8c5d2e2f'
    """
    return blake2b(app.encode(), digest_size=4).hexdigest()


def owner_in(name: str) -> str | None:
    """The mark in the name of a file that was staged for a sink; None for any other file.

    Example:
        >>> owner_in("part-00000-0196f3c0a1b27c3d8e4f5a6b7c8d9e0f-1a2b3c4d-17.parquet")
        '1a2b3c4d'
        >>> owner_in("part-00000-0196f3c0-a1b2-7c3d-8e4f-5a6b7c8d9e0f-c000.snappy.parquet") is None
        True
    """
    match = _IN_A_SINK.fullmatch(name)
    return match[2] if match and write_id_in(name) else None
