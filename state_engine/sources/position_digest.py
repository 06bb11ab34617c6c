"""``PositionDigests``: what positions come to, at the cost of what is new in them.

A source's position grows with every micro-batch, and each micro-batch records the digests of where it begins and ends.
Nothing in Flink plays this part: its positions have no digest.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

Position = Sequence[Mapping[str, Any]]
"""Elements of a source's position, oldest first. An element never changes once it is in a position."""


class PositionDigests:
    """Digests of positions; one that goes on where one of the last ended begins with its digest.

    Args:
        most: positions to remember.

    Example:
        >>> digests, begun = PositionDigests(), [{"split": "a", "position": 1}]
        >>> digests.of(begun) == digests.of([*begun, {"split": "b", "position": 1}])
        False
    """

    def __init__(self, most: int = 8) -> None:
        self._last: deque[tuple[Position, hashlib._Hash]] = deque(maxlen=most)

    def of(self, position: Position) -> str:
        """The digest of all elements, in order, as hexadecimal text."""
        known, digest = self._beginning(position)
        if len(known) < len(position):
            digest = digest.copy()
            for element in position[len(known) :]:
                digest.update(json.dumps(element, sort_keys=True).encode())
            self._last.append((tuple(position), digest))
        return digest.hexdigest()

    def _beginning(self, position: Position) -> tuple[Position, hashlib._Hash]:
        """The longest of the last positions that this one begins with, and its digest; they have the same elements."""
        begun = [
            (known, digest)
            for known, digest in tuple(self._last)
            if len(known) <= len(position) and all(map(operator.is_, known, position))
        ]
        return max(begun, key=lambda one: len(one[0]), default=((), hashlib.sha256()))
