"""``IncrementalFold``: what a sequence that grows comes to, at the cost of what is new in it.

The path of checkpoints and the positions of sources grow with every micro-batch, and each micro-batch asks again what
they come to. Plays the part of what a job of Flink keeps between two elements: it never begins again.
"""

from __future__ import annotations

import operator
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

Element = TypeVar("Element")
Result = TypeVar("Result")


class IncrementalFold(Generic[Element, Result]):
    """A fold that remembers the last sequences: one that goes on where another ended begins with its result.

    A sequence goes on where another ended if it begins with the very same objects, which must not change.

    Args:
        step: makes the next result of a result and the elements that follow; it does not change the result it is given.
        empty: the result of a sequence without elements.
        weakly: keep no element alive, which Python can do for objects of most classes, and not for dictionaries. A
            history that is read again consists of other rows; those of before are then free to go.

    Example:
        >>> total = IncrementalFold(lambda so_far, numbers: so_far + sum(numbers), 0)
        >>> total.of([1, 2]), total.of([1, 2, 3])
        (3, 6)
    """

    def __init__(
        self,
        step: Callable[[Result, Sequence[Element]], Result],
        empty: Result,
        *,
        weakly: bool = False,
        most: int = 8,
    ) -> None:
        self._step, self._empty, self._weakly = step, empty, weakly
        self._last: deque[tuple[Sequence[Any], Result]] = deque(maxlen=most)

    def of(self, elements: Sequence[Element]) -> Result:
        known, result = self._beginning(elements)
        new = elements[len(known) :]
        if new:
            result = self._step(result, new)
            self._last.append(((*known, *(map(weakref.ref, new) if self._weakly else new)), result))
        return result

    def _beginning(self, elements: Sequence[Element]) -> tuple[Sequence[Any], Result]:
        """The longest of the last sequences that this one begins with, as it is remembered, and its result."""
        for known, result in sorted(self._last, key=lambda one: len(one[0]), reverse=True):
            objects = map(operator.call, known) if self._weakly else known
            if len(known) <= len(elements) and all(map(operator.is_, objects, elements)):
                return known, result
        return (), self._empty
