"""The watermark before every row of an operator's input, by the row's place in the total order of all subtasks.

Where the driver has the rows it is computed there, in one go. Else every task that reads rows reports only those that
move the watermark further than the rows before them (*steps*); the driver puts the steps of all tasks into order, and
every subtask finds, for each of its rows, the last step before it. An operator that reads one other operator needs
neither: its rows carry the watermark. Decision 0027.

Where ``order_by`` names something else than the event time, it can put a row that came in time behind much newer ones.
The watermark then waits for that row. Which rows came in time follows from their places in the source. Decision 0027.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc

from state_engine.core.time.watermarks import (
    Moves,
    late_among,
    moves_of,
    own_watermarks_before,
    steps_of,
    watermarks_after,
    watermarks_before,
)
from state_engine.core.types.columns import from_bytes, to_bytes
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from state_engine.microbatch.routing.origins import Origins
from state_engine.microbatch.routing.routed import INPUT
from state_engine.microbatch.routing.total_order import order_indices
from state_engine.sources.frames import ARRIVAL, EVENT_TIME, HIDDEN, ORIGIN, SOURCE, WATERMARK

STEPS_SCHEMA = "steps binary, newest string"
_FIRST, _PHASE, _TO, _BEFORE = HIDDEN + "first", HIDDEN + "phase", HIDDEN + "to", HIDDEN + "before"
_MOST = HIDDEN + "most"
_CARRIED, _ROW, _SOURCE_ROW = 0, 1, 2  # a row that carries the watermark before it stands in front of itself

Longs = np.ndarray[Any, Any]


def element_watermarks(
    rows: pa.Table, order: Sequence[str], origins: Origins, *, broadcast: int | None = None
) -> pa.Array:
    """The watermark before every row, where these are all rows of the batch.

    Args:
        rows: with columns of the order, EVENT_TIME, ORIGIN and WATERMARK where rows carry it.
        broadcast: number of the input whose rows come before all others.
    """
    if ARRIVAL[0] in rows.column_names:
        rows = _with_most(rows, origins, arrivals_in(rows, origins))
    rows, names = _with_first(rows, broadcast), [_FIRST, *order]
    in_order = order_indices(rows, names)
    watermarks = np.empty(rows.num_rows, np.int64)
    watermarks[in_order] = watermarks_before(
        _moves(rows.take(pa.array(in_order)), origins), origins.start_ms, least_ms=origins.least_ms
    )
    return pa.array(watermarks)


def steps_in(
    rows: pa.Table,
    order: Sequence[str],
    origins: Origins,
    *,
    broadcast: int | None,
    arrivals: pa.Table | None = None,
) -> pa.RecordBatch:
    """The steps of a task's rows, and the newest event time of every source among them; of ``STEPS_SCHEMA``.

    Args:
        arrivals: of all tasks, where these rows may have come in another order.
    """
    if arrivals is not None:
        rows = _with_most(rows, origins, arrivals)
    rows = _with_first(rows, broadcast)
    rows = rows.take(pa.array(order_indices(rows, [_FIRST, *order])))
    moves = _moves(rows, origins)
    at = steps_of(moves, len(origins.names))
    steps = rows.select([_FIRST, *order]).take(pa.array(at))
    steps = steps.append_column(ORIGIN, pa.array(moves.origins[at]))
    steps = steps.append_column(_TO, pa.array(moves.to_ms[at]))
    steps = steps.append_column(_BEFORE, pa.array(moves.before[at]))
    if moves.most_ms is not None:
        steps = steps.append_column(_MOST, pa.array(moves.most_ms[at]))
    newest = pa.array([json.dumps(_newest(rows))])
    return pa.record_batch({"steps": pa.array([to_bytes(steps)], pa.binary()), "newest": newest})


def joined_steps(packed: Sequence[bytes], order: Sequence[str], origins: Origins) -> pa.Table | None:
    """The steps of all tasks in order, with where each moves the watermark of the operator; None without any."""
    if not packed:
        return None
    steps = pa.concat_tables(map(from_bytes, packed))
    phase = pc.if_else(steps[_BEFORE], _CARRIED, _SOURCE_ROW)
    steps = steps.append_column(_PHASE, pc.cast(phase, pa.int64())).combine_chunks()
    steps = steps.take(pa.array(order_indices(steps, [_FIRST, *order, _PHASE])))
    origin, to_ms, before = (steps[name].to_numpy() for name in (ORIGIN, _TO, _BEFORE))
    most_ms = steps[_MOST].to_numpy() if _MOST in steps.column_names else None
    reached = watermarks_after(Moves(origin, to_ms, before, most_ms), origins.start_ms)
    steps = steps.select([_FIRST, *order, _PHASE]).append_column(_TO, pa.array(reached))
    further = np.ones(len(reached), bool)  # of none, where no row has an event time
    further[1:] = reached[1:] > reached[:-1]
    return steps.filter(pa.array(further)).combine_chunks()


def watermarks_by_steps(
    rows: pa.Table, order: Sequence[str], steps: pa.Table, *, start_ms: int, broadcast: int | None
) -> pa.Array:
    names = [_FIRST, *order, _PHASE]
    own = _with_first(rows, broadcast).select([_FIRST, *order])
    own = own.append_column(_PHASE, pa.array(np.full(len(own), _ROW)))
    own = own.append_column(_TO, pa.array(np.full(len(own), start_ms)))
    both = pa.concat_tables([own, steps.select(own.column_names).cast(own.schema)]).combine_chunks()
    in_order = order_indices(both, names)
    reached = np.empty(len(both), np.int64)
    reached[in_order] = np.maximum.accumulate(np.maximum(both[_TO].to_numpy()[in_order], start_ms))
    return pa.array(reached[: len(own)])


def _moves(rows: pa.Table, origins: Origins) -> Moves:
    numbers = pc.index_in(rows[ORIGIN].combine_chunks(), pa.array(origins.names, pa.string()))
    carried = _longs(rows[WATERMARK]) if WATERMARK in rows.column_names else None
    number = pc.fill_null(numbers, -1).cast(pa.int64())
    moves = moves_of(
        _numpy(number), _longs(rows[EVENT_TIME]), carried, origins.delays_ms or {}, origins.held_ms
    )
    return replace(moves, most_ms=rows[_MOST].to_numpy()) if _MOST in rows.column_names else moves


def arrivals_in(rows: pa.Table, origins: Origins) -> pa.Table:
    """Where rows move the watermark of their source, in the order in which they came: ARRIVAL, origin and watermark."""
    rows = rows.take(pa.array(order_indices(rows, ARRIVAL)))
    moves = _moves(rows, origins)
    at = steps_of(moves, len(origins.names))
    steps = rows.select(ARRIVAL).take(pa.array(at)).append_column(ORIGIN, pa.array(moves.origins[at]))
    return steps.append_column(_TO, pa.array(moves.to_ms[at]))


def packed_arrivals(rows: pa.Table, origins: Origins) -> pa.RecordBatch:
    """Those of a task's rows; of ``STEPS_SCHEMA``."""
    steps = pa.array([to_bytes(arrivals_in(rows, origins))], pa.binary())
    return pa.record_batch({"steps": steps, "newest": pa.array(["{}"])})


