"""``TypedByInput``: a function whose state has the type of the elements, which only the rows show.

Stands in the graph until the first rows come; then the function itself is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.sources.output_type import OutputType


class TypedByInput(KeyedProcessFunction):
    """Makes a function of a keyed stream from the type of its elements.

    Args:
        make: gives the function for a type.
    """

    def __init__(self, make: Callable[[Any], KeyedProcessFunction]) -> None:
        self._make = make

    def bound(self, kind: OutputType) -> KeyedProcessFunction:
        """The function for elements of this kind: its state gives them as the stream does."""
        return self._make(kind.element if kind.scalar else kind.columns)
