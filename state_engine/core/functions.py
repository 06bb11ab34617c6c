"""Functions that users write. Mirrors ``pyflink.datastream.functions``; a class ports by changing its imports.

``open`` and ``close`` run once a subtask and micro-batch: instance attributes are no cache across batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from state_engine.core.function import Function
from state_engine.core.state_table import NO_KEY, KeyContext, no_key

MIN_TIMESTAMP = -(2**63)
"""The watermark, in milliseconds, of a stream that has none yet."""


class TimerService:
    """The clocks of a micro-batch. Mirrors ``org.apache.flink.streaming.api.TimerService``."""

    def __init__(self, clock_ms: int, watermark_ms: int) -> None:
        self._clock_ms, self._watermark_ms = clock_ms, watermark_ms

    def current_processing_time(self) -> int:
        """The batch's recorded clock, in milliseconds since 1970: the same on a replay."""
        return self._clock_ms

    def current_watermark(self) -> int:
        """The watermark at the start of the batch in milliseconds; the smallest long where there is none."""
        return self._watermark_ms


class KeyedProcessFunction(Function):
    """Sees one element at a time, with the state of the element's key.

    Example:
        >>> class Count(KeyedProcessFunction):
        ...     def open(self, runtime_context):
        ...         self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int, default=0))
        ...     def process_element(self, value, ctx):
        ...         self.seen.update(self.seen.value() + 1)
        ...         yield ctx.get_current_key(), self.seen.value()
        >>> from state_engine.core.descriptors import ValueStateDescriptor
    """

    class Context:
        """What is known about the current element. One object serves all elements of a subtask."""

        def __init__(self, key: KeyContext, timers: TimerService) -> None:
            self._key, self._timers = key, timers

        def get_current_key(self) -> Any:
            """The key of the current element, as declared."""
            key = self._key.key
            if key is NO_KEY:
                raise no_key("(current key)")
            return key

        def timestamp(self) -> int | None:
            """Event time of the element in milliseconds; None where the source declares none."""
            return self._key.timestamp

        def timer_service(self) -> TimerService:
            """Clocks."""
            return self._timers

    def process_element(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        """Handle one element: yield outputs, return a list of them, or return None."""
        raise NotImplementedError(f"{type(self).__name__} must define process_element(self, value, ctx)")
