"""Changelog files: the changes of one subtask's keyed state, written and folded with pyarrow inside the subtask.

A file is sorted by key group and key hash; per key and state it holds at most one clear, then puts and deletes or one
append. Folding files in path order gives the state as of a checkpoint. The hash narrows what is decoded; the whole
key decides. Plays the part of Flink's changelog and of the sorted files under its RocksDB backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from state_engine.backends.delta.layout import changelog_schema, state_column
from state_engine.backends.files import open_location
from state_engine.core.columns import one_chunk
from state_engine.core.descriptors import MapStateDescriptor, StateDescriptor
from state_engine.core.errors import MissingFilesError
from state_engine.core.key_schema import KeySchema
from state_engine.core.state_table import APPEND, CLEAR, DELETE, PUT, Change
from state_engine.core.ttl import Stamped

_TIMESTAMP = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class ListedFile:
    """A file to read: where it is and the number of rows that its checkpoint recorded."""

    uri: str
    rows: int


Hashes = np.ndarray[Any, Any]
Read = Callable[[pa.ChunkedArray], pa.ChunkedArray]
"""Gives a stored column the form that a descriptor's type takes."""


class StoredState:
    """What the files of a path hold for some keys.

    Args:
        files: changelog files of the path that overlap this subtask's key groups, in path order.
        wanted: which rows are wanted, by their hashes.
        key_schema: how stored keys come back.
    """

    def __init__(
        self, files: Sequence[ListedFile], wanted: Callable[[Hashes], Hashes], key_schema: KeySchema
    ) -> None:
        self._key_schema = key_schema
        self._parts = [part for f in files if (part := _Part.open(f, wanted)) is not None]

    def table(self, descriptor: StateDescriptor, read: Read | None = None) -> pa.Table | None:
        """The rows of one state in path order; None where there are none."""
        found = [rows for part in self._parts if (rows := part.rows(descriptor, read)) is not None]
        if not found:
            return None
        table = pa.concat_tables(found).combine_chunks()
        return _latest(table) if descriptor.shape == "value" else table

    def fold(self, descriptor: StateDescriptor, table: pa.Table) -> dict[Any, Any]:
        """Entries of one state by key, as of the end of the path."""
        entries: dict[Any, Any] = {}
        keys = self._key_schema.decode_struct(one_chunk(table["key"]))
        _FOLDS[descriptor.shape](entries, descriptor, keys, table)
        return entries


class TouchedState(StoredState):
    """What the files of a path hold for the keys that a micro-batch touches.

    Args:
        files, key_schema: see ``StoredState``.
        touched: hashes of the touched keys, as int64.
        is_touched: whether a whole key is touched: the hash only narrows.
    """

    def __init__(
        self,
        files: Sequence[ListedFile],
        touched: Hashes,
        key_schema: KeySchema,
        is_touched: Callable[[Any], bool],
    ) -> None:
        ordered = np.sort(touched)

        def wanted(hashes: Hashes) -> Hashes:
            if not len(ordered):
                return np.zeros(len(hashes), bool)
            at_or_after = np.searchsorted(ordered, hashes)
            at_or_after[at_or_after == len(ordered)] = 0
            found: Hashes = ordered[at_or_after] == hashes
            return found

        super().__init__(files, wanted, key_schema)
        self._is_touched = is_touched

    def load(self, descriptor: StateDescriptor, read: Read | None = None) -> dict[Any, Any]:
        """Entries of one state by key, as of the end of the path."""
        table, is_touched = self.table(descriptor, read), self._is_touched
        entries = {} if table is None else self.fold(descriptor, table)
        return {k: v for k, v in entries.items() if is_touched(k)}


