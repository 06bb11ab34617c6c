"""``ColumnOver``: aggregates of the rows before each row, of spans of time or of the last rows, by whole columns.

The same as ``Over`` without tiles: outputs, rows that come too late, and states. That form is the definition, and gets
each batch that columns cannot compute. Its timers are sufficient, and not always the same. Decision 0120.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    VALUE,
    PerElement,
    StandsForElements,
    VectorizedKeyedFunction,
    VectorizedResult,
)
from state_engine.core.state.descriptors import (
    MapStateDescriptor,
    SortedMapStateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from state_engine.operators import lateness as of_one
from state_engine.operators.aggregates.column_plan import PlanOverColumns
from state_engine.operators.aggregates.segments import Column, Segments
from state_engine.operators.lateness import TOO_LATE, Lateness
from state_engine.operators.timed_rows import TimedRows, pairs_within, plus, times_are_timestamps

if TYPE_CHECKING:
    from state_engine.operators.over import OverPlan

NEVER = MIN_TIMESTAMP
"""Stands for no timer, and no time."""
_SEEN = 500
"""Rows that a row sees, on the average, from which on accumulators that take rows back are faster, of doubles first."""
_PAIRS = 2**20
"""So many rows of spans, or those of one row, are in memory at once."""


@dataclass(frozen=True)
class OverStates:
    """Descriptors of the states."""

    waiting: SortedMapStateDescriptor
    rows: SortedMapStateDescriptor
    sums: MapStateDescriptor | None
    wakes: ValueStateDescriptor


class ColumnOver(StandsForElements):
    """Emits each row with aggregates of those rows of its key that are not behind it.

    Args:
        over: the aggregates: all of spans, or all of last rows.
        at_once: whether a row comes out at its own place.
    """

    uses_timers = True

    def __init__(
        self, over: OverPlan, plan: PlanOverColumns, states: OverStates, lateness: Lateness, *, at_once: bool
    ) -> None:
        self._over, self._plan, self._states = over, plan, states
        self._lateness, self._at_once = lateness, at_once
        self._span_ms = over.spans_ms[-1] if over.spans_ms else None

    def open(self, runtime_context: RuntimeContext) -> None:
        self._too_late = runtime_context.get_metrics_group().counter(TOO_LATE)
        runtime_context.get_sorted_map_state(self._states.waiting)
        runtime_context.get_state(self._states.wakes)
        runtime_context.get_sorted_map_state(self._states.rows)
        if self._states.sums is not None:
            runtime_context.get_map_state(self._states.sums)

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
        kept, waiting = (ctx.maps[one.name] for one in (self._states.rows, self._states.waiting))
        line = Timeline.of(kept, waiting, given.those(~late))
        closes = plus(line.at, self._lateness.ms)
        flushed = (line.place >= line.kept) & (closes <= ctx.end_watermark_ms)
        waits = (line.place >= line.kept) & ~flushed
        wakes = one_chunk(state[self._states.wakes.name]).fill_null(NEVER).to_numpy(zero_copy_only=False)
        woken, reached = self._woken(line, flushed, wakes, ctx.end_watermark_ms)
        first = np.flatnonzero(waits)
        first = first[_firsts(line.keys[first])]
        changed = np.flatnonzero(woken != wakes)
        awake = changed[woken[changed] != NEVER]
        return VectorizedResult(
            outputs=self._outputs(line, flushed, closes),
            state=pa.table(
                {
                    KEY: changed,
                    self._states.wakes.name: pa.array(woken[changed], mask=woken[changed] == NEVER),
                }
            ),
            maps={
                self._states.rows.name: self._rows_after(line, flushed, reached),
                self._states.waiting.name: self._waiting_after(line, flushed, waits),
                **self._sums_after(ctx, reached),
            },
            timers=pa.table(
                {
                    KEY: np.concatenate([line.keys[first], awake]),
                    TIME: np.concatenate([closes[first], woken[awake]]),
                }
            ),
            side=side,
        )

    # -- results ---------------------------------------------------------------------------------------------------

    def _outputs(self, line: Timeline, flushed: Column, closes: Column) -> pa.Table | None:
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
        fields = [line.of_all(name) for name in self._over.fields.names]
        results: dict[tuple[int | None, int | None], list[pa.Array]] = {}
        result = self._plan.names.index
        for column in self._over.columns:
            reach = column.span_ms, column.last_rows
            if reach not in results:
                results[reach] = self._results(*self._reach(*reach, places, line), places, line, fields)
            columns[column.name] = results[reach][result(self._over.result_of(column))]
        return pa.table(columns)

    def _reach(
        self, span_ms: int | None, last_rows: int | None, places: Column, line: Timeline
    ) -> tuple[Column, Column]:
        """The first and the last place of the rows that rows at some places see."""
        if span_ms is not None:
            return line.first_at(places, span_ms), places if self._at_once else line.last_peer(places)
        assert last_rows is not None
        if self._at_once and not line.in_order:
            raise PerElement
        return np.maximum(places - min(last_rows, len(line.at)) + 1, line.begins[places]), places

    def _results(
        self, begins: Column, ends: Column, places: Column, line: Timeline, fields: list[pa.Array]
    ) -> list[pa.Array]:
        """The aggregates of what lies between two places, for each of some rows."""
        if self._states.sums is not None and int((ends - begins).sum()) > _SEEN * len(places):
            raise PerElement  # adding and taking back each row once is less work
        parts = []
        for block in _blocks(ends - begins + 1):
            of_row, within = pairs_within(begins[block], ends[block])
            if self._at_once:  # what comes later is not seen
                before = line.place[within] <= line.place[places[block]][of_row]
                of_row, within = of_row[before], within[before]
            number = len(begins[block])
            seen = pa.table([one.take(pa.array(within)) for one in fields], names=self._over.fields.names)
            after, _ = self._plan.added(seen, pa.nulls(number, self._plan.kind), Segments(of_row))
            parts.append(self._plan.results(after))
        return [pa.concat_arrays(columns) for columns in zip(*parts, strict=True)]

    # -- states ----------------------------------------------------------------------------------------------------

    def _woken(self, line: Timeline, flushed: Column, wakes: Column, end_ms: int) -> tuple[Column, Column]:
        """Follow the timer of each key that drops idle rows: when it is due next, and the time of the last drop."""
        reached, woken = np.full(len(wakes), NEVER), wakes.copy()
        np.maximum.at(reached, line.keys[flushed], line.at[flushed])
        if self._span_ms is None:
            return woken, reached
        behind = np.full(len(wakes), NEVER)  # the wake that the first flushed row sets
        places = np.flatnonzero(flushed)
        places = places[_firsts(line.keys[places])]
        behind[line.keys[places]] = plus(plus(line.at[places], self._span_ms + 1), self._lateness.ms)
        woken = np.where(wakes == NEVER, behind, wakes)
        for key in np.flatnonzero((woken != NEVER) & (woken <= end_ms)).tolist():
            woken[key], last = self._rung(line, flushed, key, wakes[key], end_ms)
            reached[key] = max(reached[key], last)
        return woken, reached

    def _rung(self, line: Timeline, flushed: Column, key: int, wake: int, end_ms: int) -> tuple[int, int]:
        """The timer of a key after those that are due have fired, and the last time that one has dropped rows for."""
        begin, end = np.searchsorted(line.keys, [key, key + 1])
        times, over = line.at[begin:end], flushed[begin:end]
        stored = line.place[begin:end] < line.kept
        newest = int(times[stored].max()) if stored.any() else None
        flushes, lateness_ms, last = np.unique(times[over]).tolist(), self._lateness.ms, NEVER
        done = 0
        assert self._span_ms is not None
        while True:
            if wake == NEVER:
                if done == len(flushes):
                    return NEVER, last
                newest, done = flushes[done], done + 1
                wake = self._drops(newest)
            ends = [of_one.plus(at, lateness_ms) for at in flushes]
            behind = bisect_right(ends, wake)
            if behind > done:
                newest, done = flushes[behind - 1], behind
            if wake > end_ms:
                return wake, last
            last = max(last, wake - lateness_ms)
            assert newest is not None
            wake = NEVER if newest < last - self._span_ms or wake == MAX_TIMESTAMP else self._drops(newest)

    def _drops(self, newest: int) -> int:
        assert self._span_ms is not None
        return of_one.plus(of_one.plus(newest, self._span_ms + 1), self._lateness.ms)

    def _rows_after(self, line: Timeline, flushed: Column, reached: Column) -> pa.Table:
        """Rows whose time is over, without those that no later row has in reach."""
        there = (line.place < line.kept) | flushed
        if self._span_ms is not None:
            of_key = reached[line.keys]
            gone = there & (of_key != NEVER) & (line.at < of_key - self._span_ms)
        else:
            places = np.flatnonzero(there)
            keys = line.keys[places]
            ends = np.searchsorted(keys, keys, side="right")
            gone = np.zeros(len(there), bool)
            gone[places] = (reached[keys] != NEVER) & (ends - np.arange(len(keys)) > self._over.last_rows)
        put, removed = np.flatnonzero(flushed & ~gone), np.flatnonzero((line.place < line.kept) & gone)
        fields = [line.of_all(name).take(pa.array(put)) for name in self._over.fields.names]
        return line.entries(
            put, removed, pa.StructArray.from_arrays(fields, fields=list(self._states.rows.value_type.arrow))
        )

    def _sums_after(self, ctx: VectorizedKeyedFunction.Context, reached: Column) -> dict[str, pa.Table]:
        """Accumulators of spans go where rows came or went: the form per element makes them again of the rows."""
        if self._states.sums is None:
            return {}
        stored = ctx.maps[self._states.sums.name]
        stored = stored.filter(pa.array(reached[stored[KEY].to_numpy()] != NEVER))
        gone = pa.nulls(stored.num_rows, self._states.sums.value_type.arrow)
        return {self._states.sums.name: stored.set_column(2, VALUE, gone)}

    def _waiting_after(self, line: Timeline, flushed: Column, waits: Column) -> pa.Table:
        """Rows of the batch that wait; those that waited and have come out go."""
        put = np.flatnonzero(waits & (line.place >= line.before))
        removed = np.flatnonzero(flushed & (line.place < line.before))
        kind = self._states.waiting.value_type.arrow
        given = line.given.take(pa.array(line.place[put] - line.before)) if len(put) else None
        columns = [
            pa.nulls(0, one.type) if given is None else one_chunk(given[one.name]).cast(one.type)
            for one in kind
        ]
        return line.entries(put, removed, pa.StructArray.from_arrays(columns, fields=list(kind)))


@dataclass(frozen=True)
class Timeline:
    """Rows that are kept, that wait, and of a batch: by key and time, those of one time in their order.

    Attributes:
        keys, at: of each.
        place: their number among all of them, as they came: kept ones, waiting ones, the batch.
        codes: numbers that rise with key and time.
        begins: the place of the first one of the key.
        number: in the map key: what is stored, or the number of those before of one key and time.
        kept, before: how many are kept; and are kept or wait.
        stored: tables of those.
        given: the batch.
    """

    keys: Column
    at: Column
    place: Column
    codes: Column
    least: int
    begins: Column
    number: Column
    kept: int
    before: int
    stored: tuple[pa.Table, pa.Table]
    given: pa.Table

    @classmethod
    def of(cls, kept: pa.Table, waiting: pa.Table, given: TimedRows) -> Timeline:
        """Raises PerElement where times and keys do not fit into one number."""
        stored = [one_chunk(one[MAP_KEY]) for one in (kept, waiting)]
        stored_at, numbers = (
            [one.field(of).to_numpy(zero_copy_only=False) for one in stored] for of in ("at", "n")
        )
        at = np.concatenate([*stored_at, given.at])
        keys = np.concatenate([kept[KEY].to_numpy(), waiting[KEY].to_numpy(), given.keys])
        least = int(at.min(initial=MAX_TIMESTAMP)) if len(at) else 0
        step = int(at.max(initial=least)) - least + 1
        if (int(keys.max(initial=0)) + 1) * step > MAX_TIMESTAMP:
            raise PerElement
        codes = keys * step + (at - least)
        order = np.argsort(codes, kind="stable")
        codes, keys, at = codes[order], keys[order], at[order]
        begins, peers = (np.searchsorted(column, column) for column in (keys, codes))
        number = np.arange(len(order)) - peers
        known = order < len(at) - len(given.at)
        number[known] = np.concatenate(numbers)[order[known]]
        return cls(
            keys, at, order, codes, least, begins, number, kept.num_rows, kept.num_rows + waiting.num_rows,
            (kept, waiting), given.rows,
        )  # fmt: skip

    @property
    def in_order(self) -> bool:
        """Whether the rows of the batch came by time, key by key."""
        own = self.place >= self.before
        keys, place = self.keys[own], self.place[own]
        return bool(((place[1:] > place[:-1]) | (keys[1:] != keys[:-1])).all())

    def first_at(self, places: Column, span_ms: int) -> Column:
        """The first rows that are at most this span before those at some places."""
        behind = np.minimum(self.at[places] - self.at[self.begins[places]], span_ms)
        first: Column = np.searchsorted(self.codes, self.codes[places] - behind)
        return first

    def last_peer(self, places: Column) -> Column:
        """The last rows of the same key and time."""
        last: Column = np.searchsorted(self.codes, self.codes[places], side="right") - 1
        return last

    def of_all(self, name: str) -> pa.Array:
        """A column of all rows."""
        parts = [one_chunk(one[VALUE]).field(name) for one in self.stored]
        return pa.concat_arrays([*parts, self._of_given(name, parts[0].type)]).take(pa.array(self.place))

    def of_rows(self, name: str, places: Column) -> pa.Array:
        """A column of rows that are not kept, at some places."""
        waiting = one_chunk(self.stored[1][VALUE]).field(name)
        both = pa.concat_arrays([waiting, self._of_given(name, waiting.type)])
        return both.take(pa.array(self.place[places] - self.kept))

    def _of_given(self, name: str, kind: pa.DataType) -> pa.Array:
        return one_chunk(self.given[name]).cast(kind) if self.given.num_rows else pa.nulls(0, kind)

    def entries(self, put: Column, removed: Column, values: pa.Array) -> pa.Table:
        """Changes of a map: values at some places, and those at others are gone."""
        places = np.concatenate([put, removed])
        kind = one_chunk(self.stored[0][MAP_KEY]).type
        map_key = [pa.array(self.at[places]), pa.array(self.number[places])]
        return pa.table(
            {
                KEY: self.keys[places],
                MAP_KEY: pa.StructArray.from_arrays(map_key, fields=list(kind)),
                VALUE: pa.concat_arrays([values, pa.nulls(len(removed), values.type)]),
            }
        )


def _firsts(keys: Column) -> Column:
    """Which of some keys, which rise, are the first ones of their kind."""
    first: Column = np.append(True, keys[1:] != keys[:-1])[: len(keys)]
    return first


def _blocks(lengths: Column) -> Iterator[slice]:
    """Parts of rows that see so many others together as fit into memory."""
    ends, begin = np.cumsum(lengths), 0
    while begin < len(lengths):
        before = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, before + _PAIRS, side="right")), begin + 1)
        yield slice(begin, end)
        begin = end
