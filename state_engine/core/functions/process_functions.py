"""``ProcessFunction`` and ``KeyedProcessFunction``: functions of one element with all that is known about it.

Mirror the classes of these names in ``org.apache.flink.streaming.api.functions``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from state_engine.core.function import Function
from state_engine.core.functions.contexts import ElementContext, KeyedContext, TimerContext


class ProcessFunction(Function):
    """Sees one element at a time, on a stream that is not keyed: without keyed state and timers."""

    class Context(ElementContext):
        """What is known about the current element."""

    def process_element(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        """Handle one element: yield outputs, return a list of them, or return None.

        ``yield tag, value`` with an OutputTag sends a value to the side output of the tag.
        """
        raise NotImplementedError(f"{type(self).__name__} must define process_element(self, value, ctx)")


class TimedFunction(Function):
    """A function that timers can call."""

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any] | None:
        """Handle a timer of the current key: yield outputs, return a list of them, or return None.

        The timer is gone already. It may set others; those that are due fire in the same batch.

        Args:
            timestamp: time of the timer in milliseconds.
            ctx: the ``OnTimerContext`` of the function.
        """
        return None


class KeyedProcessFunction(TimedFunction):
    """Sees one element at a time, with the state and the timers of the element's key.

    Example:
        >>> class Count(KeyedProcessFunction):
        ...     def open(self, runtime_context):
        ...         self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int, default=0))
        ...     def process_element(self, value, ctx):
        ...         self.seen.update(self.seen.value() + 1)
        ...         yield ctx.get_current_key(), self.seen.value()
        >>> from state_engine.core.state.descriptors import ValueStateDescriptor
    """

    class Context(KeyedContext):
        """What is known about the current element. One object serves all elements of a subtask."""

    class OnTimerContext(TimerContext, Context):
        """What is known about the timer that fires."""

    def process_element(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        """Handle one element: yield outputs, return a list of them, or return None.

        ``yield tag, value`` with an OutputTag sends a value to the side output of the tag.
        """
        raise NotImplementedError(f"{type(self).__name__} must define process_element(self, value, ctx)")
