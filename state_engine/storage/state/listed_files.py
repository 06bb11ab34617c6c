"""Files of keyed state, as checkpoints list them (``ListedFile``), and the keys that a reader wants of them.

A file of changes is sorted by key group and key hash; per key and state it holds at most one clear, then puts and
deletes or one append. A file of a base holds the entries of one key group as of a checkpoint: the same rows without
``op``. The hash narrows what is decoded; the whole key decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import MissingFilesError
from state_engine.core.keys.key_arrays import key_groups_of
from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.storage.stores import kept_files
from state_engine.storage.stores.in_threads import in_threads
from state_engine.storage.stores.parquet_reading import OpenParquet, check_footer, open_parquet

if TYPE_CHECKING:
    from state_engine.storage.state.local_copies import LocalCopy

Hashes = np.ndarray[Any, Any]

_ROWS_A_KEY = 256
"""Where one of so many rows is wanted, a row group of 4,096 holds some: its statistics are not worth a look."""


@dataclass(frozen=True)
class KeyGroups:
    """Some of the key groups that there are.

    Example:
        >>> some = KeyGroups(8, (KeyGroupRange(0, 1), KeyGroupRange(7, 7)))
        >>> some.hold(np.array([8, 3, -1])).tolist()
        [True, False, True]
    """

    max_parallelism: int
    ranges: tuple[KeyGroupRange, ...]

    def hold(self, hashes: Hashes) -> Hashes:
        """Which keys are in these key groups, given their hashes."""
        inside = np.zeros(self.max_parallelism, bool)
        for groups in self.ranges:
            inside[groups.start : groups.end + 1] = True
        return cast(Hashes, inside[key_groups_of(hashes, self.max_parallelism)])

    def row_groups(self, file: OpenParquet, listed: ListedFile) -> list[int]:
        """The row groups of a file that may hold some of them; files of changes are sorted by key group."""
        if listed.max_parallelism != self.max_parallelism:
            return list(range(file.row_groups))
        parts = [file.sorted_row_groups("key_group", groups.start, groups.end) for groups in self.ranges]
        return sorted({number for part in parts for number in part})


@dataclass(frozen=True)
class KeyHashes:
    """Keys with one of some hashes; the hash only narrows.

    Attributes:
        given: the hashes, in any order; best in that of a file that has just these.

    Example:
        >>> KeyHashes(np.array([5, -1, 5])).hold(np.array([-1, 0, 5])).tolist()
        [True, False, True]
    """

    given: Hashes

    @cached_property
    def ordered(self) -> Hashes:
        """The hashes, smallest first, each once."""
        ordered = np.sort(self.given)  # a tenth of the time of numpy.unique, which makes a hash table
        once: Hashes = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
        return once

    @cached_property
    def _by_group(self) -> dict[int, Hashes]:
        """By the number of all key groups: how many were given of each."""
        return {}

    def _are_most_of(self, listed: ListedFile) -> bool:
        """Whether there are so many in each key group of a file that next to no row group is without one."""
        groups, last = listed.key_groups, listed.max_parallelism
        if groups is None or last is None:
            return False
        if last not in self._by_group:
            self._by_group[last] = np.bincount(key_groups_of(self.given, last), minlength=last)
        counts = self._by_group[last][groups.start : groups.end + 1]
        return bool(counts.min() * len(counts) * _ROWS_A_KEY >= listed.rows)

    def row_groups(self, file: OpenParquet, listed: ListedFile) -> list[int]:
        """The row groups of a file that may hold one of them, by the statistics of its footer.

        Files are sorted by hash, those of changes within a key group, which are as many as when they were written.
        """
        if self._are_most_of(listed):
            return list(range(file.row_groups))
        groups, last = file.limits("key_group"), listed.max_parallelism
        kept = []
        for number, hashes in enumerate(file.limits("key_hash")):
            if hashes is not None:
                start = np.searchsorted(self.ordered, hashes[0])
                within = self.ordered[start : np.searchsorted(self.ordered, hashes[1], side="right")]
                group = groups[number]
                if last is not None and group is not None:
                    of_hash = key_groups_of(within, last)
                    within = within[(of_hash >= group[0]) & (of_hash <= group[1])]
                if not len(within):
                    continue
            kept.append(number)
        return kept

    def hold(self, hashes: Hashes) -> Hashes:
        if not len(self.given):
            return np.zeros(len(hashes), bool)
        if np.array_equal(hashes, self.given):  # of a batch before with the same keys
            return np.ones(len(hashes), bool)
        at_or_after = np.searchsorted(self.ordered, hashes)
        at_or_after[at_or_after == len(self.ordered)] = 0
        equal: Hashes = self.ordered[at_or_after] == hashes
        return equal


@dataclass(frozen=True)
class ListedFile:
    """A file to read.

    Attributes:
        counts: the key groups for which it counts, where the others are in a base already; None for all inside.
        bytes, footer: size and checksum of the footer that its checkpoint recorded; None where it did not.
        max_parallelism: by which its key groups were numbered; None where that is not known.
        key_groups: in which its rows are; None where that is not known.
        copy: of its rows on this machine, where there may be one.
        kept: whether the process keeps it for the next micro-batch, if it is little.
    """

    uri: str
    rows: int
    counts: KeyGroups | None = None
    bytes: int | None = None
    footer: int | None = None
    of: str = ""
    max_parallelism: int | None = None
    key_groups: KeyGroupRange | None = None
    copy: LocalCopy | None = None
    kept: bool = False

    @classmethod
    def recorded(
        cls,
        uri: str,
        file: DataFile,
        *,
        of: str,
        counts: KeyGroups | None = None,
        max_parallelism: int | None = None,
    ) -> ListedFile:
        """A file at a place, as a checkpoint recorded it."""
        first, last = file.key_group_min, file.key_group_max
        groups = None if first is None or last is None else KeyGroupRange(first, last)
        return cls(uri, file.rows, counts, file.bytes, file.footer, of, max_parallelism, groups)


class SomeKeys(Protocol):
    """Keys that are asked for: ``KeyGroups``, ``KeyHashes`` or ``AllKeys``."""

    def hold(self, hashes: Hashes) -> Hashes:
        """Which keys are among them, given their hashes."""

    def row_groups(self, file: OpenParquet, listed: ListedFile) -> list[int]:
        """The row groups of a file that may hold some of them."""


class AllKeys:
    """All keys that there are.

    Example:
        >>> AllKeys().hold(np.array([8, 3])).tolist()
        [True, True]
    """

    def hold(self, hashes: Hashes) -> Hashes:
        return np.ones(len(hashes), bool)

    def row_groups(self, file: OpenParquet, listed: ListedFile) -> list[int]:
        return list(range(file.row_groups))


def open_state_file(listed: ListedFile, *, coded: Sequence[str] = ()) -> OpenParquet:
    """A file of a base or of changes, as its checkpoint recorded it.

    Args:
        coded: columns of few texts that are read as numbers into a dictionary, which is faster.
    """

    def opening() -> OpenParquet:
        return open_parquet(listed.uri, size=listed.bytes, footer=listed.footer, of=listed.of, coded=coded)

    with _missing(listed):
        file = kept_files.PROCESS_CACHE.opened(listed.uri, coded, opening) if listed.kept else opening()
    if file.metadata.num_rows != listed.rows:
        raise MissingFilesError(
            f"{listed.uri} has {counted(file.metadata.num_rows, 'row')}, its checkpoint recorded {listed.rows:,}: "
            "it was changed by something else. Restore an older checkpoint, or a savepoint into another root"
        )
    return file


def check_state_file(listed: ListedFile) -> None:
    """Check that a file is there, with the size and the footer, and so the rows, that its checkpoint recorded."""
    with _missing(listed):
        check_footer(listed.uri, size=listed.bytes, footer=listed.footer, of=listed.of)


@contextmanager
def _missing(listed: ListedFile) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise MissingFilesError(
            f"{listed.uri} is listed by a checkpoint and does not exist: somebody deleted it. "
            "Restore an older checkpoint, or a savepoint into another root"
        ) from None


def check_files(files: Sequence[ListedFile]) -> None:
    """Check, before Spark reads them, that files have the footers and rows that their checkpoints recorded."""
    for _ in in_threads(lambda f: open_state_file(f).close(), files):
        pass
