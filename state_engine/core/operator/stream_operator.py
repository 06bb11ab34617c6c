"""``StreamOperator``: runs a function over the elements of one subtask during one micro-batch.

The one loop that every element goes through, in the harness and on Spark alike. A key's due timers fire before its
next element and the others at the end of the batch, so results do not depend on where batches are cut. An element is
atomic, and so is a timer: where its function raises and the policy is ``dead_letter``, its changes of state and timers
and its outputs are undone and it is set aside; otherwise the first failure ends the batch. A timer that fails at an
element that waited fires again without it: the element is set aside, and not the timer. Mirrors Flink's
``AbstractUdfStreamOperator`` with its operators for each kind of function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count, groupby, repeat
from typing import Any

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.function_calls import Call, calls_of, check_stream, has_timers, keeps_kinds
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.operator.atomic_call import (
    BATCH_FATAL_ERRORS,
    OUTPUT_SEQUENCE_TYPES,
    AtomicCall,
    outputs_of,
)
from state_engine.core.operator.element_kinds import changing_outputs, kept_kind, own_kind, with_kinds
from state_engine.core.operator.guarded_operator import GuardedOperator
from state_engine.core.operator.late_elements import LateElement, diverting
from state_engine.core.operator.operator_lifecycle import FIRST_RUN, OperatorLifecycle, Resumption
from state_engine.core.operator.outputs import (
    BroadcastOrigin,
    ElementOutputs,
    Origin,
    Refusal,
    TimerOrigin,
)
from state_engine.core.operator.side_outputs import MARKED, MarkedOr, MarkedOutputs, SideOutputWriter
from state_engine.core.state.keyed_state import KeyedStateStore
from state_engine.core.state.state_table import NO_KEY, KeyContext
from state_engine.core.time.timer_firing import in_firing_order
from state_engine.core.time.timer_service import TimerService
from state_engine.core.time.timers import Entry, Timer, TimerQueue, place_of
from state_engine.core.types.every_type import TypeInformation
from state_engine.core.types.row import RowKind
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP


class StreamOperator(GuardedOperator):
    """One subtask of an operator during one micro-batch: ``open``, elements, ``fire_rest``, ``snapshot``, ``close``.

    Args:
        store: keyed states, made with the same ``context``; None where the stream is not keyed.
        dead_letters: whether refused elements are set aside instead of ending the batch.
        side_outputs: the side outputs that somebody reads, by the id of their tag; None takes any tag.
        changing: whether outputs, those of side outputs too, have kinds: then each is an ``ElementChange``.
    """

    def __init__(
        self,
        function: Any,
        *,
        info: TaskInfo,
        store: KeyedStateStore | None,
        context: KeyContext,
        timers: TimerService,
        output_type: TypeInformation,
        dead_letters: bool = False,
        side_outputs: Mapping[str, OutputTag] | None = None,
        changing: bool = False,
        resumption: Resumption = FIRST_RUN,
    ) -> None:
        check_stream(function, operator=info.task_name, keyed=store is not None)
        self.function, self.store = function, store
        self._operator, self._context, self._timers = info.task_name, context, timers
        self._dead_letters = dead_letters
        normalise = MarkedOr(output_type).compiled()
        kind_of = (kept_kind(context) if keeps_kinds(function) else own_kind) if changing else None
        normalise = normalise if kind_of is None else changing_outputs(normalise, kind_of, MARKED)
        side = SideOutputWriter(info.task_name, side_outputs, kind_of=kind_of)
        self._one = AtomicCall(
            context,
            normalise=normalise,
            marked=MarkedOutputs(info.task_name, normalise, side, timed=context.has_event_time).write,
            dead_letters=dead_letters,
        )
        self._life = OperatorLifecycle(
            function,
            info=info,
            resumption=resumption,
            clock_ms=timers.current_processing_time(),
            keyed_store=store,
            context=context,
        )
        self._calls = calls_of(function, key=context, timers=timers, broadcast_states=self._life.store)
        self._queue: TimerQueue | None = None

    def open(self) -> None:
        """Give the function its state, open it, and load its timers."""
        self._guard(self._life.initialize)
        self._guard(self._life.open)
        if self.store is None:
            return
        if has_timers(self.function):
            timers = self._timers
            self._queue = TimerQueue(
                self._operator,
                self.store,
                self._context,
                clock_ms=timers.current_processing_time(),
                watermark_ms=timers.current_watermark(),
            )
        self._timers.bind(self._context, self._queue)

    def process(
        self,
        keys: Iterable[Any] | None,
        values: Iterable[Any],
        timestamps: Iterable[int | None],
        out: ElementOutputs,
        *,
        watermarks: Iterable[int] | None = None,
        kinds: Iterable[RowKind] | None = None,
        diverts: bool = False,
        first: int = 0,
    ) -> None:
        """Feed elements in order; outputs and refusals are appended to ``out``.

        Args:
            keys: of the elements; None where the stream is not keyed.
            values: the elements; pairs of stream (0 or 1) and element where there are two inputs.
            timestamps: event times in milliseconds.
            watermarks: the watermark before every element, in milliseconds; without, that of the start of the batch.
            kinds: of the elements; without, all are inserts.
            diverts: whether there are late elements among the values that pass by the function; their key is NO_KEY.
            first: index of the first of them in the subtask's input.

        Raises:
            ElementRefused: an element or a timer failed and the policy is not dead_letter.
        """
        context, call, queue = self._context, self._calls.element, self._queue
        element, process, method = call.context, call.process, call.name
        process = diverting(process) if diverts else process
        process = process if kinds is None else with_kinds(process, context, kinds)
        normalise, marked, refuse = self._one.normalise, self._one.marked, self._one.refuse
        emit, emit_origin = out.values.append, out.origins.append
        undo = context.undo = [] if self._dead_letters else None
        after, index, key, watermark_ms = context.on_element, 0, None, self._timers.watermark_ms
        try:
            for index, key, value, timestamp, before_ms in zip(
                count(first),
                repeat(NO_KEY) if keys is None else keys,
                values,
                timestamps,
                repeat(watermark_ms) if watermarks is None else watermarks,
            ):
                context.key, context.timestamp = key, timestamp
                if before_ms is not watermark_ms and before_ms != watermark_ms:
                    watermark_ms = before_ms
                    self._advance(before_ms)
                if queue is not None:
                    self._fire_before(queue, index, out)
                try:
                    result = process(value, element)
                    if result is not None:
                        for output in (
                            result if type(result) in OUTPUT_SEQUENCE_TYPES else outputs_of(result, method)
                        ):
                            normal = normalise(output)
                            if normal is MARKED:
                                marked(output, index, out)
                            else:
                                emit(normal)
                                emit_origin(index)
                except BATCH_FATAL_ERRORS:
                    raise
                except Exception as error:
                    out.forget(index)
                    refuse(Refusal(index, None if key is NO_KEY else key, "", ""), error, out)
                if undo:
                    undo.clear()
                if after:
                    for hook in after:
                        hook()
        finally:
            self._leave()

    def process_broadcast(
        self,
        values: Iterable[Any],
        timestamps: Iterable[int | None],
        out: ElementOutputs,
        *,
        watermarks: Iterable[int] | None = None,
        kinds: Iterable[RowKind] | None = None,
    ) -> None:
        """Feed the broadcast elements of the batch, before all others. Raises as ``process`` does."""
        before = repeat(self._timers.watermark_ms) if watermarks is None else watermarks
        of_each = repeat(RowKind.INSERT) if kinds is None else kinds
        for index, value, timestamp, before_ms, kind in zip(count(), values, timestamps, before, of_each):
            self._advance(before_ms)
            self._process_broadcast(index, value, timestamp, kind, BroadcastOrigin(index), out)

    def process_in_order(
        self,
        keys: Sequence[Any] | None,
        values: Sequence[Any],
        timestamps: Sequence[int | None],
        out: ElementOutputs,
        *,
        watermarks: Sequence[int],
        kinds: Sequence[RowKind] | None = None,
        diverts: bool = False,
    ) -> None:
        """Feed elements and broadcast elements, each at its place in the total order; raises as ``process`` does.

        Before a broadcast element, all timers fire that are due by the watermark before it, of all keys: so a timer
        sees the broadcast state that there was when the watermark reached its time, wherever batches are cut.

        Args:
            keys: of the elements, where the stream is keyed; at the places of broadcast elements anything.
            values: pairs of 0 and an element, or of 1 and a broadcast element; or late elements.
        """
        if self._queue is not None:
            self._queue.index()
        start = 0
        for is_broadcast, group in groupby(values, key=lambda pair: pair[0] == 1):
            run = [one if type(one) is LateElement else one[1] for one in group]
            end = start + len(run)
            times, before = timestamps[start:end], watermarks[start:end]
            given = None if kinds is None else kinds[start:end]
            if is_broadcast:
                of_each = repeat(RowKind.INSERT) if given is None else given
                for index, value, timestamp, before_ms, kind in zip(
                    count(start), run, times, before, of_each
                ):
                    if index == start or before_ms != self._timers.watermark_ms:
                        self._advance(before_ms)
                        self.fire_rest(before_ms, out)
                    self._process_broadcast(index, value, timestamp, kind, index, out)
            else:
                of_run = None if keys is None else keys[start:end]
                self.process(
                    of_run, run, times, out, watermarks=before, kinds=given, first=start, diverts=diverts
                )
            start = end

    def _process_broadcast(
        self,
        index: int,
        value: Any,
        timestamp: int | None,
        kind: RowKind,
        origin: Origin,
        out: ElementOutputs,
    ) -> None:
        call, context = self._calls.broadcast, self._context
        if call is None:
            raise ConfigurationError(
                f"operator '{self._operator}': {type(self.function).__name__} takes no broadcast elements; "
                "use a BroadcastProcessFunction or a KeyedBroadcastProcessFunction"
            )
        context.undo, context.timestamp = [] if self._dead_letters else None, timestamp
        context.row_kind = kind
        try:
            self._one.run(call, value, origin, Refusal(index, None, "", "", broadcast=True), out)
        finally:
            self._leave()

    def fire_rest(self, end_watermark_ms: int, out: ElementOutputs, *, drain: bool = False) -> None:
        """Fire what is due at the end of the batch, for all loaded keys, until nothing is.

        In order of stage and time, keys by their hash. Timers that are set meanwhile fire, too, where they are due.

        Args:
            end_watermark_ms: the watermark at the end of the batch; before a broadcast element, that before it.
            drain: then fire all other event-time timers, too, with the largest watermark: the input has ended for good.

        Raises:
            ElementRefused: a timer failed and the policy is not dead_letter.
        """
        queue = self._queue
        if queue is None:
            return
        self._context.undo = [] if self._dead_letters else None
        try:
            for watermark_ms, draining in [(end_watermark_ms, False), (MAX_TIMESTAMP, True)][: 1 + drain]:
                queue.draining = draining
                for key, entry in in_firing_order(queue, self._context, watermark_ms, drain=draining):
                    self._fire(queue, key, entry, out, shown_ms=MAX_TIMESTAMP if draining else None)
        finally:
            self._leave()

    # -- timers ----------------------------------------------------------------------------------------------------

    def _fire_before(self, queue: TimerQueue, index: int, out: ElementOutputs) -> None:
        """Fire the timers of the current key that are due before its element; there is none before a late one."""
        context = self._context
        key, timestamp = context.key, context.timestamp
        if key is not NO_KEY and queue.may_be_due(key, queue.watermark_ms):
            while (entry := queue.next_due(queue.watermark_ms)) is not None:
                self._fire(queue, key, entry, out)
            context.timestamp = timestamp
        queue.element = index

    def _fire(
        self, queue: TimerQueue, key: Any, entry: Entry, out: ElementOutputs, *, shown_ms: int | None = None
    ) -> None:
        context, timers, call = self._context, self._timers, self._calls.timer
        assert call is not None
        timer = queue.take(entry)
        if context.undo is not None:
            context.undo.clear()  # a timer that fails is gone all the same
        origin: Origin = entry.element if entry.element >= 0 else TimerOrigin(entry.stage, entry.at, key)
        context.timestamp = entry.watermark_ms if entry.watermark_ms != MIN_TIMESTAMP else None
        call.context.timer, queue.firing, before_ms = timer, entry, timers.watermark_ms
        timers.watermark_ms = entry.watermark_ms if shown_ms is None else shown_ms
        context.set_watermark(entry.watermark_ms)
        try:
            refuses = True
            while refuses:
                call.context.waiting = None
                error = self._one.attempt(call, timer.time, origin, out)
                refuses = error is not None and self._refuse_timer(timer, call, error, out)
        finally:
            queue.firing, timers.watermark_ms = None, before_ms
            context.set_watermark(before_ms)

    def _refuse_timer(self, timer: Timer, call: Call, error: Exception, out: ElementOutputs) -> bool:
        """Refuse the waiting element at which a timer failed, else the timer; whether to fire it for the others."""
        context, waiting, waited = self._context, call.context.waiting, None
        if waiting is not None and context.undo is None:
            waited = waiting.at_hand()
        elif waiting is not None and context.undo is not None:
            context.roll_back()
            waited = waiting.set_aside()
            context.undo.clear()  # the element stays away
        refusal = Refusal(None, context.key, f"{place_of(timer)}: ", "", timer, waited=waited)
        self._one.refuse(refusal, error, out)
        return waited is not None

    def _advance(self, watermark_ms: int) -> None:
        """Set the watermark before an element, for the function, its timers and state that lives by event time."""
        self._timers.watermark_ms = watermark_ms
        self._context.set_watermark(watermark_ms)
        if self._queue is not None:
            self._queue.watermark_ms = watermark_ms

    def _leave(self) -> None:
        context = self._context
        context.key, context.timestamp, context.undo = NO_KEY, None, None
        context.row_kind = RowKind.INSERT
