"""``ColumnOver``: aggregates of the rows before each row, of spans of time or of the last rows, by whole columns.

The same as ``Over``: outputs, rows that come too late, and states. That form is the definition, and gets each batch
that columns cannot compute. Decision 0120.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.vectorized_functions import (
    EVENT_TIME,
    KEY,
    MAP_KEY,
    ROW,
    TIME,
    TIMER,
    PerElement,
    StandsForElements,
    VectorizedKeyedFunction,
    VectorizedResult,
)
from state_engine.core.stable_order import stable_order
from state_engine.core.state.descriptors import SortedMapStateDescriptor, ValueStateDescriptor
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from state_engine.operators import lateness as of_one
from state_engine.operators.aggregates.segments import Column
from state_engine.operators.lateness import TOO_LATE, Lateness
from state_engine.operators.over.levels import Level
from state_engine.operators.over.timeline import Timeline, firsts
from state_engine.operators.timed_rows import TimedRows, at_moments, distinct, plus, times_are_timestamps

if TYPE_CHECKING:
    from state_engine.operators.over.over import OverPlan

NEVER = MIN_TIMESTAMP
"""Stands for no timer, and no time."""


class KeptColumns(Protocol):
    """What ``ColumnOver`` keeps of rows whose time is over, in one batch: rows or tiles."""

    def rows(self, waiting: pa.Table) -> pa.Table:
        """The rows that are kept, as those that wait."""

    def newest(self, key: int, line: Timeline) -> list[int]:
        """The newest stored one of a key for each level; ``NEVER`` for none."""

    def results(self, reach: Reach, places: Column, line: Timeline) -> list[pa.Array]:
        """The aggregates of a reach for the rows at some places. Raises PerElement where that is faster."""

    def after(self, line: Timeline, flushed: Column, reached: Column) -> dict[str, pa.Table]:
        """Changes of maps: rows that are flushed are kept, and goes what no row has in reach.

        Args:
            reached: for each key the last time for which something was dropped.
        """


class KeptForm(Protocol):
    """How ``ColumnOver`` keeps rows: it makes ``KeptColumns`` of each batch."""

    @property
    def levels(self) -> Sequence[Level]:
        """By which rows go by time; none where they do not."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the states."""

    def of(self, maps: Any) -> KeptColumns:
        """What the maps of a batch hold."""


Reach = tuple[int | None, int | None]
"""A span in milliseconds, or so many last rows."""


