"""``HashMapStateBackend``: working state as Python objects in memory; the fastest, bounded by memory.

Snapshots are purely synchronous, since the changes are at hand. Mirrors
``org.apache.flink.runtime.state.hashmap.HashMapStateBackend``.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.keyed_state import Loader
from state_engine.core.state.state_table import KeyContext
from state_engine.state_backends.state_backend import KeyedStateBackend, StateBackend, fill


@dataclass(frozen=True)
class HashMapStateBackend(StateBackend):
    """Keeps the touched state of a micro-batch in dicts.

    Example:
        >>> from state_engine.core.state.descriptors import ValueStateDescriptor
        >>> context, groups = KeyContext(), KeyGroupRange(0, 127)
        >>> with HashMapStateBackend().create_keyed_backend(
        ...     "counter", key_groups=groups, context=context, load=lambda descriptor: {"a": 1}
        ... ) as keyed:
        ...     seen = keyed.store.handle(ValueStateDescriptor("seen", int), "value")
        ...     context.key = "a"
        ...     seen.update(seen.value() + 1)
        ...     [list(changes) for _, changes in keyed.snapshot(1).result()]
        [[Change(key='a', op='put', value=2)]]
    """

    def create_keyed_backend(
        self, operator: str, *, key_groups: KeyGroupRange, context: KeyContext, load: Loader
    ) -> KeyedStateBackend:
        """Working state of one subtask, in dicts."""
        return _HeapKeyedStateBackend(operator, key_groups, context, load)


class _HeapKeyedStateBackend(KeyedStateBackend):
    def entries(self, descriptor: StateDescriptor) -> MutableMapping[Any, Any]:
        loaded: Any = self._load(descriptor)
        if type(loaded) is dict:
            return loaded
        entries: dict[Any, Any] = {}
        parts = loaded.items() if hasattr(loaded, "items") else loaded
        fill(entries, descriptor.shape, ((key, _own(stored)) for key, stored in parts))
        return entries


def _own(stored: Any) -> Any:
    return stored.copy() if isinstance(stored, list | dict) else stored
