"""What functions learn about the element or timer they are called for.

One object serves all calls of a subtask: it looks at the current element. Functions see these classes under the names
that PyFlink nests in them (``KeyedProcessFunction.Context`` and so on).
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, overload

from state_engine.core.functions.waiting_elements import WaitingElements
from state_engine.core.operator_state.broadcast_state import BroadcastState, ReadOnlyBroadcastState
from state_engine.core.state.descriptors import MapStateDescriptor
from state_engine.core.state.state_table import NO_KEY, KeyContext, no_key
from state_engine.core.time.timer_service import TimerService
from state_engine.core.time.timers import DOMAINS, Timer
from state_engine.core.time.watermarks import is_late
from state_engine.core.types.durations import TimeDomain
from state_engine.core.types.row import RowKind


class BroadcastStates(Protocol):
    """Gives the broadcast states of a subtask; ``OperatorStateStore`` is one."""

    @overload
    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState: ...

    @overload
    def get_broadcast_state(
        self, descriptor: MapStateDescriptor, *, read_only: Literal[True]
    ) -> ReadOnlyBroadcastState: ...


class ElementContext:
    """What is known about the current element of any stream."""

    def __init__(self, key: KeyContext, timers: TimerService) -> None:
        self._key, self._timers = key, timers

    def timestamp(self) -> int | None:
        """Event time of the element in milliseconds; None where the source declares none."""
        return self._key.timestamp

    def timer_service(self) -> TimerService:
        """Clocks and, on keyed streams, timers."""
        return self._timers

    def current_processing_time(self) -> int:
        """The batch's recorded clock, in milliseconds since 1970."""
        return self._timers.current_processing_time()

    def current_watermark(self) -> int:
        """The watermark before the element in milliseconds; the smallest long where there is none."""
        return self._timers.current_watermark()

    def row_kind(self) -> RowKind:
        """What the element says about what came before: an insert, unless its stream changes.

        Of an element that is a Row, ``row.get_row_kind()`` says the same.
        """
        return self._key.row_kind

    def is_late(self) -> bool:
        """Whether the element is late: its event time is not above the watermark before it.

        An element without event time is not late, and before the first watermark none is. It does not depend on
        where batches are cut. In Flink: ``ctx.timestamp() <= ctx.timerService().currentWatermark()``.
        """
        return is_late(self._key.timestamp, self._timers.current_watermark())


class KeyedContext(ElementContext):
    """What is known about the current element of a keyed stream."""

    def get_current_key(self) -> Any:
        """The key of the current element, as declared."""
        key = self._key.key
        if key is NO_KEY:
            raise no_key("(current key)")
        present = self._key.present
        return key if present is None else present(key)


class TimerContext(KeyedContext):
    """What is known about the timer that fires.

    Attributes:
        timer: set by the operator before every call.
        waiting: the elements that the function takes in this call; set by a function that lets elements wait.
    """

    timer: Timer
    waiting: WaitingElements | None = None

    def timestamp(self) -> int:
        """Time of the timer in milliseconds."""
        return self.timer.time

    def is_late(self) -> bool:
        """False: a timer is not an element, and fires because the watermark has reached it."""
        return False

    def row_kind(self) -> RowKind:
        """An insert: a timer is not an element."""
        return RowKind.INSERT

    def time_domain(self) -> TimeDomain:
        """Whether it is an event-time or a processing-time timer."""
        return DOMAINS[self.timer.domain]


class BroadcastReader:
    """Reads broadcast state; mixed into the contexts that may not write it.

    Attributes:
        broadcast_states: set by the operator that makes the context.
    """

    broadcast_states: BroadcastStates

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState:
        """The broadcast state of a descriptor, for reading only."""
        return self.broadcast_states.get_broadcast_state(state_descriptor, read_only=True)


class BroadcastWriter:
    """Reads and writes broadcast state; mixed into the context of broadcast elements.

    Attributes:
        broadcast_states: set by the operator that makes the context.
    """

    broadcast_states: BroadcastStates

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState:
        """The broadcast state of a descriptor."""
        return self.broadcast_states.get_broadcast_state(state_descriptor)
