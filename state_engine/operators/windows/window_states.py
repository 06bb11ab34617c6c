"""``WindowStates``: states of one window of a key, each in a map by window.

The state ``name`` of a window is an entry of the map state ``window_<name>`` of its key. Plays the part of Flink's
state with the window as its namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.aggregating_state import AggregatingState
from state_engine.core.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.state.list_state import ListState
from state_engine.core.state.map_access import MapAccess
from state_engine.core.state.map_state import MapState
from state_engine.core.state.reducing_state import ReducingState
from state_engine.core.state.state import State
from state_engine.core.state.value_state import ValueState
from state_engine.core.types.every_type import DictType, ListType, TypeInformation
from state_engine.core.types.type_parsing import to_type

PREFIX = "window_"
"""What the names of the maps begin with."""


class WindowStates:
    """Gives the states of the current window.

    Attributes:
        window: its start and its end; set before a function is called.
    """

    def __init__(self, runtime_context: RuntimeContext) -> None:
        self._runtime = runtime_context
        self._entries: dict[str, _Entry] = {}
        self.window = (0, 0)

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """The value state of this descriptor, of the window."""
        return _Value(self._entry(descriptor, descriptor.value_type), descriptor)

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """The list state of this descriptor, of the window."""
        return _List(self._entry(descriptor, ListType(descriptor.value_type)), descriptor)

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """The map state of this descriptor, of the window: its entries are read and written together."""
        entry = self._entry(descriptor, DictType(descriptor.key_type, descriptor.value_type))
        return cast(MapState, _Map(entry))

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """The reducing state of this descriptor, of the window."""
        return _Reducing(self._entry(descriptor, descriptor.value_type), descriptor)

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """The aggregating state of this descriptor, of the window."""
        return _Aggregating(self._entry(descriptor, descriptor.value_type), descriptor)

    def clear(self) -> None:
        """Drop all states of the window that were asked for."""
        for entry in self._entries.values():
            entry.clear()

    def _entry(self, descriptor: StateDescriptor, value_type: TypeInformation) -> _Entry:
        if descriptor.ttl is not None:
            raise ConfigurationError(
                f"state '{descriptor.name}' of a window goes with the window: leave its time to live out"
            )
        if descriptor.name not in self._entries:
            key = to_type("window_start bigint, window_end bigint", parameter="window")
            maps = self._runtime.get_map_state(MapStateDescriptor(PREFIX + descriptor.name, key, value_type))
            self._entries[descriptor.name] = _Entry(maps, self)
        return self._entries[descriptor.name]


class _Entry(State):
    __slots__ = ("_maps", "_states")

    def __init__(self, maps: MapState, states: WindowStates) -> None:
        self._maps, self._states = maps, states

    def value(self) -> Any:
        return self._maps.get(self._states.window)

    def update(self, value: Any) -> None:
        if value is None:
            self.clear()
        else:
            self._maps.put(self._states.window, value)

    def clear(self) -> None:
        self._maps.remove(self._states.window)


class _Value(ValueState):
    __slots__ = ("_descriptor", "_entry")

    def __init__(self, entry: _Entry, descriptor: ValueStateDescriptor) -> None:
        self._entry, self._descriptor = entry, descriptor

    def value(self) -> Any:
        stored, descriptor = self._entry.value(), self._descriptor
        return descriptor.value_type.copy(descriptor.default) if stored is None else stored

    def update(self, value: Any) -> None:
        self._entry.update(value)

    def clear(self) -> None:
        self._entry.clear()


class _List(ListState):
    __slots__ = ("_entry",)

    def __init__(self, entry: _Entry, descriptor: ListStateDescriptor) -> None:
        self._entry, self._name = entry, descriptor.name
        self._normalise = descriptor.value_type.compiled()

    def get(self) -> list[Any]:
        return self._entry.value() or []

    def add_all(self, values: Iterable[Any]) -> None:
        self._entry.update([*self.get(), *self._checked(values)] or None)

    def clear(self) -> None:
        self._entry.clear()


class _Map(MapAccess):
    __slots__ = ("_entry",)

    def __init__(self, entry: _Entry) -> None:
        self._entry = entry

    def get(self, key: Any) -> Any:
        return self._of_window().get(key)

    def put(self, key: Any, value: Any) -> None:
        self.put_all({key: value})

    def put_all(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        self._entry.update(self._of_window() | dict(entries))

    def remove(self, key: Any) -> None:
        entries = self._of_window()
        entries.pop(key, None)
        self._entry.update(entries or None)

    def contains(self, key: Any) -> bool:
        return key in self._of_window()

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(self._of_window().items())

    def keys(self) -> Iterator[Any]:
        return iter(self._of_window())

    def values(self) -> Iterator[Any]:
        return iter(self._of_window().values())

    def is_empty(self) -> bool:
        return not self._of_window()

    def clear(self) -> None:
        self._entry.clear()

    def _of_window(self) -> dict[Any, Any]:
        return dict(self._entry.value() or {})


class _Reducing(ReducingState):
    __slots__ = ()

    def __init__(self, entry: _Entry, descriptor: ReducingStateDescriptor) -> None:
        self._value, self._name = cast(ValueState, entry), descriptor.name
        self._reduce, self._normalise = descriptor.reduce_function.reduce, descriptor.value_type.compiled()


class _Aggregating(AggregatingState):
    __slots__ = ()

    def __init__(self, entry: _Entry, descriptor: AggregatingStateDescriptor) -> None:
        self._value, self._name = cast(ValueState, entry), descriptor.name
        self._function, self._normalise = descriptor.agg_function, descriptor.value_type.compiled()