class _Part:
    """The rows of one file that are wanted."""

    def __init__(self, file: pq.ParquetFile, mask: pa.Array) -> None:
        self._file, self._mask = file, mask
        self._columns = set(file.schema_arrow.names)
        self._shared = file.read(columns=["key_hash", "key", "state", "op"], use_threads=False).filter(mask)

    @classmethod
    def open(cls, listed: ListedFile, wanted: Callable[[Hashes], Hashes]) -> _Part | None:
        at = open_location(listed.uri)
        try:
            file = pq.ParquetFile(at.path, filesystem=at.fs)
        except FileNotFoundError:
            raise MissingFilesError(
                f"{listed.uri} is listed by a checkpoint and does not exist: somebody deleted it. "
                "Restore an older checkpoint or a savepoint"
            ) from None
        if file.metadata.num_rows != listed.rows:
            raise MissingFilesError(
                f"{listed.uri} has {file.metadata.num_rows} rows, its checkpoint recorded {listed.rows}: "
                "it was changed by something else. Restore an older checkpoint or a savepoint"
            )
        mask = wanted(file.read(columns=["key_hash"], use_threads=False)["key_hash"].to_numpy())
        return cls(file, pa.array(mask)) if mask.any() else None

    def rows(self, descriptor: StateDescriptor, read: Read | None) -> pa.Table | None:
        """Hash, key, op and value column of one state's rows; None where it has none here."""
        column = state_column(descriptor.name)
        if column not in self._columns:
            return None
        values = self._file.read(columns=[column], use_threads=False).filter(self._mask)[column]
        table = self._shared.append_column(column, values if read is None else read(values))
        if descriptor.ttl is not None and descriptor.shape != "list":  # elements have their time beside them
            stamps = self._file.read(columns=["updated_at"], use_threads=False).filter(self._mask)
            table = table.append_column("updated_at", stamps["updated_at"])
        found = table.filter(pc.equal(table["state"], descriptor.name)).combine_chunks()
        return found if found.num_rows else None


def _latest(table: pa.Table) -> pa.Table:
    """Of rows that replace each other, the last of every key: what they replaced need not be decoded."""
    hashes = table["key_hash"].to_numpy()[::-1]
    _, first, which = np.unique(hashes, return_index=True, return_inverse=True)
    if len(first) == len(hashes):
        return table
    last = len(hashes) - 1 - first
    kept = pa.array(last[which][::-1])
    for column in one_chunk(table["key"]).flatten():
        other = column.take(kept)
        same = pc.fill_null(pc.equal(column, other), pc.and_(pc.is_null(column), pc.is_null(other)))
        if not pc.all(same).as_py():
            return table  # two keys share a hash: the whole key decides, row by row
    return table.take(pa.array(np.sort(last)))


def _fold_value(
    entries: dict[Any, Any], descriptor: StateDescriptor, keys: list[Any], table: pa.Table
) -> None:
    values = descriptor.value_type.from_arrow(one_chunk(table[state_column(descriptor.name)]))
    items = _stamped(descriptor, values, table)
    for key, op, item in zip(keys, table["op"].to_pylist(), items, strict=True):
        if op == PUT:
            entries[key] = item
        else:
            entries.pop(key, None)


def _fold_list(
    entries: dict[Any, Any], descriptor: StateDescriptor, keys: list[Any], table: pa.Table
) -> None:
    array = one_chunk(table[state_column(descriptor.name)])
    elements = array.flatten()
    items = descriptor.value_type.from_arrow(elements.field("value"))
    if descriptor.ttl is not None:
        items = list(map(Stamped, items, _milliseconds(elements.field("updated_at"))))
    start = 0
    for key, op, length in zip(keys, table["op"].to_pylist(), array.value_lengths().to_pylist(), strict=True):
        if op == CLEAR:
            entries.pop(key, None)
        else:
            entries.setdefault(key, []).extend(items[start : start + length])
        start += length or 0


def _fold_map(entries: dict[Any, Any], descriptor: StateDescriptor, keys: list[Any], table: pa.Table) -> None:
    key_type, array = (
        cast(MapStateDescriptor, descriptor).key_type,
        one_chunk(table[state_column(descriptor.name)]),
    )
    map_keys, values = array.flatten()
    items = _stamped(descriptor, descriptor.value_type.from_arrow(values), table)
    rows = zip(keys, table["op"].to_pylist(), key_type.from_arrow(map_keys), items, strict=True)
    for key, op, map_key, item in rows:
        if op == PUT:
            entries.setdefault(key, {})[map_key] = item
        elif op == CLEAR:
            entries.pop(key, None)
        elif (found := entries.get(key)) is not None:
            found.pop(map_key, None)
            if not found:
                del entries[key]


def _stamped(descriptor: StateDescriptor, values: list[Any], table: pa.Table) -> list[Any]:
    """Values with their time where the state has a time to live; stored times are ignored where it has none."""
    if descriptor.ttl is None:
        return values
    return list(map(Stamped, values, _milliseconds(one_chunk(table["updated_at"]))))


def _milliseconds(stamps: pa.Array) -> list[int | None]:
    found: list[int | None] = pc.divide(stamps.cast(pa.int64()), 1000).to_pylist()
    return found


def _timestamps(at_ms: list[int | None]) -> pa.Array:
    return pc.multiply(pa.array(at_ms, pa.int64()), 1000).cast(_TIMESTAMP)


