"""The files below a local directory; within one run, a directory that did not change is not read again.

A run looks for new files before every micro-batch, and for files that wait after the last one. A look takes from the
memory of the run what a directory held, where its time of change is the same, and only files that are not consumed are
asked for their sizes and times again. Each run begins with a whole look: it sees
consumed files that changed in place, and where a file system does not keep times of directories, a file comes one run
later at most.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

PREFIX = "file://"


class InputFile(NamedTuple):
    """A file in a source's directory. A directory may hold very many: nothing is made that sorts and copies slowly.

    Attributes:
        real: what the file really is; files of one are the same.
        copied: whether its name says that it is being copied.
        nameless: whether it cannot be opened by its URI, for its path holds what no URI of ours can hold.
    """

    uri: str
    size: int
    mtime_ms: int
    real: str = ""
    linked: bool = False
    copied: bool = False
    nameless: bool = False


class _Place(NamedTuple):
    """A directory, and how the walk came to it.

    Attributes:
        via: the real paths of where the walk began, and of the directories whose links led here.
    """

    path: str
    real: str
    via: tuple[str, ...]


@dataclass
class _Directory:
    """What a directory holds; ``has_links`` where what it holds may change without it."""

    files: list[InputFile]
    below: list[_Place]
    has_links: bool = False


_Stamp = tuple[int, int, int]


@dataclass
class Memory:
    """Directories as they were read.

    Attributes:
        settled_ns: a directory that changed less than this before it was read may change again without another time:
            FAT counts by two seconds, and a kernel by its ticks.
    """

    settled_ns: int = 2_000_000_000
    directories: dict[_Place, tuple[_Stamp, _Directory]] = field(default_factory=dict)


def files_below(path: str, consumed: Collection[str], memory: Memory) -> Iterator[InputFile]:
    """The files below a local directory, in no order; hidden ones left out.

    Args:
        consumed: URIs of files whose sizes and times may come from memory.
        memory: gets the directories that are read.
    """
    real = os.path.realpath(path)
    todo = [_Place(path, real, (real,))]
    while todo:
        place = todo.pop()
        directory, is_new = _remembered(memory, place)
        yield from directory.files if is_new else _looked_at_again(directory.files, consumed)
        todo += directory.below


def _remembered(memory: Memory, place: _Place) -> tuple[_Directory, bool]:
    """What a directory holds, and whether it was read for this."""
    stat = os.stat(place.path)  # before it is read: a change meanwhile gives it another stamp
    stamp = (stat.st_dev, stat.st_ino, stat.st_ctime_ns)
    known = memory.directories.get(place)
    if known is not None and known[0] == stamp:
        return known[1], False
    settled = time.time_ns() - stat.st_ctime_ns > memory.settled_ns
    directory = _read(place)
    if settled and not directory.has_links:
        memory.directories[place] = (stamp, directory)
    return directory, True


def _looked_at_again(files: list[InputFile], consumed: Collection[str]) -> Iterator[InputFile]:
    """What is remembered of a directory's files; those that are not consumed get the sizes and times of now."""
    for place, one in enumerate(files):
        if one.uri not in consumed:
            try:
                stat = os.stat(one.real)
            except FileNotFoundError:
                continue
            files[place] = one._replace(size=stat.st_size, mtime_ms=_mtime_ms(stat))
        yield files[place]


def _read(place: _Place) -> _Directory:
    files: list[InputFile] = []
    directory = _Directory(files, [])
    real_start = place.real.rstrip("/") + "/"
    with os.scandir(place.path) as entries:
        for entry in entries:
            if is_hidden(entry.name) and not gives_value(entry.name):
                continue
            is_link = entry.is_symlink()
            directory.has_links |= is_link
            if is_link and not os.path.exists(entry.path):  # it leads nowhere, or to itself
                continue
            real = os.path.realpath(entry.path) if is_link else real_start + entry.name
            if entry.is_dir():
                if not is_link:
                    directory.below.append(_Place(entry.path, real, place.via))
                elif not _is_walked(real, place):
                    directory.below.append(_Place(entry.path, real, (*place.via, place.real)))
            elif entry.is_file() and not is_hidden(entry.name):
                stat = entry.stat()
                linked = is_link or len(place.via) > 1
                uri, nameless = _uri(entry.path)
                size, changed_ms = stat.st_size, _mtime_ms(stat)
                files.append(InputFile(uri, size, changed_ms, real, linked, nameless=nameless))
    return directory


def _uri(path: str) -> tuple[str, bool]:
    """The URI of a file, and whether it shows bytes of the path that are no UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return PREFIX + os.fsencode(path).decode(errors="backslashreplace"), True
    return PREFIX + path, False


def is_hidden(name: str) -> bool:
    """Whether a name hides its file or directory."""
    return name.startswith(("_", "."))


def gives_value(name: str) -> bool:
    """Whether a directory is that of a column's value, such as ``_day=1``: then its name does not hide it."""
    return name.startswith("_") and "=" in name


def _mtime_ms(stat: os.stat_result) -> int:
    return stat.st_mtime_ns // 1_000_000


def _is_walked(real: str, place: _Place) -> bool:
    """Whether a link in a place leads up, or to where the walk comes without it."""
    if any(_inside(one, real) is not None for one in (*place.via, place.real)):
        return True
    below = _inside(real, place.via[0])
    return below is not None and not any(
        is_hidden(part) and not gives_value(part) for part in PurePosixPath(below).parts
    )


def _inside(path: str, directory: str) -> str | None:
    start = directory.rstrip("/") + "/"
    return path[len(start) :] if (path + "/").startswith(start) else None
