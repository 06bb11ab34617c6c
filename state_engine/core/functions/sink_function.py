"""``SinkFunction``: hands every element to a system outside of the engine.

Mirrors ``org.apache.flink.streaming.api.functions.sink.SinkFunction``. What it sends cannot be taken back when an
attempt at a micro-batch fails and runs again: delivery is at least once, while its state is exactly once. Mix in
``CheckpointedFunction`` to buffer.
"""

from __future__ import annotations

from typing import Any

from state_engine.core.function import Function
from state_engine.core.functions.contexts import ElementContext


class SinkFunction(Function):
    """Takes one element at a time and has no outputs.

    Example:
        >>> class Prints(SinkFunction):
        ...     def invoke(self, value, context):
        ...         print(context.timestamp(), value)
    """

    class Context(ElementContext):
        """What is known about the current element: its time and the clocks."""

    def invoke(self, value: Any, context: Context) -> None:
        """Send one element."""
        raise NotImplementedError(f"{type(self).__name__} must define invoke(self, value, context)")
