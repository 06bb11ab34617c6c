"""Functions of whole windows: ``ProcessWindowFunction``, ``WindowFunction``, and those of streams without key.

Mirror the classes of these names in ``pyflink.datastream.functions``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from state_engine.core.function import Function

if TYPE_CHECKING:
    from state_engine.core.functions.runtime_context import RuntimeContext


class WindowContext:
    """The window that a function is called for. One object serves all windows of a subtask."""

    def window(self) -> Any:
        """The window: a ``TimeWindow``; of count windows a ``CountWindow``, or a ``GlobalWindow``."""
        raise NotImplementedError

    def current_processing_time(self) -> int:
        """The batch's recorded clock, in milliseconds since 1970."""
        raise NotImplementedError

    def current_watermark(self) -> int:
        """The watermark as the window fires, in milliseconds; the smallest long where there is none."""
        raise NotImplementedError

    def window_state(self) -> Any:
        """States of the key and this window: ``get_state``, ``get_list_state``, ``get_map_state``, and so on.

        They go with the window. A state that ``clear`` does not ask for is known to go if the function asked for it in
        the same micro-batch.

        Raises:
            StateAccessError: the window is a session, which may become part of another one.
        """
        raise NotImplementedError

    def global_state(self) -> RuntimeContext:
        """States of the key, which all of its windows share; what ``open`` is given."""
        raise NotImplementedError


class _OfTypes(Function):
    def __class_getitem__(cls, types: Any) -> Any:
        """The class: PyFlink's name the types that they take and give, ``WindowFunction[In, Out, Key, TimeWindow]``."""
        return cls


class ProcessWindowFunction(_OfTypes):
    """Sees all elements of a key and window at once, when the window fires.

    Example:
        >>> class Spread(ProcessWindowFunction):
        ...     def process(self, key, context, elements):
        ...         prices = [element.price for element in elements]
        ...         yield key, context.window().end, max(prices) - min(prices)
    """

    class Context(WindowContext):
        """What is known about the window."""

    def process(self, key: Any, context: Context, elements: Iterable[Any]) -> Iterable[Any] | None:
        """Handle a window: yield outputs, return a list of them, or return None.

        Outputs have the last millisecond of the window as their event time.

        Args:
            key: as ``get_current_key`` gives it.
            elements: by event time, those of one time in their total order; behind ``reduce`` and ``aggregate`` the one
                result.
        """
        raise NotImplementedError(f"{type(self).__name__} must define process(self, key, context, elements)")

    def clear(self, context: Context) -> None:
        """Called when the window is closed: nothing of it is kept from then on."""


class WindowFunction(_OfTypes):
    """The same without a context."""

    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any] | None:
        """Handle a window, as ``ProcessWindowFunction.process`` does."""
        raise NotImplementedError(f"{type(self).__name__} must define apply(self, key, window, inputs)")


class ProcessAllWindowFunction(_OfTypes):
    """A ``ProcessWindowFunction`` for ``window_all``, whose windows have no key."""

    class Context(WindowContext):
        """What is known about the window."""

    def process(self, context: Context, elements: Iterable[Any]) -> Iterable[Any] | None:
        """Handle a window, as ``ProcessWindowFunction.process`` does."""
        raise NotImplementedError(f"{type(self).__name__} must define process(self, context, elements)")

    def clear(self, context: Context) -> None:
        """Called when the window is closed: nothing of it is kept from then on."""


class AllWindowFunction(_OfTypes):
    """A ``WindowFunction`` for ``window_all``, whose windows have no key."""

    def apply(self, window: Any, inputs: Iterable[Any]) -> Iterable[Any] | None:
        """Handle a window, as ``ProcessWindowFunction.process`` does."""
        raise NotImplementedError(f"{type(self).__name__} must define apply(self, window, inputs)")