def _with_most(rows: pa.Table, origins: Origins, arrivals: pa.Table) -> pa.Table:
    """With how far the watermark may be before each row: a row that its source gave in time is not to be late."""
    moves = _moves(rows, origins)
    still = np.full(len(rows), MIN_TIMESTAMP, np.int64)
    own = (
        rows.select(ARRIVAL)
        .append_column(ORIGIN, pa.array(moves.origins))
        .append_column(_TO, pa.array(still))
    )
    both = pa.concat_tables([own, arrivals]).combine_chunks()  # a row comes before its own step
    in_order = order_indices(both, ARRIVAL)
    origin, to_ms = (both[name].to_numpy()[in_order] for name in (ORIGIN, _TO))
    before = np.empty(len(both), np.int64)
    before[in_order] = own_watermarks_before(Moves(origin, to_ms, origin < 0), origins.start_ms)
    event_ms, placed = _longs(rows[EVENT_TIME]), _numpy(pc.is_valid(rows[ARRIVAL[1]]))
    in_time = placed & (event_ms > MIN_TIMESTAMP) & ~late_among(event_ms, before[: len(rows)])
    return rows.append_column(_MOST, pa.array(np.where(in_time, event_ms - 1, MAX_TIMESTAMP)))


def _newest(rows: pa.Table) -> dict[str, int]:
    maxima = rows.group_by(SOURCE).aggregate([(EVENT_TIME, "max")])
    pairs = zip(maxima[SOURCE].to_pylist(), maxima[f"{EVENT_TIME}_max"].to_pylist(), strict=True)
    return {name: newest for name, newest in pairs if name is not None and newest is not None}


def _with_first(rows: pa.Table, broadcast: int | None) -> pa.Table:
    """With a column that puts rows of the broadcast input before all others."""
    if broadcast is None:
        return rows.append_column(_FIRST, pa.array(np.zeros(rows.num_rows, np.int64)))
    return rows.append_column(_FIRST, pc.not_equal(rows[INPUT], broadcast).cast(pa.int64()))


def _longs(column: pa.ChunkedArray) -> Longs:
    return _numpy(pc.fill_null(column, MIN_TIMESTAMP))


def _numpy(column: pa.ChunkedArray | pa.Array) -> Longs:
    values: Longs = (
        column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    )
    return values
