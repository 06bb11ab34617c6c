"""Routing of a few rows by the driver: what `state_engine.microbatch.routing.routing` has Catalyst do, done with Arrow.

Planning and shuffling take Spark longer than a few rows are worth. Every row goes where Spark would send it, with the
same columns, so that the results do not show which of the two routed a batch.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.keys.canonical import canonical_key
from state_engine.core.keys.hashing import (
    SEED,
    hash_bytes,
    hash_canonical,
    hash_int64_array,
    hash_long,
)
from state_engine.core.types.columns import one_chunk
from state_engine.job.graph import OperatorNode, SelectedKey
from state_engine.microbatch.routing.element_watermarks import element_watermarks
from state_engine.microbatch.routing.origins import Origins
from state_engine.microbatch.routing.routed import (
    HASH,
    INPUT,
    KEY_REFUSAL,
    SUBTASK,
    RoutedInput,
    RoutedLayout,
    key_name,
    places_in_order,
)
from state_engine.sources.frames import (
    EVENT_TIME,
    ORIGIN,
    SOURCE,
    TIME_REFUSAL,
    WATERMARK,
    StreamFrame,
    order_name,
    shared_names,
)

Hashes = np.ndarray[Any, Any]


def route_few(
    inputs: Sequence[RoutedInput],
    operator: OperatorNode,
    layout: RoutedLayout,
    *,
    parallelism: int,
    max_parallelism: int,
    origins: Origins,
) -> list[pa.Table] | None:
    """The rows of every subtask; None where they are not few, or of types that only Spark hashes.

    Args:
        inputs: those that have rows in this batch, with the columns of their keys.
        layout: of the routed rows.
        origins: what moves the watermark.
    """
    tables = [one.frame.table for one in inputs if one.frame.table is not None]
    if len(tables) < len(inputs) or any(one.frame.refused for one in inputs):
        return None
    parts = []
    for at, (one, table) in enumerate(zip(inputs, tables, strict=True)):
        order = _order([i.frame for i in inputs], at, table, places_in_order(inputs, operator))
        part = _part(one, table, order, operator, layout, parallelism, max_parallelism)
        if part is None:
            return None
        parts.append(part)
    rows = pa.concat_tables(parts, promote_options="default").combine_chunks()
    if layout.event_time:
        rows = _with_watermarks(rows, layout, origins)
    rows = _everywhere(rows, layout, parallelism)
    return [rows.filter(pc.equal(rows[SUBTASK], number)) for number in range(parallelism)]


def newest_by_source(frame: StreamFrame, table: pa.Table, known: Mapping[str, int]) -> dict[str, int]:
    """The largest event time of the rows of each source, where it is above what is known; milliseconds."""
    rows = pa.table({"source": _source(frame, table), "at": event_ms(frame, table)})
    newest = rows.group_by("source").aggregate([("at", "max")])
    pairs = zip(newest["source"].to_pylist(), newest["at_max"].to_pylist(), strict=True)
    return {n: at for n, at in pairs if n is not None and at is not None and at > known.get(n, at - 1)}


def _part(
    one: RoutedInput,
    table: pa.Table,
    order: list[pa.Array],
    operator: OperatorNode,
    layout: RoutedLayout,
    parallelism: int,
    max_parallelism: int,
) -> pa.Table | None:
    """The routed rows of one input."""
    rows = table.num_rows
    columns = _stream_columns(one, table, order, layout)
    if len(operator.inputs) > 1:
        columns[INPUT] = _repeat(one.place, pa.int32(), rows)
    if operator.inputs[one.place].broadcast or operator.inputs[one.place].everywhere:
        return pa.table(columns | {HASH: _repeat(0, pa.int64(), rows), SUBTASK: _repeat(0, pa.int32(), rows)})
    if operator.inputs[one.place].key is None:
        hashes = _hash_of_order(order)
        if hashes is None:
            return None
        columns[HASH], subtasks = _repeat(0, pa.int64(), rows), np.mod(hashes, parallelism)
    else:
        keys = _keys(one, table)
        if keys is None:
            return None
        selected = isinstance(operator.inputs[one.place].key, SelectedKey)
        for at, (name, array, canonical) in enumerate(keys):
            if key_name(at) in layout.keys:
                columns[key_name(at)] = canonical
            elif selected:
                columns[name] = array
        if layout.key_refusals:
            why = _refusals(keys)
            columns[KEY_REFUSAL] = pc.coalesce(one_chunk(table[KEY_REFUSAL]), why) if selected else why
        hashes = _chained([canonical for _, _, canonical in keys])
        columns[HASH] = pa.array(hashes)
        subtasks = np.mod(hashes, max_parallelism) * parallelism // max_parallelism
    return pa.table(columns | {SUBTASK: pa.array(subtasks.astype(np.int32))})


def _stream_columns(
    one: RoutedInput, table: pa.Table, order: list[pa.Array], layout: RoutedLayout
) -> dict[str, pa.Array]:
    """What the rows of one input have before anything is known of their keys."""
    names = layout.inputs[one.place].columns
    columns = dict(zip(names, map(one_chunk, _user_columns(one, table)), strict=True))
    columns |= {order_name(i): array for i, array in enumerate(order)}
    if layout.event_time:
        columns[EVENT_TIME] = event_ms(one.frame, table)
        columns |= _watermark_columns(one.frame, table, layout)
    if TIME_REFUSAL in table.column_names:
        columns[TIME_REFUSAL] = table[TIME_REFUSAL]
    if layout.sources:
        columns[SOURCE] = _source(one.frame, table)
    return columns


def _watermark_columns(frame: StreamFrame, table: pa.Table, layout: RoutedLayout) -> dict[str, pa.Array]:
    """What rows carry of the watermark, and how they move it."""
    rows, names = table.num_rows, table.column_names
    columns = {
        WATERMARK: table[WATERMARK] if WATERMARK in names else pa.nulls(rows, pa.int64()),
        ORIGIN: table[ORIGIN] if ORIGIN in names else _repeat(frame.origin, pa.string(), rows),
    }
    return columns | {name: table[name] for name in layout.lead}


def _with_watermarks(rows: pa.Table, layout: RoutedLayout, origins: Origins) -> pa.Table:
    """With the watermark before every row, which those of a single operator's outputs carry already."""
    if not layout.lead:
        watermarks = element_watermarks(rows, layout.order, origins, broadcast=layout.broadcast)
        rows = rows.set_column(rows.column_names.index(WATERMARK), WATERMARK, watermarks)
    return rows.drop_columns([ORIGIN])


