"""The files below a local directory, links followed; the walk goes round in no circle."""

from __future__ import annotations

import os
from collections.abc import Iterator
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


def files_below(path: str) -> Iterator[InputFile]:
    """The files below a local directory, in no order; hidden ones left out."""
    real = os.path.realpath(path)
    todo = [_Place(path, real, (real,))]
    while todo:
        files, below = _read(todo.pop())
        yield from files
        todo += below


def _read(place: _Place) -> tuple[list[InputFile], list[_Place]]:
    """The files in a directory, and the directories in it that are walked next."""
    files, below = list[InputFile](), list[_Place]()
    real_start = place.real.rstrip("/") + "/"
    with os.scandir(place.path) as entries:
        for entry in entries:
            if is_hidden(entry.name) and not gives_value(entry.name):
                continue
            is_link = entry.is_symlink()
            if is_link and not os.path.exists(entry.path):  # it leads nowhere, or to itself
                continue
            real = os.path.realpath(entry.path) if is_link else real_start + entry.name
            if entry.is_dir():
                if not is_link:
                    below.append(_Place(entry.path, real, place.via))
                elif not _is_walked(real, place):
                    below.append(_Place(entry.path, real, (*place.via, place.real)))
            elif entry.is_file() and not is_hidden(entry.name):
                try:
                    stat = entry.stat()
                except FileNotFoundError:  # it went meanwhile
                    continue
                linked = is_link or len(place.via) > 1
                uri, nameless = _uri(entry.path)
                size, changed_ms = stat.st_size, stat.st_mtime_ns // 1_000_000
                files.append(InputFile(uri, size, changed_ms, real, linked, nameless=nameless))
    return files, below


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
