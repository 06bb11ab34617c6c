"""Stored keyed state: files of bases and of changes, read and folded with pyarrow inside the subtask.

A file of changes is sorted by key group and key hash; per key and state it holds at most one clear, then puts and
deletes or one append. A file of a base holds the entries of one key group as of a checkpoint: the same rows without
``op``. Folding a base and the changes after it in path order gives the state as of a later checkpoint. The hash
narrows what is decoded; the whole key decides. Plays the part of Flink's changelog and of the sorted files under its
RocksDB backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import MissingFilesError
from state_engine.core.keys.key_arrays import key_groups_of
from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.state.change_folding import fold
from state_engine.core.state.descriptors import MapStateDescriptor, StateDescriptor
from state_engine.core.state.state_table import APPEND, PUT
from state_engine.core.state.ttl import Stamped
from state_engine.core.types.columns import one_chunk
from state_engine.storage import kept_files
from state_engine.storage.in_threads import in_threads
from state_engine.storage.layout import state_column
from state_engine.storage.parquet_reading import OpenParquet, check_footer, open_parquet
from state_engine.storage.state.entry_codes import leaves

if TYPE_CHECKING:
    from state_engine.storage.state.local_copies import LocalCopy

Hashes = np.ndarray[Any, Any]

_SHARED = ("key_hash", "key", "state", "op")
_LITTLE_BYTES = 2**20
"""Decoded size up to which a file is read whole."""
_LITTLE_ROWS = 1024
"""Rows up to which a file is filtered together with others, not by itself."""
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


Read = Callable[[pa.ChunkedArray], pa.ChunkedArray]
"""Gives a stored column the form that a descriptor's type takes."""


class StateFiles:
    """What the files of a path hold for some keys.

    Args:
        files: of the path that overlap this subtask's key groups: those of bases, then changes in path order.
        wanted: which rows are wanted, by their hashes; of ``KeyHashes`` only row groups that may hold them are read.
        only: the one state that is asked for, if it is known: files without it are not read.
    """

    def __init__(
        self,
        files: Sequence[ListedFile],
        wanted: SomeKeys,
        key_schema: KeySchema,
        *,
        only: str | None = None,
    ) -> None:
        self._key_schema = key_schema
        self._parts = list(parts_of(files, wanted, only=only))

    def table(self, descriptor: StateDescriptor, read: Read | None = None) -> pa.Table | None:
        """The rows of one state in path order; None where there are none."""
        tables = [rows for part in self._parts if (rows := part.rows(descriptor, read)) is not None]
        if not tables:
            return None
        table = pa.concat_tables(tables).combine_chunks()
        return _latest(table) if descriptor.shape == "value" else table

    def fold(self, descriptor: StateDescriptor, table: pa.Table) -> dict[Any, Any]:
        """Entries of one state by key, as of the end of the path."""
        keys = self._key_schema.decode_struct(one_chunk(table["key"]))
        items = _ITEMS[descriptor.shape](descriptor, table)
        if descriptor.shape == "value" and pc.all(pc.equal(table["op"], PUT)).as_py():
            return dict(zip(keys, items, strict=True))  # as the fold has it: of a key the last put
        entries: dict[Any, Any] = {}
        fold(descriptor.shape, entries, zip(keys, table["op"].to_pylist(), items, strict=True))
        return entries


class TouchedState(StateFiles):
    """What the files of a path hold for the keys that a micro-batch touches."""

    def __init__(self, files: Sequence[ListedFile], touched: Hashes, key_schema: KeySchema) -> None:
        super().__init__(files, KeyHashes(touched), key_schema)

    def load(self, descriptor: StateDescriptor, read: Read | None = None) -> dict[Any, Any]:
        """Entries of one state by key, as of the end of the path.

        The hash only narrows: keys that are not touched, and share the hash of one that is, are among them.
        """
        table = self.table(descriptor, read)
        return {} if table is None else self.fold(descriptor, table)


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
            "it was changed by something else. Restore an older checkpoint or a savepoint"
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
            "Restore an older checkpoint or a savepoint"
        ) from None


