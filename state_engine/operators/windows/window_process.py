"""Functions of whole windows: what calls a ``ProcessWindowFunction`` or ``WindowFunction``, and what it may ask for.

Mirrors Flink's ``InternalWindowFunction`` classes and the ``WindowContext`` of its ``WindowOperator``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from state_engine.core.errors import StateAccessError
from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.window_functions import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from state_engine.core.operator.atomic_call import outputs_of
from state_engine.operators.windows.window_results import Emitter
from state_engine.operators.windows.window_states import WindowStates

FunctionOfWindows = ProcessWindowFunction | WindowFunction | ProcessAllWindowFunction | AllWindowFunction


class CalledFunction(Emitter):
    """Emits what a function makes of the elements of a window.

    Args:
        merging: whether windows may become part of others, so that they have no state of their own.
    """

    def __init__(self, function: FunctionOfWindows, *, merging: bool) -> None:
        self._function, self._merging = function, merging
        self.clears = isinstance(function, ProcessWindowFunction | ProcessAllWindowFunction)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._function.open(runtime_context)
        states = None if self._merging else WindowStates(runtime_context)
        self._context = _Context(runtime_context, states)

    def close(self) -> None:
        self._function.close()

    def outputs(self, ctx: KeyedContext, window: Any, elements: list[Any]) -> Iterable[Any]:
        function, context = self._function, self._context.at(ctx, window)
        if isinstance(function, ProcessWindowFunction):
            return _outputs(function.process(ctx.get_current_key(), context, elements), "process")
        if isinstance(function, ProcessAllWindowFunction):
            return _outputs(function.process(context, elements), "process")
        if isinstance(function, WindowFunction):
            return _outputs(function.apply(ctx.get_current_key(), window, elements), "apply")
        return _outputs(function.apply(window, elements), "apply")

    def cleared(self, ctx: KeyedContext, window: Any, *, calls: bool = True) -> None:
        function = self._function
        if isinstance(function, ProcessWindowFunction | ProcessAllWindowFunction):
            self._context.at(ctx, window).close(function.clear if calls else None)


class _Context(ProcessWindowFunction.Context, ProcessAllWindowFunction.Context):
    """The window that a function is called for.

    Args:
        states: of windows; None where they merge.
    """

    def __init__(self, runtime_context: RuntimeContext, states: WindowStates | None) -> None:
        self._runtime, self._states = runtime_context, states

    def at(self, ctx: KeyedContext, window: Any) -> _Context:
        self._ctx, self._window = ctx, window
        if self._states is not None:
            self._states.window = (window[0], window[-1]) if window else (0, 0)
        return self

    def close(self, clear: Callable[[Any], None] | None) -> None:
        """Let the function clear what it keeps of the window, and then drop the states of the window."""
        if clear is not None:
            clear(self)
        if self._states is not None:
            self._states.clear()

    def window(self) -> Any:
        return self._window

    def current_processing_time(self) -> int:
        return self._ctx.current_processing_time()

    def current_watermark(self) -> int:
        return self._ctx.current_watermark()

    def window_state(self) -> WindowStates:
        if self._states is None:
            raise StateAccessError(
                "window_state() of a session: it may become part of another one, whose state would be unclear; use "
                "global_state(), with a map by context.window().start"
            )
        return self._states

    def global_state(self) -> RuntimeContext:
        return self._runtime


def _outputs(result: Any, method: str) -> Iterable[Any]:
    return [] if result is None else outputs_of(result, method)
