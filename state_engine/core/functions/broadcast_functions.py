"""``BroadcastProcessFunction``, ``KeyedBroadcastProcessFunction``: a stream beside one that every subtask sees whole.

Broadcast elements of a micro-batch are all applied before the elements of the other stream; where the streams were
connected with ``ordered=True``, each at its place in the order of event time, see decision 0060. Broadcast state is
written while they are handled, and only read elsewhere: so it is the same on all subtasks. Mirror the classes of these
names in ``org.apache.flink.streaming.api.functions.co``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from state_engine.core.function import Function
from state_engine.core.functions.contexts import (
    BroadcastReader,
    BroadcastWriter,
    ElementContext,
    KeyedContext,
    TimerContext,
)
from state_engine.core.functions.process_functions import TimedFunction


class BaseBroadcastProcessFunction(Function):
    """What both kinds have in common."""

    class Context(BroadcastWriter, ElementContext):
        """What is known about the current broadcast element; gives broadcast state for writing."""

    def process_broadcast_element(self, value: Any, ctx: Any) -> Iterable[Any] | None:
        """Handle a broadcast element, on every subtask: yield outputs, return a list of them, or return None.

        ``ctx`` is the ``Context`` of the function. It must do the same to the broadcast state on every subtask.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define process_broadcast_element(self, value, ctx)"
        )


class BroadcastProcessFunction(BaseBroadcastProcessFunction):
    """Sees elements of a stream that is not keyed, and broadcast elements."""

    class Context(BaseBroadcastProcessFunction.Context):
        """What is known about the current broadcast element; gives broadcast state for writing."""

    class ReadOnlyContext(BroadcastReader, ElementContext):
        """What is known about the current element; gives broadcast state for reading."""

    def process_element(self, value: Any, ctx: ReadOnlyContext) -> Iterable[Any] | None:
        """Handle an element: yield outputs, return a list of them, or return None."""
        raise NotImplementedError(f"{type(self).__name__} must define process_element(self, value, ctx)")


class KeyedBroadcastProcessFunction(BaseBroadcastProcessFunction, TimedFunction):
    """Sees elements with the state and the timers of their key, and broadcast elements, which have no key."""

    class Context(BaseBroadcastProcessFunction.Context):
        """What is known about the current broadcast element; gives broadcast state for writing."""

    class ReadOnlyContext(BroadcastReader, KeyedContext):
        """What is known about the current element; gives broadcast state for reading."""

    class OnTimerContext(TimerContext, ReadOnlyContext):
        """What is known about the timer that fires; gives broadcast state for reading."""

    ReadOnlyOnTimerContext = OnTimerContext

    def process_element(self, value: Any, ctx: ReadOnlyContext) -> Iterable[Any] | None:
        """Handle an element: yield outputs, return a list of them, or return None."""
        raise NotImplementedError(f"{type(self).__name__} must define process_element(self, value, ctx)")
