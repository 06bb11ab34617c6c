"""Timers: keyed state of an operator, and the order in which they come due.

A timer is one entry of the map state ``_timers`` of its key: (time, domain) → true. So changes, undo, snapshots and
storage are those of any state, and a timer that is set twice is one. ``TimerQueue`` keeps, in a heap per key, when in
the batch each timer fires; the state decides, a heap may still know what was deleted. Plays the part of Flink's
``InternalTimerServiceImpl`` with its ``KeyGroupedInternalPriorityQueue``.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, NamedTuple

from state_engine.core.errors import TimerChainError
from state_engine.core.state.descriptors import TIMERS, MapStateDescriptor
from state_engine.core.state.keyed_state import KeyedStateStore
from state_engine.core.state.map_state import MapState
from state_engine.core.state.state_table import KeyContext
from state_engine.core.types.durations import TimeDomain
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.core.types.type_parsing import to_type

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
        self.name = self._stored_as = TIMERS
        self.key_type = to_type(Timer, parameter="timers")
        self.value_type = to_type(bool, parameter="timers")
        self.ttl = None


OVERDUE, AT_ONCE, IN_TIME, NOT_YET = 0, 1, 2, 3
"""Stages of a micro-batch, in which a key's timers fire in this order.

``OVERDUE``: an event-time timer that the watermark has reached when the batch starts: because a source fell idle, say.
``AT_ONCE``: a processing-time timer that is due when the batch starts, and any that was due when it was set.
``IN_TIME``: an event-time timer that the watermark reaches.
``NOT_YET``: a processing-time timer of the future, which no batch with this clock fires, draining or not.
"""


NO_ELEMENT = -1


class Entry(NamedTuple):
    """A timer and when it fires; entries of a key fire in their order, which no cut into batches changes.

    Attributes:
        at: time within the stage: the timer's own, but not before that of the timer that set it.
        element: index of the element that set it, directly or through others, when it was due already; else -1.
        chained: how many steps that count for ``chain_limit`` led to it.
    """

    stage: int
    at: int
    time: int
    domain: str
    element: int
    watermark_ms: int
    chained: int = 0


class TimersState(MapState):
    """Handle of the state that holds timers."""

    __slots__ = ()

    def add(self, timer: Timer) -> bool:
        """Store a timer of the current key, which is a map key as it is; whether it was not there before."""
        entries = self._of_key()
        if entries and timer in entries:
            return False
        self._put(entries, timer, True)
        return True


class TimerQueue:
    """The timers of a subtask's keys.

    Args:
        store: keyed states of the subtask; the timers are loaded when the queue is made.
        chain_limit: how many timers in a row may each be set by the one before and fire at once, without time going on
            in between. Time that goes on reaches the clock or the watermark, which ends the chain. In a drain it has no
            end, so there each timer that another one sets counts.

    Attributes:
        watermark_ms: the watermark before the current element; set by the operator.
        element: index of the current element; set by the operator, which never sets it while timers fire.
        firing: the timer that fires now; None while an element is handled.
        draining: whether all event-time timers fire, because the input has ended for good.
    """

    def __init__(
        self,
        operator: str,
        store: KeyedStateStore,
        context: KeyContext,
        *,
        clock_ms: int,
        watermark_ms: int,
        chain_limit: int = 100_000,
    ) -> None:
        self._operator, self._context, self._chain_limit = operator, context, chain_limit
        self._clock_ms, self.watermark_ms = clock_ms, watermark_ms
        store.handle(TimersDescriptor(), "map")  # loads them
        self._state = TimersState(store.tables[TIMERS], context)
        self.element = NO_ELEMENT
        self.firing: Entry | None = None
        self.draining = False
        # the newest entry of a timer counts, if the state knows the timer; others in the heap are left over
        self._entries: dict[Any, dict[Timer, Entry]] = {}
        self._heaps: dict[Any, list[Entry]] = {}
        self._of_all_keys: list[tuple[Entry, int, Any]] | None = None
        self._pushed = count()  # keys themselves need no order
        for key, timers in store.tables[TIMERS].entries.items():
            entries = {t: self._placed(t, watermark_ms) for t in (Timer(*timer) for timer in timers)}
            self._entries[key], self._heaps[key] = entries, list(entries.values())
            heapify(self._heaps[key])

    def register(self, time: int, domain: TimeDomain) -> None:
        timer, key = Timer(int(time), _STORED[domain]), self._context.key
        if not self._state.add(timer):
            return
        if self.firing is not None:
            entry = self._placed_by(timer, self.firing)
        else:
            entry = self._placed(timer, self.watermark_ms, self.element)
        self._entries.setdefault(key, {})[timer] = entry
        heappush(self._heaps.setdefault(key, []), entry)
        if self._of_all_keys is not None:
            heappush(self._of_all_keys, (entry, next(self._pushed), key))

    def delete(self, time: int, domain: TimeDomain) -> None:
        self._state.remove(Timer(time, _STORED[domain]))

    def may_be_due(self, key: Any, watermark_ms: int) -> bool:
        """Whether a key may have a due timer; cheap, for every element."""
        heap = self._heaps.get(key)
        return bool(heap) and _is_due(heap[0], watermark_ms, drain=False)  # type: ignore[index]

    def next_due(self, watermark_ms: int, *, drain: bool = False) -> Entry | None:
        """The first due timer of the current key; None where none is due."""
        heap, entries = self._heaps.get(self._context.key), self._entries.get(self._context.key, {})
        while heap and _is_due(heap[0], watermark_ms, drain=drain):
            timer = Timer(heap[0].time, heap[0].domain)
            if entries.get(timer) is heap[0] and self._state.contains(timer):
                return heap[0]
            heappop(heap)
        return None

    def take(self, entry: Entry) -> Timer:
        """Remove the first timer of the current key, because it fires now."""
        key, timer = self._context.key, Timer(entry.time, entry.domain)
        heappop(self._heaps[key])
        del self._entries[key][timer]
        self._state.remove(timer)
        return timer

    def index(self) -> None:
        """Make ``keys_due`` cheap, for who asks again and again, and then fires all of what is due each time."""
        if self._of_all_keys is None:
            pairs = ((key, entry) for key, heap in self._heaps.items() for entry in heap)
            self._of_all_keys = [(entry, next(self._pushed), key) for key, entry in pairs]
            heapify(self._of_all_keys)

    def keys_due(self, watermark_ms: int, *, drain: bool) -> list[Any]:
        """The keys that may have a due timer; where there is an ``index``, each due timer is named once."""
        indexed = self._of_all_keys
        if indexed is None:
            return [
                k for k, heap in self._heaps.items() if heap and _is_due(heap[0], watermark_ms, drain=drain)
            ]
        due = dict[Any, None]()
        while indexed and _is_due(indexed[0][0], watermark_ms, drain=drain):
            due[heappop(indexed)[2]] = None
        return list(due)

    def _placed(self, timer: Timer, watermark_ms: int, element: int = NO_ELEMENT) -> Entry:
        """When a timer fires that was loaded, or set by an element."""
        time, domain = timer
        if time <= (watermark_ms if domain == EVENT else self._clock_ms):
            stage = OVERDUE if domain == EVENT and element == NO_ELEMENT else AT_ONCE
            return Entry(stage, time, time, domain, element, watermark_ms)
        return self._later(timer)

    def _placed_by(self, timer: Timer, parent: Entry) -> Entry:
        """When a timer fires that another one set: right after it, where it is due by then."""
        time, domain = timer
        stage, at = parent.stage, parent.at
        due = time <= (parent.watermark_ms if domain == EVENT else self._clock_ms)
        chained = parent.chained
        if (due and time <= parent.time) or (self.draining and domain == EVENT):
            chained += 1
            if chained > self._chain_limit:
                raise self._endless(timer)
        if due:
            at = at if stage == IN_TIME else max(at, time)
            return Entry(stage, at, time, domain, parent.element, parent.watermark_ms, chained)
        return self._later(timer)._replace(chained=chained)

    def _endless(self, timer: Timer) -> TimerChainError:
        if self.draining:
            remedy = "Set none while current_watermark() is the largest long (2**63 - 1), as it is in a drain"
        else:
            remedy = "Set the next one later than the one that fires, or only on a condition that ends"
        return TimerChainError(
            f"operator '{self._operator}': on_timer of key {self._context.key!r} sets {place_of(timer)}. It is the "
            f"last of {self._chain_limit:,} in a row: each was set by the one before and fires in this micro-batch, "
            f"which would never end. {remedy}"
        )

    def _later(self, timer: Timer) -> Entry:
        time, domain = timer
        if domain == EVENT:
            return Entry(IN_TIME, time, time, domain, NO_ELEMENT, time)
        return Entry(NOT_YET, time, time, domain, NO_ELEMENT, MAX_TIMESTAMP)


def place_of(timer: Timer) -> str:
    """A timer as text, for messages."""
    return f"timer at {timer.time} ms ({'event' if timer.domain == EVENT else 'processing'} time)"


def _is_due(entry: Entry, watermark_ms: int, *, drain: bool) -> bool:
    return entry.stage < IN_TIME or (entry.stage == IN_TIME and (drain or entry.at <= watermark_ms))
