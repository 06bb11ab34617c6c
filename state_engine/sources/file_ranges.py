"""``FileRange``: rows of one file that a slice holds; how pending files become slices, and slices files again."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow.fs as pafs

from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.core.incremental_fold import IncrementalFold
from state_engine.core.json_text import has_form, is_long
from state_engine.sources.base import Element, summary
from state_engine.sources.file_ends import digest_of
from state_engine.sources.listing import mtime_ms
from state_engine.sources.parquet.parquet_files import footer
from state_engine.storage.stores.files import join, open_location
from state_engine.storage.stores.in_threads import in_threads

OPENING_BYTES = 2**14
"""To open a file takes as long as to read so many bytes."""
SCHEMA = "#schema"
"""Ends the name of the element that holds a schema taken from a file."""


_FORM = {
    "size": int, "mtime_ms": is_long, "start": int, "end": (int, None), "digest?": str, "nameless?": bool,
}  # fmt: skip


@dataclass(frozen=True)
class FileRange:
    """Rows ``start`` to ``end`` (exclusive; None: to the end) of one file, of which ``digest`` is that of its ends.

    What an older version consumed has no digest: size and time alone decide whether such a file is the same.
    ``nameless`` is a file that cannot be opened by its URI, and so is never read.
    """

    uri: str
    size: int
    mtime_ms: int
    start: int
    end: int | None
    digest: str = ""
    nameless: bool = False

    def element(self) -> Element:
        position: dict[str, Any] = {
            "size": self.size,
            "mtime_ms": self.mtime_ms,
            "start": self.start,
            "end": self.end,
        }
        if self.digest:
            position["digest"] = self.digest
        if self.nameless:
            position["nameless"] = True
        return {"split": self.uri, "position": position}

    def unchanged(self) -> bool:
        if self.nameless:
            return True
        info = open_location(self.uri).info()
        return info.type == pafs.FileType.File and self.is_same(info.size, mtime_ms(info))

    def is_same(self, size: int, changed_ms: int) -> bool:
        """Whether a file of this name, of a size and a time of change, is what was consumed.

        The size must be. Where the time is another one, as of a file that was put back, the digest of the first and
        last bytes decides.
        """
        if size != self.size or changed_ms == self.mtime_ms:
            return size == self.size
        return bool(self.digest) and digest_of(self.uri, size, changed_ms) == self.digest


@dataclass(frozen=True)
class Piece:
    """A part of a file that one task reads.

    Attributes:
        place: of the file in the slice.
        start, end: rows, or bytes of text, the end exclusive; None: to the end.
        bytes: about how much there is to read.
    """

    place: int
    uri: str
    start: int
    end: int | None
    bytes: int

    @property
    def cost(self) -> int:
        """In bytes to read: many small files are spread, too."""
        return self.bytes + OPENING_BYTES


_Piece = TypeVar("_Piece", bound=Piece)


def in_tasks(pieces: Sequence[_Piece], count: int) -> list[list[_Piece]]:
    """Pieces by task: the largest first, each to the task that has least; in a task, in the order of the files.

    Args:
        count: of tasks; at least one piece goes to each.
    """
    tasks: list[list[_Piece]] = [[] for _ in range(min(max(count, 1), len(pieces)))]
    loads = [0] * len(tasks)
    for piece in sorted(pieces, key=lambda p: -p.bytes):
        least = loads.index(min(loads))
        tasks[least].append(piece)
        loads[least] += piece.cost
    return [sorted(task, key=lambda p: (p.place, p.start)) for task in tasks]


def recorded_ranges(elements: Sequence[Element]) -> list[FileRange]:
    """The ranges that checkpoints consumed, in order.

    Example:
        >>> at = {"size": 9, "mtime_ms": 1, "start": 0, "end": None}
        >>> recorded_ranges([{"split": "file:///a", "position": at}])
        [FileRange(uri='file:///a', size=9, mtime_ms=1, start=0, end=None, digest='', nameless=False)]
    """
    return [FileRange(e["split"], **e["position"]) for e in elements if not is_schema(e)]


def is_range(element: Element) -> bool:
    at = element["position"]
    return has_form(at, _FORM) and (at["end"] is None or at["start"] <= at["end"])


def is_schema(element: Element) -> bool:
    """Whether an element holds a schema; a file may have a name that ends as that does."""
    return element["split"].endswith(SCHEMA) and "size" not in element["position"]


def last_ranges(elements: Sequence[Element]) -> Mapping[str, FileRange]:
    return _LAST.of(elements)


def _with_ranges(last: Mapping[str, FileRange], elements: Sequence[Element]) -> Mapping[str, FileRange]:
    return {**last, **{one.uri: one for one in recorded_ranges(elements)}}


_LAST: IncrementalFold[Element, Mapping[str, FileRange]] = IncrementalFold(_with_ranges, {}, most=4)


def left_over(before: Sequence[Element], recorded: Sequence[Element]) -> list[FileRange]:
    """What was recorded and is not consumed yet, one range a file, in the order in which the files were begun."""
    consumed = {r.uri: r.end for r in recorded_ranges(before)}
    wanted: dict[str, FileRange] = {}
    for one in recorded_ranges(recorded):
        wanted[one.uri] = replace(wanted.get(one.uri, one), end=one.end)
    left = []
    for uri, one in wanted.items():
        start = consumed.get(uri, one.start)
        if start is not None and (one.end is None or start < one.end):
            left.append(replace(one, start=start))
    return left


def check_unchanged(ranges: Sequence[FileRange]) -> None:
    """Raises SourceError where a file to be read again is not what it was."""
    for one, is_fine in zip(ranges, in_threads(FileRange.unchanged, ranges), strict=True):
        if not is_fine:
            raise SourceError(
                f"{one.uri} changed or vanished after it was consumed, so it cannot be read again as it was: put the "
                "old file back, or replay from a checkpoint after it"
            )


def check_rows(ranges: Sequence[FileRange], form: str) -> None:
    """Raises SourceError where a range begins or ends at a row that its file does not have."""
    for one in ranges:
        at = one.start if one.end is None else one.end
        if not at:
            continue
        rows = footer(one).rows if form == "parquet" else 0
        if at > rows:
            has = (
                f"has {counted(rows, 'row')}" if form == "parquet" else f"is read whole with format='{form}'"
            )
            raise SourceError(
                f"{one.uri} was read up to row {at}, and {has}: the file or its format changed. Put back what it was, "
                "or restore a checkpoint from before it was read"
            )


def cut(pending: Sequence[FileRange], max_rows: int) -> list[FileRange]:
    """Ranges of at most ``max_rows`` rows in all; one that fits keeps its end, so a whole file is complete."""
    counts = [one.rows for one in in_threads(footer, pending)]
    ranges, left = [], max_rows
    for one, count in zip(pending, counts, strict=True):
        rows = (count if one.end is None else one.end) - one.start
        if left <= 0 and rows > 0:
            break
        if rows > left:
            ranges.append(replace(one, end=one.start + left))
            break
        ranges.append(one)
        left -= rows
    return ranges


def chosen(files: Sequence[FileRange], wanted: Sequence[object], directory: str) -> list[FileRange]:
    """The files that paths or shell patterns name, absolute or below a directory."""
    selected: dict[str, FileRange] = {}
    for one in wanted:
        if not isinstance(one, str | os.PathLike):
            raise ConfigurationError(f"name files by paths or patterns, or say 'all'; not {one!r}")
        text = os.fspath(one)
        absolute = (
            text if "://" in text else f"file://{text}"
        )  # a pattern is no location that could be opened
        pattern = absolute if "://" in text or text.startswith("/") else join(directory, text)
        named = {f.uri: f for f in files if f.uri == pattern or fnmatch.fnmatchcase(f.uri, pattern)}
        if not named:
            raise ConfigurationError(
                f"'{text}' names none of the {counted(len(files), 'file')} in {directory}: give 'all', or names or "
                "patterns of existing files"
            )
        selected |= named
    return [f for f in files if f.uri in selected]


def position_summary(elements: Sequence[Element]) -> str:
    files = {e["split"]: e["position"]["end"] for e in elements if not is_schema(e)}
    partial = {uri: end for uri, end in files.items() if end is not None}
    return summary(elements, files=len(files), **({"inside": partial} if partial else {}))
