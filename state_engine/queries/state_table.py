"""A keyed state as a pyarrow table, without Spark and without Java: the same entries as ``state_reader`` gives.

pyarrow reads and folds the files as a compaction does. The whole state must fit into memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.time_travel import (
    METADATA,
    DeclaredState,
    Expiry,
    declared_state,
    expiry_of,
)
from state_engine.core.keys.canonical import decode_keys
from state_engine.core.keys.key_arrays import key_groups_of
from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.core.types.column_forms import times_as_text
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.every_type import TimeType
from state_engine.core.types.type_text import type_from_text
from state_engine.storage.layout import JobLayout, state_column
from state_engine.storage.state.base import BaseSpec, read_entries
from state_engine.storage.state.listed_files import KeyGroups
from state_engine.storage.state.located_files import state_files

_TIME = pa.timestamp("us", "UTC")


def read_state_table(
    layout: JobLayout,
    path: Sequence[CheckpointRow],
    operator: str,
    state: str,
    *,
    include_expired: bool = False,
    metadata: bool = False,
) -> pa.Table:
    """A keyed state at the end of a path; arguments, columns and errors are those of ``state_reader.read_state``."""
    declared = declared_state(path, operator, state)
    expiry = expiry_of(declared, include_expired=include_expired)
    return _columns(declared, expiry, _entries(layout, path, declared, expiry), metadata=metadata)


def read_state_of_key(
    layout: JobLayout,
    path: Sequence[CheckpointRow],
    declared: DeclaredState,
    key: Mapping[str, Any],
    key_hash: int,
) -> pa.Table:
    """The entries of one key, as ``read_state_table`` has them; reads the files of its key group."""
    expiry = expiry_of(declared, include_expired=False)
    group = key_hash % declared.operator.max_parallelism
    entries = _entries(layout, path, declared, expiry, KeyGroupRange(group, group))
    if entries is not None:
        same = entries.filter(pc.equal(entries["key_hash"], key_hash))
        entries = same.filter(pa.array([one == key for one in same["key"].to_pylist()], pa.bool_()))
    has_any = entries is not None and entries.num_rows
    return _columns(declared, expiry, entries if has_any else None, metadata=False)


def _entries(
    layout: JobLayout,
    path: Sequence[CheckpointRow],
    declared: DeclaredState,
    expiry: Expiry,
    wanted: KeyGroupRange | None = None,
) -> pa.Table | None:
    """The entries of key groups, all by default, as a base would hold them; None where there are none."""
    shown = expiry.hidden_ms is None
    groups = declared.operator.max_parallelism
    wanted = wanted or KeyGroupRange(0, groups - 1)
    spec = BaseSpec(
        key_type=declared.key_type,
        states=(replace(declared.schema, ttl="" if shown else declared.schema.ttl),),
        max_parallelism=groups,
        clock_ms=declared.row.clock_ms,
        watermark_ms=declared.row.watermark_of(declared.operator.uid),
        full_snapshot=True,
    )
    files = [
        file.listed
        for file in state_files(layout, path, declared.operator.uid)
        if file.key_group_min <= wanted.end and wanted.start <= file.key_group_max
    ]
    tables = read_entries(spec, files, KeyGroups(groups, (wanted,)))
    return tables[0].combine_chunks() if tables else None


def _columns(
    declared: DeclaredState, expiry: Expiry, entries: pa.Table | None, *, metadata: bool
) -> pa.Table:
    wanted = [c for c in declared.columns() if metadata or c[0] not in METADATA]
    names = [*declared.key_names(metadata=metadata), *(name for name, _ in wanted[len(declared.key_type) :])]
    schema = pa.schema([(name, kind) for name, (_, kind) in zip(names, wanted, strict=True)])
    if entries is None:
        return schema.empty_table()
    # fields are called as they were declared: some are stored under the names that they had before
    column = one_chunk(entries[state_column(declared.schema.column_name)]).view(declared.shown_type)
    column = times_as_text(column, type_from_text(declared.schema.type))
    arrays = key_columns(one_chunk(entries["key"]), declared.key.shown)
    updated = lasting = one_chunk(entries["updated_at"])
    if declared.shape == "map":
        arrays += [column.field("key"), column.field("value")]
    elif declared.shape == "list":
        elements = column.flatten()
        arrays.append(_lists(column.value_lengths(), elements.field("value")))
        updated, lasting = _times_of_lists(column.value_lengths(), elements.field("updated_at"))
    else:
        arrays.append(column)
    if metadata:
        hashes = entries["key_hash"].to_numpy()
        groups = pa.array(key_groups_of(hashes, declared.operator.max_parallelism), pa.int64())
        arrays += [*_times(expiry, updated, lasting), groups]
    return pa.table(arrays, schema=schema)


def key_columns(keys: pa.StructArray, shown: Sequence[pa.DataType]) -> list[pa.Array]:
    """The columns of keys as readers see them; the twin of ``fold_sql``'s, and tested against it."""
    columns = zip(keys.flatten(), shown, strict=True)
    return [_key_column(column, kind) for column, kind in columns]


def _key_column(column: pa.Array, shown: pa.DataType) -> pa.Array:
    if column.type == shown:
        return column
    if pa.types.is_string(shown):  # what is no text in storage is a time of day
        return TimeType().as_text(column)
    return pa.array(decode_keys(column, shown), shown)


def _times(expiry: Expiry, updated: pa.Array, lasting: pa.Array) -> list[pa.Array]:
    """When items were written, and when they expire.

    ``core.checkpoints.time_travel.Expiry`` defines the latter; ``queries.fold_sql`` computes the same in SQL, and
    ``tests/queries/test_open_state.py`` compares both.
    """
    never = pa.nulls(len(updated), _TIME)
    if expiry.ttl_ms is None:
        return [never, never]
    if expiry.latest_ms is None:
        return [updated, never]
    last_us = lasting.cast(pa.int64())
    shown = pc.less_equal(last_us, expiry.latest_ms * 1000 + 999)
    ends = pc.if_else(shown, pc.add(last_us, expiry.ttl_ms * 1000), pa.scalar(None, pa.int64()))
    return [updated, ends.cast(_TIME)]


def _times_of_lists(lengths: pa.Array, times: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Of each list the newest time, and the same where all elements have one: others stay for ever."""
    owner = np.repeat(np.arange(len(lengths)), lengths.to_numpy())
    grouped = pa.table({"owner": owner, "at": times.cast(pa.int64())}).group_by("owner", use_threads=False)
    newest_of_lists = grouped.aggregate([("at", "max"), ("at", "count")]).sort_by("owner")
    newest = one_chunk(newest_of_lists["at_max"]).cast(_TIME)
    whole = pc.equal(one_chunk(newest_of_lists["at_count"]), lengths.cast(pa.int64()))
    return newest, pc.if_else(whole, newest, pa.scalar(None, _TIME))


def _lists(lengths: pa.Array, values: pa.Array) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths.to_numpy())]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)
