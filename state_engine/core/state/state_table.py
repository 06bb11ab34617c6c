"""The entries of one keyed state in one subtask, and what changed in them.

A ``KeyedEntries`` is what a handle works on: a mapping from key to what is stored for it, filled by a state backend
with the keys that the micro-batch touches. It remembers what was loaded, and at the end of the batch returns the net
changes as ``Change`` records: nothing is tracked per write. Plays the part of Flink's ``StateTable`` and changelog
writer.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any, NamedTuple

from state_engine.core.errors import StateAccessError
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.ttl import StampedType
from state_engine.core.types.every_type import TypeInformation
from state_engine.core.types.row import RowKind
from state_engine.core.types.timestamps import MIN_TIMESTAMP

PUT, DELETE, CLEAR, APPEND = "put", "delete", "clear", "append"

NO_KEY: Any = []
"""What the current key is outside of an element: unhashable, so that any use of a handle fails."""


class Change(NamedTuple):
    """One row of the changelog: value is the value, the list of added elements, or the (map key, value) entry."""

    key: Any
    op: str
    value: Any


_change = tuple.__new__
"""Makes a Change of its three fields in a third of the time that its constructor takes."""


class KeyContext:
    """The key of the current element; shared by all handles of a subtask.

    Attributes:
        key: the current key as stored, or NO_KEY.
        present: makes it what the job declares; None where it is that.
        timestamp: event time of the current element in milliseconds, or None.
        row_kind: of the current element; an insert where its stream does not change.
        watermark_ms: watermark before the current element; None where there is none yet.
        checkpoint_watermark_ms: watermark that the parent checkpoint recorded; None where there is none.
        on_element: called after every element.
        undo: the actions that take back the writes of this element, newest last; None where nobody will ask.
    """

    __slots__ = (
        "checkpoint_watermark_ms", "clock_ms", "has_event_time", "key", "on_element", "present", "row_kind",
        "timestamp", "undo", "watermark_ms",
    )  # fmt: skip

    def __init__(
        self,
        *,
        clock_ms: int = 0,
        watermark_ms: int | None = None,
        checkpoint_watermark_ms: int | None = None,
        has_event_time: bool = False,
    ) -> None:
        self.key: Any = NO_KEY
        self.present: Callable[[Any], Any] | None = None
        self.timestamp: int | None = None
        self.row_kind = RowKind.INSERT
        self.clock_ms, self.watermark_ms, self.has_event_time = clock_ms, watermark_ms, has_event_time
        self.checkpoint_watermark_ms = checkpoint_watermark_ms
        self.on_element: list[Callable[[], Any]] = []
        self.undo: list[Callable[[], Any]] | None = None

    def set_watermark(self, watermark_ms: int) -> None:
        """Set the watermark before an element, or that of a timer that fires."""
        self.watermark_ms = None if watermark_ms == MIN_TIMESTAMP else watermark_ms

    def event_time(self) -> int | None:
        """Event-time *now*: the element's time, but never less than the watermark; None where neither is known."""
        known = [t for t in (self.timestamp, self.watermark_ms) if t is not None]
        return max(known, default=None)

    def roll_back(self) -> None:
        """Take back the writes of the current element, newest first."""
        while self.undo:
            self.undo.pop()()


class TrackedEntries(MutableMapping[Any, Any]):
    """Entries of a backend that knows itself what changed in them, so that nothing need be remembered in memory.

    ``entries[key]`` of a list gives an object that is sized, iterable, has ``extend``, and forgets its end by
    ``del found[n:]``; of a map a ``TrackedMap``. Either may be assigned back, which undoes what replaced it.
    """

    __slots__ = ()

    @abstractmethod
    def freeze(self) -> Callable[[], Iterator[Change]]:
        """What has changed since loading, as of this call; computed when called, whatever happens in between."""


class TrackedMap(MutableMapping[Any, Any]):
    """The map of one key in ``TrackedEntries``; that of a sorted map has the methods of ``SortedEntries``, too."""

    __slots__ = ()

    @abstractmethod
    def put_back(self, key: Any) -> Callable[[], Any]:
        """The action that undoes the removal of an entry, its place in the order included."""


