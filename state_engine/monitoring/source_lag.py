"""``SourceLag``: how much a source has that no checkpoint read, in files, rows, bytes and time; without Spark or Java.

Looked at only where a source has new data. A number that only Spark could tell is None, never a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from state_engine.core.errors import BadFileError
from state_engine.sources.base import Element, Source
from state_engine.sources.changes.decoded_source import DecodedSource
from state_engine.sources.collection import CollectionSource
from state_engine.sources.delta import DeltaSource
from state_engine.sources.delta_position import location_in, positions_in
from state_engine.sources.file import FileSource
from state_engine.sources.file_ranges import FileRange
from state_engine.sources.parquet.parquet_files import footer
from state_engine.storage.delta.action_json import recorded_rows
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.stores.in_threads import in_threads

MOST_FILES, MOST_COMMITS = 100, 1_000


@dataclass(frozen=True)
class SourceLag:
    """What a source has that no checkpoint read; None where a look without Spark does not show it.

    Attributes:
        files: that are not read to their ends.
        bytes: size of these files.
        seconds: for how long the first of it waits.
    """

    files: int | None = None
    rows: int | None = None
    bytes: int | None = None
    seconds: float | None = None


def source_lag(
    source: Source,
    elements: Sequence[Element],
    *,
    now_ms: int,
    most_files: int = MOST_FILES,
    most_commits: int = MOST_COMMITS,
) -> SourceLag:
    """The unread data of a source after a position.

    Args:
        most_files: whose rows are counted, each by its footer; of more, the rows are not known.
        most_commits: of a Delta log that are read; of more, only the age of the first is known.
    """
    if isinstance(source, DecodedSource):
        return source_lag(
            source.source, elements, now_ms=now_ms, most_files=most_files, most_commits=most_commits
        )
    if isinstance(source, CollectionSource):
        return SourceLag(rows=source.unread(elements))
    if isinstance(source, FileSource):
        unread = source.unread(elements)
        rows = _rows(unread) if source.format == "parquet" and len(unread) <= most_files else None
        size = sum(one.size for one in unread)
        return SourceLag(len(unread), rows, size, _seconds([one.mtime_ms for one in unread], now_ms))
    if isinstance(source, DeltaSource):
        return _lag_of_table(source, elements, now_ms=now_ms, most_commits=most_commits)
    return SourceLag()


def _rows(ranges: Sequence[FileRange]) -> int | None:
    try:
        return sum(one.rows for one in in_threads(footer, ranges)) - sum(one.start for one in ranges)
    except (BadFileError, OSError):
        return None


def _seconds(times_ms: Sequence[int], now_ms: int) -> float | None:
    return max(0.0, (now_ms - min(times_ms)) / 1000) if times_ms else None


def _lag_of_table(
    source: DeltaSource, elements: Sequence[Element], *, now_ms: int, most_commits: int
) -> SourceLag:
    at, known = source.path or location_in(elements), positions_in(elements)
    log = DeltaLog(at) if at else None
    if log is None or not known or (known[-1].snapshot and known[-1].files is not None):
        return SourceLag()  # of a snapshot, the log does not tell which files are left
    last = known[-1]
    first = last.version + (last.files is None)
    versions = range(first, max(log.versions, default=-1) + 1)
    try:
        commits = list(in_threads(log.commit, versions[: most_commits + 1]))
    except FileNotFoundError:
        return SourceLag()
    times_ms = [one.committed_ms for one in commits if one.changes_data and one.committed_ms is not None]
    seconds = _seconds(times_ms[:1], now_ms)
    if len(versions) > most_commits or source.changes:  # what a change feed gives are other files
        return SourceLag(seconds=seconds)
    added = [one.data_added for one in commits if not one.removes_data]
    files = list(chain.from_iterable(added))[last.files or 0 :]
    rows = [recorded_rows(one) for one in files]
    counted = [one for one in rows if one is not None]
    return SourceLag(
        len(files),
        sum(counted) if len(counted) == len(rows) else None,
        sum(int(one["size"]) for one in files),
        seconds,
    )