def _everywhere(rows: pa.Table, layout: RoutedLayout, parallelism: int) -> pa.Table:
    """With a copy for each subtask of every row of the inputs that all subtasks have whole."""
    places = [place for place, one in enumerate(layout.inputs) if one.broadcast or one.everywhere]
    if not places:
        return rows
    at, kept = rows.column_names.index(SUBTASK), rows.slice(0, 0)
    if len(layout.inputs) > 1:
        copied = pc.is_in(rows[INPUT], pa.array(places, pa.int32()))
        rows, kept = rows.filter(copied), rows.filter(pc.invert(copied))
    copies = [rows.set_column(at, SUBTASK, _repeat(n, pa.int32(), len(rows))) for n in range(parallelism)]
    return pa.concat_tables([kept, *copies]).combine_chunks()


def _user_columns(one: RoutedInput, table: pa.Table) -> list[pa.ChunkedArray]:
    return [table[name] for name in one.frame.user_columns]


def _repeat(value: Any, kind: pa.DataType, times: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), times)


# -- order, time and source --------------------------------------------------------------------------------------------


def _order(frames: Sequence[StreamFrame], at: int, table: pa.Table, places: Sequence[int]) -> list[pa.Array]:
    """The order columns of one of several streams, as ``merged_orders`` has them."""
    own = [one_chunk(table[c]) for c in (*frames[at].order_by, *frames[at].hidden_order)]
    if len(frames) == 1:
        return own
    named, order = shared_names(frames), list[pa.Array]()
    order += [*own[:named], _repeat(places[at], pa.int32(), table.num_rows)]
    for other in frames:
        rest = (*other.order_by, *other.hidden_order)[named:]
        assert other.table is not None
        types = [other.table.schema.field(c).type for c in rest]
        order += own[named:] if other is frames[at] else [pa.nulls(table.num_rows, kind) for kind in types]
    return order


def event_ms(frame: StreamFrame, table: pa.Table) -> pa.Array:
    """Event times in milliseconds; null where there is none."""
    if frame.event_time is None:
        return pa.nulls(table.num_rows, pa.int64())
    column = one_chunk(table[frame.event_time])
    if frame.event_time == EVENT_TIME:
        return column
    if pa.types.is_date(column.type):
        return pc.multiply(column.cast(pa.int32()).cast(pa.int64()), 86_400_000)
    micros = column.cast(pa.int64())
    rounded_down = pc.fill_null(micros, 0).to_numpy() // 1000
    return pa.array(rounded_down, mask=pc.is_null(micros).to_numpy(zero_copy_only=False))


