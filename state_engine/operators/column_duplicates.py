"""First rows of keys by whole columns: ``FirstRow`` and ``FirstRowsWithin`` as functions over columns.

The same rows, late rows, state and timers: those forms are the definition, and get each batch that columns cannot
compute. Decision 0117.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pyarrow as pa

from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.vectorized_functions import (
    KEY,
    MAP_KEY,
    TIME,
    VALUE,
    PerElement,
    StandsForElements,
    VectorizedKeyedFunction,
    VectorizedResult,
)
from state_engine.core.state.descriptors import SortedMapStateDescriptor, ValueStateDescriptor
from state_engine.core.types.columns import one_chunk
from state_engine.operators.aggregates.segments import Column
from state_engine.operators.lateness import TOO_LATE, Lateness
from state_engine.operators.timed_rows import TimedRows, plus, times_are_timestamps


class ColumnFirstRow(StandsForElements):
    """Emits the first row of each key in the total order, and no other one."""

    def __init__(self, descriptor: ValueStateDescriptor) -> None:
        self._descriptor = descriptor

    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_state(self._descriptor)

    def process_batch(
        self, rows: pa.Table, state: pa.Table, ctx: VectorizedKeyedFunction.Context
    ) -> VectorizedResult:
        if ctx.kinds is not None:
            raise PerElement
        seen = one_chunk(state[self._descriptor.name]).fill_null(False).to_numpy(zero_copy_only=False)
        keys = rows[KEY].to_numpy()
        first = np.zeros(state.num_rows, np.int64)
        first[keys[::-1]] = np.arange(len(keys))[::-1]
        new = np.unique(keys[~seen[keys]])
        return VectorizedResult(
            outputs=rows.take(pa.array(np.sort(first[new]))).drop_columns([KEY]),
            state=pa.table({KEY: new, self._descriptor.name: np.ones(len(new), bool)}),
        )


class ColumnFirstRowsWithin(StandsForElements):
    """Emits a row at its place in the total order, unless a row nearer than ``within_ms`` came out before it.

    Args:
        descriptor: of the times of rows that came out.
    """

    uses_timers = True

    def __init__(self, within_ms: int, lateness: Lateness, descriptor: SortedMapStateDescriptor) -> None:
        self._within_ms, self._lateness, self._descriptor = within_ms, lateness, descriptor

    def open(self, runtime_context: RuntimeContext) -> None:
        self._too_late = runtime_context.get_metrics_group().counter(TOO_LATE)
        runtime_context.get_sorted_map_state(self._descriptor)

    def process_batch(
        self, rows: pa.Table, state: pa.Table, ctx: VectorizedKeyedFunction.Context
    ) -> VectorizedResult:
        given, stored = TimedRows.of(rows, ctx), ctx.maps[self._descriptor.name]
        stored_keys, stored_at = stored[KEY].to_numpy(), stored[MAP_KEY].to_numpy()
        if not times_are_timestamps(given.at):
            raise PerElement
        late = plus(given.at, self._lateness.ms) <= given.watermarks
        self._too_late.inc(int(late.sum()))
        side = given.late(late, self._lateness.late_to)
        given = given.those(~late)
        kept = kept_within(given.keys, given.at, stored_keys, stored_at, self._within_ms)
        goes = self._goes(given.at)
        stays = kept & (goes > ctx.end_watermark_ms)
        gone = self._goes(stored_at) <= ctx.end_watermark_ms
        return VectorizedResult(
            outputs=given.rows.filter(pa.array(kept)).drop_columns([KEY]) if kept.any() else None,
            maps={
                self._descriptor.name: pa.table(
                    {
                        KEY: np.concatenate([given.keys[stays], stored_keys[gone]]),
                        MAP_KEY: np.concatenate([given.at[stays], stored_at[gone]]),
                        VALUE: pa.concat_arrays(
                            [pa.repeat(True, int(stays.sum())), pa.nulls(int(gone.sum()), pa.bool_())]
                        ),
                    }
                )
            },
            timers=pa.table({KEY: given.keys[stays], TIME: goes[stays]}),
            side=side,
        )

    def _goes(self, at: Column) -> Column:
        return plus(plus(at, self._lateness.ms), self._within_ms - 1)


def kept_within(keys: Column, at: Column, stored_keys: Column, stored_at: Column, within_ms: int) -> Column:
    """Which rows come out: those without a stored time, or a row that came out before them, nearer than the distance.

    Only rows with another time of their key nearer than that can be duplicates; these are looked at one by one.

    Example:
        >>> keys, at = np.zeros(6, np.int64), np.array([50, 45, 40, 60, 55, 31])
        >>> at[kept_within(keys, at, np.zeros(1, np.int64), np.array([31]), 10)].tolist()
        [50, 60]
    """
    stored = len(stored_at)
    all_keys, all_at = np.concatenate([stored_keys, keys]), np.concatenate([stored_at, at])
    order = np.lexsort((all_at, all_keys))
    in_keys, in_time = all_keys[order], all_at[order]
    near = (in_keys[1:] == in_keys[:-1]) & (in_time[1:] - in_time[:-1] < within_ms)
    contested = np.zeros(len(order), bool)
    contested[order[1:][near]] = True
    contested[order[:-1][near]] = True
    kept = ~contested[stored:]
    times: dict[int, list[int]] = {}
    places = order[contested[order] & (order < stored)]
    for key, time in zip(all_keys[places].tolist(), all_at[places].tolist(), strict=True):
        times.setdefault(key, []).append(time)
    places = np.flatnonzero(~kept)
    one_by_one = zip(places.tolist(), keys[places].tolist(), at[places].tolist(), strict=True)
    for place, key, time in one_by_one:
        of_key = times.setdefault(key, [])
        behind = bisect_left(of_key, time - within_ms + 1)
        if behind == len(of_key) or of_key[behind] >= time + within_ms:
            of_key.insert(behind, time)
            kept[place] = True
    return kept
