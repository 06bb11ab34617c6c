"""The order columns of outputs: those of the element that each came from, and where outputs of timers stand.

An event-time timer stands right after the element that moves the watermark to its time. Outputs carry the watermark
before them, and are ordered by it first: that of a timer is one millisecond before its time, and its rank is above that
of elements. So its place depends neither on where batches are cut nor on the parallelism. Where a stream is merged with
another one, the order that the user named comes first; there the timer stands in front of elements that are later than
its time plus the out-of-orderness, which needs an order that begins with the event time. Timers of one place are in
the order of their keys' hashes. What was due when the batch began stands first, what only draining fired stands last.

Watermarks are those that there would be if no operator held its own back. Readers subtract what ``Origins`` says.

The definition of this order is ``core.operator.output_order``; here it stands in columns, by which outputs of several
subtasks can be sorted. Random jobs (``tests/microbatch/test_random_jobs.py``) compare both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.errors import ConfigurationError
from state_engine.core.operator.outputs import BroadcastOrigin, TimerOrigin
from state_engine.core.time.timer_firing import key_order
from state_engine.core.time.timers import AT_ONCE, IN_TIME
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.microbatch.subtask.subtask_input import shifted_column
from state_engine.microbatch.subtask.subtask_spec import BatchClocks
from state_engine.sources.frames import EVENT_TIME, RANK, WATERMARK, order_name

_DAY_MS = 86_400_000


def order_of(
    origins: Sequence[Any],
    events: pa.Table,
    broadcast: pa.Table,
    *,
    order: tuple[str, ...],
    event_time: bool,
    timed_order: bool,
    clocks: BatchClocks,
    merged: bool,
    operator: str,
    times_ms: Mapping[int, int],
) -> pa.Table:
    """Order columns of outputs, the number of the output among those of one origin last.

    With event time also that, the watermark before them and their rank.

    Args:
        times_ms: event times of outputs that have their own, by place.
        merged: whether a chained step merges the outputs with another stream.
    """
    columns = [*order, *([EVENT_TIME, WATERMARK, RANK] if event_time else [])]
    rows = events.select(columns)
    try:
        at = np.array(origins, np.int64)
        if at.ndim != 1:
            raise TypeError
    except (TypeError, ValueError, OverflowError):
        timers = list(dict.fromkeys(o for o in origins if isinstance(o, TimerOrigin)))
        if merged and not timed_order and any(t.stage == IN_TIME for t in timers):
            raise ConfigurationError(
                f"operator '{operator}': a chained step merges what its event-time timers yield with another stream, "
                "so they need a place in the order: begin order_by of the source with its event_time column"
                "; times that a WatermarkStrategy gives are in none, so name a timestamp column there instead"
            ) from None
        first_timer = events.num_rows + broadcast.num_rows
        place: dict[Any, int] = {timer: first_timer + i for i, timer in enumerate(timers)}
        place |= {o: events.num_rows + o.element for o in origins if isinstance(o, BroadcastOrigin)}
        at = np.array([o if isinstance(o, int) else place[o] for o in origins], np.int64)
        made = _timer_rows(timers, rows.schema, order, clocks)
        rows = pa.concat_tables([rows, broadcast.select(columns), made]).combine_chunks()
    rows = rows.take(pa.array(at)).append_column(order_name(len(order)), pa.array(_numbers(at)))
    if times_ms:
        rows = _replaced(rows, EVENT_TIME, _with_own(rows[EVENT_TIME], times_ms))
    if event_time and clocks.held_back_ms:
        rows = _replaced(rows, WATERMARK, shifted_column(rows[WATERMARK], clocks.held_back_ms))
    return rows


def _with_own(event_ms: pa.ChunkedArray, own_ms: Mapping[int, int]) -> pa.Array:
    times, missing = pc.fill_null(event_ms, 0).to_numpy().copy(), event_ms.is_null().to_numpy().copy()
    at = list(own_ms)
    times[at], missing[at] = list(own_ms.values()), False
    return pa.array(times, mask=missing)


def _replaced(rows: pa.Table, name: str, column: pa.Array) -> pa.Table:
    return rows.set_column(rows.column_names.index(name), name, column)


def _numbers(at: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if len(at) and (np.diff(at) < 0).any():
        by_origin = np.argsort(at, kind="stable")
        numbers = np.empty(len(at), np.int64)
        numbers[by_origin] = _numbers(at[by_origin])
        return numbers
    starts = np.flatnonzero(np.r_[True, at[1:] != at[:-1]])
    return np.arange(len(at)) - np.repeat(starts, np.diff(np.r_[starts, len(at)]))


def _timer_rows(
    timers: Sequence[TimerOrigin], schema: pa.Schema, order: tuple[str, ...], clocks: BatchClocks
) -> pa.Table:
    """A row of order columns for every timer: its time first, the hash of its key last, nothing in between."""
    columns: dict[str, pa.Array] = {f.name: pa.nulls(len(timers), f.type) for f in schema}
    columns[order[-1]] = pa.array([key_order(t.key)[0] for t in timers], schema.field(order[-1]).type)
    first = schema.field(order[0]).type
    if len(order) > 1:
        columns[order[0]] = _instants([_instant(t, clocks.out_of_orderness_ms) for t in timers], first)
    if EVENT_TIME in columns:
        columns[EVENT_TIME] = pa.array([t.event_ms for t in timers], pa.int64())
        columns[WATERMARK] = pa.array([_watermark(t, clocks.watermark_ms) for t in timers], pa.int64())
        # a timer of this operator comes after those of the operators before it, whose order has fewer columns
        ranks = [len(order) if t.stage == IN_TIME else -len(order) for t in timers]
        columns[RANK] = pa.array(ranks, pa.int64())
    return pa.table([columns[f.name] for f in schema], schema=schema)


def _instant(timer: TimerOrigin, delay_ms: int) -> int | None:
    return timer.at + delay_ms + 1 if timer.stage == IN_TIME else None  # nulls come first


def _watermark(timer: TimerOrigin, start_ms: int) -> int:
    return start_ms if timer.stage == AT_ONCE else max(timer.at, MIN_TIMESTAMP + 1) - 1


def _instants(at_ms: list[int | None], kind: pa.DataType) -> pa.Array:
    """Times in milliseconds as values of an order column; what is later than the column can hold becomes its last."""
    if pa.types.is_date(kind):
        days = [None if t is None else min(-(-t // _DAY_MS), 2**31 - 1) for t in at_ms]
        return pa.array(days, pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        micros = [None if t is None else max(min(t * 1_000, 2**63 - 1), -(2**63)) for t in at_ms]
        return pa.array(micros, pa.int64()).cast(kind)
    if pa.types.is_integer(kind):
        # milliseconds; or an order that is not by event time, of which only first and last places are asked for
        width = kind.bit_width
        return pc.cast(pa.array([None if t is None else min(t, 2 ** (width - 1) - 1) for t in at_ms]), kind)
    return pa.nulls(len(at_ms), kind)