class ColumnOver(StandsForElements):
    """Emits each row with aggregates of those rows of its key that are not behind it.

    Args:
        over: the aggregates: all of spans, or all of last rows.
        at_once: whether a row comes out at its own place.
    """

    uses_timers = True

    def __init__(
        self,
        over: OverPlan,
        kept: KeptForm,
        waiting: SortedMapStateDescriptor,
        wakes: ValueStateDescriptor,
        lateness: Lateness,
        *,
        at_once: bool,
    ) -> None:
        self._over, self._kept, self._levels = over, kept, kept.levels
        self._waiting, self._wakes = waiting, wakes
        self._lateness, self._at_once = lateness, at_once

    def open(self, runtime_context: RuntimeContext) -> None:
        self._too_late = runtime_context.get_metrics_group().counter(TOO_LATE)
        runtime_context.get_sorted_map_state(self._waiting)
        runtime_context.get_state(self._wakes)
        self._kept.open(runtime_context)

    def process_batch(
        self, rows: pa.Table, state: pa.Table, ctx: VectorizedKeyedFunction.Context
    ) -> VectorizedResult:
        """Put rows beside those that are kept and that wait; compute, and keep what later rows have in reach."""
        given = TimedRows.of(rows, ctx)
        if not times_are_timestamps(given.at):
            raise PerElement
        late = plus(given.at, self._lateness.ms) <= given.watermarks
        self._too_late.inc(int(late.sum()))
        side = given.late(late, self._lateness.late_to)
        kept, waiting = self._kept.of(ctx.maps), ctx.maps[self._waiting.name]
        given = given.those(~late)
        line = Timeline.of(kept.rows(waiting), waiting, given)
        closes = plus(line.at, self._lateness.ms)
        flushed = (line.place >= line.kept) & (closes <= ctx.end_watermark_ms)
        waits = (line.place >= line.kept) & ~flushed
        wakes = one_chunk(state[self._wakes.name]).fill_null(NEVER).to_numpy(zero_copy_only=False)
        woken, reached = self._woken(line, kept, flushed, wakes, ctx.end_watermark_ms)
        awaited, at_ms = self._awaited(given, waiting, ctx.end_watermark_ms, len(wakes))
        changed = np.flatnonzero(woken != wakes)
        awake = changed[woken[changed] != NEVER]
        to_wake = pa.array(woken[changed], mask=woken[changed] == NEVER)
        return VectorizedResult(
            outputs=self._outputs(line, kept, flushed, closes),
            state=pa.table({KEY: changed, self._wakes.name: to_wake}),
            maps={
                self._waiting.name: self._waiting_after(line, flushed, waits),
                **kept.after(line, flushed, reached),
            },
            timers=pa.table(
                {
                    KEY: np.concatenate([awaited, awake]),
                    TIME: np.concatenate([at_ms, woken[awake]]),
                }
            ),
            side=side,
        )

    def _outputs(self, line: Timeline, kept: KeptColumns, flushed: Column, closes: Column) -> pa.Table | None:
        """The rows that come out: those of the batch, or those whose time is over."""
        places = np.flatnonzero(line.place >= line.before if self._at_once else flushed)
        if not len(places):
            return None
        if self._at_once:
            taken = line.given.take(pa.array(line.place[places] - line.before))
            columns: dict[str, Any] = {name: taken[name] for name in (*self._over.row_type.names, ROW)}
        else:
            columns = {name: line.of_rows(name, places) for name in self._over.row_type.names}
            columns |= {KEY: line.keys[places], TIMER: closes[places], EVENT_TIME: line.at[places]}
        results: dict[Reach, list[pa.Array]] = {}
        for column in self._over.columns:
            reach = column.span_ms, column.last_rows
            if reach not in results:
                results[reach] = kept.results(reach, places, line)
            columns[column.name] = results[reach][self._over.place_of(column)]
        return pa.table(columns)

    # -- states ----------------------------------------------------------------------------------------------------

    def _woken(
        self, line: Timeline, kept: KeptColumns, flushed: Column, wakes: Column, end_ms: int
    ) -> tuple[Column, Column]:
        """Follow the timer of each key that drops idle rows: when it is due next, and the time of the last drop."""
        reached, woken = np.full(len(wakes), NEVER), wakes.copy()
        np.maximum.at(reached, line.keys[flushed], line.at[flushed])
        if not self._levels:
            return woken, reached
        behind = np.full(len(wakes), NEVER)  # the wake that the first flushed row sets
        places = np.flatnonzero(flushed)
        places = places[firsts(line.keys[places])]
        ends = [plus(level.start(line.at[places]), level.reach_ms) for level in self._levels]
        behind[line.keys[places]] = plus(np.max(ends, axis=0), self._lateness.ms)
        woken = np.where(wakes == NEVER, behind, wakes)
        for key in np.flatnonzero((woken != NEVER) & (woken <= end_ms)).tolist():
            begin, end = np.searchsorted(line.keys, [key, key + 1])
            flushes = np.unique(line.at[begin:end][flushed[begin:end]]).tolist()
            woken[key], last = self._rung(kept.newest(key, line), flushes, wakes[key], end_ms)
            reached[key] = max(reached[key], last)
        return woken, reached

    def _rung(self, newest: list[int], flushes: list[int], wake: int, end_ms: int) -> tuple[int, int]:
        """The timer of a key after those that are due have fired, and the last time that one has dropped rows for.

        Args:
            newest: of each level.
            flushes: times of rows that are flushed in this batch.
        """
        lateness_ms, last, done = self._lateness.ms, NEVER, 0
        closes = [of_one.plus(at, lateness_ms) for at in flushes]
        while True:
            if wake == NEVER:
                if done == len(flushes):
                    return NEVER, last
                newest, done = self._starts(flushes[done]), done + 1
                wake = self._drops(newest)
            behind = bisect_right(closes, wake)
            if behind > done:
                newest, done = self._starts(flushes[behind - 1]), behind
            if wake > end_ms:
                return wake, last
            last = max(last, wake - lateness_ms)
            newest = [
                NEVER if start < level.first(last) else start
                for level, start in zip(self._levels, newest, strict=True)
            ]
            wake = NEVER if wake == MAX_TIMESTAMP else self._drops(newest)

    def _awaited(
        self, given: TimedRows, waiting: pa.Table, end_ms: int, number: int
    ) -> tuple[Column, Column]:
        """Keys and times of the timers that are set for rows that wait.

        A key has one for each row that was the first to wait at some moment: once all in front of it had come out.
        """
        stored_at = one_chunk(waiting[MAP_KEY]).field("at").to_numpy(zero_copy_only=False)
        closes = [plus(at, self._lateness.ms) for at in (given.at, stored_at)]
        times, places, stored = distinct(*closes)
        end, least, most = len(times), np.full(number, len(times)), np.full(number, -1)
        of_stored, stay = waiting[KEY].to_numpy(), closes[1] > end_ms
        np.minimum.at(least, of_stored[stay], stored[stay])
        np.maximum.at(most, of_stored[~stay], stored[~stay])
        order = stable_order(given.keys)
        keys, before = given.keys[order], given.watermarks[order]
        waits = closes[0] > end_ms
        moments = at_moments(keys, places[order], waits[order], least, most, end)
        np.minimum.at(least, given.keys[waits], places[waits])
        of_keys, of_places = [np.arange(number)], [least]
        for first, last in zip(*moments, strict=True):
            was_first = (first < end) & (np.append(times, MIN_TIMESTAMP)[last] <= before)
            of_keys.append(keys[was_first])
            of_places.append(first[was_first])
        all_keys, all_places = np.concatenate(of_keys), np.concatenate(of_places)
        there = all_places < end
        return all_keys[there], times[all_places[there]]

    def _starts(self, at: int) -> list[int]:
        return [level.start(at) for level in self._levels]

    def _drops(self, newest: list[int]) -> int:
        """When the next timer is due; NEVER where nothing is kept."""
        kept = [(level, start) for level, start in zip(self._levels, newest, strict=True) if start != NEVER]
        if not kept:
            return NEVER
        return of_one.plus(
            max(of_one.plus(start, level.reach_ms) for level, start in kept), self._lateness.ms
        )

    def _waiting_after(self, line: Timeline, flushed: Column, waits: Column) -> pa.Table:
        """Rows of the batch that wait; those that waited and have come out go."""
        put = np.flatnonzero(waits & (line.place >= line.before))
        removed = np.flatnonzero(flushed & (line.place < line.before))
        kind = self._waiting.value_type.arrow
        given = line.given.take(pa.array(line.place[put] - line.before)) if len(put) else None
        columns = [
            pa.nulls(0, one.type) if given is None else one_chunk(given[one.name]).cast(one.type)
            for one in kind
        ]
        return line.entries(put, removed, pa.StructArray.from_arrays(columns, fields=list(kind)))
