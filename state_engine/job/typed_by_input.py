"""``TypedByInput``: a function whose state has the type of the elements, which only the rows show.

Stands in the graph until the first rows come; then the function itself is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict, Unpack

from state_engine.core.functions.co_functions import KeyedCoProcessFunction
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.types.type_information import TypeInformation
from state_engine.operators.idle_keys import ForgetsIdleKeys, ForgettableFunction, IdleTime
from state_engine.sources.output_type import OutputType


class Traits(TypedDict, total=False):
    """What code knows of a function before it is made, see ``Function``."""

    accepts_changes: bool
    emits_changes: bool
    gives_running_results: bool
    holds_back_ms: int | None
    late_to: OutputTag | None
    late_right_to: OutputTag | None
    sees_time: bool
    timers_yield: bool
    shape: str | None
    shows: tuple[str, str | None] | None
    windows_differ_in: tuple[str, ...]


class TypedByInput(KeyedProcessFunction):
    """Makes a function of a keyed stream from the kind of its elements.

    Args:
        gives: what it emits for such elements, which are no bare values; None where outputs are of their kind.
        traits: of the function that is made.

    Attributes:
        windows_differ_in: columns each of which differs between all windows of a key, of a function whose outputs are
            changes of a table of windows; empty for others.
    """

    sees_time = False
    windows_differ_in: tuple[str, ...] = ()

    def __init__(
        self,
        make: Callable[[OutputType], KeyedProcessFunction],
        *,
        gives: Callable[[OutputType], OutputType] | None = None,
        **traits: Unpack[Traits],
    ) -> None:
        self._make, self._gives = make, gives
        vars(self).update(traits)

    @property
    def keeps_type(self) -> bool:
        """Whether outputs are of the kind of the elements."""
        return self._gives is None

    def bound(self, kind: OutputType) -> KeyedProcessFunction:
        """The function for elements of this kind: its state gives them as the stream does."""
        return self._make(kind)

    def gives(self, kind: OutputType) -> OutputType:
        return kind if self._gives is None else self._gives(kind)


class TimedByInput(TypedByInput):
    """The same of a function that sets timers."""

    sees_time = True

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> None:
        """Of the function, once it is made."""


def forgetting(made: TypedByInput, idle: IdleTime | None) -> TypedByInput:
    """The same, forgetting keys that are idle for some time; None keeps them for ever."""
    if idle is None:
        return made

    def bound(kind: OutputType) -> KeyedProcessFunction:
        function = made.bound(kind)
        assert isinstance(function, ForgettableFunction)
        return ForgetsIdleKeys(function, idle)

    return TimedByInput(
        bound,
        gives=None if made.keeps_type else made.gives,
        shape=made.shape,
        accepts_changes=made.accepts_changes,
        emits_changes=made.emits_changes,
        gives_running_results=made.gives_running_results,
        shows=made.shows,
        timers_yield=idle.by_event_time and made.emits_changes,
    )


class TypedByInputs(KeyedCoProcessFunction):
    """The same of a function of two streams, made from the kinds of the elements of both."""

    keeps_type = False

    def __init__(
        self,
        make: Callable[[OutputType, OutputType], KeyedCoProcessFunction],
        *,
        gives: Callable[[OutputType, OutputType], OutputType] | None,
        **traits: Unpack[Traits],
    ) -> None:
        self._make, self._gives = make, gives
        vars(self).update(traits)

    def bound(self, first: OutputType, second: OutputType) -> KeyedCoProcessFunction:
        return self._make(first, second)

    def gives(self, first: OutputType, second: OutputType) -> OutputType:
        assert self._gives is not None
        return self._gives(first, second)


class TimedByInputs(TypedByInputs):
    """The same of a function that sets timers."""

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Any:
        """Of the function, once it is made."""


Typed = TypedByInput | TypedByInputs
"""Stands for a function that is made when the kinds of its elements are known."""


def element_type(kind: OutputType) -> TypeInformation:
    """The type of elements of a kind, as a state keeps them."""
    return kind.element if kind.scalar else kind.columns
