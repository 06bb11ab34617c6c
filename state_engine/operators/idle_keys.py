"""``ForgetsIdleKeys``: a function that forgets keys some time after their last row.

What a function keeps of a key goes as a whole, at a time that does not depend on how rows are cut into micro-batches: a
timer is set for it. With a time to live of its states instead, the entries of a map would go one by one, and nothing
could take back what the function has emitted of them. Plays the part of the idle state retention of Flink's SQL.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.descriptors import ValueStateDescriptor
from state_engine.core.state.ttl import StateTtlConfig, TtlTime, TtlUpdateType, TtlVisibility
from state_engine.core.types.durations import Span
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.operators.retraction import takes_back

LAST_ROW = "last_row"
"""Name of the state with the time of the last row of a key."""


def as_ttl_config(ttl: Span | StateTtlConfig) -> StateTtlConfig:
    """What ``ttl=`` of an operator asks for: a span alone is one by the clock of micro-batches."""
    return ttl if isinstance(ttl, StateTtlConfig) else StateTtlConfig.new_builder(ttl).build()


@dataclass(frozen=True)
class IdleTime:
    """The time that a key is kept after its last row.

    Attributes:
        by_event_time: whether the event time of rows and the watermark count, and not the recorded clock.
    """

    ms: int
    by_event_time: bool

    @classmethod
    def of(cls, ttl: Span | StateTtlConfig | None) -> IdleTime | None:
        """What ``ttl=`` of an operator means; None where keys are kept for ever.

        Raises:
            ConfigurationError: it is not a span above 0, or says what only single states can do.

        Example:
            >>> IdleTime.of("1 day"), IdleTime.of(None)
            (IdleTime(ms=86400000, by_event_time=False), None)
        """
        if ttl is None:
            return None
        config = as_ttl_config(ttl)
        if not config.is_enabled():
            return None
        if config.get_update_type() is TtlUpdateType.OnReadAndWrite or (
            config.get_state_visibility() is TtlVisibility.ReturnExpiredIfNotCleanedUp
        ):
            raise ConfigurationError(
                "ttl of an operator counts from the last row of a key, and what has expired is gone: leave "
                "update_ttl_on_read_and_write and return_expired_if_not_cleaned_up out of the StateTtlConfig"
            )
        by_event_time = config.get_ttl_time_characteristic() is TtlTime.EventTime
        return cls(config.get_ttl().to_milliseconds(), by_event_time)


class ForgettableFunction(KeyedProcessFunction):
    """A function that can forget a key.

    Attributes:
        takes_back_known_rows: whether it refuses to take back a row when it keeps nothing of the key.
    """

    takes_back_known_rows = False

    def forget(self, ctx: KeyedContext) -> Iterable[Any]:
        """Clear all states of the key; the outputs that take back what was emitted of it."""
        raise NotImplementedError


class ForgetsIdleKeys(KeyedProcessFunction):
    """Runs a function, and forgets a key when the clock is so much behind its last row.

    By the clock of micro-batches, or by event time: that of the next row of the key, or the watermark where none comes.
    That row is its first one again. Rows that are updated or deleted after their key was forgotten are ignored.

    State: that of the function, of the keys with a row within ``idle.ms``; besides, a number and a timer for each.
    """

    def __init__(self, function: ForgettableFunction, idle: IdleTime) -> None:
        self._function, self._idle = function, idle
        self.accepts_changes, self.emits_changes = function.accepts_changes, function.emits_changes
        self.gives_running_results, self.shows = function.gives_running_results, function.shows
        self.shape = function.shape
        self._descriptor = ValueStateDescriptor(LAST_ROW, int)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._last_row = runtime_context.get_state(self._descriptor)
        self._function.open(runtime_context)

    def close(self) -> None:
        self._function.close()

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """What the function makes of the row; a row of a key that was forgotten is not taken back."""
        now, last, gone = self._now(ctx), self._last_row.value(), list[Any]()
        if last is None:
            self._await(ctx, now)
        elif self._goes(last) <= now:
            gone, last = list(self._forget(ctx)), None  # its timer waits for the next end
        if last is None and self._function.takes_back_known_rows and takes_back(ctx.row_kind()):
            return gone
        self._last_row.update(now if last is None else max(now, last))
        return [*gone, *(self._function.process_element(value, ctx) or [])]

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        """Forget the key, or wait until its last row is old enough."""
        last = self._last_row.value()
        if last is None:
            return []
        if self._goes(last) > timestamp:
            self._await(ctx, last)
            return []
        return self._forget(ctx)

    def _now(self, ctx: KeyedContext) -> int:
        """The clock; by event time, that of the row, and never less than the watermark."""
        if not self._idle.by_event_time:
            return ctx.current_processing_time()
        at = ctx.timestamp()
        return ctx.current_watermark() if at is None else max(at, ctx.current_watermark())

    def _forget(self, ctx: KeyedContext) -> Iterable[Any]:
        self._last_row.clear()
        return self._function.forget(ctx)

    def _goes(self, last: int) -> int:
        return min(last + self._idle.ms, MAX_TIMESTAMP)

    def _await(self, ctx: KeyedContext, last: int) -> None:
        timers = ctx.timer_service()
        if self._idle.by_event_time:
            timers.register_event_time_timer(self._goes(last))
        else:
            timers.register_processing_time_timer(self._goes(last))
