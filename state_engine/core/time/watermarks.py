"""The watermark: how far event time has come, after an element, of a source, and before every element of a batch.

The rule stands here once: after an element, the watermark of its source is the newest event time so far, less the
declared out-of-orderness, less one millisecond. So no element at a time T is late while others at T may still come,
and a timer at T fires after all of them. A stream of several sources is as far as the slowest of them. Mirrors Flink's
``BoundedOutOfOrdernessWatermarks``, ``AscendingTimestampsWatermarks`` and the ``StatusWatermarkValve`` behind several
inputs; see decision 0027.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP

Longs = np.ndarray[Any, Any]


def watermark_after(newest_ms: int, *, out_of_orderness_ms: int) -> int:
    """The watermark of a source whose newest event time is this.

    Example:
        >>> watermark_after(100, out_of_orderness_ms=0), watermark_after(100, out_of_orderness_ms=10)
        (99, 89)
    """
    return max(newest_ms - out_of_orderness_ms - 1, MIN_TIMESTAMP)


def advanced(before_ms: int | None, newest_ms: int | None, *, out_of_orderness_ms: int) -> int | None:
    """The watermark of a source after a batch: it never goes back. None before the first element with a time.

    Example:
        >>> advanced(None, 100, out_of_orderness_ms=0), advanced(120, 100, out_of_orderness_ms=0)
        (99, 120)
    """
    if newest_ms is None:
        return before_ms
    return furthest([before_ms, watermark_after(newest_ms, out_of_orderness_ms=out_of_orderness_ms)])


def furthest(watermarks_ms: Iterable[int | None]) -> int | None:
    """The largest of those that there are; None where there is none.

    Example:
        >>> furthest([5, None, 3]), furthest([None]), furthest([])
        (5, None, None)
    """
    return max((w for w in watermarks_ms if w is not None), default=None)


def slowest(watermarks_ms: Iterable[int | None]) -> int | None:
    """The watermark of a stream of several sources; None until all of them have one.

    Example:
        >>> slowest([5, 3]), slowest([5, None]), slowest([])
        (3, None, None)
    """
    given = list(watermarks_ms)
    known = [w for w in given if w is not None]
    return min(known) if known and len(known) == len(given) else None


def combined(active_ms: Iterable[int | None], before_ms: int | None) -> int | None:
    """The watermark of an operator: that of the slowest stream which is not idle, and never below what it was.

    Args:
        active_ms: of the streams that it reads and that are not idle; where there is none, it stays.

    Example:
        >>> combined([5, 3], 4), combined([5, None], 4), combined([], 4), combined([5], None)
        (4, 4, 4, 5)
    """
    return furthest([before_ms, slowest(active_ms)])


def held_back(watermark_ms: int | None, by_ms: int) -> int | None:
    """A watermark that an operator holds back by a constant; None, and the smallest long, are none, and stay.

    Example:
        >>> held_back(100, 30), held_back(None, 30), held_back(MIN_TIMESTAMP + 5, 30) == MIN_TIMESTAMP
        (70, None, True)
    """
    return None if watermark_ms is None else int(shifted(np.array([watermark_ms], np.int64), -by_ms)[0])


def shifted(watermarks_ms: Longs, by_ms: int) -> Longs:
    """Watermarks so much later, or earlier; the smallest long, which is none, and the largest stay.

    Example:
        >>> shifted(np.array([100, MIN_TIMESTAMP, MAX_TIMESTAMP]), -30).tolist() == [70, MIN_TIMESTAMP, MAX_TIMESTAMP]
        True
    """
    ends = (watermarks_ms == MIN_TIMESTAMP) | (watermarks_ms == MAX_TIMESTAMP)
    least, most = MIN_TIMESTAMP - min(by_ms, 0), MAX_TIMESTAMP - max(by_ms, 0)
    moved: Longs = np.where(ends, watermarks_ms, np.clip(watermarks_ms, least, most) + by_ms)
    return moved


def is_late(event_ms: int | None, watermark_ms: int) -> bool:
    """Whether an element is late: its event time, in milliseconds, is not above the watermark before it.

    An element without event time is never late, and before the first watermark none is. So does Flink judge:
    ``timestamp <= currentWatermark()``, as in ``WindowOperator.isElementLate``.

    Example:
        >>> is_late(99, 99), is_late(100, 99), is_late(None, 99), is_late(99, MIN_TIMESTAMP)
        (True, False, False, False)
    """
    return event_ms is not None and MIN_TIMESTAMP < event_ms <= watermark_ms


def late_among(event_ms: Longs, watermarks_ms: Longs) -> Longs:
    """Of many elements, whether each is late; see ``is_late``.

    Args:
        event_ms: event times; the smallest long where there is none.

    Example:
        >>> late_among(np.array([99, 100, MIN_TIMESTAMP]), np.array([99, 99, 99])).tolist()
        [True, False, False]
    """
    late: Longs = (event_ms > MIN_TIMESTAMP) & (event_ms <= watermarks_ms)
    return late


@dataclass(frozen=True)
class Moves:
    """How the rows of a batch, in their total order, move the watermark.

    A row of a source moves it after itself. A row that an operator put out carries the watermark before it.

    Attributes:
        origins: number of the origin (a source, or the sources behind an operator) of every row; -1 for none.
        to_ms: where the row moves its origin's watermark to; the smallest long where it does not.
        before: whether the row carries the watermark before it, and does not move it after.
        most_ms: how far the watermark may be before the row: one that came in time is not late for its place in the
            order; the largest long for no limit. None for no limits.
    """

    origins: Longs
    to_ms: Longs
    before: Longs
    most_ms: Longs | None = None


def watermarks_before(moves: Moves, start_ms: Sequence[int | None], *, least_ms: int | None = None) -> Longs:
    """The watermark before every row: the smallest over all origins.

    Args:
        start_ms: watermark of each origin before the batch; the largest long where it holds back no other one.
        least_ms: what it was before the batch, below which it never goes; None for the smallest of ``start_ms``.

    Example:
        >>> of = Moves(np.array([0, 1, 0]), np.array([10, 20, 30]), np.array([False] * 3))
        >>> watermarks_before(of, [None, 5]).tolist() == [MIN_TIMESTAMP, 5, 10]
        True
    """
    combined = _slowest(moves, start_ms, own_step=lambda mine: mine & moves.before)
    combined = combined if least_ms is None else np.maximum(combined, least_ms)
    return combined if moves.most_ms is None else np.minimum(combined, _least_from(moves.most_ms))


def watermarks_after(moves: Moves, start_ms: Sequence[int | None]) -> Longs:
    """The watermark after every row, whatever it was before the batch; see ``watermarks_before``."""
    combined = _slowest(moves, start_ms, own_step=lambda mine: np.ones(len(mine), bool))
    if moves.most_ms is None:
        return combined
    return np.minimum(combined, _least_from(np.r_[moves.most_ms, MAX_TIMESTAMP])[1:])


def own_watermarks_before(moves: Moves, start_ms: Sequence[int | None]) -> Longs:
    """The watermark of every row's own origin before it, whatever the others'; the smallest long without one.

    Example:
        >>> of = Moves(np.array([0, 1, 0, 1]), np.array([10, 20, 30, 40]), np.array([False] * 4))
        >>> own_watermarks_before(of, [3, 5]).tolist()
        [3, 5, 10, 20]
    """
    before = np.full(len(moves.origins), MIN_TIMESTAMP, np.int64)
    for origin, start in enumerate(start_ms):
        mine = moves.origins == origin
        first = MIN_TIMESTAMP if start is None else start
        before[mine] = np.maximum.accumulate(np.r_[first, moves.to_ms[mine]])[:-1]
    return before


def _least_from(values: Longs) -> Longs:
    """The least of each value and all behind it."""
    least: Longs = np.minimum.accumulate(values[::-1])[::-1]
    return least


def _slowest(moves: Moves, start_ms: Sequence[int | None], *, own_step: Callable[[Longs], Longs]) -> Longs:
    """Over all origins, the least watermark around every row; ``own_step`` says which rows have made their move."""
    rows = len(moves.origins)
    if not start_ms:
        return np.full(rows, MIN_TIMESTAMP, np.int64)
    combined = np.full(rows, MAX_TIMESTAMP, np.int64)
    for origin, start in enumerate(start_ms):
        mine = moves.origins == origin
        first = MIN_TIMESTAMP if start is None else start
        reached = np.maximum.accumulate(np.r_[first, np.where(mine, moves.to_ms, MIN_TIMESTAMP)])
        combined = np.minimum(combined, np.where(own_step(mine), reached[1:], reached[:-1]))
    return combined


def steps_of(moves: Moves, origins: int) -> Longs:
    """The rows that are enough to know of a batch.

    These move an origin further than all rows before them, or hold it back more than all rows behind them.

    Example:
        >>> steps_of(Moves(np.zeros(4, int), np.array([3, 2, 3, 7]), np.zeros(4, bool)), 1).tolist()
        [0, 3]
    """
    step = np.zeros(len(moves.origins), bool)
    for origin in range(origins):
        reached = np.where(moves.origins == origin, moves.to_ms, MIN_TIMESTAMP)
        before = np.r_[MIN_TIMESTAMP, np.maximum.accumulate(reached)[:-1]] if len(reached) else reached
        step |= reached > before
    if moves.most_ms is not None:
        step |= moves.most_ms < _least_from(np.r_[moves.most_ms, MAX_TIMESTAMP])[1:]
    return np.flatnonzero(step)


def moves_of(
    origins: Longs,
    event_ms: Longs,
    carried_ms: Longs | None,
    delays_ms: Mapping[int, int],
    held_ms: Mapping[int, int] | None = None,
) -> Moves:
    """The moves of rows.

    Args:
        origins: number of the origin of every row; -1 for none.
        event_ms: event times; the smallest long where there is none.
        carried_ms: watermark before the row where an operator put it out; the smallest long for rows of sources.
        delays_ms: by origin that is a source, its out-of-orderness.
        held_ms: by origin, how much the operators in between hold its watermark back.
    """
    carried = np.full(len(origins), MIN_TIMESTAMP, np.int64) if carried_ms is None else carried_ms
    to_ms = carried.copy()
    for origin, delay in delays_ms.items():
        own = (origins == origin) & (event_ms != MIN_TIMESTAMP) & (carried == MIN_TIMESTAMP)
        least = MIN_TIMESTAMP + delay + 1
        to_ms[own] = np.maximum(event_ms[own], least) - delay - 1
    for origin, held in (held_ms or {}).items():
        to_ms = np.where(origins == origin, shifted(to_ms, -held), to_ms)
    return Moves(origins, to_ms, carried != MIN_TIMESTAMP)