class KeyedEntries:
    """Entries of one state: ``entries[key]`` is a value, a list of elements, or a dict of map entries.

    Where the state has a time to live, values, elements and map values are ``Stamped``.

    Attributes:
        item_type: type of a value, list element or map value in ``entries``.
        entries: the working copy; a backend may give any mutable mapping.
        loaded: what the checkpoint held for the keys of this batch; empty where the entries know it.
    """

    __slots__ = ("descriptor", "entries", "item_type", "loaded")

    def __init__(self, descriptor: StateDescriptor, entries: MutableMapping[Any, Any]) -> None:
        self.descriptor = descriptor
        self.entries = entries
        inner = descriptor.value_type
        self.item_type: TypeInformation = inner if descriptor.ttl is None else StampedType(inner)
        known = {} if isinstance(entries, TrackedEntries) else entries
        self.loaded = _REMEMBER[descriptor.shape](known)

    def changes(self) -> Iterator[Change]:
        """Net changes since loading: per key at most one clear, first, then one append or one row a map key."""
        entries, loaded = self.entries, self.loaded
        if isinstance(entries, TrackedEntries):
            yield from entries.freeze()()
            return
        if self.descriptor.shape == "value":
            yield from _changes_of_values(loaded, entries)
            return
        diff = _DIFF.get(self.descriptor.kind) or _DIFF[self.descriptor.shape]
        for key, was in loaded.items():
            yield from diff(key, was, entries.get(key))
        for key, now in entries.items():
            if key not in loaded:
                yield from diff(key, None, now)

    def added(self) -> int | None:
        """How many entries there are more than were loaded; None where that is not known."""
        if self.descriptor.ttl is not None or isinstance(self.entries, TrackedEntries):
            return None
        number = _NUMBER[self.descriptor.shape]
        return number(self.entries.values()) - number(self.loaded.values())

    def freeze(self) -> Callable[[], Iterable[Change]]:
        """The net changes as of this call, which no later write changes; to be called when they are written out."""
        if isinstance(self.entries, TrackedEntries):
            return self.entries.freeze()
        if self.descriptor.shape != "list":  # only lists grow in place; values and map entries are replaced
            unchanging = list(self.changes())
            return lambda: unchanging
        frozen = [c._replace(value=list(c.value)) if c.op == APPEND else c for c in self.changes()]
        return lambda: frozen


def no_key(state: str) -> StateAccessError:
    """The error for using keyed state where there is no current key."""
    return StateAccessError(
        f"state '{state}' was used without a current key: keyed state exists only inside process_element "
        "and on_timer of a function on a keyed stream (use key_by first, and not open or close)"
    )


def _changes_of_values(loaded: Mapping[Any, Any], entries: Mapping[Any, Any]) -> Iterator[Change]:
    """Changes of values: all keys in one pass, for there is one a key."""
    changed = [(key, now) for key, was in loaded.items() if (now := entries.get(key)) is not was]
    changed += [(key, now) for key, now in entries.items() if key not in loaded]
    for key, now in changed:
        yield _change(Change, (key, DELETE, None) if now is None else (key, PUT, now))


def _diff_list(key: Any, was: tuple[list[Any], int] | None, now: list[Any] | None) -> Iterator[Change]:
    old, length = was if was is not None else (None, 0)
    if now is old and now is not None:
        if len(now) > length:
            yield Change(key, APPEND, now[length:])
        return
    if old is not None:
        yield Change(key, CLEAR, None)
    if now:
        yield Change(key, APPEND, now)


def _diff_map(
    key: Any, was: dict[Any, Any] | None, now: dict[Any, Any] | None, *, by_first_put: bool = True
) -> Iterator[Change]:
    if not was:
        for k, value in (now or {}).items():
            yield Change(key, PUT, (k, value))
        return
    now = now or {}
    gone = [k for k in was if k not in now]
    kept = [k for k in was if k in now] if gone else list(was)
    # entries iterate in the order of their first put, wherever batches are cut: a put keeps an entry's place, so what
    # was removed and put again is written anew; a sorted map has its own order
    moved = by_first_put and any(k != other for k, other in zip(kept, now, strict=False))
    if moved or not kept:
        yield Change(key, CLEAR, None)
        was = {}
    else:
        for k in gone:
            yield Change(key, DELETE, (k, None))
    for k, value in now.items():
        if k not in was or was[k] is not value:
            yield Change(key, PUT, (k, value))


_REMEMBER: dict[str, Callable[[Mapping[Any, Any]], dict[Any, Any]]] = {
    "value": dict,
    "list": lambda entries: {key: (stored, len(stored)) for key, stored in entries.items()},
    "map": lambda entries: {key: dict(stored) for key, stored in entries.items()},
}
_DIFF: dict[str, Callable[[Any, Any, Any], Iterator[Change]]] = {
    "list": _diff_list,
    "map": _diff_map,
    "sorted_map": partial(_diff_map, by_first_put=False),
}
"""By shape, or by primitive where one has its own."""
_NUMBER: dict[str, Callable[[Collection[Any]], int]] = {
    "value": len,
    "list": lambda lists: sum(1 for one in lists if (one[1] if type(one) is tuple else one)),
    "map": lambda maps: sum(map(len, maps)),
}
"""Entries of all keys, by shape; of a list, as it is or as it is remembered, one where it has elements."""
