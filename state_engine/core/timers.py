"""Timers: keyed state of an operator, and the order in which they come due.

A timer is one entry of the map state ``_timers`` of its key: (time, domain) → true. So changes, undo, snapshots and
storage are those of any state, and a timer that is set twice is one. ``TimerQueue`` keeps the times of the loaded
timers in heaps beside it; the state decides, a heap may still know what was deleted. Plays the part of Flink's
``InternalTimerServiceImpl`` with its ``KeyGroupedInternalPriorityQueue``.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from state_engine.core.descriptors import MapStateDescriptor
from state_engine.core.keyed_state import KeyedStateStore
from state_engine.core.map_state import MapState
from state_engine.core.state_table import KeyContext
from state_engine.core.time import TimeDomain
from state_engine.core.type_parsing import to_type

TIMERS = "_timers"
"""Name of the state that holds timers; no user's state can have it."""

EVENT, PROCESSING = "event", "processing"
_STORED = {TimeDomain.EVENT_TIME: EVENT, TimeDomain.PROCESSING_TIME: PROCESSING}
DOMAINS = {stored: domain for domain, stored in _STORED.items()}
"""The domain by what is stored for it."""


class Timer(NamedTuple):
    """Map key of a stored timer: its time in milliseconds, and ``event`` or ``processing``."""

    time: int
    domain: str


class TimersDescriptor(MapStateDescriptor):
    """Describes the state that holds timers.

    Example:
        >>> TimersDescriptor()
        TimersDescriptor('_timers', struct<key: struct<time: int64, domain: string>, value: bool>)
    """

    def __init__(self) -> None:
        # the name is one that users cannot give, so their constructor would refuse it
        self.name = TIMERS
        self.key_type = to_type(Timer, parameter="timers")
        self.value_type = to_type(bool, parameter="timers")
        self.ttl = None


class TimerQueue:
    """The timers of a subtask's keys.

    Args:
        store: keyed states of the subtask; the timers are loaded when the queue is made.
        context: the current key, shared with the store.
    """

    def __init__(self, store: KeyedStateStore, context: KeyContext) -> None:
        self._context = context
        self._state: MapState = store.handle(TimersDescriptor(), "map")
        # every stored timer is in its heap, at least once
        self._event: dict[object, list[int]] = {}
        self._processing: dict[object, list[int]] = {}
        self._heaps = {EVENT: self._event, PROCESSING: self._processing}
        for key, timers in store.tables[TIMERS].entries.items():
            for time, domain in timers:
                self._heaps[domain].setdefault(key, []).append(time)
        for heaps in self._heaps.values():
            for heap in heaps.values():
                heapify(heap)

    def register(self, time: int, domain: TimeDomain) -> None:
        """Set a timer of the current key."""
        timer = Timer(time, _STORED[domain])
        if not self._state.contains(timer):
            self._state.put(timer, True)
            heappush(self._heaps[timer.domain].setdefault(self._context.key, []), time)

    def delete(self, time: int, domain: TimeDomain) -> None:
        """Forget a timer of the current key."""
        self._state.remove(Timer(time, _STORED[domain]))

    def take(self, timer: Timer) -> None:
        """Forget a timer of the current key because it fires now."""
        heappop(self._heaps[timer.domain][self._context.key])
        self._state.remove(timer)

    def may_be_due(self, key: object, *, watermark_ms: int, clock_ms: int) -> bool:
        """Whether a key may have a due timer; cheap, for every element."""
        heap = self._event.get(key)
        if heap and heap[0] <= watermark_ms:
            return True
        heap = self._processing.get(key) if self._processing else None
        return bool(heap) and heap[0] <= clock_ms  # type: ignore[index]

    def next_due(self, *, watermark_ms: int, clock_ms: int) -> Timer | None:
        """The first due timer of the current key by (time, domain); None where none is due."""
        key, found = self._context.key, None
        for domain, now in ((EVENT, watermark_ms), (PROCESSING, clock_ms)):
            heap = self._heaps[domain].get(key)
            while heap and heap[0] <= now and not self._state.contains(Timer(heap[0], domain)):
                heappop(heap)
            if heap and heap[0] <= now and (found is None or heap[0] < found.time):
                found = Timer(heap[0], domain)
        return found

    def keys_due(self, *, watermark_ms: int, clock_ms: int) -> Iterator[object]:
        """The keys that may have a due timer, each once."""
        for key, heap in self._event.items():
            if heap and heap[0] <= watermark_ms:
                yield key
        for key, heap in self._processing.items():
            event = self._event.get(key)
            if heap and heap[0] <= clock_ms and not (event and event[0] <= watermark_ms):
                yield key
