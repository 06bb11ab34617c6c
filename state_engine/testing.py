"""Run a function without Spark, in milliseconds: the same operator loop and handles as in production.

``KeyedHarness`` keeps keyed state in memory and behaves as the engine does between micro-batches: every ``process``
is one batch, after which changes are captured, folded into the stored state and loaded again for the next. Plays the
part of Flink's ``KeyedOneInputStreamOperatorTestHarness``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from state_engine.core.descriptors import StateDescriptor
from state_engine.core.errors import ConfigurationError
from state_engine.core.functions import MIN_TIMESTAMP, KeyedProcessFunction, TimerService
from state_engine.core.key_groups import assign_to_key_group, check_parallelism, subtask_for_key_group
from state_engine.core.keyed_operator import ElementRefused, KeyedProcessOperator, Outputs, Refusal
from state_engine.core.keyed_state import KeyedStateStore
from state_engine.core.runtime_context import TaskInfo
from state_engine.core.state_table import APPEND, CLEAR, PUT, Change, KeyContext
from state_engine.core.ttl_rule import without_expired
from state_engine.core.type_parsing import to_type
from state_engine.core.types import TypeInformation


@dataclass(frozen=True)
class Snapshot:
    """Stored state of a harness: entries by state name and key, and the clocks."""

    entries: dict[str, dict[Any, Any]]
    descriptors: dict[str, StateDescriptor]
    clock_ms: int
    watermark_ms: int


@dataclass
class KeyedHarness:
    """Runs a KeyedProcessFunction over lists of elements.

    Args:
        function: the function under test; every subtask and batch works on its own copy.
        key_by: gives an element's key.
        parallelism, max_parallelism: of the pretended operator.
        clock_ms: processing time.
        output_type: what outputs are normalised to; left as they are without it.
        timestamp_of: gives an element's event time in milliseconds.
        on_error: ``fail`` raises what the function raised; ``dead_letter`` collects it in ``refused``.
        parameters: of the job.

    Example:
        >>> from state_engine.core.descriptors import ValueStateDescriptor
        >>> class Count(KeyedProcessFunction):
        ...     def open(self, runtime_context):
        ...         self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int, default=0))
        ...     def process_element(self, value, ctx):
        ...         self.seen.update(self.seen.value() + 1)
        ...         yield value, self.seen.value()
        >>> harness = KeyedHarness(Count(), key_by=lambda value: value)
        >>> harness.process(["a", "b"]), harness.process(["a"]), harness.state("seen")
        ([('a', 1), ('b', 1)], [('a', 2)], {'a': 2, 'b': 1})
    """

    function: KeyedProcessFunction
    key_by: Callable[[Any], Any]
    parallelism: int = 1
    max_parallelism: int = 128
    clock_ms: int = 0
    output_type: Any = None
    timestamp_of: Callable[[Any], int] | None = None
    on_error: str = "fail"
    parameters: dict[str, str] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        check_parallelism(max_parallelism=self.max_parallelism, parallelism=self.parallelism)
        self._watermark_ms = MIN_TIMESTAMP
        self._entries: dict[str, dict[Any, Any]] = {}
        self._descriptors: dict[str, StateDescriptor] = {}
        declared = None if self.output_type is None else to_type(self.output_type, parameter="output_type")
        self._output = declared or _Unchanged()

    def process(self, elements: Iterable[Any]) -> list[Any]:
        """One micro-batch: outputs in the order of the elements that caused them."""
        given = list(elements)
        parts: dict[int, list[int]] = {subtask: [] for subtask in range(self.parallelism)}
        for index, element in enumerate(given):
            parts[self.subtask_of(self.key_by(element))].append(index)
        produced: list[tuple[int, Any]] = []
        for subtask, indices in parts.items():
            out = self._run(subtask, [given[i] for i in indices])
            produced += [(indices[o], v) for o, v in zip(out.origins, out.values, strict=True)]
            self.refused += out.refused
        return [value for _, value in sorted(produced, key=lambda p: p[0])]

    def set_clock(self, ms: int) -> None:
        """Set the processing time of the next batches."""
        self.clock_ms = ms

    def set_watermark(self, ms: int) -> None:
        """Set the watermark at the start of the next batches."""
        self._watermark_ms = ms

    def snapshot(self) -> Snapshot:
        """The stored state; later batches do not change it.

        It is a full snapshot: where a state asks for it, what has expired is left out, here and not in the harness.
        """
        entries = copy.deepcopy(self._entries)
        for name, descriptor in self._descriptors.items():
            if descriptor.ttl is not None and descriptor.ttl.get_cleanup_strategies().in_full_snapshot():
                entries[name] = without_expired(
                    descriptor, entries[name], clock_ms=self.clock_ms, watermark_ms=self._known_watermark()
                )
        return Snapshot(entries, dict(self._descriptors), self.clock_ms, self._watermark_ms)

    @classmethod
    def restored(
        cls,
        function: KeyedProcessFunction,
        snapshot: Snapshot,
        *,
        key_by: Callable[[Any], Any],
        parallelism: int = 1,
        **options: Any,
    ) -> KeyedHarness:
        """A harness that continues from a snapshot, at any parallelism."""
        harness = cls(function, key_by, parallelism, clock_ms=snapshot.clock_ms, **options)
        harness._entries = copy.deepcopy(snapshot.entries)
        harness._descriptors = dict(snapshot.descriptors)
        harness._watermark_ms = snapshot.watermark_ms
        return harness

    def state(self, name: str) -> dict[Any, Any]:
        """Stored entries of one state by key: a value, a list, or a dict."""
        if name not in self._entries:
            raise ConfigurationError(f"there is no state '{name}' yet; states: {sorted(self._entries)}")
        descriptor, entries = self._descriptors[name], copy.deepcopy(self._entries[name])
        if descriptor.ttl is None:
            return entries
        unstamped = {"value": lambda i: i.value, "list": lambda items: [i.value for i in items],
                     "map": lambda items: {k: i.value for k, i in items.items()}}[descriptor.shape]  # fmt: skip
        return {key: unstamped(stored) for key, stored in entries.items()}

    def subtask_of(self, key: Any) -> int:
        """The subtask that owns a key."""
        group = assign_to_key_group(key, self.max_parallelism)
        return subtask_for_key_group(self.max_parallelism, self.parallelism, group)

    def _known_watermark(self) -> int | None:
        return None if self._watermark_ms == MIN_TIMESTAMP else self._watermark_ms

    def _run(self, subtask: int, elements: list[Any]) -> Outputs:
        keys = [self.key_by(e) for e in elements]
        touched = set(keys)

        def load(descriptor: StateDescriptor) -> dict[Any, Any]:
            self._descriptors[descriptor.name] = descriptor
            stored = self._entries.setdefault(descriptor.name, {})
            return copy.deepcopy({k: v for k, v in stored.items() if k in touched})

        context = KeyContext(
            clock_ms=self.clock_ms,
            watermark_ms=self._known_watermark(),
            has_event_time=self.timestamp_of is not None,
        )
        out = Outputs()
        store = KeyedStateStore("harness", context, load)
        operator = KeyedProcessOperator(
            copy.deepcopy(self.function),
            info=TaskInfo(
                "harness", subtask, self.parallelism, self.max_parallelism, parameters=self.parameters
            ),
            store=store,
            context=context,
            timers=TimerService(self.clock_ms, self._watermark_ms),
            output_type=self._output,
            dead_letters=self.on_error == "dead_letter",
        )
        stamps = (
            [self.timestamp_of(e) for e in elements] if self.timestamp_of else repeat(None, len(elements))
        )
        try:
            operator.open()
            try:
                operator.process(keys, elements, stamps, out)
            finally:
                operator.close()
        except ElementRefused as refused:
            raise refused.__cause__ or refused from None
        for descriptor, changes in store.changes():
            for change in changes:
                _APPLY[descriptor.shape](self._entries[descriptor.name], change)
        return out


class _Unchanged(TypeInformation):
    """Leaves outputs as they are."""

    def compiled(self) -> Callable[[Any], Any]:
        return lambda value: value


def _apply_value(entries: dict[Any, Any], change: Change) -> None:
    if change.op == PUT:
        entries[change.key] = change.value
    else:
        entries.pop(change.key, None)


def _apply_list(entries: dict[Any, Any], change: Change) -> None:
    if change.op == CLEAR:
        entries.pop(change.key, None)
    elif change.op == APPEND:
        entries.setdefault(change.key, []).extend(change.value)


def _apply_map(entries: dict[Any, Any], change: Change) -> None:
    if change.op == CLEAR:
        entries.pop(change.key, None)
    elif change.op == PUT:
        entries.setdefault(change.key, {})[change.value[0]] = change.value[1]
    else:
        entries[change.key].pop(change.value[0])
        if not entries[change.key]:
            del entries[change.key]


_APPLY: dict[str, Callable[[dict[Any, Any], Change], None]] = {
    "value": _apply_value,
    "list": _apply_list,
    "map": _apply_map,
}
