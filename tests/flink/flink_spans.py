"""Count and sum of a span by the rules of Flink's OVER, as a plain program.

They are those of ``RowTimeRangeBoundedPrecedingFunction`` and ``RowTimeRowsBoundedPrecedingFunction``: a row is taken
if it is later than the newest timer of its key that fired. A span of time has one that forgets a key, the time
of this timer included, that is silent for one and a half spans.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

Events = list[tuple[str, int, int]]


class _Key:
    """What Flink keeps of one key."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []
        self.timers: set[int] = set()
        self.out = 0
        self.forget_at: int | None = None

    def take(self, value: int, at: int, *, span: int | None) -> None:
        if at <= self.out:
            return
        self.taken.append((at, value))
        self.timers.add(at)
        if span is not None and (self.forget_at is None or self.forget_at < at + span + 1):
            self.forget_at = at + span * 3 // 2 + 1
            self.timers.add(self.forget_at)

    def fire(self, watermark: int, *, span: int | None, rows: int) -> list[tuple[int, int, int, int]]:
        results = []
        for now in sorted(time for time in self.timers if time <= watermark):
            self.timers.remove(now)
            if self.forget_at is not None and self.forget_at <= now:
                self.taken, self.out, self.forget_at = [], 0, None
                continue
            before = sorted((row for row in self.taken if row[0] <= now), key=lambda row: row[0])
            for place, (at, value) in enumerate(before):
                if at < now:
                    continue
                if span is not None:
                    seen = [v for time, v in before if time >= now - span]
                else:
                    seen = [v for _, v in before[max(place - rows + 1, 0) : place + 1]]
                results.append((value, at, len(seen), sum(seen)))
            self.out = now
        return results


def fired(events: Events, *, bound: int, span: int | None = None, rows: int = 0) -> Counter[tuple[Any, ...]]:
    """Key, value, time, count and sum of each row that Flink gives for one of both spans."""
    keys: dict[str, _Key] = {}
    results: Counter[tuple[Any, ...]] = Counter()
    newest = 0
    for place, (key, value, at) in enumerate(events):
        keys.setdefault(key, _Key()).take(value, at, span=span)
        last = place + 1 == len(events)
        if at <= newest and not last:
            continue  # a timer of a late row waits until the watermark moves
        newest = max(newest, at)
        watermark = 2**62 if last else newest - bound - 1
        for name, one in keys.items():
            results.update((name, *result) for result in one.fire(watermark, span=span, rows=rows))
    return results
