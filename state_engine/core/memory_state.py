"""``MemoryState``: the stored entries of keyed state, in plain dicts.

What changes of a micro-batch are folded into, and what the next one is loaded from: the part that Delta tables play on
the engine, for tests. Plays the part of Flink's ``MemCheckpointStreamFactory``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from state_engine.core.descriptors import StateDescriptor
from state_engine.core.state_table import APPEND, CLEAR, PUT, Change
from state_engine.core.timers import TIMERS, TimersDescriptor
from state_engine.core.ttl_rule import without_expired

Entries = dict[Any, Any]


@dataclass
class MemoryState:
    """Entries by state and key, with the descriptors they were declared with.

    Example:
        >>> from state_engine.core.descriptors import ValueStateDescriptor
        >>> stored, seen = MemoryState(), ValueStateDescriptor("seen", int)
        >>> stored.load(seen, {"a"})
        {}
        >>> stored.fold(seen, [Change("a", PUT, 1)])
        >>> stored.load(seen, {"a", "b"})
        {'a': 1}
    """

    entries: dict[str, Entries] = field(default_factory=dict)
    descriptors: dict[str, StateDescriptor] = field(default_factory=dict)

    def load(self, descriptor: StateDescriptor, keys: Iterable[Any]) -> Entries:
        """The entries of some keys, as a copy."""
        self.descriptors[descriptor.name] = descriptor
        stored = self.entries.setdefault(descriptor.name, {})
        return copy.deepcopy({key: stored[key] for key in keys if key in stored})

    def fold(self, descriptor: StateDescriptor, changes: Iterable[Change]) -> None:
        """Take in the changes of a micro-batch."""
        for change in changes:
            _APPLY[descriptor.shape](self.entries[descriptor.name], change)

    def copied(self) -> MemoryState:
        """All of it, apart from this one."""
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
        return {key: _UNSTAMPED[descriptor.shape](stored) for key, stored in entries.items()}

    def keys_with_timers(self) -> list[Any]:
        """The keys that have a timer."""
        self.descriptors.setdefault(TIMERS, TimersDescriptor())
        return list(self.entries.setdefault(TIMERS, {}))


def _apply_value(entries: Entries, change: Change) -> None:
    if change.op == PUT:
        entries[change.key] = change.value
    else:
        entries.pop(change.key, None)


def _apply_list(entries: Entries, change: Change) -> None:
    if change.op == CLEAR:
        entries.pop(change.key, None)
    elif change.op == APPEND:
        entries.setdefault(change.key, []).extend(change.value)


def _apply_map(entries: Entries, change: Change) -> None:
    if change.op == CLEAR:
        entries.pop(change.key, None)
    elif change.op == PUT:
        entries.setdefault(change.key, {})[change.value[0]] = change.value[1]
    else:
        entries[change.key].pop(change.value[0])
        if not entries[change.key]:
            del entries[change.key]


_APPLY: dict[str, Callable[[Entries, Change], None]] = {
    "value": _apply_value,
    "list": _apply_list,
    "map": _apply_map,
}
_UNSTAMPED: dict[str, Callable[[Any], Any]] = {
    "value": lambda item: item.value,
    "list": lambda items: [item.value for item in items],
    "map": lambda items: {key: item.value for key, item in items.items()},
}
