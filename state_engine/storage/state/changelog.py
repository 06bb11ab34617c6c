"""Keyed state as entries by key: the rows of ``state_rows``, folded in path order by the definition of each state.

Plays the part of Flink's changelog and of the sorted files under its RocksDB backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.keys.entry_codes import entry_codes, last_rows
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.state.change_folding import fold
from state_engine.core.state.descriptors import MapStateDescriptor, StateDescriptor
from state_engine.core.state.state_table import PUT
from state_engine.core.state.ttl import Stamped
from state_engine.core.types.columns import one_chunk
from state_engine.storage.layout import state_column
from state_engine.storage.state.listed_files import Hashes, KeyHashes, ListedFile, SomeKeys
from state_engine.storage.state.state_rows import Read, parts_of


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


def _latest(table: pa.Table) -> pa.Table:
    """Of rows that replace each other, the last of every key: what they replaced need not be decoded."""
    last = last_rows(entry_codes([one_chunk(table["key"])]))
    return table if len(last) == table.num_rows else table.take(pa.array(np.sort(last)))


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
