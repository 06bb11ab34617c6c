"""Late elements that do not reach the function: they go from the loop of the operator to a side output.

They keep their places among the other elements, so their side output has the total order of its stream. They touch no
state: they come without key. Plays the part of ``sideOutputLateData`` in Flink's ``WindowOperator``, for any operator.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from state_engine.core.functions.function_calls import Process
from state_engine.core.functions.output_tag import OutputTag


class LateElement(NamedTuple):
    """Stands among the elements of an operator instead of one that is late.

    Attributes:
        tag: of the side output that it goes to; None where nobody reads that.
    """

    tag: OutputTag | None
    value: Any


def diverting(process: Process) -> Process:
    """The call of a function that late elements pass by.

    Example:
        >>> late = OutputTag("late", int)
        >>> call = diverting(lambda value, context: [value + 1])
        >>> call(1, None), call(LateElement(late, 1), None), call(LateElement(None, 1), None)
        ([2], [(OutputTag('late', int64), 1)], None)
    """

    def call(value: Any, context: Any) -> Any:
        if type(value) is not LateElement:
            return process(value, context)
        return None if value.tag is None else [(value.tag, value.value)]

    return call
