"""``RuntimeContext``: what a function learns about its subtask, and where it gets its states.

Mirrors ``org.apache.flink.api.common.functions.RuntimeContext`` in PyFlink's spelling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from state_engine.core.errors import StateAccessError
from state_engine.core.functions.metrics import MetricGroup
from state_engine.core.state.aggregating_state import AggregatingState
from state_engine.core.state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SortedMapStateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.state.folding_state import FoldingState
from state_engine.core.state.keyed_state import KeyedStateStore
from state_engine.core.state.list_state import ListState
from state_engine.core.state.map_state import MapState
from state_engine.core.state.reducing_state import ReducingState
from state_engine.core.state.sorted_map_state import SortedMapState
from state_engine.core.state.value_state import ValueState


@dataclass(frozen=True)
class TaskInfo:
    """Where a function runs: its operator, subtask and attempt."""

    task_name: str
    subtask: int = 0
    parallelism: int = 1
    max_parallelism: int = 128
    attempt: int = 0
    parameters: Mapping[str, str] = field(default_factory=dict)


class RuntimeContext:
    """Given to ``open``: state handles and facts about the subtask."""

    def __init__(self, info: TaskInfo, store: KeyedStateStore | None) -> None:
        self._info, self._store = info, store
        self._metrics = MetricGroup()

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """The value state of this descriptor, scoped to the current key."""
        state: ValueState = self._keyed(descriptor).handle(descriptor, "value")
        return state

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """The list state of this descriptor, scoped to the current key."""
        state: ListState = self._keyed(descriptor).handle(descriptor, "list")
        return state

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """The map state of this descriptor, scoped to the current key."""
        state: MapState = self._keyed(descriptor).handle(descriptor, "map")
        return state

    def get_sorted_map_state(self, descriptor: SortedMapStateDescriptor) -> SortedMapState:
        """The sorted map state of this descriptor, scoped to the current key."""
        state: SortedMapState = self._keyed(descriptor).handle(descriptor, "sorted_map")
        return state

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """The reducing state of this descriptor, scoped to the current key."""
        state: ReducingState = self._keyed(descriptor).handle(descriptor, "reducing")
        return state

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """The aggregating state of this descriptor, scoped to the current key."""
        state: AggregatingState = self._keyed(descriptor).handle(descriptor, "aggregating")
        return state

    def get_folding_state(self, descriptor: FoldingStateDescriptor) -> FoldingState:
        """The folding state of this descriptor, scoped to the current key. Deprecated, as in Flink."""
        state: FoldingState = self._keyed(descriptor).handle(descriptor, "folding")
        return state

    def get_task_name(self) -> str:
        """The uid of the operator."""
        return self._info.task_name

    def get_task_name_with_subtasks(self) -> str:
        """The uid of the operator, and which of its subtasks this is, from 1: ``averages (2/4)``."""
        info = self._info
        return f"{info.task_name} ({info.subtask + 1}/{info.parallelism})"

    def get_index_of_this_subtask(self) -> int:
        """Index of this subtask, from 0."""
        return self._info.subtask

    def get_number_of_parallel_subtasks(self) -> int:
        """Parallelism of the operator."""
        return self._info.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """Max parallelism of the operator: its number of key groups."""
        return self._info.max_parallelism

    def get_attempt_number(self) -> int:
        """How often this subtask was tried before in this micro-batch, from 0."""
        return self._info.attempt

    def get_job_parameter(self, key: str, default_value: str | None = None) -> str | None:
        """A parameter that was given to ``StateEngine.run(parameters=…)``."""
        return self._info.parameters.get(key, default_value)

    def get_metrics_group(self) -> MetricGroup:
        """Where metrics of this subtask and micro-batch are made; the checkpoint keeps their sums over subtasks."""
        return self._metrics

    def metrics(self) -> dict[str, float]:
        """The numbers of all metrics by now, by name."""
        return self._metrics.values()

    def _keyed(self, descriptor: Any) -> KeyedStateStore:
        if self._store is None:
            raise StateAccessError(
                f"operator '{self._info.task_name}' is not on a keyed stream, so it has no keyed state "
                f"{descriptor!r}; call key_by before process"
            )
        return self._store
