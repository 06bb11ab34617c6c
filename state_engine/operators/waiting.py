"""``WaitingRows``: rows of a key that wait until all rows of their time have come, and are then taken in order.

Plays the part of the sorted row-time state of Flink's ``RowTimeDeduplicateKeepFirstRowFunction``,
``RowTimeOverWindowFunction`` and ``CepOperator``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from state_engine.core.functions.contexts import KeyedContext, TimerContext
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.waiting_elements import WaitedElement
from state_engine.core.state.descriptors import SortedMapStateDescriptor
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.core.types.type_information import TypeInformation
from state_engine.operators.lateness import Lateness, LateRows, time_of
from state_engine.operators.places import PLACE, number_behind

WAITING = "waiting"
"""Name of the state."""
Timed = tuple[int, Any]
"""A row with its event time in milliseconds."""
Waiting = tuple[tuple[int, int], Any]
"""A row with its place."""


class WaitingRows:
    """Lets a function take its rows by event time, and those of one time by the total order.

    A row of time ``t`` waits until the watermark is ``t + lateness`` or more; one that comes then is too late. So what
    the function makes of the rows depends neither on the order in which they come nor on where batches are cut. Its
    outputs are of the time ``t`` of their row, ``Timestamped(…, t)``, and its ``holds_back_ms`` is ``lateness.ms``.

    State: ``waiting``, a sorted map ``(at, n) → row``, of the rows within the lateness of the watermark, and a timer
    for the first of them. A row in front of that sets another one.

    If the function raises, the operator refuses the row that was taken last, see ``WaitingElements``.

    Args:
        row_type: of what waits.
        whole: whether rows wait as they came to the operator, so that one that is refused can be sent again.
        failing: for a function that takes rows of one time together: of the rows that wait, up to those of this time,
            the number of the one that fails; None where it finds none.

    Example:
        >>> from state_engine import KeyedProcessFunction
        >>> from state_engine.core.types.type_parsing import to_type
        >>> from state_engine.testing import KeyedHarness
        >>> class InOrder(KeyedProcessFunction):
        ...     holds_back_ms = 0
        ...     def __init__(self):
        ...         self._waiting = WaitingRows(to_type("string", parameter="rows"), Lateness())
        ...     def open(self, runtime_context):
        ...         self._waiting.open(runtime_context)
        ...     def process_element(self, value, ctx):
        ...         return self._waiting.add(value, ctx)
        ...     def on_timer(self, timestamp, ctx):
        ...         for at, row in self._waiting.due(timestamp, ctx):
        ...             yield at, row
        >>> harness = KeyedHarness(InOrder(), key_by=lambda value: "k", timestamp_of=len)
        >>> harness.process(["ccc", "a", "bb"])
        []
        >>> harness.set_watermark(2)
        >>> harness.process([])
        [(1, 'a'), (2, 'bb')]
    """

    def __init__(
        self,
        row_type: TypeInformation,
        lateness: Lateness,
        *,
        whole: bool = True,
        failing: Callable[[list[Timed]], int | None] | None = None,
    ) -> None:
        self._lateness, self._late = lateness, LateRows(lateness.late_to)
        self._row_type, self._whole, self._failing = row_type, whole, failing
        self._taken: Waiting | None = None
        self.descriptor = SortedMapStateDescriptor(WAITING, PLACE, row_type)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._rows = runtime_context.get_sorted_map_state(self.descriptor)
        self._late.open(runtime_context)

    def add(self, row: Any, ctx: KeyedContext) -> list[Any]:
        """Let a row wait: call it from ``process_element``. The outputs for one that is too late, none for others.

        Raises:
            ValueTypeError: the row has no event time.
        """
        at = time_of(ctx)
        if self._lateness.is_over(at, ctx.current_watermark()):
            return self._late.outputs(row, ctx)
        first = self._rows.first_entry()
        self._rows.put((at, number_behind(self._rows, (at,))), row)
        if first is None or at < first[0][0]:
            self._await(at, ctx)
        elif self._lateness.is_over(first[0][0], ctx.current_watermark()):
            self._await(first[0][0], ctx)  # its timer failed, in a version that did not fire it again
        return []

    def due(self, timestamp: int, ctx: TimerContext) -> Iterator[Timed]:
        """Take the rows whose time has come, each with its event time: iterate over all of them in ``on_timer``."""
        for at, rows in self.due_by_time(timestamp, ctx):
            for row in self.one_by_one(rows):
                yield at, row

    def due_by_time(self, timestamp: int, ctx: TimerContext) -> Iterator[tuple[int, list[Waiting]]]:
        """The same by time: all rows of a time, which ``one_by_one`` gives, as often as the function wants."""
        ctx.waiting, self._taken = self, None
        while (first := self._rows.first_entry()) is not None:
            at = first[0][0]
            if not self._lateness.is_over(at, timestamp):
                self._await(at, ctx)
                return
            taken: list[Waiting] = []
            while first is not None and first[0][0] == at:
                taken.append(first)
                self._rows.remove(first[0])
                first = self._rows.first_entry()
            self._taken = taken[0]
            yield at, taken

    def one_by_one(self, taken: Sequence[Waiting]) -> Iterator[Any]:
        """Rows of one time; each is the one that is refused if the function raises before it takes the next."""
        for entry in taken:
            self._taken = entry
            yield entry[1]

    def at_hand(self) -> WaitedElement | None:
        return None if self._taken is None else self._waited(self._taken)

    def set_aside(self) -> WaitedElement | None:
        if self._taken is None:
            return None
        failed = self._failed(self._taken)
        self._rows.remove(failed[0])
        return self._waited(failed)

    def until(self, at: int) -> Iterator[Timed]:
        """The rows that wait, of a time and of those before, each with its event time."""
        return ((place[0], row) for place, row in self._rows.head_items((at, MAX_TIMESTAMP)))

    def is_empty(self) -> bool:
        return self._rows.is_empty()

    def _failed(self, taken: Waiting) -> Waiting:
        if self._failing is None:
            return taken
        waiting = list(self._rows.head_items((taken[0][0], MAX_TIMESTAMP)))
        number = self._failing([(place[0], row) for place, row in waiting])
        return taken if number is None else waiting[number]

    def _waited(self, taken: Waiting) -> WaitedElement:
        (at, _), row = taken
        place = f"a row that waited, of {at} ms (event time)"
        return WaitedElement(row, at, self._row_type, self._whole, place)

    def _await(self, at: int, ctx: KeyedContext) -> None:
        ctx.timer_service().register_event_time_timer(self._lateness.ends(at))
