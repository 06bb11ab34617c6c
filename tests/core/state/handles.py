"""Handles of keyed state on plain dicts, for tests: a current key, entries that a test may look at."""

from __future__ import annotations

from typing import Any

from state_engine.core.functions.every_function import MIN_TIMESTAMP, TimerService
from state_engine.core.functions.runtime_context import RuntimeContext, TaskInfo
from state_engine.core.operator.stream_operator import StreamOperator
from state_engine.core.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.state.keyed_state import KeyedStateStore
from state_engine.core.state.list_state import ListState
from state_engine.core.state.map_state import MapState
from state_engine.core.state.state_table import KeyContext
from state_engine.core.state.value_state import ValueState
from state_engine.core.types.type_parsing import to_type


class Bench:
    """A store whose states start with the given entries; ``at(key)`` sets the current key."""

    def __init__(self, **loaded: dict[Any, Any]) -> None:
        self.context = KeyContext()
        self.store = KeyedStateStore("counter", self.context, lambda d: loaded.get(d.name, {}))
        self.runtime = RuntimeContext(TaskInfo("counter"), self.store)

    def at(self, key: Any) -> Bench:
        self.context.key = key
        return self

    def operator(
        self, function: Any, *, output: Any = int, clock_ms: int = 1000, **options: Any
    ) -> StreamOperator:
        """An operator on this store, opened."""
        operator = StreamOperator(
            function,
            info=TaskInfo("counter"),
            store=self.store,
            context=self.context,
            timers=TimerService(clock_ms, MIN_TIMESTAMP),
            output_type=to_type(output, parameter="output"),
            **options,
        )
        operator.open()
        return operator

    def entries(self, name: str = "s") -> Any:
        return self.store.tables[name].entries

    def changes(self) -> list[tuple[Any, str, Any]]:
        return [tuple(c) for _, changes in self.store.changes() for c in changes]

    def value(self, kind: Any = int, *, default: Any = None, name: str = "s") -> ValueState:
        return self.runtime.get_state(ValueStateDescriptor(name, kind, default=default))

    def list(self, kind: Any = int, *, name: str = "s") -> ListState:
        return self.runtime.get_list_state(ListStateDescriptor(name, kind))

    def map(self, key: Any = str, value: Any = int, *, name: str = "s") -> MapState:
        return self.runtime.get_map_state(MapStateDescriptor(name, key, value))
