"""``ReduceFunction``, ``AggregateFunction`` and ``FoldFunction``: how values are combined.

Used by reducing, aggregating and folding state and by rolling aggregates of keyed streams. Mirror the interfaces of
these names in ``org.apache.flink.api.common.functions``. They work on fresh copies, so changing an argument in place
and returning it is fine.
"""

from __future__ import annotations

from typing import Any

from state_engine.core.errors import RetractionError
from state_engine.core.function import Function, SingleMethodFunction


class ReduceFunction(SingleMethodFunction, method="reduce"):
    """Combines two values into one of the same type.

    Example:
        >>> ReduceFunction.of(max, what="largest").reduce(3, 5)
        5
    """

    def reduce(self, value1: Any, value2: Any) -> Any:
        """The combination of the value so far and a new one."""
        raise NotImplementedError(f"{type(self).__name__} must define reduce(self, value1, value2)")


class AggregateFunction(Function):
    """Adds values to an accumulator, whose type may differ from that of the values and of the result.

    ``merge`` and ``retract`` are needed by some callers only: ``merge`` where states are merged, ``retract`` where rows
    are updated and deleted. Flink's Table API has ``retract``, too, in its ``AggregateFunction``.

    Example:
        >>> class Sum(AggregateFunction):
        ...     def create_accumulator(self):
        ...         return 0
        ...     def add(self, value, accumulator):
        ...         return accumulator + value
        ...     def retract(self, value, accumulator):
        ...         return accumulator - value
        ...     def get_result(self, accumulator):
        ...         return accumulator
        >>> defines_retract(Sum()), defines_merge(Sum())
        (True, False)
    """

    def create_accumulator(self) -> Any:
        """A new accumulator, before anything was added."""
        raise NotImplementedError(f"{type(self).__name__} must define create_accumulator(self)")

    def add(self, value: Any, accumulator: Any) -> Any:
        """The accumulator after one more value."""
        raise NotImplementedError(f"{type(self).__name__} must define add(self, value, accumulator)")

    def retract(self, value: Any, accumulator: Any) -> Any:
        """The accumulator without a value that was added to it before, as if that had never come.

        Called for rows that are updated or deleted. A value that was certainly never added is an error to raise.
        """
        raise NotImplementedError(f"{type(self).__name__} must define retract(self, value, accumulator)")

    def get_result(self, accumulator: Any) -> Any:
        """What an accumulator stands for."""
        raise NotImplementedError(f"{type(self).__name__} must define get_result(self, accumulator)")

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """Two accumulators as one, where states are merged; either may be changed in place and returned."""
        raise NotImplementedError(f"{type(self).__name__} must define merge(self, acc_a, acc_b)")


def defines_merge(function: AggregateFunction) -> bool:
    """Whether an aggregate function can make one accumulator of two."""
    return getattr(function.merge, "__func__", None) is not AggregateFunction.merge


def defines_retract(function: AggregateFunction) -> bool:
    """Whether an aggregate function can take a value back, which a stream needs whose rows are updated and deleted."""
    return getattr(function.retract, "__func__", None) is not AggregateFunction.retract


class FoldFunction(SingleMethodFunction, method="fold"):
    """Folds elements into a value of another type."""

    def fold(self, accumulator: Any, value: Any) -> Any:
        """The accumulator after one more element."""
        raise NotImplementedError(f"{type(self).__name__} must define fold(self, accumulator, value)")


def never_added(value: Any, *, what: str) -> RetractionError:
    """The error that what is to be taken back was never added to its key."""
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return RetractionError(
        f"{what} cannot take back {shown}, which was never added to this key. An update or a delete is about a row "
        "that came before, with the same values: read the rows of the table first, or its changes from the first "
        "version on"
    )