_FOLDS: dict[str, Callable[..., None]] = {"value": _fold_value, "list": _fold_list, "map": _fold_map}


def changelog_table(
    changes: Sequence[tuple[StateDescriptor, list[Change]]],
    *,
    key_type: pa.DataType,
    index_of: Mapping[Any, int],
    keys: pa.Array,
    hashes: np.ndarray[Any, Any],
    max_parallelism: int,
) -> pa.Table | None:
    """Changes as one table in file order; None where nothing changed.

    Args:
        changes: per state, its net changes.
        key_type: stored type of the key struct.
        index_of: where in ``keys`` and ``hashes`` each key stands.
        keys, hashes: stored keys (structs) and their hashes.
    """
    total = sum(len(found) for _, found in changes)
    if not total:
        return None
    schema = changelog_schema(key_type, {d.name: d.column_type for d, found in changes if found})
    at = np.fromiter((index_of[c.key] for _, found in changes for c in found), np.int64, total)
    row_hashes = hashes[at]
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        "key_group": pa.array(np.mod(row_hashes, max_parallelism)),
        "key_hash": pa.array(row_hashes),
        "key": keys.take(pa.array(at)),
        "state": _repeat([(d.name, len(found)) for d, found in changes]),
        "op": pa.array([c.op for _, found in changes for c in found], pa.string()),
        "updated_at": pa.chunked_array([_updated_at(d, found) for d, found in changes], _TIMESTAMP),
    }
    start = 0
    for descriptor, found in changes:
        if found:
            column = _COLUMNS[descriptor.shape](descriptor, found)
            before, after = start, total - start - len(found)
            kind = descriptor.column_type
            padded = pa.chunked_array([pa.nulls(before, kind), column, pa.nulls(after, kind)], kind)
            columns[state_column(descriptor.name)] = padded
        start += len(found)
    table = pa.table([columns[f.name] for f in schema], schema=schema)
    # a stable sort keeps a key's clear in front of its appends and puts
    order = np.lexsort((row_hashes, np.mod(row_hashes, max_parallelism)))
    return table.take(pa.array(order))


def _updated_at(descriptor: StateDescriptor, changes: list[Change]) -> pa.Array:
    """When each row's item was last accessed; null without a time to live, and for lists, whose elements know."""
    if descriptor.ttl is None or descriptor.shape == "list":
        return pa.nulls(len(changes), _TIMESTAMP)
    if descriptor.shape == "value":
        return _timestamps([c.value.at if c.op == PUT else None for c in changes])
    return _timestamps([c.value[1].at if c.op == PUT else None for c in changes])


def _value_column(descriptor: StateDescriptor, changes: list[Change]) -> pa.Array:
    values = [c.value for c in changes]
    if descriptor.ttl is not None:
        values = [None if v is None else v.value for v in values]
    return descriptor.value_type.to_arrow(values, storage=True)


def _list_column(descriptor: StateDescriptor, changes: list[Change]) -> pa.Array:
    lists = [c.value if c.op == APPEND else [] for c in changes]
    items = [e for found in lists for e in found]
    stamps = pa.nulls(len(items), _TIMESTAMP)
    if descriptor.ttl is not None:
        stamps, items = _timestamps([i.at for i in items]), [i.value for i in items]
    elements = descriptor.value_type.to_arrow(items, storage=True)
    stamped = pa.StructArray.from_arrays([elements, stamps], fields=list(descriptor.column_type.value_type))
    offsets = np.concatenate([[0], np.cumsum([len(found) for found in lists])]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), stamped, type=descriptor.column_type)


def _map_column(descriptor: StateDescriptor, changes: list[Change]) -> pa.Array:
    entries = [c.value if c.op in (PUT, DELETE) else (None, None) for c in changes]
    keys = cast(MapStateDescriptor, descriptor).key_type.to_arrow([k for k, _ in entries], storage=True)
    items = [v for _, v in entries]
    if descriptor.ttl is not None:
        items = [None if i is None else i.value for i in items]
    values = descriptor.value_type.to_arrow(items, storage=True)
    return pa.StructArray.from_arrays([keys, values], fields=list(descriptor.column_type))


_COLUMNS: dict[str, Callable[[StateDescriptor, list[Change]], pa.Array]] = {
    "value": _value_column,
    "list": _list_column,
    "map": _map_column,
}


def _repeat(runs: list[tuple[str, int]]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.repeat(pa.scalar(text, pa.string()), n) for text, n in runs], pa.string())
