"""``TimerService``: the clocks of a micro-batch, and the timers of the current key.

Mirrors ``org.apache.flink.streaming.api.TimerService``. Times are whole milliseconds. Timers belong to a key, so they
can be set and deleted only where there is a current one.
"""

from __future__ import annotations

from state_engine.core.errors import StateAccessError, ValueTypeError
from state_engine.core.state.state_table import NO_KEY, KeyContext
from state_engine.core.time.timers import TimerQueue
from state_engine.core.types.durations import TimeDomain
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP

__all__ = ["MAX_TIMESTAMP", "MIN_TIMESTAMP", "TimerService"]


class TimerService:
    """What a function sees of time.

    A function that does not define ``on_timer`` may set timers, too; nobody could notice that they fire, so they are
    not kept.

    Args:
        clock_ms: processing time of the batch.
        watermark_ms: watermark at the start of the batch.

    Attributes:
        watermark_ms: what the function sees; the operator sets it for every element, and while a timer fires.
    """

    def __init__(self, clock_ms: int, watermark_ms: int) -> None:
        self._clock_ms, self.watermark_ms = clock_ms, watermark_ms
        self._context: KeyContext | None = None
        self._queue: TimerQueue | None = None

    def bind(self, context: KeyContext, queue: TimerQueue | None) -> None:
        """Let timers be set: for the current key of a keyed stream, and in a queue if they would do anything."""
        self._context, self._queue = context, queue

    def current_processing_time(self) -> int:
        """The batch's recorded clock, in milliseconds since 1970: the same on a replay."""
        return self._clock_ms

    def current_watermark(self) -> int:
        """The watermark before the current element in milliseconds; the smallest long where there is none.

        It follows from the elements that stand before this one in the total order of the stream, whatever their keys,
        and so neither from where batches are cut nor from the parallelism. An element whose time is not above it is
        late. While an event-time timer fires, it is not less than the timer's time; while a job is drained, it is the
        largest long, which lets a function that sets timers again and again know that it must stop.
        """
        return self.watermark_ms

    def register_event_time_timer(self, timestamp: int) -> None:
        """Let ``on_timer`` be called when the watermark reaches a time; a second timer of the same time adds none.

        Raises:
            ValueTypeError: the time is not a whole number of milliseconds.
            StateAccessError: there is no current key.
        """
        self._keyed("register_event_time_timer", TimeDomain.EVENT_TIME, timestamp, keep=True)

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Let ``on_timer`` be called in the first micro-batch whose clock has reached a time; errors as above."""
        self._keyed("register_processing_time_timer", TimeDomain.PROCESSING_TIME, timestamp, keep=True)

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Delete the event-time timer of a time, if there is one; errors as above."""
        self._keyed("delete_event_time_timer", TimeDomain.EVENT_TIME, timestamp, keep=False)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Delete the processing-time timer of a time, if there is one; errors as above."""
        self._keyed("delete_processing_time_timer", TimeDomain.PROCESSING_TIME, timestamp, keep=False)

    def _keyed(self, method: str, domain: TimeDomain, timestamp: int, *, keep: bool) -> None:
        whole = isinstance(timestamp, int) and not isinstance(timestamp, bool)
        if not whole or not MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP:
            raise ValueTypeError(
                f"{method} takes a time in whole milliseconds that fits 64 bits, not {timestamp!r}; "
                "cut a fraction with int(...)"
            )
        if self._context is None or self._context.key is NO_KEY:
            raise StateAccessError(
                f"{method} was called without a current key: timers exist only inside process_element and on_timer "
                "of a function on a keyed stream (use key_by first, and not open or close)"
            )
        if self._queue is None:
            return
        if keep:
            self._queue.register(timestamp, domain)
        else:
            self._queue.delete(timestamp, domain)
