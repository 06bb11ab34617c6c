"""Local copies of files of bases: of a large file a micro-batch wants a few rows, and a copy gives them undecoded.

A file of a base never changes, and its name is used once. So a subtask that wants a few of its rows writes them, sorted
and in blocks, into a directory of its machine, and from then on finds the touched keys, and the timers that are due, by
binary search. A copy is a cache: whoever cannot have one, or finds it damaged, reads the file itself, and before a copy
is used the file is looked at as ever, so one that is gone or was changed is an error as it was. Plays the part of
Flink's local recovery, and of the local files of its RocksDB backend.

A copy goes when no checkpoint that a micro-batch continues names its file, when keys are erased, when files of the job
are deleted, and, the longest unused first, when there is no room.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from state_engine.core.keys.key_arrays import key_groups_of
from state_engine.core.time.timers import EVENT, PROCESSING
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.copy_directory import SUFFIX, UNUSED_S, LocalCopies
from state_engine.storage.state.listed_files import (
    Hashes,
    KeyHashes,
    ListedFile,
    check_state_file,
    open_state_file,
)
from state_engine.storage.state.located_files import StateFile
from state_engine.storage.state.sorted_blocks import (
    BlockFile,
    SortedRun,
    UnreadableBlocksError,
    write_blocks,
)
from state_engine.storage.state.timer_columns import TIMERS_COLUMN, TimerColumns

_LOG = logging.getLogger(__name__)

_NOTED_S = 600
"""When a copy was used is noted every ten minutes."""
_ROWS = "rows"

Content = Callable[[], dict[str, SortedRun] | None]


class OperatorCopies:
    """The copies of one operator, for one subtask in one micro-batch."""

    def __init__(
        self,
        copies: LocalCopies,
        layout: JobLayout,
        uid: str,
        files: Sequence[StateFile],
        max_parallelism: int,
    ) -> None:
        self._copies, self._files, self.max_parallelism = copies, files, max_parallelism
        self.limits = copies.limits
        self._directory = copies.of_operator(layout, uid)
        # whoever reads a base first, without changes after it, cannot know whether it is read a second time
        self._copying = (
            copies.max_bytes > 0 and any(map(self._may_have, files)) and not all(f.is_base for f in files)
        )
        self._room: int | None = None

    def attached(self, files: Sequence[StateFile]) -> list[StateFile]:
        """Files with the copies that they have, or may be given; copies of files that the path does not list go."""
        if not (self._copying or self._directory.is_dir()) or not self._copies.is_usable():
            return list(files)
        self._tidy()
        return [self._with_copy(file) if self._copying and self._may_have(file) else file for file in files]

    def _may_have(self, file: StateFile) -> bool:
        """Whether a file is worth a copy: a large one of a base, of which it is recorded what it must be."""
        listed = file.listed
        large = listed.rows >= self.limits.least_rows
        return file.is_base and large and None not in (listed.footer, listed.bytes)

    def _with_copy(self, file: StateFile) -> StateFile:
        return replace(file, listed=replace(file.listed, copy=LocalCopy(file, self)))

    def _tidy(self) -> None:
        """Delete the copies of files that the path does not list, and what writers that died left behind."""
        with suppress(OSError):
            listed = {_name_of(f) for f in self._files if self._copies.max_bytes and self._may_have(f)}
            for name in set(os.listdir(self._directory)) - listed:
                path = self._directory / name
                if name.endswith(SUFFIX) or time.time() - path.stat().st_mtime > UNUSED_S:
                    path.unlink()

    def open(self, name: str, of: str, content: Content) -> BlockFile | None:
        """A copy, made where there is none; None where there is none to be had.

        Args:
            content: reads what goes into it; None where it is not to be copied.
        """
        path = self._directory / name
        with suppress(OSError, UnreadableBlocksError):
            copy = BlockFile(path, of=of)
            _note_use(path)
            return copy
        if self._room == 0:
            return None
        runs = content()
        if runs is None:
            return None
        try:
            return self._made(path, of, runs)
        except (OSError, pa.ArrowException, UnreadableBlocksError) as error:
            self._room = 0
            _LOG.info("no local copy in %s: %s", path.parent, error)
            return None

    def _made(self, path: Path, of: str, runs: dict[str, SortedRun]) -> BlockFile | None:
        size = sum(run.rows.nbytes for run in runs.values())
        if self._room is None or self._room < size:
            self._room = self._copies.make_room(size)
        if self._room < size:
            self._room = 0
            return None
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._room -= write_blocks(runs, path, of=of, rows=self.limits.block_rows)
        return BlockFile(path, of=of)

    def drop(self, name: str) -> None:
        with suppress(OSError):
            (self._directory / name).unlink()


class LocalCopy:
    """The copy of one file of a base, which is made when rows are asked for that are worth it."""

    def __init__(self, file: StateFile, copies: OperatorCopies) -> None:
        self._file, self._copies, self._name = file, copies, _name_of(file)
        self._blocks: BlockFile | None = None
        self._asked = False

    def rows(self, wanted: KeyHashes) -> pa.Table | None:
        """Rows that hold all those of some keys, and others; None where the file itself is to be read."""
        hashes = wanted.ordered
        hashes = hashes[key_groups_of(hashes, self._copies.max_parallelism) == self._file.key_group_min]
        limits = self._copies.limits
        if len(hashes) * limits.block_rows * limits.least_blocks > self._file.listed.rows:
            return None
        return self._read(lambda blocks: blocks.with_any(_ROWS, hashes))

    def is_there(self) -> bool:
        """Whether there is a copy by now; raises what ``rows`` does."""
        return self._opened() is not None

    def first_times(self, domain: str) -> Hashes:
        """The first time of each block of a domain's timers; none where there is no copy."""
        blocks = self._opened()
        return _NONE if blocks is None or domain not in blocks.runs else blocks.firsts(domain)

    def timers(self, domain: str, first: int, last: int) -> TimerColumns:
        """Timers of a domain, with all those from a first to a last time among them; see ``rows``."""
        table = self._read(
            lambda b: b.between(domain, first, last) if domain in b.runs else _TIMERS.empty_table()
        )
        if table is None:
            return _timers_in(open_state_file(self._file.listed).read())
        times = table["time"].to_numpy()
        return TimerColumns(table["key_hash"].to_numpy(), times, np.full(len(times), domain == EVENT))

    def _read(self, read: Callable[[BlockFile], pa.Table]) -> pa.Table | None:
        blocks = self._opened()
        if blocks is None:
            return None
        try:
            return read(blocks)
        except UnreadableBlocksError as error:
            _LOG.warning("a local copy is damaged, its file is read instead: %s", error)
            self._copies.drop(self._name)
        except OSError as error:
            _LOG.info("a local copy cannot be read: %s", error)
        self._blocks = None
        return None

    def _opened(self) -> BlockFile | None:
        if not self._asked:
            check_state_file(self._file.listed)
            self._blocks = self._copies.open(self._name, _identity(self._file.listed), self._content)
            self._asked = True
        return self._blocks

    def _content(self) -> dict[str, SortedRun] | None:
        """What goes into the copy; None where it is too much to be in memory at once."""
        file = open_state_file(self._file.listed)
        if file.decoded_bytes(range(file.row_groups)) > self._copies.limits.largest_bytes:
            return None
        table = file.read()
        runs, timers = {_ROWS: SortedRun(table, "key_hash")}, _timers_in(table)
        for domain in (EVENT, PROCESSING):
            own = timers.those(timers.of(domain))
            if len(own.times):
                order = np.argsort(own.times, kind="stable")
                columns = {"time": own.times[order], "key_hash": own.hashes[order]}
                runs[domain] = SortedRun(pa.table(columns), "time")
        return runs


_NONE = np.array([], np.int64)
_TIMERS = pa.schema([("time", pa.int64()), ("key_hash", pa.int64())])


def _timers_in(table: pa.Table) -> TimerColumns:
    if TIMERS_COLUMN not in table.schema.names:
        return TimerColumns(_NONE, _NONE, np.array([], bool))
    return TimerColumns.of_table(table)


def _name_of(file: StateFile) -> str:
    """The name of a copy: that of its file is used once in a key group."""
    return f"{file.key_group_min}-{file.listed.uri.rsplit('/', 1)[-1]}-{file.listed.footer}{SUFFIX}"


def _identity(listed: ListedFile) -> str:
    return f"{listed.uri} {listed.bytes} {listed.footer} {listed.rows}"


def _note_use(path: Path) -> None:
    if time.time() - path.stat().st_mtime > _NOTED_S:
        os.utime(path)
