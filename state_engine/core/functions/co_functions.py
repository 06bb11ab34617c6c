"""Functions of two connected streams.

``CoMapFunction``, ``CoFlatMapFunction``, ``CoProcessFunction`` and ``KeyedCoProcessFunction``. Elements of the two
streams come one at a time, in one order; on keyed streams both see the same state of their key. Mirror the classes of
these names in ``org.apache.flink.streaming.api.functions.co``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from state_engine.core.function import Function
from state_engine.core.functions.contexts import ElementContext, KeyedContext, TimerContext
from state_engine.core.functions.process_functions import TimedFunction


class CoMapFunction(Function):
    """Makes one output of every element of either stream, or none, by returning None, as in PyFlink."""

    def map1(self, value: Any) -> Any:
        """The output for an element of the first stream."""
        raise NotImplementedError(f"{type(self).__name__} must define map1(self, value)")

    def map2(self, value: Any) -> Any:
        """The output for an element of the second stream."""
        raise NotImplementedError(f"{type(self).__name__} must define map2(self, value)")


class CoFlatMapFunction(Function):
    """Makes any number of outputs of every element of either stream."""

    def flat_map1(self, value: Any) -> Iterable[Any] | None:
        """Handle an element of the first stream: yield outputs, return a list of them, or return None."""
        raise NotImplementedError(f"{type(self).__name__} must define flat_map1(self, value)")

    def flat_map2(self, value: Any) -> Iterable[Any] | None:
        """Handle an element of the second stream: yield outputs, return a list of them, or return None."""
        raise NotImplementedError(f"{type(self).__name__} must define flat_map2(self, value)")


class CoProcessFunction(Function):
    """Sees one element at a time of either stream; neither is keyed."""

    class Context(ElementContext):
        """What is known about the current element."""

    def process_element1(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        """Handle an element of the first stream: yield outputs, return a list of them, or return None."""
        raise NotImplementedError(f"{type(self).__name__} must define process_element1(self, value, ctx)")

    def process_element2(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        """Handle an element of the second stream: yield outputs, return a list of them, or return None."""
        raise NotImplementedError(f"{type(self).__name__} must define process_element2(self, value, ctx)")


class KeyedCoProcessFunction(TimedFunction):
    """Sees one element at a time of either stream, with the state and the timers of the element's key."""

    class Context(KeyedContext):
        """What is known about the current element."""

    class OnTimerContext(TimerContext, Context):
        """What is known about the timer that fires."""

    def process_element1(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        """Handle an element of the first stream: yield outputs, return a list of them, or return None."""
        raise NotImplementedError(f"{type(self).__name__} must define process_element1(self, value, ctx)")

    def process_element2(self, value: Any, ctx: Context) -> Iterable[Any] | None:
        """Handle an element of the second stream: yield outputs, return a list of them, or return None."""
        raise NotImplementedError(f"{type(self).__name__} must define process_element2(self, value, ctx)")


class ProcessJoinFunction(Function):
    """Sees each pair of an interval join: ``left.interval_join(right).between(low, high).process(function, type)``."""

    class Context:
        """The times of a pair, in milliseconds. One object serves all pairs of a subtask."""

        def __init__(self) -> None:
            self._left = self._right = 0

        def get_left_timestamp(self) -> int:
            """Event time of the left element."""
            return self._left

        def get_right_timestamp(self) -> int:
            """Event time of the right element."""
            return self._right

        def get_timestamp(self) -> int:
            """The later one of both, which outputs have."""
            return max(self._left, self._right)

        def at(self, left_ms: int, right_ms: int) -> ProcessJoinFunction.Context:
            """The same, for a pair of other times."""
            self._left, self._right = left_ms, right_ms
            return self

    def process_element(self, left: Any, right: Any, ctx: Context) -> Iterable[Any] | None:
        """Handle one pair: yield outputs, return a list of them, or return None."""
        raise NotImplementedError(
            f"{type(self).__name__} must define process_element(self, left, right, ctx)"
        )
