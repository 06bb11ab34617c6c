"""``KeyRun``: one key of one operator, micro-batch after micro-batch, with what happened at each of its elements.

``StateEngine.debug`` runs it instead of subtasks: the operator loop is that of the engine. Each element comes with the
watermark before it, which other keys moved, so a key alone sees the time that it saw among them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import Any

from state_engine.core.functions.checkpointed import CheckpointListener
from state_engine.core.functions.vectorized_functions import VectorizedKeyedFunction
from state_engine.core.harness.harness_run import BatchSettings, HarnessRun
from state_engine.core.harness.subtask_elements import HarnessOperator, SubtaskElements
from state_engine.core.operator.element_kinds import shown_changes, split
from state_engine.core.operator.late_elements import LateElement
from state_engine.core.operator.operator_lifecycle import Resumption
from state_engine.core.operator.outputs import ElementOutputs, Refusal, SideOutputs
from state_engine.core.operator.stream_operator import StreamOperator
from state_engine.core.operator_state.operator_snapshot import SubtaskSnapshot
from state_engine.core.state.descriptors import TIMERS, StateDescriptor
from state_engine.core.state.memory_state import UNSTAMPED, MemoryState
from state_engine.core.state.state_table import NO_KEY, KeyContext, KeyedEntries
from state_engine.core.types.row import RowKind
from state_engine.core.types.timestamps import MIN_TIMESTAMP

Timers = list[tuple[int, str]]
"""Time in milliseconds and domain of each, in order."""


@dataclass(frozen=True)
class KeyElement:
    """An element, as the subtask of a key was given it.

    Attributes:
        value: as the function sees it.
        timestamp: event time in milliseconds.
        watermark: that before the element, in milliseconds.
        input: 1 or 2, of an operator with two inputs, or whose broadcast elements stand among the others.
        kind: where the stream changes.
        late: whether it is late and passes by the function.
        late_to: id of the side output that it goes to then; None where nobody reads that.
    """

    value: Any
    timestamp: int | None = None
    watermark: int = MIN_TIMESTAMP
    input: int = 1
    kind: RowKind = RowKind.INSERT
    late: bool = False
    late_to: str | None = None


@dataclass(frozen=True)
class KeyBatch:
    """What one micro-batch holds of a key; times in milliseconds.

    Attributes:
        elements: in total order.
        broadcast: broadcast elements that come before them.
    """

    elements: Sequence[KeyElement] = ()
    broadcast: Sequence[KeyElement] = ()
    checkpoint_id: int = 1
    clock_ms: int = 0
    watermark_ms: int = MIN_TIMESTAMP
    end_watermark_ms: int = MIN_TIMESTAMP
    checkpoint_watermark_ms: int | None = None
    drain: bool = False
    parent_id: int | None = None


@dataclass(frozen=True)
class KeyStep:
    """One element of the key, or the timers that fire at the end of a micro-batch.

    Attributes:
        what: ``element``, ``broadcast``, ``timers``; or ``columns``: a function over columns is called once.
        element: None of timers and columns.
        before, after: the states of the key, by name; those without anything are absent.
        timers_before, timers_after: of the key.
        outputs: pairs of the id of a side output, or None, and what went out.
        refused: what the function refused.
    """

    what: str
    element: KeyElement | None
    before: dict[str, Any]
    after: dict[str, Any]
    timers_before: Timers
    timers_after: Timers
    outputs: list[tuple[str | None, Any]]
    refused: list[Refusal] = field(default_factory=list)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing changed and nothing went out."""
        changed = repr(self.before) != repr(self.after) or self.timers_before != self.timers_after
        return not (changed or self.outputs or self.refused)


class KeyRun:
    """The key, from a state on.

    Args:
        key: as it is stored.
        state: of the key; it is changed.
        restored: what the subtask had of its own, broadcast state included.

    Attributes:
        state, subtask_state: after the last micro-batch.
    """

    def __init__(
        self, operator: HarnessOperator, key: Any, state: MemoryState, restored: SubtaskSnapshot | None = None
    ) -> None:
        self.operator, self.key = operator, key
        self.state, self.subtask_state = state, restored

    def run(self, batch: KeyBatch) -> list[KeyStep]:
        """Run one micro-batch. Raises what the function raises, unless refused elements are set aside."""
        before = self.values(), self.timers()
        run = _TracedRun(self._settings(batch), self.key, batch, self.subtask_state)
        run.start()
        for descriptor, changes in run.changes:
            self.state.fold(descriptor, changes)
        self.subtask_state = run.state
        if isinstance(run.function, CheckpointListener):
            run.function.notify_checkpoint_complete(batch.checkpoint_id)
        if not isinstance(self.operator.function, VectorizedKeyedFunction):
            return run.steps
        after = self.values(), self.timers()
        taken = run.taken({})
        taken += [(one.late_to, one.value) for one in batch.elements if one.late_to is not None]
        return [KeyStep("columns", None, before[0], after[0], before[1], after[1], taken, run.out.refused)]

    def copied(self) -> KeyRun:
        """The same key, to be run otherwise from here."""
        return KeyRun(self.operator, self.key, copy.deepcopy(self.state), self.subtask_state)

    def values(self) -> dict[str, Any]:
        """The states of the key, by name, as users see them; those without anything are absent."""
        held = {}
        for name, descriptor in self.state.descriptors.items():
            value = self.state.values(name).get(self.key)
            if name != TIMERS and holds_anything(value, descriptor):
                held[name] = value
        return held

    def timers(self) -> Timers:
        return sorted(self.state.entries.get(TIMERS, {}).get(self.key, {}))

    def _settings(self, batch: KeyBatch) -> BatchSettings:
        return BatchSettings(
            self.operator,
            clock_ms=batch.clock_ms,
            watermark_ms=batch.watermark_ms,
            end_watermark_ms=batch.end_watermark_ms,
            checkpoint_id=batch.checkpoint_id,
            state=self.state,
            drain=batch.drain,
        )


