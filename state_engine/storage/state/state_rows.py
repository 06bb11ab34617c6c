"""``parts_of``: the stored rows of some keys, bases before changes, which every reader of keyed state reads.

The element path, the column path, compactions and queries without Spark differ in how they fold these rows. Rows come
in path order, or from the newest file back, in parts that read a column when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.state_table import APPEND, PUT
from state_engine.storage.layout import state_column
from state_engine.storage.state.listed_files import Hashes, KeyHashes, ListedFile, SomeKeys, open_state_file
from state_engine.storage.stores.parquet_reading import OpenParquet

_SHARED = ("key_hash", "key", "state", "op")
_LITTLE_ROWS = 1024
"""Rows up to which a file is filtered together with others, not by itself."""
_TOGETHER_BYTES = 2**26
"""Decoded size up to which little files are read as one."""
_ROWS_TOGETHER = 2**20
"""Rows of a large file that are in memory at once, more or less, before those that are not wanted go."""

Read = Callable[[pa.ChunkedArray], pa.ChunkedArray]
"""Gives a stored column the form that a descriptor's type takes."""


def op_of_entry(shape: str) -> str:
    """What an entry of a base is as a change, by the shape of its state."""
    return APPEND if shape == "list" else PUT


@dataclass(frozen=True)
class Part:
    """The wanted rows of a file, of a part of it, or of several files that follow each other on the path.

    Attributes:
        columns: names of all columns.
        source: reads some of them, with all rows.
        kept: which of all rows are wanted; None for all.
        known: columns that were read already, of the wanted rows.
    """

    columns: frozenset[str]
    source: Callable[[list[str]], pa.Table]
    kept: Hashes | None = None
    known: dict[str, pa.ChunkedArray] = field(default_factory=dict)

    def read(self, names: Sequence[str]) -> pa.Table:
        """Some columns of the wanted rows; each is read once."""
        missing = [n for n in names if n not in self.known]
        if missing:
            table = self.source(missing)
            table = table if self.kept is None else table.filter(pa.array(self.kept))
            self.known.update(zip(table.column_names, table.columns, strict=True))
        return pa.table({n: self.known[n] for n in names})

    def only(self, which: Hashes) -> Part:
        if which.all():
            return self
        kept = which
        if self.kept is not None:
            kept = self.kept.copy()
            kept[self.kept] = which
        known = {name: column.filter(pa.array(which)) for name, column in self.known.items()}
        return Part(self.columns, self.source, kept, known)

    def of_state(
        self, descriptor: StateDescriptor, *, ops: bool = True
    ) -> tuple[pa.Table, Hashes | None] | None:
        """The columns of one state, of all wanted rows, and which of these are its own; None where it has none here.

        Args:
            ops: whether the op is wanted; of one value a key, what is deleted has none.

        Returns:
            Columns as they are stored, and a mask, or None where all rows are its own.
        """
        column = state_column(descriptor.stored_as)
        if column not in self.columns:
            return None
        names = [n for n in [*_SHARED, column] if ops or n != "op"]
        if descriptor.ttl is not None and descriptor.shape != "list":  # elements have their time beside them
            names.append("updated_at")
        table = self.read([n for n in names if n in self.columns])
        own = are_text(table["state"], descriptor.stored_as)
        if not own.any():
            return None
        if ops and "op" not in self.columns:  # a base
            op = pa.scalar(op_of_entry(descriptor.shape), pa.string())
            table = table.append_column("op", pa.repeat(op, table.num_rows))
        # the same columns in the same order, whatever the file is
        names = [n for n in ["key_hash", "key", "op", column, "updated_at"] if n in table.schema.names]
        return table.select(names), None if own.all() else own

    def rows(self, descriptor: StateDescriptor, read: Read | None, *, ops: bool = True) -> pa.Table | None:
        """Hash, key, op and value column of one state's rows; arguments as of ``of_state``."""
        of_state = self.of_state(descriptor, ops=ops)
        if of_state is None:
            return None
        rows, own = of_state
        rows = rows if own is None else rows.filter(pa.array(own))
        if ops:  # plain text
            rows = rows.set_column(rows.schema.get_field_index("op"), "op", rows["op"].cast(pa.string()))
        if read is not None:
            column = state_column(descriptor.stored_as)
            rows = rows.set_column(rows.schema.get_field_index(column), column, read(rows[column]))
        return rows.combine_chunks()


