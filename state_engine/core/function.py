"""``Function``: the base of all functions that users write, with their life cycle.

Mirrors ``org.apache.flink.api.common.functions.RichFunction``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from state_engine.core.errors import ConfigurationError

if TYPE_CHECKING:
    from state_engine.core.functions.output_tag import OutputTag
    from state_engine.core.functions.runtime_context import RuntimeContext

F = TypeVar("F", bound="SingleMethodFunction")


class Function:
    """Base of all functions.

    ``open`` and ``close`` run once a subtask and micro-batch: do not use instance attributes as a cache across batches.

    Attributes:
        accepts_changes: whether the function knows what to do with updates and deletes, ``ctx.row_kind()``. Building a
            job refuses one that does not on a stream that changes. ``map``, ``filter`` and ``flat_map`` without state
            need not set it: they keep the kind of each element.
        emits_changes: whether what a process function emits has kinds of its own: Rows that have one, or pairs
            ``RowKind.DELETE, value``. Without, all its outputs are inserts.
        changes_keep_time: whether a row that it takes back has the event time with which it came out. With that of
            the element that changed it, windows of event time would take it back from another window, and are refused
            behind the function.
        gives_running_results: whether each output is the newest result of its key, which does not take the one before
            back. What would count it beside those, such as another aggregate, is refused behind the function.
        holds_back_ms: by how much its outputs may be behind its watermark, in milliseconds: functions that read them
            have a watermark so much earlier, so none of them is late there. A constant of the function, not below 0;
            None for one that never holds it back.
        shows: the state that ``publish`` shows as a table, and the column of its map keys: None for a column of each of
            their fields. None where there is no such table.
        late_to: the side output for elements that come too late for it, which it passes on as they came: it holds
            updates and deletes only where they do. A stream of the function's outputs reads it from the start.
        late_right_to: the same for elements of the second of two streams.
        sees_time: whether what it does may depend on event time or on the watermark, through its context or through
            state that lives by event time. False of ready-made functions that read neither.
        timers_yield: whether its event-time timers may put something out; False where they only clean up, or where all
            timers are of processing time. Their outputs need a place in the order where they are merged with another
            stream, which building the job checks.
        shape: what the state means beyond its types, as text: ``"tumbling 3600000"``. It is recorded with the state,
            and a function of another shape is refused: it would misread the state. None where the types say all.
    """

    accepts_changes: bool = False
    emits_changes: bool = False
    changes_keep_time: bool = False
    gives_running_results: bool = False
    holds_back_ms: int | None = None
    late_to: OutputTag | None = None
    late_right_to: OutputTag | None = None
    sees_time: bool = True
    timers_yield: bool = True
    shape: str | None = None
    shows: tuple[str, str | None] | None = None

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called before the first element of a subtask's micro-batch: get state handles here."""

    def close(self) -> None:
        """Called after the last element, also when the subtask fails."""


class SingleMethodFunction(Function):
    """Base of functions with a single method, which a plain callable does as well."""

    _method: ClassVar[str]

    def __init_subclass__(cls, method: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        if method:
            cls._method = method

    @classmethod
    def of(cls: type[F], function: F | Callable[..., Any], *, what: str) -> F:
        """The function itself, or a plain callable as one. Raises ConfigurationError, naming ``what``."""
        if isinstance(function, cls):
            return function
        if isinstance(function, Function) or not callable(function):
            raise ConfigurationError(f"{what} takes a {cls.__name__} or a callable, not {function!r}")
        made = cls()
        setattr(made, cls._method, function)
        return made