def _source(frame: StreamFrame, table: pa.Table) -> pa.Array:
    if SOURCE in table.schema.names:
        return one_chunk(table[SOURCE])
    return _repeat(frame.source, pa.string(), table.num_rows)


# -- keys and hashes ---------------------------------------------------------------------------------------------------


def _keys(one: RoutedInput, table: pa.Table) -> list[tuple[str, pa.Array, pa.Array]] | None:
    """Name, column and canonical column of every part of the key."""
    keys = []
    for name in one.keys:
        column = one_chunk(table[name])
        canonical = _canonical(column)
        if canonical is None:
            return None
        keys.append((name, column, canonical))
    return keys


def _canonical(column: pa.Array) -> pa.Array | None:
    """The twin of ``canonical_column``; null and NaN stay. None for a record."""
    kind, is_type = column.type, pa.types
    if is_type.is_date(kind):
        return column.cast(pa.int32()).cast(pa.int64())
    if is_type.is_integer(kind) or is_type.is_boolean(kind):
        return column.cast(pa.int64())
    if is_type.is_floating(kind):
        wide = column.cast(pa.float64())
        return pc.if_else(pc.equal(wide, 0.0), 0.0, wide)
    if is_type.is_decimal(kind):
        texts = [None if v is None else canonical_key(v) for v in column.to_pylist()]
        return pa.array(texts, pa.string())
    return None if is_type.is_struct(kind) else column


def _refusals(keys: Sequence[tuple[str, pa.Array, pa.Array]]) -> pa.Array:
    """The twin of ``key_refusal_column``."""
    why = pa.nulls(len(keys[0][1]), pa.string())
    for name, column, _ in keys:
        if pa.types.is_floating(column.type):
            why = pc.coalesce(why, _where(pc.is_nan(column), f"the key '{name}' is NaN"))
    if len(keys) == 1:
        name, column, _ = keys[0]
        why = pc.coalesce(why, _where(pc.is_null(column), f"the key '{name}' is null"))
    return why


def _where(condition: pa.Array, text: str) -> pa.Array:
    return pc.if_else(condition, pa.scalar(text), pa.scalar(None, pa.string()))


def _chained(columns: Sequence[pa.Array]) -> Hashes:
    """The hash of the canonical columns, row for row: the twin of ``xxhash64``."""
    hashes = np.full(len(columns[0]), SEED, np.int64)
    for column in columns:
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        if pa.types.is_string(column.type):  # of the same hash, and nobody checked that it is UTF-8
            column = column.cast(pa.binary())
        if pa.types.is_int64(column.type):
            present = pc.is_valid(column).to_numpy(zero_copy_only=False)
            made = hash_int64_array(pc.fill_null(column, 0).to_numpy(), hashes)
            hashes = np.where(present, made, hashes)
        else:
            seeds = zip(column.to_pylist(), hashes.tolist(), strict=True)
            hashes = np.array([hash_canonical(value, seed) for value, seed in seeds], np.int64)
    return hashes


def _hash_of_order(order: Sequence[pa.Array]) -> Hashes | None:
    """``xxhash64`` of columns as they are, which hashes 32-bit integers as four bytes; None for other types."""
    hashes = [SEED] * len(order[0])
    for column in order:
        kind = next((k for k in _HASHED if k[0](column.type)), None)
        if kind is None:
            return None
        _, stored, hashed = kind
        values = (column if stored is None else column.cast(stored)).to_pylist()
        hashes = [s if v is None else hashed(v, s) for v, s in zip(values, hashes, strict=True)]
    return np.array(hashes, np.int64)


def _hash_int(value: int, seed: int) -> int:
    return hash_bytes(struct.pack("<i", value), seed)


_HASHED: list[tuple[Callable[[pa.DataType], bool], pa.DataType | None, Callable[[Any, int], int]]] = [
    (pa.types.is_int64, None, hash_long),
    (pa.types.is_integer, None, _hash_int),
    (pa.types.is_boolean, pa.int32(), _hash_int),
    (pa.types.is_date32, pa.int32(), _hash_int),
    (pa.types.is_timestamp, pa.int64(), hash_long),
    (pa.types.is_string, pa.binary(), hash_bytes),  # nobody checked that it is UTF-8
]
