"""``HarnessRun``: one subtask of a harness during one micro-batch, with state in memory.

What ``state_engine.testing`` runs in the place of a Spark task: the operators themselves are those of the engine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from state_engine.core.errors import UserFunctionError, ValueTypeError
from state_engine.core.functions.function_calls import has_timers
from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.functions.vectorized_functions import VectorizedKeyedFunction
from state_engine.core.harness.subtask_elements import HarnessOperator, SubtaskElements
from state_engine.core.harness.vectorized_run import VectorizedElements, columns_of_type
from state_engine.core.keys.key_groups import assign_to_key_group, key_group_range, subtask_for_key_group
from state_engine.core.operator.operator_lifecycle import Resumption
from state_engine.core.operator.outputs import ElementOutputs, ElementRefused, Refusal
from state_engine.core.operator.source_operator import SourceOperator
from state_engine.core.operator.stream_operator import StreamOperator
from state_engine.core.operator.vectorized_operator import VectorizedOperator
from state_engine.core.operator_state.operator_snapshot import SubtaskSnapshot
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.keyed_state import KeyedStateStore
from state_engine.core.state.memory_state import MemoryState
from state_engine.core.state.state_table import NO_KEY, Change, KeyContext
from state_engine.core.time.timer_service import TimerService
from state_engine.core.time.timers import EVENT, TimersDescriptor
from state_engine.core.types.every_type import TypeInformation
from state_engine.core.types.row import INSERTS_ONLY, Row, RowKind
from state_engine.core.types.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP


@dataclass(frozen=True)
class BatchSettings:
    """What all subtasks of a batch have in common.

    Attributes:
        drain: whether to fire all event-time timers at the end.
    """

    operator: HarnessOperator
    clock_ms: int
    watermark_ms: int
    end_watermark_ms: int
    checkpoint_id: int
    state: MemoryState
    drain: bool
    backend: Any = None


class HarnessRun:
    """One subtask during one batch; it changes nothing outside of itself."""

    def __init__(self, settings: BatchSettings, subtask: int, start: SubtaskSnapshot | None) -> None:
        self._settings, self.subtask, self._start = settings, subtask, start
        self._operator = settings.operator
        self.function = copy.deepcopy(self._operator.function)
        self.out, self.state = ElementOutputs(), SubtaskSnapshot()
        self.changes: list[tuple[StateDescriptor, list[Change]]] = []
        self.metrics: dict[str, float] = {}

    def run(self, given: SubtaskElements) -> None:
        """Feed the elements. Raises what the function raised, unless refused elements are set aside."""
        context = self._context()
        if isinstance(self.function, VectorizedKeyedFunction):
            self._run_vectorized(self.function, context, given)
            return
        with self._working_state(given.keys, context) as (store, changes):
            operator = self._stream_operator(context, store)
            try:
                operator.open()
                try:
                    self._feed(operator, given)
                    self._fire_rest(operator)
                    self.state = operator.snapshot()
                finally:
                    operator.close()
            except ElementRefused as refused:
                raise refused.__cause__ or refused from None
            self.metrics = operator.metrics()
            self.changes = changes()

    def _context(self) -> KeyContext:
        s = self._settings
        watermark_ms = None if s.watermark_ms == MIN_TIMESTAMP else s.watermark_ms
        context = KeyContext(
            clock_ms=s.clock_ms,
            watermark_ms=watermark_ms,
            checkpoint_watermark_ms=watermark_ms,
            has_event_time=self._operator.has_event_time,
        )
        context.present = self._operator.key_form
        return context

    def _feed(self, operator: StreamOperator, given: SubtaskElements) -> None:
        if given.broadcast:
            elements, times, of_each = zip(*given.broadcast, strict=True)
            operator.process_broadcast(elements, times, self.out, kinds=of_each)
        process = operator.process_in_order if self._operator.ordered else operator.process
        process(given.keys, given.values, given.stamps, self.out, watermarks=given.marks, kinds=given.kinds)

    def _fire_rest(self, operator: StreamOperator) -> None:
        operator.fire_rest(self._settings.end_watermark_ms, self.out, drain=self._settings.drain)

    def _run_vectorized(
        self, function: VectorizedKeyedFunction, context: KeyContext, given: SubtaskElements
    ) -> None:
        s, of = self._settings, self._operator
        end_ms = MAX_TIMESTAMP if s.drain else s.end_watermark_ms
        due = self._keys_with_due_timers(end_ms) if function.uses_timers else []
        load = self._loader([*(given.keys or []), *due])
        batch = VectorizedElements(given, of, also=due, load=load)
        operator = VectorizedOperator(
            function,
            info=self._info(),
            context=context,
            columns=columns_of_type(of.output_type),
            stored=batch,
            end_ms=end_ms,
            dead_letters=of.dead_letters,
            side_outputs=of.side_outputs,
            changing=of.emits_changes,
            resumption=self._resumption,
        )
        try:
            operator.open()
            try:
                self.changes = batch.run(operator, self.out, of.output_type)
                self.state = operator.snapshot()
            finally:
                operator.close()
        except ElementRefused as refused:
            raise refused.__cause__ or _row_refused(refused.refusal) from None
        self.metrics = operator.metrics()

    def collect(self, max_elements: int) -> bool:
        """Run a source; whether it may have more."""
        operator = SourceOperator(
            self.function,
            info=self._info(),
            output_type=self._operator.output_type,
            clock_ms=self._settings.clock_ms,
            resumption=self._resumption,
        )
        operator.open()
        try:
            outputs = operator.run(max_elements)
            self.state = operator.snapshot()
        finally:
            operator.close()
        self.out.values, self.out.origins = outputs.values, list(range(len(outputs.values)))
        self.metrics = operator.metrics()
        return outputs.full

    @contextmanager
    def _working_state(
        self, keys: list[Any] | None, context: KeyContext
    ) -> Iterator[tuple[KeyedStateStore | None, Callable[[], Any]]]:
        """Keyed states of the batch, and what gives their changes at its end."""
        s, of = self._settings, self._operator
        if keys is None:
            yield None, list
        elif s.backend is None:
            store = KeyedStateStore(of.uid, context, self._loader(keys))
            yield store, lambda: list(store.changes())
        else:
            own = key_group_range(of.max_parallelism, of.parallelism, self.subtask)
            load = self._loader(keys)
            with s.backend.create_keyed_backend(of.uid, key_groups=own, context=context, load=load) as keyed:
                yield keyed.store, lambda: keyed.snapshot(s.checkpoint_id).result()

    def _stream_operator(self, context: KeyContext, store: KeyedStateStore | None) -> StreamOperator:
        s, of = self._settings, self._operator
        return StreamOperator(
            self.function,
            info=self._info(),
            store=store,
            context=context,
            timers=TimerService(s.clock_ms, s.watermark_ms),
            output_type=of.output_type,
            dead_letters=of.dead_letters,
            side_outputs=of.side_outputs,
            changing=of.emits_changes,
            resumption=self._resumption,
        )

    @property
    def _resumption(self) -> Resumption:
        made = self._settings.checkpoint_id
        return Resumption(made, self._start, made - 1)

    def _info(self) -> TaskInfo:
        of = self._operator
        return TaskInfo(
            of.uid, self.subtask, of.parallelism, of.max_parallelism, parameters=dict(of.parameters)
        )

    def _loader(self, keys: Iterable[Any]) -> Callable[[StateDescriptor], dict[Any, Any]]:
        state, touched = self._settings.state, {key for key in keys if key is not NO_KEY}
        if has_timers(self.function):
            touched |= {k for k in state.keys_with_timers() if self._owns(k)}
        return lambda descriptor: state.load(descriptor, touched, operator=self._operator.uid)

    def _keys_with_due_timers(self, end_ms: int) -> list[Any]:
        state = self._settings.state
        stored = state.load(TimersDescriptor(), state.keys_with_timers(), operator=self._operator.uid)
        due = (k for k, timers in stored.items() if any(t <= end_ms and d == EVENT for t, d in timers))
        return [key for key in due if self._owns(key)]

    def _owns(self, key: Any) -> bool:
        of = self._operator
        group = assign_to_key_group(key, of.max_parallelism)
        return subtask_for_key_group(of.max_parallelism, of.parallelism, group) == self.subtask


class Unchanged(TypeInformation):
    """The type of outputs that are left as they are; none has a kind, as on the engine."""

    def compiled(self) -> Callable[[Any], Any]:
        return _without_kind


def _without_kind(value: Any) -> Any:
    if isinstance(value, Row) and value.get_row_kind() is not RowKind.INSERT:
        raise ValueTypeError(f"{value!r}: its row kind is {value.get_row_kind()}, and {INSERTS_ONLY}")
    return value


def _row_refused(refusal: Refusal) -> UserFunctionError:
    """The error for a row that a function over columns refused, with which it raised nothing."""
    at, key = f"row {refusal.index}", None if refusal.key is None else str(refusal.key)
    return UserFunctionError(job="harness", operator="harness", cause=refusal.error, key=key, position=at)
