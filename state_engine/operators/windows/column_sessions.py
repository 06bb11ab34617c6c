"""``ColumnSessions``: declared aggregates of sessions with a fixed gap by whole columns, each result once.

The same as ``SessionWindows`` with ``emit="final"``: results, rows that come too late, sessions and ends of closed
ones. That form is the definition, and gets each batch that columns cannot compute. Decision 0113.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.vectorized_functions import (
    DELETED,
    KEY,
    MAP_KEY,
    TIME,
    TIMER,
    VALUE,
    PerElement,
    StandsForElements,
    VectorizedKeyedFunction,
    VectorizedResult,
)
from state_engine.core.state.descriptors import SortedMapStateDescriptor, ValueStateDescriptor
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from state_engine.operators.aggregates.column_plan import PlanOverColumns
from state_engine.operators.aggregates.segments import Column, Segments
from state_engine.operators.lateness import TOO_LATE
from state_engine.operators.timed_rows import TimedRows, bounds_are_timestamps
from state_engine.operators.windows.window_columns import WindowColumns
from state_engine.operators.windows.window_results import WindowSettings


class ColumnSessions(StandsForElements):
    """Emits the aggregates of the rows of each session, once it is closed."""

    uses_timers = True

    def __init__(
        self,
        gap_ms: int,
        plan: PlanOverColumns,
        settings: WindowSettings,
        sessions: SortedMapStateDescriptor,
        closed: ValueStateDescriptor,
    ) -> None:
        self._gap_ms, self._plan, self._settings = gap_ms, plan, settings
        self._sessions, self._closed = sessions, closed

    def open(self, runtime_context: RuntimeContext) -> None:
        self._too_late = runtime_context.get_metrics_group().counter(TOO_LATE)
        runtime_context.get_sorted_map_state(self._sessions)
        runtime_context.get_state(self._closed)

    def process_batch(
        self, rows: pa.Table, state: pa.Table, ctx: VectorizedKeyedFunction.Context
    ) -> VectorizedResult:
        """Join rows and open sessions, and emit those that the watermark has closed by the end of the batch."""
        given, stored = TimedRows.of(rows, ctx), ctx.maps[self._sessions.name]
        lateness_ms, gap_ms = self._settings.lateness_ms, self._gap_ms
        times = np.concatenate([given.at, stored[MAP_KEY].to_numpy()])
        if len(times) and not bounds_are_timestamps(
            int(times.min()), int(times.max()) + 2 * gap_ms + lateness_ms
        ):
            raise PerElement
        closed = one_chunk(state[self._closed.name]).fill_null(MIN_TIMESTAMP).to_numpy(zero_copy_only=False)
        late = self._late(given, stored, closed)
        self._too_late.inc(int(late.sum()))
        side = given.late(late, self._settings.late_to)
        given = given.those(~late)
        merged = Clusters.of(given.keys, given.at, given.watermarks, stored, gap_ms)
        if (merged.own_watermarks >= merged.reached_before + lateness_ms).any():
            raise PerElement  # a row that came when the session in front of it was closed
        closes = merged.ends + lateness_ms
        ended = closes <= ctx.end_watermark_ms
        kept = self._kept(given, stored, merged)
        after = self._closed_after(merged, ended, closed, ctx.end_watermark_ms)
        changed = np.flatnonzero(after != closed)
        stored_ends = one_chunk(stored[VALUE]).field("end").to_numpy(zero_copy_only=False)
        before = self._next(stored[KEY].to_numpy(), stored_ends, closed)
        return VectorizedResult(
            outputs=WindowColumns(merged.keys[ended], merged.starts[ended], merged.ends[ended]).table(
                state.drop_columns([KEY, self._closed.name]),
                self._plan,
                self._plan.results(kept.filter(pa.array(ended))),
                **{KEY: merged.keys[ended], TIMER: closes[ended]},
            ),
            state=pa.table(
                {
                    KEY: changed,
                    self._closed.name: pa.array(after[changed], mask=after[changed] == MIN_TIMESTAMP),
                }
            ),
            maps={self._sessions.name: self._changes(merged, kept, ended, stored)},
            timers=self._timers(
                before, self._next(merged.keys[~ended], merged.ends[~ended], after), ctx.end_watermark_ms
            ),
            side=side,
        )

    def _late(self, given: TimedRows, stored: pa.Table, closed: Column) -> Column:
        """Which rows come too late. Raises PerElement where that depends on the order of the others."""
        over = given.at + self._gap_ms + self._settings.lateness_ms <= given.watermarks
        late: Column = ~over & (given.at <= closed[given.keys])
        if over.any():
            clusters = Clusters.of(
                given.keys[~late], given.at[~late], given.watermarks[~late], stored, self._gap_ms
            )
            alone = np.zeros(len(late), bool)
            alone[~late] = clusters.sizes[clusters.of_rows] == 1
            if (over & ~alone).any():
                raise PerElement
            late = late | over
        return late

    def _kept(self, given: TimedRows, stored: pa.Table, merged: Clusters) -> pa.Array:
        number = len(merged.keys)
        value = one_chunk(stored[VALUE])
        kind = self._plan.kind
        before = pa.StructArray.from_arrays(value.flatten()[1:], fields=list(kind))
        places = np.full(number, -1)
        if len(before):
            with_stored = np.flatnonzero(merged.has_stored)
            dense = np.searchsorted(with_stored, merged.of_stored)
            if len(with_stored) < len(before):
                before = self._plan.merged(before, Segments(dense))
                dense = np.arange(len(with_stored))
            places[with_stored[dense]] = np.arange(len(dense))
        kept = (
            before.take(pa.array(np.maximum(places, 0), mask=places < 0))
            if len(before)
            else pa.nulls(number, kind)
        )
        if not len(merged.of_rows):
            return kept
        with_rows, dense = np.unique(merged.of_rows, return_inverse=True)
        after = self._plan.added(given.rows, kept.take(pa.array(with_rows)), Segments(dense))[0]
        places = np.arange(number)
        places[with_rows] = number + np.arange(len(with_rows))
        return pa.concat_arrays([kept, after]).take(pa.array(places))

    def _changes(self, merged: Clusters, kept: pa.Array, ended: Column, stored: pa.Table) -> pa.Table:
        """Sessions that stay, with rows; those that go, because they are closed or begin earlier now, are null."""
        put = ~ended & merged.has_rows
        starts = stored[MAP_KEY].to_numpy()
        gone = ended[merged.of_stored] | (starts != merged.starts[merged.of_stored])
        columns = [pa.array(merged.ends[put]), *kept.filter(pa.array(put)).flatten()]
        value = self._sessions.value_type.arrow
        return pa.table(
            {
                KEY: np.concatenate([merged.keys[put], stored[KEY].to_numpy()[gone]]),
                MAP_KEY: np.concatenate([merged.starts[put], starts[gone]]),
                VALUE: pa.concat_arrays(
                    [
                        pa.StructArray.from_arrays(columns, fields=list(value)),
                        pa.nulls(int(gone.sum()), value),
                    ]
                ),
            }
        )

    def _closed_after(self, merged: Clusters, ended: Column, closed: Column, end_ms: int) -> Column:
        """The greatest end of a closed session of each key; the smallest long where no row in time can reach it."""
        after, opened = closed.copy(), np.full(len(closed), MAX_TIMESTAMP)
        np.maximum.at(after, merged.keys[ended], merged.ends[ended])
        np.minimum.at(opened, merged.keys[~ended], merged.first_watermarks[~ended])
        forgotten = self._forgets(after)
        return np.where((forgotten <= end_ms) & (opened >= forgotten), MIN_TIMESTAMP, after)

    def _forgets(self, closed: Column) -> Column:
        """When no row in time can reach the last closed session of each key; the greatest long where there is none."""
        forgets = closed + self._settings.lateness_ms + self._gap_ms
        return np.where(closed > MIN_TIMESTAMP, forgets, MAX_TIMESTAMP)

    def _next(self, keys: Column, ends: Column, closed: Column) -> Column:
        """When something happens next to each key: ``SessionWindows._next``; the greatest long for never.

        Args:
            keys, ends: of open sessions.
            closed: for each key the end of the last closed one.
        """
        first = np.full(len(closed), MAX_TIMESTAMP)
        np.minimum.at(first, keys, ends + self._settings.lateness_ms)
        return np.where(first < MAX_TIMESTAMP, first, self._forgets(closed))

    def _timers(self, before: Column, after: Column, end_ms: int) -> pa.Table:
        """Each key has one timer; those that are due are gone."""
        moved = before != after
        deleted = np.flatnonzero(moved & (before > end_ms) & (before < MAX_TIMESTAMP))
        put = np.flatnonzero(moved & (after < MAX_TIMESTAMP))
        return pa.table(
            {
                KEY: np.concatenate([deleted, put]),
                TIME: np.concatenate([before[deleted], after[put]]),
                DELETED: np.arange(len(deleted) + len(put)) < len(deleted),
            }
        )


@dataclass(frozen=True)
class Clusters:
    """Rows and stored sessions of keys that overlap or touch, as one session each, by key and time.

    Attributes:
        keys, starts, ends: of each.
        sizes: how many rows and stored sessions it has.
        has_rows, has_stored: whether it has any of them.
        first_watermarks: the watermark before the first of its rows; the smallest long where it has a stored session.
        of_rows, of_stored: the cluster of each row and stored session.
        own_watermarks, reached_before: of rows that are not the first of their cluster by time, the watermark before
            it, and the end of what is in front of it.
    """

    keys: Column
    starts: Column
    ends: Column
    sizes: Column
    has_rows: Column
    has_stored: Column
    first_watermarks: Column
    of_rows: Column
    of_stored: Column
    own_watermarks: Column
    reached_before: Column

    @classmethod
    def of(cls, keys: Column, at: Column, watermarks: Column, stored: pa.Table, gap_ms: int) -> Clusters:
        """Those of rows with a gap, and of stored sessions."""
        stored_ends = one_chunk(stored[VALUE]).field("end").to_numpy(zero_copy_only=False).astype(np.int64)
        rows = len(keys)
        all_keys = np.concatenate([keys, stored[KEY].to_numpy()])
        starts = np.concatenate([at, stored[MAP_KEY].to_numpy()])
        ends = np.concatenate([at + gap_ms, stored_ends])
        before = np.concatenate([watermarks, np.full(len(stored_ends), MIN_TIMESTAMP)])
        order = np.lexsort((starts, all_keys))
        all_keys, starts, ends, before = all_keys[order], starts[order], ends[order], before[order]
        number = len(order)
        new_key = np.append(True, all_keys[1:] != all_keys[:-1])[:number]
        # ends rise within a key but for stored sessions that hold rows: an offset by key keeps keys apart
        least = int(starts.min(initial=0))
        step = int(ends.max(initial=0)) - least + 1
        if number and (int(all_keys[-1]) + 1) * step > MAX_TIMESTAMP // 2:
            raise PerElement
        reached = np.maximum.accumulate(ends - least + all_keys * step) - all_keys * step + least
        in_front = np.append(0, reached[:-1])[:number]
        first = new_key | (starts > in_front)
        places = np.flatnonzero(first)
        cluster = np.cumsum(first) - 1
        is_row = order < rows
        of_all = np.empty(number, np.int64)
        of_all[order] = cluster
        others = ~first & is_row

        def folded(fold: np.ufunc, column: Column) -> Column:
            result: Column = fold.reduceat(column, places) if number else column
            return result

        return cls(
            keys=all_keys[places],
            starts=starts[places],
            ends=folded(np.maximum, ends),
            sizes=np.bincount(cluster, minlength=len(places)),
            has_rows=folded(np.logical_or, is_row),
            has_stored=folded(np.logical_or, ~is_row),
            first_watermarks=folded(np.minimum, before),
            of_rows=of_all[:rows],
            of_stored=of_all[rows:],
            own_watermarks=before[others],
            reached_before=in_front[others],
        )