class _TracedRun(HarnessRun):
    """The subtask of the key, which is given its elements one by one."""

    def __init__(
        self,
        settings: BatchSettings,
        key: Any,
        batch: KeyBatch,
        restored: SubtaskSnapshot | None,
    ) -> None:
        super().__init__(settings, settings.operator.subtask, restored)
        self._key, self._batch = key, batch
        self.steps: list[KeyStep] = []

    def start(self) -> None:
        given = self._batch.elements
        if isinstance(self.function, VectorizedKeyedFunction):  # late ones pass by
            given = [one for one in given if not one.late]
        elements = SubtaskElements(
            [NO_KEY if one.late or self._is_broadcast(one) else self._key for one in given],
            [self._value(one) for one in given],
            [one.timestamp for one in given],
            [one.watermark for one in given],
            [one.kind for one in given] if self._operator.changing else None,
            [(one.value, one.timestamp, one.kind) for one in self._batch.broadcast],
        )
        self.run(elements)

    def taken(self, since: Mapping[str | None, int]) -> list[tuple[str | None, Any]]:
        """The outputs behind those that were counted before."""
        parts: list[tuple[str | None, ElementOutputs | SideOutputs]] = [
            (None, self.out), *sorted(self.out.side.items())
        ]  # fmt: skip
        taken = []
        for tag, part in parts:
            values = part.values[since.get(tag, 0) :]
            changes = self._operator.emits_changes
            kinds, plain = split(values) if changes else ([], values)
            shown = shown_changes(plain, kinds) if changes else plain
            taken += list(zip(repeat(tag), shown))
        return taken

    def _value(self, one: KeyElement) -> Any:
        if one.late:
            tag = None if one.late_to is None else (self._operator.side_outputs or {})[one.late_to]
            return LateElement(tag, one.value)
        paired = self._operator.two_inputs or self._operator.ordered
        return (one.input - 1, one.value) if paired else one.value

    def _is_broadcast(self, one: KeyElement) -> bool:
        return self._operator.ordered and one.input == 2

    def _context(self) -> KeyContext:
        context = super()._context()
        context.checkpoint_watermark_ms = self._batch.checkpoint_watermark_ms
        return context

    @property
    def _resumption(self) -> Resumption:
        return Resumption(self._batch.checkpoint_id, self._start, self._batch.parent_id)

    def _feed(self, operator: StreamOperator, given: SubtaskElements) -> None:
        for one in self._batch.broadcast:
            self._step("broadcast", one, operator, partial(self._process_broadcast, operator, one))
        for index, one in enumerate(self._batch.elements):
            what = "broadcast" if self._is_broadcast(one) else "element"
            self._step(what, one, operator, partial(self._process, operator, index, one))

    def _process_broadcast(self, operator: StreamOperator, one: KeyElement) -> None:
        operator.process_broadcast(
            [one.value], [one.timestamp], self.out, watermarks=[one.watermark], kinds=[one.kind]
        )

    def _process(self, operator: StreamOperator, index: int, one: KeyElement) -> None:
        key = NO_KEY if one.late or self._is_broadcast(one) else self._key
        kinds = [one.kind] if self._operator.changing else None
        value = self._value(one)
        if self._operator.ordered:
            operator.process_in_order(
                [key], [value], [one.timestamp], self.out, watermarks=[one.watermark], kinds=kinds, diverts=one.late
            )  # fmt: skip
            return
        operator.process(
            [key], [value], [one.timestamp], self.out,
            watermarks=[one.watermark], kinds=kinds, diverts=one.late, first=index,
        )  # fmt: skip

    def _fire_rest(self, operator: StreamOperator) -> None:
        self._step("timers", None, operator, partial(super()._fire_rest, operator))
        if self.steps[-1].is_quiet:
            self.steps.pop()

    def _step(
        self, what: str, one: KeyElement | None, operator: StreamOperator, call: Callable[[], None]
    ) -> None:
        lengths, refused = self.out.lengths(), len(self.out.refused)
        before, timers_before = self._held(operator)
        call()
        after, timers_after = self._held(operator)
        self.steps.append(
            KeyStep(
                what,
                one,
                before,
                after,
                timers_before,
                timers_after,
                self.taken(lengths),
                [replace(refusal, index=None) for refusal in self.out.refused[refused:]],
            )
        )

    def _held(self, operator: StreamOperator) -> tuple[dict[str, Any], Timers]:
        tables: Mapping[str, KeyedEntries] = {} if operator.store is None else operator.store.tables
        timers = tables[TIMERS].entries.get(self._key) if TIMERS in tables else None
        held = {}
        for name, table in tables.items():
            item = table.entries.get(self._key) if name != TIMERS else None
            if holds_anything(item, table.descriptor):
                plain = item if table.descriptor.ttl is None else UNSTAMPED[table.descriptor.shape](item)
                held[name] = copy.deepcopy(plain)
        return held, sorted(timers or ())


def holds_anything(item: Any, descriptor: StateDescriptor) -> bool:
    """Whether a state holds anything: an empty list or map is none, and as a value it is one."""
    return item is not None and (descriptor.shape == "value" or bool(item))
