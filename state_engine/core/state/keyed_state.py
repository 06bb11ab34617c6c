"""``KeyedStateStore``: the keyed states of one operator in one subtask, by name.

Makes each handle once, refuses one name for two different states, and collects the changes of the micro-batch. What
the checkpoint holds comes from a ``loader``, so that heap, RocksDB and tests differ only there. Mirrors Flink's
``KeyedStateStore`` and the registration half of ``AbstractKeyedStateBackend``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from state_engine.core.errors import StateAccessError
from state_engine.core.state.aggregating_state import AggregatingState
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.folding_state import FoldingState
from state_engine.core.state.list_state import ListState, TtlListState
from state_engine.core.state.map_state import MapState, TtlMapState
from state_engine.core.state.reducing_state import ReducingState
from state_engine.core.state.sorted_map_state import SortedMapState, TtlSortedMapState
from state_engine.core.state.state_table import Change, KeyContext, KeyedEntries
from state_engine.core.state.value_state import value_handle

Loader = Callable[[StateDescriptor], MutableMapping[Any, Any]]
"""Gives the entries of a state, as of the parent checkpoint, for the keys of this batch."""

_HANDLES: dict[str, Callable[[KeyedEntries, KeyContext], Any]] = {
    "value": value_handle,
    "list": lambda table, context: (TtlListState if table.descriptor.ttl else ListState)(table, context),
    "map": lambda table, context: (TtlMapState if table.descriptor.ttl else MapState)(table, context),
    "sorted_map": lambda table, context: (TtlSortedMapState if table.descriptor.ttl else SortedMapState)(
        table, context
    ),
    "reducing": ReducingState,
    "aggregating": AggregatingState,
    "folding": FoldingState,
}


class KeyedStateStore:
    """States of one operator in one subtask.

    Args:
        context: the current key, shared with the operator that runs the function.
        loader: fills a state when its handle is first asked for.
    """

    def __init__(self, operator: str, context: KeyContext, loader: Loader) -> None:
        self._operator, self._context, self._loader = operator, context, loader
        self._tables: dict[str, KeyedEntries] = {}
        self._handles: dict[str, Any] = {}

    def handle(self, descriptor: StateDescriptor, kind: str) -> Any:
        """The handle for a descriptor; the same one for the same name."""
        if getattr(descriptor, "kind", None) != kind:
            raise StateAccessError(
                f"operator '{self._operator}': {descriptor!r} does not describe a {kind.replace('_', ' ')} state; "
                f"use a {kind.title().replace('_', '')}StateDescriptor"
            )
        known = self._tables.get(descriptor.name)
        if known is None:
            table = KeyedEntries(descriptor, self._loader(descriptor))
            self._tables[descriptor.name] = table
            self._handles[descriptor.name] = _HANDLES[kind](table, self._context)
        elif not known.descriptor.same_state(descriptor):
            raise StateAccessError(
                f"operator '{self._operator}': state '{descriptor.name}' is declared twice, as {known.descriptor!r} "
                f"and as {descriptor!r}; give them different names"
            )
        return self._handles[descriptor.name]

    @property
    def tables(self) -> dict[str, KeyedEntries]:
        return self._tables

    def changes(self) -> Iterator[tuple[StateDescriptor, list[Change]]]:
        """Per registered state, its net changes since loading."""
        for table in self._tables.values():
            yield table.descriptor, list(table.changes())
