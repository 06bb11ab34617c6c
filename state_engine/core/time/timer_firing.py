"""In which order the timers of all keys fire at the end of a micro-batch.

By stage and time, and keys of one time by their hash: so neither the order of elements nor the parallelism matters.
Plays the part of ``advanceWatermark`` of Flink's ``InternalTimerServiceImpl``.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any

from state_engine.core.keys.canonical import canonical_key
from state_engine.core.keys.hashing import hash_canonical
from state_engine.core.state.state_table import KeyContext
from state_engine.core.time.timers import Entry, TimerQueue


def key_order(key: Any) -> tuple[int, str]:
    """Where a key stands among others: by its hash; by its text where hashes are equal."""
    canonical = canonical_key(key)
    return hash_canonical(canonical), repr(canonical)


def in_firing_order(
    queue: TimerQueue, context: KeyContext, watermark_ms: int, *, drain: bool
) -> Iterator[tuple[Any, Entry]]:
    """Every due timer with its key, until none is due; the caller fires each, and so may set others.

    The key is the current one while the caller has it.
    """
    places = {key: key_order(key) for key in queue.keys_due(watermark_ms, drain=drain)}
    tie = count()  # keys themselves need no order

    def next_of(key: Any) -> tuple[Any, ...] | None:
        context.key = key
        entry = queue.next_due(watermark_ms, drain=drain)
        return None if entry is None else (entry[:4], places[key], next(tie), key, entry)

    waiting = [timer for key in places if (timer := next_of(key)) is not None]
    heapify(waiting)
    while waiting:
        *_, key, entry = heappop(waiting)
        context.key = key
        yield key, entry
        following = next_of(key)  # only the key itself sets its timers
        if following is not None:
            heappush(waiting, following)
