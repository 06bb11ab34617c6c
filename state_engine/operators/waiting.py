"""``WaitingRows``: rows of a key that wait until all rows of their time have come, and are then taken in order.

Plays the part of the sorted row-time state of Flink's ``RowTimeDeduplicateKeepFirstRowFunction``,
``RowTimeOverWindowFunction`` and ``CepOperator``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.descriptors import SortedMapStateDescriptor
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.core.types.type_information import TypeInformation
from state_engine.operators.lateness import Lateness, LateRows, time_of
from state_engine.operators.places import PLACE, number_behind

WAITING = "waiting"
"""Name of the state."""


class WaitingRows:
    """Lets a function take its rows by event time, and those of one time by the total order.

    A row of time ``t`` waits until the watermark is ``t + lateness`` or more; one that comes then is too late. So what
    the function makes of the rows depends neither on the order in which they come nor on where batches are cut. Its
    outputs are of the time ``t`` of their row, ``Timestamped(…, t)``, and its ``holds_back_ms`` is ``lateness.ms``.

    State: ``waiting``, a sorted map ``(at, n) → row``, of the rows within the lateness of the watermark, and a timer
    for the first of them. A row in front of that sets another one.

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

    def __init__(self, row_type: TypeInformation, lateness: Lateness) -> None:
        self._lateness, self._late = lateness, LateRows(lateness.late_to)
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
        return []

    def due(self, timestamp: int, ctx: KeyedContext) -> Iterator[tuple[int, Any]]:
        """Take the rows whose time has come, each with its event time: iterate over all of them in ``on_timer``."""
        while (first := self._rows.first_entry()) is not None:
            place, row = first
            if not self._lateness.is_over(place[0], timestamp):
                self._await(place[0], ctx)
                return
            self._rows.remove(place)
            yield place[0], row

    def until(self, at: int) -> Iterator[tuple[int, Any]]:
        """The rows that wait, of a time and of those before, each with its event time."""
        return ((place[0], row) for place, row in self._rows.head_items((at, MAX_TIMESTAMP)))

    def is_empty(self) -> bool:
        return self._rows.is_empty()

    def _await(self, at: int, ctx: KeyedContext) -> None:
        ctx.timer_service().register_event_time_timer(self._lateness.ends(at))
