"""``ColumnWindows``: declared aggregates of windows of a size by whole columns.

The same as ``AlignedWindows`` with ``emit="final"``, and of tumbling windows with ``emit="running"``: results, rows
that come too late, state and timers. That form is the definition, and gets each batch that columns cannot compute. Rows
are computed together, times once for each part of a window. Decision 0113.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.vectorized_functions import (
    KEY,
    KIND,
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
from state_engine.core.state.descriptors import SortedMapStateDescriptor
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.row import RowKind
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from state_engine.operators.aggregates.column_plan import PlanOverColumns
from state_engine.operators.aggregates.segments import Column, Segments
from state_engine.operators.lateness import TOO_LATE, plus
from state_engine.operators.timed_rows import (
    TimedRows,
    at_moments,
    bounds_are_timestamps,
    distinct,
)
from state_engine.operators.windows.assigners import Cumulating, Sliding, TimeWindow, Tumbling
from state_engine.operators.windows.window_columns import WindowColumns
from state_engine.operators.windows.window_results import WindowSettings

_KINDS = (str(RowKind.INSERT), str(RowKind.UPDATE_BEFORE), str(RowKind.UPDATE_AFTER))


class ColumnWindows(StandsForElements):
    """Emits the aggregates of the rows of each key and window, once it is closed; or of tumbling ones with each row."""

    uses_timers = True

    def __init__(
        self,
        windows: Tumbling | Sliding | Cumulating,
        plan: PlanOverColumns,
        settings: WindowSettings,
        descriptor: SortedMapStateDescriptor,
    ) -> None:
        self._windows, self._plan = windows, plan
        self._settings, self._descriptor = settings, descriptor
        self.emits_changes = settings.has_kinds

    def open(self, runtime_context: RuntimeContext) -> None:
        self._too_late = runtime_context.get_metrics_group().counter(TOO_LATE)
        runtime_context.get_sorted_map_state(self._descriptor)

    def process_batch(
        self, rows: pa.Table, state: pa.Table, ctx: VectorizedKeyedFunction.Context
    ) -> VectorizedResult:
        """Add the rows to their parts, and emit the windows that the watermark has closed by the end of the batch."""
        given = TimedRows.of(rows, ctx)
        stored, name = ctx.maps[self._descriptor.name], self._descriptor.name
        slices = self._windows.slices_of(given.at)
        starts, part_of, part_of_stored = distinct(slices, stored[MAP_KEY].to_numpy())
        parts = Parts.of(self._windows, starts, self._settings.lateness_ms, ctx.end_watermark_ms)
        accepted = parts.closed[part_of] > given.watermarks
        late = given.late(~accepted, self._settings.late_to)
        self._too_late.inc(int(len(accepted) - accepted.sum()))
        given, part_of = given.those(accepted), part_of[accepted]
        entries = Entries.of(given, part_of, stored, part_of_stored, starts, self._plan)
        timers = entries.timers(parts, given.watermarks, state.num_rows)
        outputs, others = self._results(given, part_of, entries, parts, state, ctx)
        return VectorizedResult(
            outputs=outputs,
            maps={name: entries.changes(parts), **others},
            timers=timers,
            side=late,
        )

    def _results(
        self, given: TimedRows, part_of: Column, entries: Entries, parts: Parts, state: pa.Table, ctx: Any
    ) -> tuple[pa.Table, dict[str, pa.Table]]:
        """What comes out, and the changes of other maps."""
        if not self._settings.shows_once:
            return self._running(given, entries, parts, state), {}
        return self._fired(self._counted(given, part_of, entries, parts), parts, state, ctx.due), {}

    def _counted(self, given: TimedRows, part_of: Column, entries: Entries, parts: Parts) -> Counted:
        """The pieces that closed windows count, by the end of the batch."""
        if not isinstance(self._windows, Tumbling):
            closed_before = parts.closed_before(part_of, given.watermarks)
            if closed_before.any():  # late for some of their windows, and not for others
                return entries.of_windows(given, part_of, closed_before, self._plan)
        return entries.all_of(parts.reached > MIN_TIMESTAMP)

    def _fired(self, counted: Counted, parts: Parts, state: pa.Table, due: pa.Table) -> pa.Table:
        """The results of windows that are closed now; the timers of a key say which are closed already."""
        keys, kept = counted.keys, counted.kept
        first_due = np.full(state.num_rows, MAX_TIMESTAMP)
        np.minimum.at(first_due, due[KEY].to_numpy(), due[TIME].to_numpy())
        rows, window = parts.ended_windows(counted.parts, counted.skipped)
        now = ~counted.stored[rows] | (parts.window_closes[window] >= first_due[keys[rows]])
        rows, window = rows[now], window[now]
        if isinstance(self._windows, Tumbling):
            whole, of_keys = kept.take(pa.array(rows)), keys[rows]
        else:
            windows, of_rows = np.unique(keys[rows] * len(parts.windows) + window, return_inverse=True)
            of_keys, window = np.divmod(windows, max(len(parts.windows), 1))
            whole = self._plan.merged(kept.take(pa.array(rows)), Segments(of_rows))
        bounds = np.array(parts.windows, np.int64).reshape(-1, 2)[window]
        return WindowColumns(of_keys, bounds[:, 0], bounds[:, 1]).table(
            state.drop_columns([KEY]),
            self._plan,
            self._plan.results(whole),
            **{KEY: of_keys, TIMER: parts.window_closes[window]},
        )

    def _running(self, given: TimedRows, entries: Entries, parts: Parts, state: pa.Table) -> pa.Table:
        """The results of windows after each row, which is one part of one window; each takes the one before back."""
        segments, rows = entries.segments, np.arange(len(given.keys))
        known = np.flatnonzero(~entries.new)
        was_stored = np.full(len(entries.new), -1)
        was_stored[known] = len(rows) + np.arange(len(known))
        before = rows - 1  # key by key; the result before the first row of an entry is that of what is stored
        before[segments.starts] = was_stored
        at, earlier = segments.in_rows(rows), segments.in_rows(before)
        outputs = np.repeat(rows, 1 + (earlier >= 0))
        last = np.append(outputs[1:] != outputs[:-1], True)[: len(outputs)]
        source = np.where(last, at[outputs], earlier[outputs])
        stored = self._plan.results(entries.before.take(pa.array(known)))
        both = zip(entries.results, stored, strict=True)
        part = segments.in_rows(entries.parts[segments.keys])[outputs]
        kinds = np.where(last, np.where(earlier[outputs] < 0, 0, 2), 1)
        ends = parts.closed[part] + 1 - self._settings.lateness_ms
        return WindowColumns(given.keys[outputs], entries.starts[part], ends).table(
            state.drop_columns([KEY]),
            self._plan,
            [pa.concat_arrays(columns).take(pa.array(source)) for columns in both],
            **{ROW: given.rows[ROW].take(pa.array(outputs)), KIND: pa.array(_KINDS).take(pa.array(kinds))},
        )


@dataclass(frozen=True)
class Parts:
    """Parts of windows, smallest first, and when their windows are closed.

    Attributes:
        starts: of the parts.
        closed: when the last of their windows is closed.
        reached: when the last of their windows is closed that is closed by the end of the batch.
        following: when the first of their windows is closed that is not closed by then.
        windows, window_closes: different windows that are closed by then.
        offsets, ended: where the windows of each part begin in ``ended``, which has their places.
    """

    starts: Column
    closed: Column
    reached: Column
    following: Column
    windows: list[TimeWindow]
    window_closes: Column
    offsets: Column
    ended: Column

    @classmethod
    def of(cls, windows: Any, starts: Column, lateness_ms: int, end_ms: int) -> Parts:
        """Those that begin at some times. Raises PerElement where a window ends at the end of time."""
        places: dict[TimeWindow, int] = {}
        last, reached, following, offsets, ended = [], [], [], [0], []
        for start in starts.tolist():
            of_part = windows.windows_of(start)
            closes = [plus(window.max_timestamp(), lateness_ms) for window in of_part]
            if not bounds_are_timestamps(of_part[0].start, of_part[-1].end) or closes[-1] == MAX_TIMESTAMP:
                raise PerElement
            by_end = sum(at <= end_ms for at in closes)
            last.append(closes[-1])
            reached.append(closes[by_end - 1] if by_end else MIN_TIMESTAMP)
            following.append(closes[by_end] if by_end < len(closes) else MAX_TIMESTAMP)
            ended += [places.setdefault(window, len(places)) for window in of_part[:by_end]]
            offsets.append(len(ended))
        closes_of = [plus(window.max_timestamp(), lateness_ms) for window in places]
        return cls(
            starts,
            closed=np.array(last, np.int64),
            reached=np.array(reached, np.int64),
            following=np.array(following, np.int64),
            windows=list(places),
            window_closes=np.array(closes_of, np.int64),
            offsets=np.array(offsets, np.int64),
            ended=np.array(ended, np.int64),
        )

    def ended_windows(self, part: Column, skipped: Column) -> tuple[Column, Column]:
        """The windows of parts that are closed by the end of the batch: places among the parts given, and windows.

        Args:
            skipped: of each part so many of its first windows do not count.
        """
        begins = self.offsets[part] + skipped
        counts = self.offsets[1:][part] - begins
        rows = np.repeat(np.arange(len(part)), counts)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows, self.ended[begins[rows] + within]

    def closed_before(self, part: Column, watermarks: Column) -> Column:
        """The number of windows, of the part of each row, that close before the row; they close one after the other."""
        number = np.zeros(len(part), np.int64)
        places = np.repeat(np.arange(len(self.starts)), self.offsets[1:] - self.offsets[:-1])
        for at in range(int(np.bincount(places, minlength=1).max())):
            ended = self.offsets[:-1][part] + at
            there = ended < self.offsets[1:][part]
            closes = self.window_closes[self.ended[ended[there]]]
            number[there] += closes <= watermarks[there]
        return number


@dataclass(frozen=True)
class Counted:
    """What windows count, in pieces: of a key and a part each.

    Attributes:
        kept: of their rows.
        stored: true for an entry of the state, false for rows by themselves.
        skipped: so many of the first windows of their part do not count them.
    """

    keys: Column
    parts: Column
    kept: pa.Array
    stored: Column
    skipped: Column


@dataclass(frozen=True)
class Entries:
    """Entries of parts by key: those that rows came to, and the stored ones; each by key and part.

    Attributes:
        starts: of the parts.
        keys, parts, kept: of entries with rows, and what is kept after them.
        segments: of the rows that are taken, by entry.
        before: what was kept in front of these rows.
        results: after each of these rows, entry by entry.
        new: whether they were not stored.
        stored_keys, stored_parts, stored_kept: the stored ones.
        without_rows: which of the stored ones no row came to.
    """

    starts: Column
    keys: Column
    parts: Column
    kept: pa.Array
    segments: Segments
    before: pa.Array
    results: list[pa.Array]
    new: Column
    stored_keys: Column
    stored_parts: Column
    stored_kept: pa.Array
    without_rows: Column

    @classmethod
    def of(
        cls,
        given: TimedRows,
        part_of: Column,
        stored: pa.Table,
        part_of_stored: Column,
        starts: Column,
        plan: PlanOverColumns,
    ) -> Entries:
        """With the rows added."""
        size = max(len(starts), 1)
        codes, of_rows = distinct(given.keys * size + part_of)
        stored_keys, kept = stored[KEY].to_numpy(), one_chunk(stored[VALUE])
        stored_codes = stored_keys * size + part_of_stored  # they rise: by key, then by part
        at = np.searchsorted(stored_codes, codes)
        known = np.append(stored_codes, -1)[at] == codes
        segments = Segments(of_rows)
        before = kept.take(pa.array(at, mask=~known))
        after, results = (
            plan.added(given.rows, before, segments) if len(codes) else (before, plan.results(before))
        )
        without_rows = np.ones(len(stored_codes), bool)
        without_rows[at[known]] = False
        keys, parts = np.divmod(codes, size)
        return cls(
            starts,
            keys,
            parts,
            after,
            segments,
            before,
            results,
            new=~known,
            stored_keys=stored_keys,
            stored_parts=part_of_stored,
            stored_kept=kept,
            without_rows=without_rows,
        )

    def all_of(self, wanted: Column) -> Counted:
        mine = wanted[self.parts]
        others = self.without_rows & wanted[self.stored_parts]
        keys = np.concatenate([self.keys[mine], self.stored_keys[others]])
        return Counted(
            keys,
            np.concatenate([self.parts[mine], self.stored_parts[others]]),
            pa.concat_arrays([self.kept.filter(pa.array(mine)), self.stored_kept.filter(pa.array(others))]),
            stored=np.concatenate([~self.new[mine], np.ones(int(others.sum()), bool)]),
            skipped=np.zeros(len(keys), np.int64),
        )

    def of_windows(
        self, given: TimedRows, part_of: Column, closed_before: Column, plan: PlanOverColumns
    ) -> Counted:
        """The stored entries, and rows by themselves, by the windows that were closed before them."""
        size, stages = max(len(self.starts), 1), int(closed_before.max()) + 1
        codes, of_rows = distinct((given.keys * size + part_of) * stages + closed_before)
        kept = plan.added(given.rows, pa.nulls(len(codes), self.kept.type), Segments(of_rows))[0]
        entries, skipped = np.divmod(codes, stages)
        keys, parts = np.divmod(entries, size)
        number = len(self.stored_keys)
        return Counted(
            np.concatenate([keys, self.stored_keys]),
            np.concatenate([parts, self.stored_parts]),
            pa.concat_arrays([kept, self.stored_kept]),
            stored=np.arange(len(keys) + number) >= len(keys),
            skipped=np.concatenate([skipped, np.zeros(number, np.int64)]),
        )

    def changes(self, parts: Parts) -> pa.Table:
        """Entries of parts that stay, with rows; those that go are null."""
        stays = parts.following < MAX_TIMESTAMP
        put, gone = stays[self.parts], ~stays[self.stored_parts]
        keys = np.concatenate([self.keys[put], self.stored_keys[gone]])
        starts = self.starts[np.concatenate([self.parts[put], self.stored_parts[gone]])]
        kept = pa.concat_arrays([self.kept.filter(pa.array(put)), pa.nulls(int(gone.sum()), self.kept.type)])
        return pa.table({KEY: keys, MAP_KEY: starts, VALUE: kept})

    def timers(self, parts: Parts, watermarks: Column, number: int) -> pa.Table:
        """The timers that are set for after the batch.

        A key has a timer for what happens next to its first part, from each moment on at which that changes: as rows
        come to new parts, and as parts go. So a part that stays has one if it was the first at some moment: those
        in front of it had gone by then, and its windows that are closed by the end of the batch were.
        """
        end, stays = len(self.starts), parts.following < MAX_TIMESTAMP
        least, most = (
            np.full(number, end),
            np.full(number, -1),
        )  # of the stored: first that stays, last that goes
        of_stored = stays[self.stored_parts]
        np.minimum.at(least, self.stored_keys[of_stored], self.stored_parts[of_stored])
        np.maximum.at(most, self.stored_keys[~of_stored], self.stored_parts[~of_stored])
        first_rows = self.segments.order[self.segments.starts]
        keys, part, rows = self.keys[self.new], self.parts[self.new], first_rows[self.new]
        order = np.lexsort((rows, keys))
        keys, part, before = keys[order], part[order], watermarks[rows[order]]
        staying = stays[part]
        firsts, goes = at_moments(keys, part, staying, least, most, end)
        last = np.full(number, end)
        np.minimum.at(last, keys, firsts[1])
        last = np.minimum(last, least)
        of_keys, of_parts = [np.arange(number)], [last]
        for first, gone in zip(firsts, goes, strict=True):  # before each row, and after it
            there = first < end
            at = np.minimum(first, end - 1)
            was_first = (np.append(parts.closed, MIN_TIMESTAMP)[gone] <= before) & (
                parts.reached[at] <= before
            )
            of_keys.append(keys[there & was_first])
            of_parts.append(first[there & was_first])
        all_keys, all_parts = np.concatenate(of_keys), np.concatenate(of_parts)
        there = all_parts < end
        return pa.table({KEY: all_keys[there], TIME: parts.following[all_parts[there]]})
