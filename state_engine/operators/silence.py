"""``Silence``: finds keys without rows for some time, and their return.

Plays the part of a ``KeyedProcessFunction`` with a timer behind the last row, as in Flink's documentation; that one
depends on the order in which rows come, and this one does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.timestamped import Timestamped
from state_engine.core.state.descriptors import ValueStateDescriptor
from state_engine.core.time.local_times import instant
from state_engine.core.types.every_type import StructType
from state_engine.operators.aggregates.accumulators import BIGINT
from state_engine.operators.key_values import key_values
from state_engine.operators.keyed_rows import KeyedRows
from state_engine.operators.lateness import Lateness, check_time, plus
from state_engine.operators.waiting import WaitingRows

LAST_SEEN = "last_seen"
"""Name of the state with the last row of a key."""
AT, UNTIL = "at", "until"
"""Its first fields: the time of the row, and that of the timer behind it."""


class Silence(KeyedProcessFunction):
    """Emits a row for each silence of a key: a time ``after`` its last row in which no other one lies.

    It comes out when the watermark is ``last + after + lateness``: a row exactly ``after`` later is in time, and there
    is no silence. Rows are taken by event time, so a silence between two rows comes out even where the second row is
    there before the watermark. Its event time is ``last + after``.

    State: ``last_seen``, one entry a key, for ever or until ``forget_after_ms``; ``waiting``, times and
    columns to take of the rows within the lateness of the watermark; and a timer for each key that is not silent.

    Args:
        after_ms: how long a key may be without rows.
        lateness_ms: how long behind the watermark a row is taken; one that comes later is dropped and counted.
        back: whether a row for the end of a silence comes out, too, with the time of the row that ends it.
        forget_after_ms: how long behind its last row a key is kept; its next row is then its first one. None for ever.
        rows: what rows are; None takes no columns.
        take: columns of the last row that come out.
        record_key: see ``key_values``.

    Raises:
        ValueTypeError: of a row, when it is processed: it has no event time, or one outside of the years 1 to 9999.

    Example:
        >>> from state_engine.testing import KeyedHarness
        >>> options = {"timestamp_of": lambda at: at, "max_out_of_orderness_ms": 0}
        >>> harness = KeyedHarness(Silence(10), key_by=lambda at: "a", **options)
        >>> [(key, f"{since:%S.%f}") for key, since in harness.process([5, 15, 40])]
        [('a', '00.015000')]
    """

    shows = (LAST_SEEN, LAST_SEEN)

    def __init__(
        self,
        after_ms: int,
        *,
        lateness_ms: int = 0,
        back: bool = False,
        forget_after_ms: int | None = None,
        rows: KeyedRows | None = None,
        take: Sequence[str] = (),
        record_key: bool = False,
    ) -> None:
        lateness = Lateness(lateness_ms)
        self._after_ms, self._lateness, self._back = after_ms, lateness, back
        self._forget_after_ms, self._rows, self._take = forget_after_ms, rows, tuple(take)
        self._record_key, self.holds_back_ms = record_key, lateness_ms
        self.shape = shape_of(after_ms, lateness_ms)
        taken = None if rows is None else rows.only(rows.named(self._take))
        names, types = ((), ()) if taken is None else (taken.names, taken.types)
        self._waiting = WaitingRows(StructType([AT, *names], [BIGINT, *types]), lateness, whole=False)
        last = StructType([AT, UNTIL, *names], [BIGINT, BIGINT, *types])
        self._descriptor = ValueStateDescriptor(LAST_SEEN, last)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._last = runtime_context.get_state(self._descriptor)
        self._waiting.open(runtime_context)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """Let the row wait; one that is too late is dropped."""
        check_time(ctx.timestamp())
        row = None if self._rows is None else self._rows.normal(value)
        taken = () if row is None else tuple(row[name] for name in self._take)
        return self._waiting.add((ctx.timestamp(), *taken), ctx)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        """Take the rows whose time has come; the silence, if it is long enough."""
        for at, row in self._waiting.due(timestamp, ctx):
            yield from self._heard(at, tuple(row)[1:], ctx)
        yield from self._waited(timestamp, ctx)

    def _heard(self, at: int, taken: tuple[Any, ...], ctx: KeyedContext) -> Iterator[Any]:
        """A row of a key, behind all rows before it."""
        last = self._last.value()
        if last is None or last[1] is None:  # no timer waits for the end of what may become a silence
            until = self._await(plus(at, self._after_ms), ctx)
        else:
            until = last[1]
        if last is not None and last[1] is None and self._back:
            yield self._row(last, ctx, at)
        self._last.update((at, until, *taken))

    def _waited(self, timestamp: int, ctx: KeyedContext) -> Iterator[Any]:
        last = self._last.value()
        if last is None:
            return
        ends = plus(last[0], self._after_ms)
        if last[1] is not None and last[1] <= timestamp:
            if self._lateness.ends(ends) > timestamp:
                self._last.update((last[0], self._await(ends, ctx), *last[2:]))
                return
            last = (last[0], None, *last[2:])
            self._last.update(last)
            yield self._row(last, ctx)
        if last[1] is None and self._forget_after_ms is not None:
            goes = plus(last[0], self._forget_after_ms)
            if self._lateness.ends(goes) <= timestamp:
                self._last.clear()
            else:
                self._await(goes, ctx)

    def _await(self, at: int, ctx: KeyedContext) -> int:
        """Wait until all rows of a time have come; the watermark at which they have."""
        until = self._lateness.ends(at)
        ctx.timer_service().register_event_time_timer(until)
        return until

    def _row(self, last: Sequence[Any], ctx: KeyedContext, back_at: int | None = None) -> Timestamped:
        """A silence behind the last row, or its end."""
        bounds: list[Any] = [instant(last[0])]
        if self._back:
            bounds.append(None if back_at is None else instant(back_at))
        key = key_values(ctx.get_current_key(), record=self._record_key)
        at = plus(last[0], self._after_ms) if back_at is None else back_at
        return Timestamped((*key, *bounds, *last[2:]), at)


def check_taken(take: Sequence[str]) -> None:
    """Refuse columns that have the name of a field of the state. Raises ConfigurationError."""
    for name in take:
        if name in (AT, UNTIL):
            raise ConfigurationError(
                f"silent: the column '{name}' has the name of a field of the state. The time of the last row comes out "
                "as silent_since in any case: leave it out of take, or rename it in a transform before key_by"
            )


def shape_of(after_ms: int, lateness_ms: int) -> str:
    """Which silences came out already, as text: another time would repeat some, and leave some out.

    Example:
        >>> shape_of(600000, 0)
        'silent after 600000 lateness 0'
    """
    return f"silent after {after_ms} {Lateness(lateness_ms).form}"
