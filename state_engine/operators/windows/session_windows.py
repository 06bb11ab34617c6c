"""``SessionWindows``: aggregates of rows of a key that follow each other within a gap.

Sessions do not depend on the order in which rows come. A session is complete once the watermark has reached its end:
a row exactly a gap behind the last one still belongs to it. A late row can join sessions that were emitted, which
``changes`` takes back; it never makes a second session that overlaps a finished one. Mirrors the merging windows of
Flink's ``WindowOperator``, with these differences. Decision 0111.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.descriptors import SortedMapStateDescriptor, ValueStateDescriptor
from state_engine.core.types.durations import to_milliseconds
from state_engine.core.types.every_type import StructType
from state_engine.operators.aggregates.accumulators import BIGINT
from state_engine.operators.aggregates.plan import AggregatePlan
from state_engine.operators.windows.assigners import Session, TimeWindow
from state_engine.operators.windows.window_results import (
    WindowFunction,
    WindowSettings,
    check_bounds,
    plus,
    time_of,
)

SESSIONS, CLOSED = "sessions", "closed"
"""Names of the states."""
Sessions = dict[TimeWindow, tuple[Any, ...]]


class SessionWindows(WindowFunction):
    """Emits the aggregates of the rows of each session.

    A session ``[start, end)`` is closed once the watermark is ``lateness_ms`` behind its end; then it takes no row, and
    nothing of it is kept but its end. A row is too late where its own session would be closed, or where it would reach
    into a closed one; it goes to ``late_to``.

    State: the open sessions of a key; besides, one number a key, for a gap longer. With a computed gap that number
    stays, because the next gap may be of any length.

    Args:
        plan: of the aggregates; of rows that are only added.

    Raises, of a row, when it is processed:
        ValueTypeError: it has no event time, or its computed gap is not above 0.
    """

    def __init__(self, windows: Session, plan: AggregatePlan, settings: WindowSettings) -> None:
        super().__init__(windows.shape, plan, settings)
        self._windows = windows
        kept = plan.state.value_type
        assert isinstance(kept, StructType)
        value = StructType(["end", *kept.names], [BIGINT, *kept.types])
        self._sessions_descriptor = SortedMapStateDescriptor(SESSIONS, BIGINT, value)
        self._closed_descriptor = ValueStateDescriptor(CLOSED, BIGINT)
        self._gap_ms = None if callable(windows.gap) else to_milliseconds(windows.gap)
        # a result is shown at the end of the session, one millisecond behind its event time
        self.holds_back_ms = settings.lateness_ms + 1

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self._sessions = runtime_context.get_sorted_map_state(self._sessions_descriptor)
        self._closed = runtime_context.get_state(self._closed_descriptor)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """Add the row to the sessions that it touches, which become one; with kinds, what that changes."""
        at, watermark = time_of(ctx), ctx.current_watermark()
        own = self._windows.window_of(value, at)
        touched = self._touched(own)
        if self._is_too_late(own, touched, watermark):
            return self._late(value)
        whole = own
        for session in touched:
            whole = whole.cover(session)
        check_bounds(whole)
        kept = self._accumulators.added(self._accumulators.merged(touched.values()), value)
        for session in touched:
            if session.start != whole.start:
                self._sessions.remove(session.start)
        self._sessions.put(whole.start, (whole.end, *kept))
        self._await(ctx, whole, touched, watermark)
        return self._changes(ctx, touched, whole, kept, watermark)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        """The sessions that are shown now; closed ones go, and those that have grown wait for their new end."""
        results: list[Any] = []
        for session, kept in self._open().items():
            if self._settings.emit != "running" and self._shows(session) == timestamp:
                results.append(self._results.row(ctx, session, kept))
            if self._closes(session) <= timestamp:
                self._close(ctx, session)
            elif session.start <= timestamp:
                self._wait(ctx, session, timestamp)
        self._forget(timestamp)
        return results

    # -- which sessions --------------------------------------------------------------------------------------------

    def _touched(self, own: TimeWindow) -> Sessions:
        before = self._sessions.head_items(own.end + 1)
        return {TimeWindow(start, end): tuple(kept) for start, (end, *kept) in before if own.start <= end}

    def _open(self) -> Sessions:
        return {TimeWindow(start, end): tuple(kept) for start, (end, *kept) in list(self._sessions.items())}

    def _is_too_late(self, own: TimeWindow, touched: Sessions, watermark: int) -> bool:
        """Whether the own session of a row is closed, or reaches a closed one.

        Open sessions end behind all closed ones, and none overlaps another. So a row that touches an open one, or whose
        own one is open, touches a closed one if it is not behind the greatest end of those.
        """
        if not touched and self._closes(own) <= watermark:
            return True
        closed = self._closed.value()
        return closed is not None and own.start <= closed

    # -- when ------------------------------------------------------------------------------------------------------

    def _completes(self, window: TimeWindow) -> int:
        return window.end

    def _await(
        self, ctx: KeyedProcessFunction.Context, whole: TimeWindow, touched: Sessions, watermark: int
    ) -> None:
        """Set a timer for a session that has none in front of its end; one that has grown has one at an older end."""
        if not any(self._shows(session) > watermark for session in touched):
            self._wait(ctx, whole, watermark)

    def _wait(self, ctx: KeyedProcessFunction.Context, session: TimeWindow, watermark: int) -> None:
        times = [self._closes(session)]
        if self._settings.emit == "changes":
            times.append(self._shows(session))
        ctx.timer_service().register_event_time_timer(min(at for at in times if at > watermark))

    def _close(self, ctx: KeyedProcessFunction.Context, session: TimeWindow) -> None:
        self._sessions.remove(session.start)
        closed = self._closed.value()
        self._closed.update(session.end if closed is None else max(session.end, closed))
        if self._gap_ms is not None:
            ctx.timer_service().register_event_time_timer(plus(self._closes(session), self._gap_ms))

    def _forget(self, timestamp: int) -> None:
        """Drop the end of the last closed session, once no row that reaches it can come in time."""
        closed = self._closed.value()
        if closed is None or self._gap_ms is None or self._sessions.first_entry() is not None:
            return
        if plus(plus(closed, self._settings.lateness_ms), self._gap_ms) <= timestamp:
            self._closed.clear()

    # -- what ------------------------------------------------------------------------------------------------------

    def _changes(
        self,
        ctx: KeyedProcessFunction.Context,
        touched: Sessions,
        whole: TimeWindow,
        kept: tuple[Any, ...],
        watermark: int,
    ) -> list[Any]:
        """What a row changes in the sessions that are shown."""
        if not self.emits_changes:
            return []
        shown = {one: before for one, before in touched.items() if self._is_shown(one, watermark)}
        after = kept if self._is_shown(whole, watermark) else None
        if list(shown) == [whole]:
            return self._results.change(ctx, whole, shown[whole], after)
        gone = [
            change for one, before in shown.items() for change in self._results.change(ctx, one, before, None)
        ]
        return gone + self._results.change(ctx, whole, None, after)
