"""Bases of keyed state: the entries of whole key groups as of a checkpoint, folded from a base before it and changes.

One file a key group, sorted by key hash; a row is one entry: the value of a key, one entry of its map, or all elements
of its list. Deleted entries are gone, and expired ones, by the clocks of the checkpoint; only where a state shows what
has expired they stay, because there their removal can be seen and belongs to micro-batches. The fold works on stored
columns and decodes nothing, and it holds the entries of a few key groups at a time. It gives what the fold of
``changelog`` gives, the order of map entries included. Plays the part of RocksDB's compaction under Flink's backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.checkpoints.checkpoint import BaseFile, DataFile
from state_engine.core.keys.entry_codes import entry_codes, last_rows
from state_engine.core.keys.key_arrays import key_groups_of
from state_engine.core.state.descriptors import SHAPES
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.state.state_table import APPEND, CLEAR, DELETE, PUT
from state_engine.core.state.ttl import cleaned_until_us
from state_engine.core.types.column_forms import with_defaults
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.stored_form import conform
from state_engine.core.types.type_text import type_from_text
from state_engine.storage.layout import changelog_schema, file_name, state_column
from state_engine.storage.state.changelog_write import ROW_GROUP, file_order, in_file_order, write_changes
from state_engine.storage.state.listed_files import Hashes, KeyGroups, ListedFile, SomeKeys
from state_engine.storage.state.state_rows import Part, are_text, op_of_entry, parts_of
from state_engine.storage.stores.files import join, write_parquet

BASE_PARTITIONS = pa.schema([("base_id", pa.string()), ("key_group", pa.int64())])
"""Partition columns of the table; they are in the paths and not in the files."""

NOTHING_EXPIRES_MS = -(2**62)
"""A clock by which nothing has expired."""


Alive = Callable[[pa.Array], pa.Array]
"""Which items have not expired, given the column of their times."""


@dataclass(frozen=True)
class BaseSpec:
    """A base that is to be written; the same object for all tasks.

    Attributes:
        uri, base_id: where it is written; empty where entries are only read as those of a base.
        max_parallelism: by which key groups follow from the hashes; may be another one than that of the files.
        full_snapshot: whether it is a snapshot for itself, from which states may have asked to leave out what has
            expired, also where running jobs still see it.
        changelog: of the operator, where files go with what is left out.
        listing: names of states of which what is left out is listed, because tables show them.
    """

    key_type: pa.DataType
    states: tuple[StateSchema, ...]
    max_parallelism: int
    clock_ms: int = NOTHING_EXPIRES_MS
    watermark_ms: int | None = None
    uri: str = ""
    base_id: str = ""
    full_snapshot: bool = False
    changelog: str = ""
    listing: tuple[str, ...] = ()


def base_schema(key_type: pa.DataType, states: Mapping[str, pa.DataType]) -> pa.Schema:
    """Columns of a base's file: those of a changelog file, without ``op`` and the key group of the path.

    Example:
        >>> base_schema(pa.struct([("k", pa.int64())]), {"total": pa.int64()}).names
        ['key_hash', 'key', 'state', 'updated_at', 'v_total']
    """
    return pa.schema([f for f in changelog_schema(key_type, states) if f.name not in ("key_group", "op")])


def write_base_files(
    spec: BaseSpec, files: Sequence[ListedFile], groups: KeyGroups, *, task: int, attempt: int
) -> tuple[list[BaseFile], list[DataFile]]:
    """Fold the entries of some key groups and write one file for each that has any, and one with what is left out.

    Args:
        files: all that hold changes or entries of these key groups: bases, then changes in path order.
        groups: whose entries are folded; all of them are in memory at once.
        task, attempt: make the names unique.
    """
    rows = read_latest(spec, files, groups)
    expired = _expired(spec, rows)
    listed = [] if expired is None else [_write_expired(spec, expired, task=task, attempt=attempt)]
    return write_entries(spec, rows, task=task, attempt=attempt), listed


def _expired(spec: BaseSpec, rows: pa.Table) -> pa.Table | None:
    """The entries that a base leaves out, as deletions of a changelog; None where there are none to list."""
    types = {s.column_name: type_from_text(s.type).storage for s in spec.states if s.name in spec.listing}
    schema = changelog_schema(spec.key_type, types)
    parts = []
    for state in spec.states:
        entries = entries_of(spec, state, rows, left_out=True) if state.name in spec.listing else None
        if entries is not None:
            op = CLEAR if SHAPES[state.kind] == "list" else DELETE
            groups = key_groups_of(entries["key_hash"].to_numpy(), spec.max_parallelism)
            entries = entries.append_column("op", pa.repeat(pa.scalar(op), entries.num_rows))
            parts.append(entries.append_column("key_group", pa.array(groups)))
    if not parts:
        return None
    table = pa.concat_tables([schema.empty_table(), *parts], promote_options="default").select(schema.names)
    return in_file_order(table.combine_chunks())


def _write_expired(spec: BaseSpec, expired: pa.Table, *, task: int, attempt: int) -> DataFile:
    return write_changes(expired, spec.changelog, write_id=spec.base_id, subtask=task, attempt=attempt)


def write_entries(spec: BaseSpec, rows: pa.Table, *, task: int, attempt: int) -> list[BaseFile]:
    """Fold rows of whole key groups, in path order, and write one file for each group that has any entry.

    Args:
        rows: columns of a changelog file without key group; ``op`` is null in what is an entry already.
        task, attempt: make the names unique.
    """
    entries = [part for state in spec.states if (part := entries_of(spec, state, rows)) is not None]
    del rows
    places = [key_groups_of(part["key_hash"].to_numpy(), spec.max_parallelism) for part in entries]
    written = []
    for group in np.unique(np.concatenate(places)).tolist() if places else []:
        parts = []
        for part, place in zip(entries, places, strict=True):
            start, end = np.searchsorted(place, [group, group + 1]).tolist()
            if start < end:
                parts.append(part.slice(start, end - start))
        table = parts[0]
        if len(parts) > 1:
            table = pa.concat_tables(parts, promote_options="default")
            table = table.take(pa.array(np.argsort(table["key_hash"].to_numpy(), kind="stable")))
        hashes = table["key_hash"]
        name = file_name(spec.base_id, task, attempt)
        path = f"base_id={spec.base_id}/key_group={group}/{name}"
        file = write_parquet(table, join(spec.uri, path), row_group=ROW_GROUP)
        written.append(
            BaseFile(
                path=path,
                bytes=file.bytes,
                rows=table.num_rows,
                subtask=task,
                key_group_min=group,
                key_group_max=group,
                key_hash_min=hashes[0].as_py(),
                key_hash_max=hashes[-1].as_py(),
                footer=file.footer,
                entries=_counted(table["state"]),
            )
        )
    return written


def _counted(states: pa.ChunkedArray) -> dict[str, int]:
    counts = pc.value_counts(states)
    return dict(zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True))


def read_entries(spec: BaseSpec, files: Sequence[ListedFile], groups: SomeKeys) -> list[pa.Table]:
    """The entries of some keys, a table a state that has any: what ``write_base_files`` would write."""
    rows = read_latest(spec, files, groups)
    return [part for state in spec.states if (part := entries_of(spec, state, rows)) is not None]


# -- reading -----------------------------------------------------------------------------------------------------------


def read_changes(spec: BaseSpec, files: Sequence[ListedFile], groups: SomeKeys) -> pa.Table:
    """The rows of these keys in path order, in the recorded form; ``op`` is null in entries of a base."""
    return _table_of(spec, parts_of(files, groups), _read_schema(spec))


def read_latest(spec: BaseSpec, files: Sequence[ListedFile], groups: SomeKeys) -> pa.Table:
    """As ``read_changes``, without what a later row replaces, so that the same entries follow.

    Keys are read first. Of a large file whose rows are all replaced, values are never read.
    """
    schema, parts = _read_schema(spec), list(parts_of(files, groups))
    single = {s.column_name for s in spec.states if SHAPES[s.kind] == "value"}
    if single and len(parts) > 1:
        parts = list(_latest(parts, single, schema))
    return _table_of(spec, parts, schema)


def _table_of(spec: BaseSpec, parts: Iterable[Part], schema: pa.Schema) -> pa.Table:
    table = pa.concat_tables([schema.empty_table(), *(_in_schema(part, schema) for part in parts)])
    for state in spec.states:
        if (kind := type_from_text(state.type)).completes:
            place = table.schema.get_field_index(state_column(state.column_name))
            column = with_defaults(one_chunk(table.column(place)), kind)
            table = table.set_column(place, schema.field(place), column)
    return table


def _latest(parts: Sequence[Part], single: Set[str], schema: pa.Schema) -> Iterator[Part]:
    """The parts without rows that are replaced: of states with one value a key all but the last one of a key."""
    tables = [part.read(["key", "state"]) for part in parts]
    keys = pa.chunked_array([conform(one_chunk(t["key"]), schema.field("key").type) for t in tables])
    states = one_chunk(pa.chunked_array([coded(t["state"]) for t in tables]).unify_dictionaries())
    of_single = np.array([name in single for name in states.dictionary.to_pylist()])
    kept = ~of_single[states.indices.to_numpy()]
    kept[last_rows(entry_codes([one_chunk(keys), states.indices]))] = True
    start = 0
    for part, table in zip(parts, tables, strict=True):
        own = kept[start : start + len(table)]
        start += len(table)
        if own.any():
            yield part.only(own)


def coded(texts: pa.ChunkedArray) -> pa.Array:
    """Texts as numbers into a dictionary."""
    array = one_chunk(texts)
    return array if pa.types.is_dictionary(array.type) else array.dictionary_encode()


def _read_schema(spec: BaseSpec) -> pa.Schema:
    types = {s.column_name: type_from_text(s.type).storage for s in spec.states}
    schema = changelog_schema(spec.key_type, types)
    return schema.remove(schema.get_field_index("key_group"))


def _in_schema(part: Part, schema: pa.Schema) -> pa.Table:
    """The columns of a schema, in the recorded form; those that a part does not have are null."""
    table, arrays = part.read([n for n in schema.names if n in part.columns]), []
    for field in schema:
        if field.name not in table.schema.names:
            arrays.append(pa.nulls(table.num_rows, field.type))
            continue
        column = table[field.name]
        plain = column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
        arrays.append(conform(plain, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


# -- folding -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChangeOps:
    """What changes of one state, in path order, do to which keys.

    Attributes:
        keys: number of each row's key, from 0 on.
    """

    keys: Hashes
    ops: pa.Array

    def are(self, op: str) -> Hashes:
        """Which rows do this."""
        return are_text(self.ops, op)

    def after_clear(self) -> Hashes:
        """Which rows come after the last clear of their key."""
        clears = np.flatnonzero(self.are(CLEAR))
        if not len(clears):
            return np.ones(len(self.keys), bool)
        after: Hashes = np.arange(len(self.keys)) > last_rows(self.keys, clears)[self.keys]
        return after


def entries_left(changes: ChangeOps, map_keys: pa.Array, *, in_order: bool = True) -> Hashes:
    """The rows with the entries of a map state that are left after some changes.

    Args:
        in_order: give them in the order of the state's handle, for a map that is not sorted; else in any.
    """
    live, keys, puts = np.arange(len(changes.keys)), changes.keys, changes.are(PUT)
    after_clear = changes.after_clear()
    if not after_clear.all():  # the clear itself is none of those after it
        live, keys, puts = live[after_clear], keys[after_clear], puts[after_clear]
        map_keys = map_keys.take(pa.array(live))
    of_entry = entry_codes([pa.array(keys), map_keys])
    last = last_rows(of_entry)
    kept = np.flatnonzero(puts[last])
    if in_order:
        # entries iterate in the order of their first put since they were not there: a later put keeps their place
        deleted = last_rows(of_entry, np.flatnonzero(~puts))
        counting = np.flatnonzero(puts & (np.arange(len(live)) > deleted[of_entry]))
        place = last_rows(of_entry, counting[::-1])  # the first one stays
        kept = kept[np.argsort(place[kept], kind="stable")]
    left: Hashes = live[last[kept]]
    return left


@dataclass(frozen=True)
class _Rows(ChangeOps):
    """Rows of one state in path order.

    Attributes:
        table: hash, key, value and time of each.
    """

    table: pa.Table
    column: str
    alive: Alive


def entries_of(
    spec: BaseSpec, state: StateSchema, rows: pa.Table, *, left_out: bool = False
) -> pa.Table | None:
    """The entries of one state, sorted by key group, hash and key; map entries of a key in their order.

    Args:
        left_out: give those that have expired instead of the others.
    """
    column, shape = state_column(state.column_name), SHAPES[state.kind]
    mine = rows.select(["key_hash", "key", "state", "op", "updated_at", column])
    own = pc.equal(mine["state"], state.column_name)
    mine = (mine if pc.all(own).as_py() else mine.filter(own)).combine_chunks()
    if not mine.num_rows:
        return None
    folded = _Rows(
        table=mine.drop_columns("op"),
        keys=entry_codes([one_chunk(mine["key"])]),
        ops=pc.fill_null(one_chunk(mine["op"]), op_of_entry(shape)),
        column=column,
        alive=_expired_by(state, spec) if left_out else _alive(state, spec),
    )
    kept, table = _FOLDS[shape](folded)
    if not len(kept):
        return None
    hashes = table["key_hash"].to_numpy()
    return table.take(pa.array(_entry_order(hashes, folded.keys[kept], spec.max_parallelism)))


def _entry_order(hashes: Hashes, keys: Hashes, max_parallelism: int) -> Hashes:
    """The order of entries in bases: by key group, hash and key, entries of a key as they stand."""
    groups, ordered = key_groups_of(hashes, max_parallelism), np.sort(hashes)
    if (ordered[1:] != ordered[:-1]).all():
        return file_order(hashes, groups)
    order: Hashes = np.lexsort((keys, hashes, groups))
    return order


def _fold_value(rows: _Rows) -> tuple[Hashes, pa.Table]:
    last = last_rows(rows.keys)
    return _living(rows, last[rows.are(PUT)[last]])


def _fold_map(rows: _Rows) -> tuple[Hashes, pa.Table]:
    return _living(rows, entries_left(rows, one_chunk(rows.table[rows.column]).field("key")))


def _fold_list(rows: _Rows) -> tuple[Hashes, pa.Table]:
    live = np.flatnonzero(rows.after_clear() & rows.are(APPEND))
    live = live[np.argsort(rows.keys[live], kind="stable")]
    lists = one_chunk(rows.table[rows.column].take(pa.array(live)))
    lengths = pc.fill_null(lists.value_lengths(), 0).to_numpy()
    owner, elements = np.repeat(rows.keys[live], lengths), lists.flatten()
    mask = rows.alive(elements.field("updated_at"))
    owner = owner[mask.to_numpy(zero_copy_only=False)]
    keys, counts = np.unique(owner, return_counts=True)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    array = pa.ListArray.from_arrays(pa.array(offsets), elements.filter(mask), type=lists.type)
    kept = last_rows(rows.keys)[keys]
    table = rows.table.take(pa.array(kept))
    return kept, table.set_column(table.schema.get_field_index(rows.column), rows.column, array)


_FOLDS: dict[str, Callable[[_Rows], tuple[Hashes, pa.Table]]] = {
    "value": _fold_value,
    "map": _fold_map,
    "list": _fold_list,
}
"""By shape; each gives which rows the entries are from, and the entries."""


def _living(rows: _Rows, kept: Hashes) -> tuple[Hashes, pa.Table]:
    every = np.array_equal(kept, np.arange(rows.table.num_rows))
    table = rows.table if every else rows.table.take(pa.array(kept))
    mask = rows.alive(one_chunk(table["updated_at"]))
    if pc.all(mask).as_py():
        return kept, table
    return kept[mask.to_numpy(zero_copy_only=False)], table.filter(mask)


def _expired_by(state: StateSchema, spec: BaseSpec) -> Alive:
    alive = _alive(state, spec)
    return lambda at: pc.invert(alive(at))


def _alive(state: StateSchema, spec: BaseSpec) -> Alive:
    """What had not expired by the clocks of a checkpoint, or may be seen all the same."""
    oldest_us = cleaned_until_us(
        state.ttl, clock_ms=spec.clock_ms, watermark_ms=spec.watermark_ms, full_snapshot=spec.full_snapshot
    )
    if oldest_us is None:
        return lambda at: pa.repeat(True, len(at))
    return lambda at: pc.fill_null(pc.greater(at.cast(pa.int64()), oldest_us), True)
