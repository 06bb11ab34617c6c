"""Which files a ``FileSource`` has before it: every real file once, without those that are still being written.

A link to a directory is followed unless it leads up. A file that is there under several names is read under one: that
under which it was consumed, else the one without links in its path, else the first in path order. Files whose names
hide them (``_``, ``.``) are passed over; names that say that a file is being copied (``._COPYING_`` of Hadoop,
``.tmp``, ``.part`` and their like) are marked. Plays the part of Flink's ``FileEnumerator`` with its
``DefaultFileFilter``.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

import pyarrow.fs as pafs

from state_engine.core.errors import SourceError
from state_engine.sources.local_listing import PREFIX, InputFile, files_below, gives_value, is_hidden
from state_engine.storage.stores.files import Location, is_local, open_location

COPYING = ("._copying_", ".tmp", ".part", ".partial", ".filepart", ".inprogress", ".crdownload")
"""Ends of names of files that are being copied, in small letters."""
_NO_URI = re.compile("[%?#]").search
"""Characters of names that mean something else in the URIs of object stores."""


class Looks:
    """Looks at the files of one source in one run."""

    def __init__(self) -> None:
        self._last: tuple[Collection[str] | None, list[InputFile]] = (None, [])

    def files(self, path: str, pattern: str, consumed: Collection[str]) -> list[InputFile]:
        self._last = consumed, list_files(path, pattern, consumed)
        return self._last[1]

    def again(self, path: str, pattern: str, consumed: Collection[str]) -> list[InputFile]:
        """The files of the last look, once, where it was at the same position: what waits is what a plan left."""
        (position, files), self._last = self._last, (None, [])
        return files if position is consumed else self.files(path, pattern, consumed)


def list_files(path: str, pattern: str, consumed: Collection[str] = ()) -> list[InputFile]:
    """All files of a source, in path order.

    Args:
        path: a directory, searched through, or one file.
        pattern: that names must match.
        consumed: URIs that were consumed: read under these names where there are several, whatever they look like.
    """
    at = open_location(path)
    info = at.info()
    if info.type == pafs.FileType.NotFound:
        if is_local(path):
            raise SourceError(f"{path} does not exist: check the path, or make the directory first")
        return []  # an object store has no empty directories
    prefix = PREFIX if is_local(path) else path.split("://")[0] + "://"
    listed, alone = [], info.type == pafs.FileType.File
    matches = re.compile(fnmatch.translate(pattern)).match
    for one in _infos(at, info, prefix):
        name = one.uri.rsplit("/", 1)[-1]
        copied = not alone and one.uri not in consumed and is_copied(name, pattern)
        if not (copied or matches(name)):
            continue
        listed.append(one._replace(copied=True) if copied else one)
    return _once(sorted(listed), consumed)


def is_copied(name: str, pattern: str) -> bool:
    """Whether a name says that its file is being copied; not where the pattern asks for just such names.

    Example:
        >>> [is_copied(name, "*") for name in ("a.parquet", "a.parquet._COPYING_", "b.tmp")]
        [False, True, True]
        >>> is_copied("b.part", "*.part")
        False
    """
    small = name.lower()
    if not small.endswith(COPYING):
        return False
    return not pattern.lower().endswith(tuple(end for end in COPYING if small.endswith(end)))


def mtime_ms(info: pafs.FileInfo) -> int:
    """When a file changed last."""
    return int((info.mtime_ns or 0) // 1_000_000)


def _infos(at: Location, info: pafs.FileInfo, prefix: str) -> Iterator[InputFile]:
    """Every file below a location; hidden ones left out.

    Args:
        prefix: what makes a URI of a path of the file system.
    """
    if info.type == pafs.FileType.File:
        yield InputFile(prefix + info.path, int(info.size), mtime_ms(info), info.path)
    elif prefix == PREFIX:
        yield from files_below(at.path)
    else:
        for one in at.listing(recursive=True):
            parts = PurePosixPath(one.path[len(at.path) :]).parts
            hidden = is_hidden(parts[-1]) or any(is_hidden(part) and not gives_value(part) for part in parts)
            if one.type == pafs.FileType.File and not hidden:
                uri = prefix + one.path
                yield InputFile(uri, int(one.size), mtime_ms(one), one.path, nameless=bool(_NO_URI(uri)))


def _once(files: list[InputFile], consumed: Collection[str]) -> list[InputFile]:
    """One name for each real file, in path order."""
    if len({one.real for one in files}) == len(files):
        return files
    best: dict[str, InputFile] = {}
    for one in sorted(files, key=lambda f: (f.uri not in consumed, f.linked, f.uri)):
        best.setdefault(one.real, one)
    return sorted(best.values())