def are_text(texts: pa.ChunkedArray | pa.Array, text: str) -> Hashes:
    """Which of some texts are one text; they may be numbers into a dictionary, which are compared as numbers.

    Example:
        >>> are_text(pa.array(["put", "clear", "put"]).dictionary_encode(), "put").tolist()
        [True, False, True]
    """
    parts = [np.zeros(0, bool)]
    for chunk in texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]:
        if pa.types.is_dictionary(chunk.type):
            parts.append(chunk.indices.to_numpy() == chunk.dictionary.index(text).as_py())
        else:
            parts.append(pc.equal(chunk, text).to_numpy(zero_copy_only=False))
    return np.concatenate(parts)


def parts_of(
    files: Sequence[ListedFile],
    wanted: SomeKeys,
    *,
    only: str | None = None,
    newest_first: bool = False,
    little_bytes: int = 2**20,
) -> Iterator[Part]:
    """The wanted rows of files, in path order, or from the newest file back.

    Opening and filtering cost more than the rows of a little file, so these are read whole, and as one.

    Args:
        only: the one state that is asked for, if it is known: files without it are not read.
        little_bytes: decoded size up to which a file is read whole.
    """
    way = -1 if newest_first else 1
    little: list[pa.Table] = []
    little_size = 0
    for listed in files[::way]:
        table = _copied(listed, wanted)
        if table is None:
            file = open_state_file(listed, coded=["state", "op"])
            if only is not None and state_column(only) not in file.schema.names:
                continue
            numbers = wanted.row_groups(file, listed)
            if file.decoded_bytes(numbers) > little_bytes:
                yield from _together(little[::way], wanted)
                little, little_size = [], 0
                for some in _slices(file, numbers)[::way]:
                    yield from _of_row_groups(file, some, listed, wanted)
                continue
            if not numbers:
                continue
            table = file.read_row_groups(numbers)
        if listed.counts is not None or table.num_rows > _LITTLE_ROWS:
            # a filter of few rows costs more, column by column
            table = table.take(np.flatnonzero(_kept(table["key_hash"], listed, wanted)))
        if little and (little[0].schema != table.schema or little_size > _TOGETHER_BYTES):
            yield from _together(little[::way], wanted)
            little, little_size = [], 0
        little.append(table)
        little_size += table.nbytes
    yield from _together(little[::way], wanted)


def _copied(listed: ListedFile, wanted: SomeKeys) -> pa.Table | None:
    """Rows of a file's local copy, with all those that are wanted among them; None where the file is to be read."""
    if listed.copy is None or not isinstance(wanted, KeyHashes):
        return None
    return listed.copy.rows(wanted)


def _slices(file: OpenParquet, numbers: Sequence[int]) -> list[list[int]]:
    """Row groups in slices of a million rows or so, so that a whole file is never in memory."""
    slices, rows = list[list[int]](), _ROWS_TOGETHER
    for number in numbers:
        if rows >= _ROWS_TOGETHER:
            slices.append([])
            rows = 0
        slices[-1].append(number)
        rows += file.rows_of(number)
    return slices


def _of_row_groups(
    file: OpenParquet, numbers: list[int], listed: ListedFile, wanted: SomeKeys
) -> Iterator[Part]:
    """Row groups of a large file: the hashes decide which rows of the other columns are kept."""
    hashes = file.read_row_groups(numbers, ["key_hash"])
    kept = _kept(hashes["key_hash"], listed, wanted)
    if kept.any():
        source, columns = partial(file.read_row_groups, numbers), frozenset(file.schema.names)
        known = {"key_hash": hashes["key_hash"].filter(pa.array(kept))}
        yield Part(columns, source, None if kept.all() else kept, known)


def _kept(hashes: pa.ChunkedArray, listed: ListedFile, wanted: SomeKeys) -> Hashes:
    """Which rows of a file count and are wanted, given the hashes of all."""
    values = hashes.to_numpy()
    kept = wanted.hold(values)
    return kept if listed.counts is None else kept & listed.counts.hold(values)


def _together(tables: list[pa.Table], wanted: SomeKeys) -> Iterator[Part]:
    """Little files with the same columns."""
    if not tables:
        return
    table = pa.concat_tables(tables)
    mask = wanted.hold(table["key_hash"].to_numpy())
    if mask.any():
        table = table.filter(pa.array(mask)).combine_chunks()
        yield Part(frozenset(table.column_names), table.select)
