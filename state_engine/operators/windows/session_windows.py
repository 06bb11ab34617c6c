"""``SessionWindows``: windows of rows of a key that follow each other within a gap.

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
from state_engine.operators.lateness import plus
from state_engine.operators.windows.assigners import Session, TimeWindow
from state_engine.operators.windows.column_sessions import ColumnSessions
from state_engine.operators.windows.contents import Contents, Kept
from state_engine.operators.windows.window_results import (
    Emitter,
    Rows,
    WindowOperator,
    WindowSettings,
    check_bounds,
)

SESSIONS, CLOSED = "sessions", "closed"
"""Names of the states."""
Sessions = dict[TimeWindow, Kept]


class SessionWindows(WindowOperator):
    """Emits what comes of the rows of each session.

    A session ``[start, end)`` is closed once the watermark is ``lateness_ms`` behind its end; then it takes no row, and
    nothing of it is kept but its end. A row is too late where its own session would be closed, unless it is inside of
    an open one, or where it would reach into a closed one; it goes to ``late_to``.

    State: the open sessions of a key; besides, one number a key, for a gap longer. With a computed gap that number
    stays, because the next gap may be of any length.

    Raises, of a row, when it is processed:
        ValueTypeError: it has no event time, or its computed gap is not above 0.
    """

    def __init__(
        self, windows: Session, contents: Contents, emitter: Emitter, settings: WindowSettings
    ) -> None:
        super().__init__(windows.shape, contents, emitter, settings)
        self._windows = windows
        kept = contents.kept_type
        value = StructType(["end", *kept.names], [BIGINT, *kept.types])
        self._sessions_descriptor = SortedMapStateDescriptor(SESSIONS, BIGINT, value)
        self._closed_descriptor = ValueStateDescriptor(CLOSED, BIGINT)
        self._gap_ms = None if callable(windows.gap) else to_milliseconds(windows.gap)
        # a result is shown at the end of the session, one millisecond behind its event time
        self.holds_back_ms = None if settings.clock else settings.lateness_ms + 1

    def vectorized(self) -> ColumnSessions | None:
        """The same over columns, which a subtask runs where it can; None where there is no such form."""
        plan = self.plan_over_columns()
        plain = type(self) is SessionWindows and self._settings.shows_once
        if plan is None or self._gap_ms is None or not plain:
            return None
        descriptors = self._sessions_descriptor, self._closed_descriptor
        return ColumnSessions(self._gap_ms, plan, self._settings, *descriptors)

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self._sessions = runtime_context.get_sorted_map_state(self._sessions_descriptor)
        self._closed = runtime_context.get_state(self._closed_descriptor)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """Add the row to the sessions that it touches, which become one; with kinds, what that changes."""
        at, watermark = self._time_of(ctx), self._now(ctx)
        own = self._windows.window_of(value, at)
        touched = self._touched(own)
        if self._is_too_late(own, touched, watermark):
            return self._late.outputs(value, ctx)
        awaited = self._next(watermark)
        whole = own
        for session in touched:
            whole = whole.cover(session)
        check_bounds(whole)
        # read once more: a function may change what it is given
        before = self._shown(ctx, self._touched(own), watermark) if self.emits_changes else {}
        starts = [session.start for session in touched]
        for start in starts:
            if start != whole.start:
                self._sessions.remove(start)
        if starts not in ([], [whole.start]):
            self._contents.joined(starts, whole.start)
        merged = self._contents.merged(touched.values(), whole.start, whole.end)
        kept = self._contents.added(merged, value, whole.start, at)
        self._sessions.put(whole.start, (whole.end, *kept))
        self._await(ctx, awaited, self._next(watermark))
        if self._settings.shows_once:
            return []
        after = self._rows(ctx, whole, kept) if self._is_shown(whole, watermark) else None
        return self._changes(before, whole, after)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        """The sessions that are shown now; closed ones go."""
        self._begin_timer(timestamp, ctx)
        results: Rows = []
        for session, kept in self._open().items():
            shown = self._settings.emit != "running" and self._shows(session) == timestamp
            if shown and self._goes_well("outputs", session):
                results += self._rows(ctx, session, kept)
            if self._closes(session) <= timestamp:
                self._close(ctx, session)
        self._forget(timestamp)
        self._await(ctx, None, self._next(timestamp))
        return results

    # -- which sessions --------------------------------------------------------------------------------------------

    def _touched(self, own: TimeWindow) -> Sessions:
        before = self._sessions.head_items(own.end + 1)
        return {TimeWindow(start, end): tuple(kept) for start, (end, *kept) in before if own.start <= end}

    def _open(self) -> Sessions:
        return {TimeWindow(start, end): tuple(kept) for start, (end, *kept) in list(self._sessions.items())}

    def _is_too_late(self, own: TimeWindow, touched: Sessions, watermark: int) -> bool:
        """Whether the own session of a row is closed and the row in no open one, or it reaches a closed one.

        Open sessions end behind all closed ones, and none overlaps another. So a row in an open one, or whose own one
        is open, touches a closed one if it is not behind the greatest end of those. A row in front of an open one may
        not reach further back than one of its own could, so an end is known for as long as a row can reach it.
        """
        if self._closes(own) <= watermark and not any(one.start <= own.start for one in touched):
            return True
        closed = self._closed.value()
        return closed is not None and own.start <= closed

    # -- when ------------------------------------------------------------------------------------------------------

    def _completes(self, window: TimeWindow) -> int:
        return window.end + self._behind_ms

    def _next(self, now: int) -> int | None:
        """When something happens next to what is kept of the key; None for never. Then it has a timer, and no other."""
        closes = None
        for start, (end, *_) in self._sessions.items():  # they end one after the other
            session = TimeWindow(start, end)
            closes = self._closes(session) if closes is None else closes
            if not self._settings.shows_again:
                break
            if (shown := self._shows(session)) > now:
                return min(closes, shown)
        return self._forgets() if closes is None else closes

    def _await(self, ctx: KeyedProcessFunction.Context, before: int | None, after: int | None) -> None:
        """Move the timer of the key."""
        if before == after:
            return
        if before is not None:
            self._delete_timer(ctx, before)
        if after is not None:
            self._set_timer(ctx, after)

    def _forgets(self) -> int | None:
        """When no row in time can reach the last closed session any more; None where there is none, or always one."""
        closed = self._closed.value()
        if closed is None or self._gap_ms is None:
            return None
        return plus(plus(closed + self._behind_ms, self._settings.lateness_ms), self._gap_ms)

    def _close(self, ctx: KeyedProcessFunction.Context, session: TimeWindow) -> None:
        if self._emitter.clears:
            self._clear_in_timer(ctx, session)
        self._sessions.remove(session.start)
        self._contents.dropped(session.start, session.end)
        closed = self._closed.value()
        self._closed.update(session.end if closed is None else max(session.end, closed))

    def _forget(self, timestamp: int) -> None:
        """Drop the end of the last closed session, once no row that reaches it can come in time."""
        forgets = self._forgets()
        if forgets is not None and forgets <= timestamp and self._sessions.first_entry() is None:
            self._closed.clear()

    # -- what ------------------------------------------------------------------------------------------------------

    def _shown(
        self, ctx: KeyedProcessFunction.Context, touched: Sessions, watermark: int
    ) -> dict[TimeWindow, Rows]:
        return {
            one: self._rows(ctx, one, kept) for one, kept in touched.items() if self._is_shown(one, watermark)
        }

    def _changes(self, before: dict[TimeWindow, Rows], whole: TimeWindow, after: Rows | None) -> Rows:
        if list(before) == [whole]:
            return self._change(before[whole], after)
        gone = [change for rows in before.values() for change in self._change(rows, None)]
        return gone + self._change(None, after)
