"""Where a machine keeps local copies of files of bases, and how much room they take (``LocalCopies``).

    <directory>/<job>/<operator>/<copy>.blocks

The directory belongs to the user who runs subtasks, and nobody else may write to it. Where there is no room, copies go
that nobody has used for an hour, the longest unused first. What copies are is in ``local_copies``.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from state_engine.core.argument_checks import checked_class
from state_engine.core.errors import ConfigurationError

if TYPE_CHECKING:
    from state_engine.storage.layout import JobLayout

_LOG = logging.getLogger(__name__)

UNUSED_S = 3600
"""A copy that was used in the last hour makes no room for another one."""
SUFFIX = ".blocks"


@dataclass(frozen=True)
class CopyLimits:
    """Which files are copied, and when a copy is read.

    Attributes:
        least_rows: of a file with fewer rows all of them are read at once, which costs no more than a copy.
        largest_bytes: decoded size of the largest file that is copied.
        block_rows: of one block of a copy.
        least_blocks: where a file has fewer blocks for each key that is wanted, the file itself is read.
        left_free: bytes that copies leave free on the disk.
    """

    least_rows: int = 4096
    largest_bytes: int = 2**28
    block_rows: int = 128
    least_blocks: int = 2
    left_free: int = 2**30


@checked_class
@dataclass(frozen=True)
class LocalCopies:
    """Where a machine keeps local copies of files of bases.

    Attributes:
        directory: path on each machine; None for one in the user's cache.
        max_bytes: of all copies in it, more or less; 0 for no copies.
        limits: which files are copied.
    """

    directory: str | None = None
    max_bytes: int = 10 << 30
    limits: CopyLimits = CopyLimits()

    def __post_init__(self) -> None:
        if self.max_bytes < 0 or "\0" in (self.directory or ""):
            raise ConfigurationError(
                f"local_copies: directory must be a path, and max_bytes 0 or more, not {self.directory!r} and "
                f"{self.max_bytes}"
            )

    @property
    def place(self) -> Path:
        """The directory on this machine."""
        if self.directory:
            return Path(self.directory)
        return platformdirs.user_cache_path("statelake") / "local-copies"

    def of_job(self, layout: JobLayout) -> Path:
        """The directory of a job's copies."""
        return self.place / _digest(layout.directory)

    def of_operator(self, layout: JobLayout, uid: str) -> Path:
        """The directory of an operator's copies."""
        return self.of_job(layout) / _digest(layout.base(uid))

    def drop(self, layout: JobLayout) -> None:
        """Delete all copies of a job on this machine."""
        if self.place.is_dir() and self.is_usable():
            shutil.rmtree(self.of_job(layout), ignore_errors=True)

    def is_usable(self) -> bool:
        """Whether copies may be kept there: it is made where it is not; nobody else may write to it."""
        place = self.place
        try:
            if not place.is_absolute():
                return False  # the cache of a user without a home
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = place.lstat()
        except OSError as error:
            _LOG.info("no local copies are kept in %s: %s", place, error)
            return False
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022:
            return True
        _LOG.warning(
            "no local copies are kept in %s, which is a link, belongs to somebody else, or can be written by others: "
            "make it a directory of your own (chmod 700), or name another one (local_copies.directory)",
            place,
        )
        return False

    def make_room(self, size: int) -> int:
        """Free ``size`` bytes: delete copies that were unused for an hour, the longest first. Gives the free bytes."""
        stored = sorted(self._stored(), key=lambda one: one[1].st_mtime)
        used = sum(status.st_size for _, status in stored)
        limit = min(self.max_bytes, used + shutil.disk_usage(self.place).free - self.limits.left_free)
        for path, status in stored:
            if limit - used >= size or time.time() - status.st_mtime < UNUSED_S:
                break
            path.unlink(missing_ok=True)
            used -= status.st_size
        return max(limit - used, 0)

    def used_bytes(self) -> int:
        """Size of all copies in the directory, of all jobs."""
        return sum(status.st_size for _, status in self._stored())

    def _stored(self) -> Iterator[tuple[Path, os.stat_result]]:
        for copy in self.place.glob(f"*/*/*{SUFFIX}"):
            with suppress(FileNotFoundError):
                yield copy, copy.stat()


NO_COPIES = LocalCopies(max_bytes=0)


def _digest(uri: str) -> str:
    return sha256(uri.encode()).hexdigest()[:32]
