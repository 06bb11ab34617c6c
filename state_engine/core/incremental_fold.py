"""``IncrementalFold``: what a sequence that grows comes to, at the cost of what is new in it.

The path of checkpoints and the positions of sources grow with every micro-batch, and each micro-batch asks again what
they come to. Plays the part of what a job of Flink keeps between two elements: it never begins anew. Decision 0090.
"""

from __future__ import annotations

import operator
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Reference = Callable[[], object]
"""Gives an object; None once nobody else has it."""
Element = TypeVar("Element")
Result = TypeVar("Result")


class IncrementalFold(Generic[Element, Result]):
    """A fold that remembers the last sequences: one that goes on where another ended begins with its result.

    A sequence goes on where another ended if it begins with the very same objects, which must not change. None of them
    is kept alive, if Python can refer to it weakly: a history that is read again has other rows, and former ones go.

    Args:
        step: makes the next result of a result and one more element; it does not change the result it is given.
        empty: the result of a sequence without elements.
        most: sequences to remember.

    Example:
        >>> total = IncrementalFold(lambda so_far, number: so_far + number, 0)
        >>> total.of([1, 2]), total.of([1, 2, 3])
        (3, 6)
    """

    def __init__(self, step: Callable[[Result, Element], Result], empty: Result, *, most: int = 8) -> None:
        self._step, self._empty = step, empty
        self._last: deque[tuple[Sequence[Reference], Result]] = deque(maxlen=most)

    def of(self, elements: Sequence[Element]) -> Result:
        """The result of all elements, in order."""
        known, result = self._beginning(elements)
        if len(known) < len(elements):
            for element in elements[len(known) :]:
                result = self._step(result, element)
            self._last.append(((*known, *map(_reference, elements[len(known) :])), result))
        return result

    def _beginning(self, elements: Sequence[Element]) -> tuple[Sequence[Reference], Result]:
        """The longest of the last sequences that this one begins with, and its result."""
        for known, result in sorted(self._last, key=lambda one: len(one[0]), reverse=True):
            if len(known) <= len(elements) and all(map(operator.is_, map(operator.call, known), elements)):
                return known, result
        return (), self._empty


def _reference(element: object) -> Reference:
    try:
        return weakref.ref(element)
    except TypeError:  # a dictionary or a number, for example
        return lambda: element