def copied_rows(listed: ListedFile, wanted: SomeKeys) -> pa.Table | None:
    """Rows of a file's local copy, with all those that are wanted among them; None where the file is to be read."""
    if listed.copy is None or not isinstance(wanted, KeyHashes):
        return None
    return listed.copy.rows(wanted)


def check_files(files: Sequence[ListedFile]) -> None:
    """Check, before Spark reads them, that files have the footers and rows that their checkpoints recorded."""
    for _ in in_threads(lambda f: open_state_file(f).close(), files):
        pass


def op_of_entry(shape: str) -> str:
    """What an entry of a base is as a change, by the shape of its state."""
    return APPEND if shape == "list" else PUT


@dataclass(frozen=True)
class Part:
    """The wanted rows of one file, or of several that follow each other on the path and are read as one."""

    columns: frozenset[str]
    read: Callable[[list[str]], pa.Table]

    def rows(self, descriptor: StateDescriptor, read: Read | None, *, ops: bool = True) -> pa.Table | None:
        """Hash, key, op and value column of one state's rows; None where it has none here.

        Args:
            ops: whether the op is wanted; of one value a key, what is deleted has none.
        """
        column = state_column(descriptor.stored_as)
        if column not in self.columns:
            return None
        names = [n for n in [*_SHARED, column] if ops or n != "op"]
        if descriptor.ttl is not None and descriptor.shape != "list":  # elements have their time beside them
            names.append("updated_at")
        table = self.read([n for n in names if n in self.columns])
        own = pc.equal(table["state"], descriptor.stored_as)
        rows = table if pc.all(own).as_py() else table.filter(own)
        if not rows.num_rows:
            return None
        if ops and "op" not in self.columns:  # a base
            op = pa.scalar(op_of_entry(descriptor.shape), pa.string())
            rows = rows.append_column("op", pa.repeat(op, rows.num_rows))
        if read is not None:
            rows = rows.set_column(rows.schema.get_field_index(column), column, read(rows[column]))
        # the same columns in the same order, and plain text, whatever the file is
        names = [n for n in ["key_hash", "key", "op", column, "updated_at"] if n in rows.schema.names]
        columns = {n: rows[n].cast(pa.string()) if n == "op" else rows[n] for n in names}
        return pa.table(columns).combine_chunks()


def parts_of(
    files: Sequence[ListedFile],
    wanted: SomeKeys,
    *,
    only: str | None = None,
    newest_first: bool = False,
) -> Iterator[Part]:
    """The files that hold wanted rows, in path order, or from the newest one back.

    Opening and filtering cost more than the rows of a little file, so these are read whole, and as one.
    """
    way = -1 if newest_first else 1
    little: list[pa.Table] = []
    for listed in files[::way]:
        table = copied_rows(listed, wanted)
        if table is None:
            file = open_state_file(listed, coded=["state"])
            if only is not None and state_column(only) not in file.schema.names:
                continue
            numbers = wanted.row_groups(file, listed)
            if not numbers:
                continue
            if file.decoded_bytes(numbers) > _LITTLE_BYTES:
                yield from _together(little[::way], wanted)
                little = []
                yield from _of_file(file, numbers, listed, wanted)
                continue
            table = file.read_row_groups(numbers)
        if listed.counts is not None or table.num_rows > _LITTLE_ROWS:
            # a filter of few rows costs more, column by column
            table = table.take(np.flatnonzero(kept_rows(table["key_hash"].to_numpy(), listed, wanted)))
        if little and little[0].schema != table.schema:
            yield from _together(little[::way], wanted)
            little = []
        little.append(table)
    yield from _together(little[::way], wanted)


