"""What Flink's sessions do, in plain Python: by ``WindowOperator`` and ``EventTimeTrigger``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from tests.operators.windows.models import Event, watermarks_before


class Fired(NamedTuple):
    """Results of windows, with how often each came, and the rows that no window took."""

    results: Counter[tuple[str, int, int, int, int]]
    late: Counter[Event]


def fired(rows: Iterable[Event], gap: int, *, bound: int, lateness: int) -> Fired:
    """Sessions that end one millisecond early, and that a late row may open beside a closed one."""
    results: Counter[tuple[str, int, int, int, int]] = Counter()
    late: Counter[Event] = Counter()
    kept: dict[tuple[str, int, int], list[Event]] = {}
    waiting: set[tuple[str, int, int]] = set()

    def fire(window: tuple[str, int, int]) -> None:
        of = kept[window]
        results[*window, len(of), sum(row.v for row in of)] += 1

    def advance(watermark: int) -> None:
        for window in sorted(kept):
            if window in waiting and window[2] - 1 <= watermark:
                waiting.discard(window)
                fire(window)
            if window[2] - 1 + lateness <= watermark:
                del kept[window]

    for row, watermark in watermarks_before(rows, bound):
        advance(watermark)
        start, end, of = row.at, row.at + gap, [row]
        touched = [w for w in kept if w[0] == row.k and start <= w[2] and end >= w[1]]
        end = max([end, *(w[2] for w in touched)])
        start = min([start, *(w[1] for w in touched)])
        if end - 1 + lateness <= watermark:
            late[row] += 1
            continue
        for window in touched:
            of += kept.pop(window)
            waiting.discard(window)
        merged = (row.k, start, end)
        kept[merged] = of
        if end - 1 <= watermark:
            fire(merged)
        else:
            waiting.add(merged)
    advance(2**63)
    return Fired(results, late)
