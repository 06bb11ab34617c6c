"""Rows to subtasks, over Arrow tables: the one implementation of routing, run wherever the rows are.

On keyed streams a row goes to the subtask that owns its key group, by the hash of the canonical key; without a key it
goes where its place in the order sends it, so that a replay sends it there again; a broadcast row goes to all. Plays
the part of Flink's ``KeyGroupStreamPartitioner``, ``RebalancePartitioner`` and ``BroadcastPartitioner``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.keys.key_arrays import canonical_array, hash_columns, key_groups_of, key_refusals
from state_engine.core.types.columns import one_chunk
from state_engine.microbatch.routing.element_watermarks import element_watermarks
from state_engine.microbatch.routing.origins import Origins
from state_engine.microbatch.routing.routed import HASH, KEY_REFUSAL, SUBTASK, RoutedLayout
from state_engine.microbatch.routing.routed_columns import Edge, EdgeKey
from state_engine.sources.frames import ARRIVAL, ORIGIN, REFUSED, WATERMARK
from state_engine.sources.stream_columns import in_arrow


def routed_rows(rows: pa.Table, edge: Edge, *, parallelism: int, max_parallelism: int) -> pa.Table:
    """The routed rows of one input, in the order in which they came; a SUBTASK of null stands for all subtasks.

    Args:
        rows: of the stream, with the columns of a key that a function makes.
    """
    columns, key = stream_columns(rows, edge), edge.key
    nowhere = pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows)
    if edge.everywhere:
        return pa.table(columns | {HASH: nowhere, SUBTASK: pa.nulls(rows.num_rows, pa.int32())})
    if key is None:
        subtasks = np.mod(hash_columns([columns[name] for name in edge.order]), parallelism)
        columns[HASH] = nowhere
    else:
        columns |= _key_columns(rows, key)
        of_groups = np.arange(max_parallelism) * parallelism // max_parallelism
        subtasks = of_groups[key_groups_of(columns[HASH].to_numpy(), max_parallelism)]
    return pa.table(columns | {SUBTASK: pa.array(subtasks.astype(np.int32))})


def stream_columns(rows: pa.Table, edge: Edge) -> dict[str, pa.Array]:
    """What the rows of one input have before anything is known of their keys."""
    return {name: in_arrow(rule, rows) for name, rule in edge.columns}


def _key_columns(rows: pa.Table, key: EdgeKey) -> dict[str, pa.Array]:
    own = [one_chunk(rows[name]) for name in key.columns]
    canonical = [canonical_array(column) for column in own]
    columns = dict(zip(key.routed, canonical, strict=True)) | {HASH: pa.array(hash_columns(canonical))}
    if key.refusals:
        why = key_refusals(key.columns, own)
        columns[KEY_REFUSAL] = pc.coalesce(one_chunk(rows[KEY_REFUSAL]), why) if key.selected else why
    return columns


def with_watermarks(rows: pa.Table, layout: RoutedLayout, origins: Origins) -> pa.Table:
    """All rows of a batch with the watermark before each, which those of a single operator's outputs carry already."""
    if not layout.event_time:
        return rows
    if not layout.lead:
        before = element_watermarks(rows, layout.order, origins, broadcast=layout.broadcast)
        rows = rows.set_column(rows.column_names.index(WATERMARK), WATERMARK, before)
    return rows.drop_columns([ORIGIN, *(ARRIVAL if layout.reordered else ())])


def without_watermarks(rows: pa.Table, layout: RoutedLayout) -> pa.Table:
    """Some rows of a batch: their subtasks find the watermark before each, unless the rows carry it."""
    if not layout.event_time:
        return rows
    computed = [] if layout.lead else [WATERMARK, *(ARRIVAL if layout.reordered else ())]
    return rows.drop_columns([ORIGIN, *computed])


def unparsable_rows(refused: pa.Array, parallelism: int) -> pa.Table:
    """Rows that could not be parsed, spread over the subtasks."""
    subtasks = np.mod(hash_columns([refused]), parallelism).astype(np.int32)
    return pa.table({REFUSED: refused, SUBTASK: pa.array(subtasks)})


def by_subtask(rows: pa.Table, parallelism: int) -> list[pa.Table]:
    """The rows of every subtask, those for all of them included."""
    subtasks = one_chunk(rows[SUBTASK])
    if subtasks.null_count:
        parts = by_subtask(rows.filter(pc.is_valid(subtasks)), parallelism)
        return [_copies(rows.filter(pc.is_null(subtasks)), part, number) for number, part in enumerate(parts)]
    numbers = subtasks.to_numpy()
    in_order = np.argsort(numbers, kind="stable")
    bounds: Sequence[int] = np.searchsorted(numbers[in_order], np.arange(parallelism + 1)).tolist()
    if parallelism > 1:
        rows = rows.take(pa.array(in_order))
    return [rows.slice(start, end - start) for start, end in pairwise(bounds)]


def of_subtask(rows: pa.Table, subtask: int) -> pa.Table:
    """The rows of one subtask, those for all of them included."""
    subtasks = one_chunk(rows[SUBTASK])
    own = rows.filter(pc.equal(subtasks, subtask))
    return _copies(rows.filter(pc.is_null(subtasks)), own, subtask) if subtasks.null_count else own


def _copies(everywhere: pa.Table, rows: pa.Table, subtask: int) -> pa.Table:
    numbers = pa.repeat(pa.scalar(subtask, pa.int32()), everywhere.num_rows)
    place = everywhere.column_names.index(SUBTASK)
    return pa.concat_tables([rows, everywhere.set_column(place, SUBTASK, numbers)]).combine_chunks()
