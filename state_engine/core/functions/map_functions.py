"""``MapFunction``, ``FlatMapFunction`` and ``FilterFunction``: functions of one element.

Mirror the interfaces of these names in ``org.apache.flink.api.common.functions``. On a keyed stream they may use keyed
state. A plain callable does wherever one of them is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from state_engine.core.errors import ConfigurationError
from state_engine.core.function import Function


class MapFunction(Function):
    """Makes one output of every element.

    Example:
        >>> MapFunction.of(lambda value: value * 2, what="map").map(3)
        6
    """

    def map(self, value: Any) -> Any:
        """The output for an element."""
        raise NotImplementedError(f"{type(self).__name__} must define map(self, value)")

    @staticmethod
    def of(function: MapFunction | Callable[[Any], Any], *, what: str) -> MapFunction:
        """The function itself, or a plain callable as one. Raises ConfigurationError, naming ``what``."""
        if isinstance(function, MapFunction):
            return function
        _check_callable(function, "a MapFunction", what)
        return _PlainMap(function)


class FlatMapFunction(Function):
    """Makes any number of outputs of every element."""

    def flat_map(self, value: Any) -> Iterable[Any] | None:
        """Yield the outputs, return a list of them, or return None."""
        raise NotImplementedError(f"{type(self).__name__} must define flat_map(self, value)")

    @staticmethod
    def of(
        function: FlatMapFunction | Callable[[Any], Iterable[Any] | None], *, what: str
    ) -> FlatMapFunction:
        """The function itself, or a plain callable as one. Raises ConfigurationError, naming ``what``."""
        if isinstance(function, FlatMapFunction):
            return function
        _check_callable(function, "a FlatMapFunction", what)
        return _PlainFlatMap(function)


class FilterFunction(Function):
    """Keeps some elements and drops the others."""

    def filter(self, value: Any) -> bool:
        """Whether to keep an element."""
        raise NotImplementedError(f"{type(self).__name__} must define filter(self, value)")

    @staticmethod
    def of(function: FilterFunction | Callable[[Any], bool], *, what: str) -> FilterFunction:
        """The function itself, or a plain callable as one. Raises ConfigurationError, naming ``what``."""
        if isinstance(function, FilterFunction):
            return function
        _check_callable(function, "a FilterFunction", what)
        return _PlainFilter(function)


def _check_callable(function: object, kind: str, what: str) -> None:
    if isinstance(function, Function) or not callable(function):
        raise ConfigurationError(f"{what} takes {kind} or a callable, not {function!r}")


class _PlainMap(MapFunction):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.map = function  # type: ignore[method-assign, assignment]


class _PlainFlatMap(FlatMapFunction):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.flat_map = function  # type: ignore[method-assign, assignment]


class _PlainFilter(FilterFunction):
    def __init__(self, function: Callable[[Any], bool]) -> None:
        self.filter = function  # type: ignore[method-assign, assignment]
