"""``Timestamped``: an output with an event time of its own.

An output has the event time of the element, or the time of the timer, that it came from. What stands for more than one
element, such as the result of a window, has another one. Plays the part of ``TimestampedCollector`` of Flink's
``WindowOperator``, for any function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from state_engine.core.errors import ValueTypeError
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.types.row import RowKind
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP


@dataclass(frozen=True, slots=True)
class Timestamped:
    """An output and its event time: ``yield Timestamped(value, timestamp_ms)``.

    A side output and a change have one, too: ``yield tag, Timestamped(value, timestamp_ms)`` and
    ``yield RowKind.DELETE, Timestamped(value, timestamp_ms)``. The order of outputs stays that of their elements.

    Args:
        value: the output.
        timestamp_ms: its event time, in milliseconds since 1970.

    Raises:
        ValueTypeError: the time is not a whole number of milliseconds.

    Example:
        >>> Timestamped("noon", 43_200_000)
        Timestamped(value='noon', timestamp_ms=43200000)
    """

    value: Any
    timestamp_ms: int

    def __post_init__(self) -> None:
        at = self.timestamp_ms
        if not isinstance(at, int) or isinstance(at, bool) or not MIN_TIMESTAMP < at <= MAX_TIMESTAMP:
            raise ValueTypeError(
                f"Timestamped takes an event time in whole milliseconds that fits 64 bits, not {at!r}; "
                "cut a fraction with int(...)"
            )


def is_marked(output: Any) -> bool:
    """Whether what a function yielded has a tag or an event time of its own.

    Example:
        >>> [is_marked(one) for one in (7, (RowKind.DELETE, 7), Timestamped(7, 0), (OutputTag("late", int), 7))]
        [False, False, True, True]
    """
    if type(output) is Timestamped:
        return True
    if not isinstance(output, tuple) or len(output) != 2:
        return False
    return isinstance(output[0], OutputTag) or (
        type(output[1]) is Timestamped and isinstance(output[0], RowKind)
    )


def marks_of(output: Any) -> tuple[OutputTag | None, Any, int | None]:
    """Tag, value and event time of an output; a change is the pair of its kind and its value.

    Example:
        >>> marks_of((RowKind.DELETE, Timestamped(7, 5)))
        (None, (<RowKind.DELETE: 3>, 7), 5)
        >>> marks_of((OutputTag("late", int), Timestamped(7, 5)))
        (OutputTag('late', int64), 7, 5)
    """
    tag, at = None, None
    if type(output) is Timestamped:
        output, at = output.value, output.timestamp_ms
    if isinstance(output, tuple) and len(output) == 2 and isinstance(output[0], OutputTag):
        tag, output = output
    if type(output) is Timestamped:
        return tag, output.value, output.timestamp_ms
    if isinstance(output, tuple) and len(output) == 2 and type(output[1]) is Timestamped:
        kind, timed = output
        return tag, (kind, timed.value), timed.timestamp_ms
    return tag, output, at
