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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.errors import ConfigurationError
from state_engine.core.operator.column_outputs import ColumnOrigins
from state_engine.core.operator.outputs import BroadcastOrigin, ElementOutputs, SideOutputs, TimerOrigin
from state_engine.core.time.timer_firing import key_order
from state_engine.core.time.timers import AT_ONCE, IN_TIME
from state_engine.core.time.watermarks import shifted
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from state_engine.microbatch.subtask.subtask_input import shifted_column
from state_engine.microbatch.subtask.subtask_spec import BatchClocks, SubtaskSpec
from state_engine.sources.frames import EVENT_TIME, RANK, WATERMARK, order_name

_DAY_MS = 86_400_000


def order_of(
    outputs: ElementOutputs | SideOutputs,
    events: pa.Table,
    broadcast: pa.Table,
    spec: SubtaskSpec,
    *,
    merged: bool,
) -> pa.Table:
    """Order columns of outputs, the number of the output among those of one origin last.

    With event time also that, the watermark before them and their rank.

    Args:
        merged: whether a chained step merges the outputs with another stream.
    """
    order, event_time, clocks = spec.routed.order, spec.routed.event_time, spec.clocks
    columns = [*order, *([EVENT_TIME, WATERMARK, RANK] if event_time else [])]
    rows = events.select(columns)
    first_timer = events.num_rows + broadcast.num_rows
    at, timers = _places(outputs.origins, events.num_rows, first_timer)
    if merged and not spec.routed.timed_order and (timers.stages == IN_TIME).any():
        raise ConfigurationError(
            f"operator '{spec.uid}': a chained step merges what its event-time timers yield with another stream, "
            "so they need a place in the order: begin order_by of the source with its event_time column"
            "; times that a WatermarkStrategy gives are in none, so name a timestamp column there instead"
        )
    if len(at) and at.max() >= events.num_rows:
        made = _timer_rows(timers, rows.schema, order, clocks)
        rows = pa.concat_tables([rows, broadcast.select(columns), made]).combine_chunks()
    rows = rows.take(pa.array(at)).append_column(order_name(len(order)), pa.array(_numbers(at)))
    if own := outputs.times_ms:
        own = own if isinstance(own, pa.Array) else _column_of(own, len(rows))
        rows = _replaced(rows, EVENT_TIME, pc.coalesce(own, rows[EVENT_TIME]))
    if event_time and clocks.held_back_ms:
        rows = _replaced(rows, WATERMARK, shifted_column(rows[WATERMARK], clocks.held_back_ms))
    return rows


def _column_of(own_ms: Mapping[int, int], number: int) -> pa.Array:
    times, missing = np.zeros(number, np.int64), np.ones(number, bool)
    at = list(own_ms)
    times[at], missing[at] = list(own_ms.values()), False
    return pa.array(times, mask=missing)


@dataclass(frozen=True)
class _Timers:
    """Timers that outputs came from, each once: when they fired, and the hashes of their keys."""

    stages: np.ndarray[Any, Any]
    at: np.ndarray[Any, Any]
    hashes: np.ndarray[Any, Any]


def _places(origins: Any, first_broadcast: int, first_timer: int) -> tuple[np.ndarray[Any, Any], _Timers]:
    """The row of order columns for each output: those of elements, then of broadcast elements, then of timers."""
    if isinstance(origins, ColumnOrigins):
        return _places_of_columns(origins, first_timer)
    none = np.zeros(0, np.int64)
    try:
        at = np.array(origins, np.int64)
        if at.ndim == 1:
            return at, _Timers(none, none, none)
    except (TypeError, ValueError, OverflowError):
        pass
    timers = list(dict.fromkeys(o for o in origins if isinstance(o, TimerOrigin)))
    place: dict[Any, int] = {timer: first_timer + i for i, timer in enumerate(timers)}
    place |= {o: first_broadcast + o.element for o in origins if isinstance(o, BroadcastOrigin)}
    at = np.array([o if isinstance(o, int) else place[o] for o in origins], np.int64)
    columns = ([t.stage for t in timers], [t.at for t in timers], [key_order(t.key)[0] for t in timers])
    return at, _Timers(*(np.array(column, np.int64) for column in columns))


def _places_of_columns(origins: ColumnOrigins, first_timer: int) -> tuple[np.ndarray[Any, Any], _Timers]:
    places = np.flatnonzero(origins.of_timers)
    times, keys = origins.at[places], origins.key_of[places]
    new = np.append(True, (times[1:] != times[:-1]) | (keys[1:] != keys[:-1]))[: len(places)]
    at, first = origins.rows.copy(), places[new]
    at[places] = first_timer + np.cumsum(new) - 1
    assert origins.hashes is not None
    return at, _Timers(origins.stages(first), origins.at[first], origins.hashes[origins.key_of[first]])


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


def _timer_rows(timers: _Timers, schema: pa.Schema, order: tuple[str, ...], clocks: BatchClocks) -> pa.Table:
    """A row of order columns for every timer: its time first, the hash of its key last, nothing in between."""
    number, in_time = len(timers.at), timers.stages == IN_TIME
    columns: dict[str, pa.Array] = {f.name: pa.nulls(number, f.type) for f in schema}
    columns[order[-1]] = pa.array(timers.hashes).cast(schema.field(order[-1]).type)
    if len(order) > 1:
        instants = shifted(timers.at, clocks.out_of_orderness_ms + 1)
        columns[order[0]] = _instants(instants, ~in_time, schema.field(order[0]).type)  # nulls come first
    if EVENT_TIME in columns:
        at_once = timers.stages == AT_ONCE
        columns[EVENT_TIME] = pa.array(timers.at, mask=at_once)
        before = np.maximum(timers.at, MIN_TIMESTAMP + 1) - 1
        columns[WATERMARK] = pa.array(np.where(at_once, clocks.watermark_ms, before))
        # a timer of this operator comes after those of the operators before it, whose order has fewer columns
        columns[RANK] = pa.array(np.where(in_time, len(order), -len(order)))
    return pa.table([columns[f.name] for f in schema], schema=schema)


def _instants(at_ms: np.ndarray[Any, Any], none: np.ndarray[Any, Any], kind: pa.DataType) -> pa.Array:
    """Times in milliseconds as values of an order column; what is later than the column can hold becomes its last."""
    if pa.types.is_date(kind):
        days = np.minimum(-(-at_ms // _DAY_MS), 2**31 - 1)
        return pa.array(days.astype(np.int32), mask=none).cast(kind)
    if pa.types.is_timestamp(kind):
        least, most = MIN_TIMESTAMP // 1_000 + 1, MAX_TIMESTAMP // 1_000
        micros = np.clip(at_ms, least, most) * 1_000
        micros = np.where(at_ms > most, MAX_TIMESTAMP, np.where(at_ms < least, MIN_TIMESTAMP, micros))
        return pa.array(micros, mask=none).cast(kind)
    if pa.types.is_integer(kind):
        # milliseconds; or an order that is not by event time, of which only first and last places are asked for
        return pa.array(np.minimum(at_ms, 2 ** (kind.bit_width - 1) - 1), mask=none).cast(kind)
    return pa.nulls(len(at_ms), kind)
