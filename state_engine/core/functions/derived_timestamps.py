"""Event times that are assigned behind maps and filters: the source's own, by way of these.

Flink assigns event times on any stream, and what is made of an element has its time from there on. Here event time
begins at the source; what a map makes of an element has the element's time. So a strategy behind maps and filters
gives the source's element the time that it gives what becomes of the element, and none to one that is filtered out:
that one moves no watermark, as in Flink. Stands in for a second ``TimestampsAndWatermarksOperator`` in the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from state_engine.core.function import Function
from state_engine.core.functions.map_functions import FilterFunction, MapFunction
from state_engine.core.time.watermark_strategy import NO_TIMESTAMP, TimestampAssigner
from state_engine.core.types.row import Row, RowKind, row_of_kind
from state_engine.core.types.type_information import TypeInformation


@dataclass(frozen=True)
class DerivationStep:
    """One map or filter.

    Attributes:
        kind: of what a map gives; None for a filter.
    """

    function: Function
    kind: TypeInformation | None = None


class DerivedTimestamps(TimestampAssigner):
    """The times that an assigner gives what maps and filters make of an element.

    Example:
        >>> steps = [DerivationStep(FilterFunction.of(lambda v: v > 1, what="filter"))]
        >>> late = DerivedTimestamps(steps, TimestampAssigner.of(lambda v: v * 1000))
        >>> late.extract_timestamp(2, -1), late.extract_timestamp(1, -1) is NO_TIMESTAMP
        (2000, True)
    """

    def __init__(self, steps: list[DerivationStep], assigner: TimestampAssigner) -> None:
        self._steps, self._assigner = steps, assigner

    def extract_timestamp(self, value: Any, record_timestamp: int) -> Any:
        """Milliseconds since 1970, or ``NO_TIMESTAMP`` for what is filtered out."""
        kind = value.get_row_kind() if isinstance(value, Row) else RowKind.INSERT
        for step in self._steps:
            if isinstance(step.function, FilterFunction):
                if not step.function.filter(value):
                    return NO_TIMESTAMP
            elif isinstance(step.function, MapFunction) and step.kind is not None:
                value = step.kind.normalise(_of_kind(step.function.map(value), RowKind.INSERT))
                value = _of_kind(value, kind)  # as behind the map itself
        return self._assigner.extract_timestamp(value, record_timestamp)


def _of_kind(value: Any, kind: RowKind) -> Any:
    return row_of_kind(value, kind) if isinstance(value, Row) else value


def is_plain(function: Function) -> bool:
    """Whether a function is a map or a filter that needs no ``open``, so that it may be called anywhere."""
    plain = type(function).open is Function.open and type(function).close is Function.close
    return plain and isinstance(function, MapFunction | FilterFunction)
