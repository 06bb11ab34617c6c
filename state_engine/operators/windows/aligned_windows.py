"""``AlignedWindows``: aggregates in windows that lie at the same times for all keys.

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
from state_engine.operators.aggregates.plan import AggregatePlan
from state_engine.operators.windows.assigners import Cumulating, Sliding, TimeWindow, Tumbling
from state_engine.operators.windows.window_results import (
    WindowFunction,
    WindowSettings,
    check_bounds,
    plus,
    time_of,
)

WINDOWS, SLICES = "windows", "slices"
"""Names of the state: of tumbling windows, whose parts are whole windows, and of others."""


class AlignedWindows(WindowFunction):
    """Emits the aggregates of the rows of each key and window.

    A window takes rows until the watermark is ``lateness_ms`` behind its last millisecond; then it is closed, and
    nothing of it is kept. A row that all of its windows are closed for goes to ``late_to``.

    State: ``(size + lateness) / part`` entries a key; a key without open windows has none.

    Args:
        plan: of the aggregates; of rows that are only added.

    Raises, of a row, when it is processed:
        ValueTypeError: it has no event time, or one that has no windows.
    """

    def __init__(
        self, windows: Tumbling | Sliding | Cumulating, plan: AggregatePlan, settings: WindowSettings
    ) -> None:
        super().__init__(windows.shape, plan, settings)
        self._windows, self.holds_back_ms = windows, settings.lateness_ms
        name = WINDOWS if isinstance(windows, Tumbling) else SLICES
        self._descriptor = SortedMapStateDescriptor(name, BIGINT, plan.state.value_type)

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self._parts = runtime_context.get_sorted_map_state(self._descriptor)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """Add the row to its part; with kinds, what changes in the windows that are shown."""
        at, watermark = time_of(ctx), ctx.current_watermark()
        windows = [window for window in self._windows.windows_of(at) if self._closes(window) > watermark]
        if not windows:
            return self._late(value)
        check_bounds(TimeWindow(windows[0].start, windows[-1].end))
        shown = [window for window in windows if self._is_shown(window, watermark)]
        before = [self._kept(window) for window in shown]
        part = self._windows.slice_of(at)
        kept = self._parts.get(part)
        self._parts.put(part, self._accumulators.added(kept, value))
        if kept is None:  # else a timer waits for what happens next
            self._await(ctx, watermark)
        return [
            change
            for window, earlier in zip(shown, before, strict=True)
            for change in self._results.change(ctx, window, earlier, self._kept(window))
        ]

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        """The windows that are shown now; then parts of closed windows go."""
        results = []
        for window in self._shown_at(timestamp):
            kept = self._kept(window)
            if kept is not None:
                results.append(self._results.row(ctx, window, kept))
        while (first := self._parts.first_entry()) is not None and self._goes(first[0]) <= timestamp:
            self._parts.remove(first[0])
        self._await(ctx, timestamp)
        return results

    # -- times -----------------------------------------------------------------------------------------------------

    def _completes(self, window: TimeWindow) -> int:
        return window.max_timestamp()

    def _goes(self, part: int) -> int:
        """The watermark at which the last window with a part is closed."""
        return self._closes(self._windows.windows_of(part)[-1])

    def _shown_at(self, timestamp: int) -> list[TimeWindow]:
        if self._settings.emit == "running":
            return []
        if timestamp == MAX_TIMESTAMP:  # of those that end so late, several may close at once
            parts = self._parts.keys()
            every = {window for part in parts for window in self._windows.windows_of(part)}
            return sorted(window for window in every if self._shows(window) == timestamp)
        last = timestamp - (self._settings.lateness_ms if self._settings.emit == "final" else 0)
        return [window for window in self._windows.windows_of(last) if window.max_timestamp() == last]

    def _await(self, ctx: KeyedProcessFunction.Context, watermark: int) -> None:
        """Set the timer for what happens next: a window with rows is shown, or parts go."""
        first = self._parts.first_entry()
        if first is None:
            return
        times = [self._goes(first[0])]
        if self._settings.emit != "running":
            times += self._next_shown(first[0], watermark)
        ctx.timer_service().register_event_time_timer(min(times))

    def _next_shown(self, first: int, watermark: int) -> list[int]:
        """When windows of the first part are shown that some are not shown of, in a key's parts."""
        if watermark > MIN_TIMESTAMP and self._settings.emit == "changes":
            open_from = self._windows.windows_of(plus(watermark, 1))[0].start
            entry = next(self._parts.tail_items(max(first, open_from)), None)
            if entry is None:
                return []
            first = entry[0]
        shown = (self._shows(window) for window in self._windows.windows_of(first))
        return [at for at in shown if at > watermark]

    # -- rows ------------------------------------------------------------------------------------------------------

    def _kept(self, window: TimeWindow) -> tuple[Any, ...] | None:
        """What is kept of the rows of a window; None where it has none."""
        if isinstance(self._windows, Tumbling):
            kept: tuple[Any, ...] | None = self._parts.get(window.start)
            return kept
        parts = self._parts.sub_items(window.start, window.end)
        return self._accumulators.merged(kept for _, kept in parts)
