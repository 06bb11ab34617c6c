"""``MapFunction``, ``FlatMapFunction`` and ``FilterFunction``: functions of one element.

Mirror the interfaces of these names in ``org.apache.flink.api.common.functions``. On a keyed stream they may use keyed
state. A plain callable does wherever one of them is taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from state_engine.core.function import SingleMethodFunction


class MapFunction(SingleMethodFunction, method="map"):
    """Makes one output of every element.

    Example:
        >>> MapFunction.of(lambda value: value * 2, what="map").map(3)
        6
    """

    def map(self, value: Any) -> Any:
        """The output for an element."""
        raise NotImplementedError(f"{type(self).__name__} must define map(self, value)")


class FlatMapFunction(SingleMethodFunction, method="flat_map"):
    """Makes any number of outputs of every element."""

    def flat_map(self, value: Any) -> Iterable[Any] | None:
        """Yield the outputs, return a list of them, or return None."""
        raise NotImplementedError(f"{type(self).__name__} must define flat_map(self, value)")


class FilterFunction(SingleMethodFunction, method="filter"):
    """Keeps some elements and drops the others."""

    def filter(self, value: Any) -> bool:
        """Whether to keep an element."""
        raise NotImplementedError(f"{type(self).__name__} must define filter(self, value)")
