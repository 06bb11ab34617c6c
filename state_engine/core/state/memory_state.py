"""``MemoryState``: the stored entries of keyed state, in plain dicts.

What changes of a micro-batch are folded into, and what the next one is loaded from: the part that Delta tables play on
the engine, for tests. Plays the part of Flink's ``MemCheckpointStreamFactory``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from state_engine.core.state.change_folding import fold
from state_engine.core.state.descriptors import TIMERS, StateDescriptor
from state_engine.core.state.evolution import recorded_schema
from state_engine.core.state.evolved_entries import as_declared
from state_engine.core.state.state_table import Change
from state_engine.core.state.stored_states import StoredStates
from state_engine.core.state.ttl_rule import without_expired

Entries = dict[Any, Any]


@dataclass
class MemoryState:
    """Entries by state and key, with the descriptors they were written with."""

    entries: dict[str, Entries] = field(default_factory=dict)
    descriptors: dict[str, StateDescriptor] = field(default_factory=dict)

    def load(self, descriptor: StateDescriptor, keys: Iterable[Any], *, operator: str) -> Entries:
        """The entries of some keys, as a copy, in the form of a declaration that may be a later one."""
        known = self._known(descriptor, operator)[0]
        if known is None:
            return {}
        stored = self.entries[known]
        entries = copy.deepcopy({key: stored[key] for key in keys if key in stored})
        return as_declared(entries, self.descriptors[known], descriptor)

    def fold(self, descriptor: StateDescriptor, changes: Iterable[Change]) -> None:
        """Take in the changes of a micro-batch, made with a declaration that ``load`` has let pass."""
        name = descriptor.name
        known, stored_as = self._known(descriptor)
        entries, was = (
            ({}, descriptor) if known is None else (self.entries.pop(known), self.descriptors.pop(known))
        )
        self.entries[name] = as_declared(entries, was, descriptor)
        self.descriptors[name] = descriptor.stored(stored_as, descriptor.value_type)
        fold(descriptor.shape, self.entries[name], changes)

    def _known(self, descriptor: StateDescriptor, operator: str = "") -> tuple[str | None, str]:
        """The name under which a state is kept, None where it is not, and the name that it is stored as."""
        recorded = {name: recorded_schema(declared) for name, declared in self.descriptors.items()}
        stored_as = StoredStates(operator, recorded).of(descriptor).descriptor.stored_as
        known = (name for name, declared in self.descriptors.items() if declared.stored_as == stored_as)
        return next(known, None), stored_as

    def copied(self) -> MemoryState:
        return MemoryState(copy.deepcopy(self.entries), dict(self.descriptors))

    def without_expired(self, *, clock_ms: int, watermark_ms: int | None) -> MemoryState:
        """A copy as a full snapshot has it: where a state asks for that, what has expired is left out."""
        kept = self.copied()
        for name, descriptor in kept.descriptors.items():
            if descriptor.ttl is not None and descriptor.ttl.get_cleanup_strategies().in_full_snapshot():
                kept.entries[name] = without_expired(
                    descriptor, kept.entries[name], clock_ms=clock_ms, watermark_ms=watermark_ms
                )
        return kept

    def values(self, name: str) -> Entries:
        """The entries of one state by key, as users see them: a value, a list, or a dict."""
        descriptor, entries = self.descriptors[name], copy.deepcopy(self.entries[name])
        if descriptor.ttl is None:
            return entries
        return {key: UNSTAMPED[descriptor.shape](stored) for key, stored in entries.items()}

    def keys_with_timers(self) -> list[Any]:
        return list(self.entries.get(TIMERS, ()))


UNSTAMPED: dict[str, Callable[[Any], Any]] = {
    "value": lambda item: item.value,
    "list": lambda items: [item.value for item in items],
    "map": lambda items: {key: item.value for key, item in items.items()},
}