def _of_file(file: OpenParquet, numbers: list[int], listed: ListedFile, wanted: SomeKeys) -> Iterator[Part]:
    """Row groups of a large file: the hashes decide which rows of the other columns are kept."""
    kept = kept_rows(file.read_row_groups(numbers, ["key_hash"])["key_hash"].to_numpy(), listed, wanted)
    if not kept.any():
        return
    mask, columns = None if kept.all() else pa.array(kept), dict[str, pa.ChunkedArray]()

    def read(names: list[str]) -> pa.Table:
        missing = [n for n in names if n not in columns]
        if missing:
            more = file.read_row_groups(numbers, missing)
            more = more if mask is None else more.filter(mask)
            columns.update(zip(more.schema.names, more.columns, strict=True))
        return pa.table({n: columns[n] for n in names})

    yield Part(frozenset(file.schema.names), read)


def kept_rows(hashes: Hashes, listed: ListedFile, wanted: SomeKeys) -> Hashes:
    """Which rows of a file count and are wanted, given the hashes of all."""
    kept = wanted.hold(hashes)
    return kept if listed.counts is None else kept & listed.counts.hold(hashes)


def _together(tables: list[pa.Table], wanted: SomeKeys) -> Iterator[Part]:
    """Little files with the same columns."""
    if not tables:
        return
    table = pa.concat_tables(tables)
    mask = wanted.hold(table["key_hash"].to_numpy())
    if mask.any():
        yield Part(frozenset(table.schema.names), table.filter(pa.array(mask)).combine_chunks().select)


def _latest(table: pa.Table) -> pa.Table:
    """Of rows that replace each other, the last of every key: what they replaced need not be decoded."""
    hashes = table["key_hash"].to_numpy()[::-1]
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    if len(first) == len(hashes):
        return table
    last = len(hashes) - 1 - first
    kept = pa.array(last[which][::-1])
    for column in leaves(one_chunk(table["key"])):
        other = column.take(kept)
        same = pc.fill_null(pc.equal(column, other), pc.and_(pc.is_null(column), pc.is_null(other)))
        if not pc.all(same).as_py():
            return table  # two keys share a hash: the whole key decides, row by row
    return table.take(pa.array(np.sort(last)))


def _items_of_values(descriptor: StateDescriptor, table: pa.Table) -> Iterable[Any]:
    values = descriptor.value_type.from_arrow(one_chunk(table[state_column(descriptor.stored_as)]))
    return _stamped(descriptor, values, table)


def _items_of_lists(descriptor: StateDescriptor, table: pa.Table) -> Iterable[Any]:
    array = one_chunk(table[state_column(descriptor.stored_as)])
    elements = array.flatten()
    items = descriptor.value_type.from_arrow(elements.field("value"))
    if descriptor.ttl is not None:
        items = list(map(Stamped, items, _milliseconds(elements.field("updated_at"))))
    start = 0
    for length in array.value_lengths().to_pylist():
        yield items[start : start + (length or 0)]
        start += length or 0


def _items_of_maps(descriptor: StateDescriptor, table: pa.Table) -> Iterable[Any]:
    map_keys, values = one_chunk(table[state_column(descriptor.stored_as)]).flatten()
    items = _stamped(descriptor, descriptor.value_type.from_arrow(values), table)
    return zip(cast(MapStateDescriptor, descriptor).key_type.from_arrow(map_keys), items, strict=True)


def _stamped(descriptor: StateDescriptor, values: list[Any], table: pa.Table) -> list[Any]:
    """Values with their time where the state has a time to live; stored times are ignored where it has none."""
    if descriptor.ttl is None:
        return values
    return list(map(Stamped, values, _milliseconds(one_chunk(table["updated_at"]))))


def _milliseconds(stamps: pa.Array) -> list[int | None]:
    milliseconds: list[int | None] = pc.divide(stamps.cast(pa.int64()), 1000).to_pylist()
    return milliseconds


_ITEMS: dict[str, Callable[[StateDescriptor, pa.Table], Iterable[Any]]] = {
    "value": _items_of_values,
    "list": _items_of_lists,
    "map": _items_of_maps,
}
"""By shape: what each row holds, as ``fold`` takes it."""
