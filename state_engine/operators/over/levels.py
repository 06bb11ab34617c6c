"""``Level``: tiles of time of one length, and which of them rows have in reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.operators.aggregates.segments import Column

TIMES, LEAST = 4, 16
"""The tiles of a level are so many times as long as those of the one below; a span has at least so many tiles."""


@dataclass(frozen=True)
class Level:
    """Tiles of one length; rows that are kept by themselves are tiles of a millisecond.

    Attributes:
        number: of the level, from 0 on.
        span_ms: the longest one that has them.
    """

    number: int
    length_ms: int
    span_ms: int

    def start(self, at: Any) -> Any:
        """The begin of the tile of a time, or of each time of a column."""
        return at // self.length_ms * self.length_ms

    def first(self, at: int) -> int:
        """The begin of the first tile that a row of a time has in reach."""
        return max(int(self.start(at - self.span_ms)), MIN_TIMESTAMP)

    def firsts(self, at: Column) -> Column:
        """The same for each time of a column."""
        starts: Column = self.start(
            np.maximum(at, MIN_TIMESTAMP + self.span_ms + self.length_ms) - self.span_ms
        )
        return starts

    @property
    def reach_ms(self) -> int:
        """So long behind its begin a tile is in reach."""
        return self.length_ms + self.span_ms


def levels_of(spans_ms: Sequence[int], tile_ms: int) -> list[Level]:
    """The levels of some spans, lowest first.

    Example:
        >>> [(level.number, level.length_ms) for level in levels_of([60, 90, 24 * 60], 5)]
        [(0, 5), (2, 80)]
    """
    longest = {level_of(span, tile_ms): span for span in sorted(spans_ms)}
    return [Level(number, tile_ms * TIMES**number, span) for number, span in sorted(longest.items())]


def level_of(span_ms: int, tile_ms: int) -> int:
    """The level of the tiles of a span.

    Example:
        >>> [level_of(minutes, 5) for minutes in (60, 24 * 60, 30 * 24 * 60)]
        [0, 2, 4]
    """
    level = 0
    while LEAST * tile_ms * TIMES ** (level + 1) <= span_ms:
        level += 1
    return level
