"""``AlignedWindows``: windows that lie at the same times for all keys.

A row is kept once, in the part of a window that it lies in; a window is the parts from its start to its end. Mirrors
Flink's ``WindowOperator`` and, for what is kept, the slices of its ``SlicingWindowOperator``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.descriptors import SortedMapStateDescriptor
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from state_engine.operators.aggregates.accumulators import BIGINT
from state_engine.operators.lateness import plus
from state_engine.operators.retraction import takes_back
from state_engine.operators.windows.assigners import Cumulating, Sliding, TimeWindow, Tumbling
from state_engine.operators.windows.column_top_rows import ColumnTopRows
from state_engine.operators.windows.column_windows import ColumnWindows
from state_engine.operators.windows.contents import Contents, Kept
from state_engine.operators.windows.window_results import (
    Emitter,
    Rows,
    RowsWithBounds,
    WindowOperator,
    WindowSettings,
    check_bounds,
)
from state_engine.operators.windows.window_top_n import TopRows

WINDOWS, SLICES = "windows", "slices"
"""Names of the state: of tumbling windows, whose parts are whole windows, and of others."""


class AlignedWindows(WindowOperator):
    """Emits what comes of the rows of each key and window.

    A window takes rows until the watermark is ``lateness_ms`` behind its last millisecond; then it is closed, and
    nothing of it is kept. A row that all of its windows are closed for goes to ``late_to``. Rows that are updated or
    deleted are taken back from the windows of their own time: an update whose old row has another time than the new one
    changes other windows for each, and each may be too late.

    State: ``(size + lateness) / part`` entries a key; a key without open windows has none.

    Raises, of a row, when it is processed:
        ValueTypeError: it has no event time, or one that has no windows.
        RetractionError: it takes back what was never added.
    """

    def __init__(
        self,
        windows: Tumbling | Sliding | Cumulating,
        contents: Contents,
        emitter: Emitter,
        settings: WindowSettings,
    ) -> None:
        super().__init__(windows.shape, contents, emitter, settings)
        self._windows = windows
        self.holds_back_ms = None if settings.clock else settings.lateness_ms
        name = WINDOWS if isinstance(windows, Tumbling) else SLICES
        self._descriptor = SortedMapStateDescriptor(name, BIGINT, contents.kept_type)

    def vectorized(self) -> ColumnWindows | None:
        """The same over columns, which a subtask runs where it can; None where there is no such form."""
        if isinstance(self._contents, TopRows):
            return self._lists_over_columns(self._contents)
        plan = self.plan_over_columns()
        settings = self._settings
        runs = settings.emit == "running" and isinstance(self._windows, Tumbling)
        if plan is None or type(self) is not AlignedWindows or not (settings.shows_once or runs):
            return None
        return ColumnWindows(self._windows, plan, settings, self._descriptor)

    def _lists_over_columns(self, contents: TopRows) -> ColumnTopRows | None:
        settings, emitter, windows = self._settings, self._emitter, self._windows
        if not isinstance(emitter, RowsWithBounds) or not isinstance(windows, Tumbling) or settings.clock:
            return None
        order = contents.order_over_columns(shows_key=emitter.shows_key)
        return None if order is None else ColumnTopRows(windows, settings, self._descriptor, *order)

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self._parts = runtime_context.get_sorted_map_state(self._descriptor)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """Add the row to its part; with kinds, what changes in the windows that are shown."""
        at, watermark = self._time_of(ctx), self._now(ctx)
        windows = [window for window in self._windows.windows_of(at) if self._closes(window) > watermark]
        if not windows:
            return self._late.outputs(value, ctx)
        check_bounds(TimeWindow(windows[0].start, windows[-1].end))
        shown = [
            window
            for window in windows
            if not self._settings.shows_once and self._is_shown(window, watermark)
        ]
        before = [self._shown_rows(ctx, window) if self.emits_changes else None for window in shown]
        part = self._windows.slice_of(at)
        kept = self._parts.get(part)
        if takes_back(ctx.row_kind()):
            after = self._contents.taken_back(kept, value, part)
        else:
            after = self._contents.added(kept, value, part, at)
        if after is None:
            self._parts.remove(part)
        else:
            self._parts.put(part, after)
        if kept is None:  # else a timer waits for what happens next
            self._await(ctx, watermark)
        return [
            change
            for window, earlier in zip(shown, before, strict=True)
            for change in self._change(earlier, self._shown_rows(ctx, window))
        ]

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        """The windows that are shown now; then parts of closed windows go."""
        self._begin_timer(timestamp, ctx)
        results: Rows = []
        late = self._settings.lateness_ms
        if self._settings.emit != "running":
            for window in self._windows_at(timestamp, late if self._settings.shows_once else 0):
                if self._goes_well("outputs", window):
                    results += self._shown_rows(ctx, window) or []
        if self._emitter.clears:
            for window in self._windows_at(timestamp, late):
                if self._has_rows(window):
                    self._clear_in_timer(ctx, window)
        while (first := self._parts.first_entry()) is not None and self._goes(first[0]) <= timestamp:
            self._parts.remove(first[0])
            self._contents.dropped(first[0], self._windows.slice_end_of(first[0]))
        self._await(ctx, timestamp)
        return results

    # -- times -----------------------------------------------------------------------------------------------------

    def _completes(self, window: TimeWindow) -> int:
        return window.max_timestamp() + self._behind_ms

    def _goes(self, part: int) -> int:
        return self._closes(self._windows.windows_of(part)[-1])

    def _windows_at(self, timestamp: int, delay_ms: int) -> list[TimeWindow]:
        """The windows that were complete so much before a time, with rows or without."""
        if timestamp == MAX_TIMESTAMP:  # of those that end so late, several may close at once
            parts = self._parts.keys()
            every = {window for part in parts for window in self._windows.windows_of(part)}
            return sorted(window for window in every if plus(self._completes(window), delay_ms) == timestamp)
        complete = timestamp - delay_ms
        around = self._windows.windows_of(complete - self._behind_ms)
        return [window for window in around if self._completes(window) == complete]

    def _await(self, ctx: KeyedProcessFunction.Context, watermark: int) -> None:
        """Set the timer for what happens next: a window with rows is shown or closed, or parts go."""
        first = self._parts.first_entry()
        if first is None:
            return
        times = [self._goes(first[0])]
        if self._settings.emit != "running":
            times += self._next_shown(first[0], watermark)
        if self._emitter.clears:
            closed = (self._closes(window) for window in self._windows.windows_of(first[0]))
            times += [at for at in closed if at > watermark]
        self._set_timer(ctx, min(times))

    def _next_shown(self, first: int, watermark: int) -> list[int]:
        """When windows of the first part are shown that some are not shown of, in a key's parts."""
        if watermark > MIN_TIMESTAMP and self._settings.shows_again:
            open_from = self._windows.windows_of(plus(watermark, 1))[0].start
            entry = next(self._parts.tail_items(max(first, open_from)), None)
            if entry is None:
                return []
            first = entry[0]
        shown = (self._shows(window) for window in self._windows.windows_of(first))
        return [at for at in shown if at > watermark]

    # -- rows ------------------------------------------------------------------------------------------------------

    def _shown_rows(self, ctx: KeyedProcessFunction.Context, window: TimeWindow) -> Rows | None:
        kept = self._kept(window)
        return None if kept is None else self._rows(ctx, window, kept)

    def _has_rows(self, window: TimeWindow) -> bool:
        return next(self._parts.sub_items(window.start, window.end), None) is not None

    def _kept(self, window: TimeWindow) -> Kept | None:
        if isinstance(self._windows, Tumbling):
            kept: Kept | None = self._parts.get(window.start)
            return kept
        parts = self._parts.sub_items(window.start, window.end)
        return self._contents.merged((kept for _, kept in parts), window.start, window.end)
