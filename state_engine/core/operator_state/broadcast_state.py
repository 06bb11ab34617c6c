"""``BroadcastState`` and ``ReadOnlyBroadcastState``: one map that is the same on every subtask.

Mirror ``org.apache.flink.api.common.state.BroadcastState`` and ``ReadOnlyBroadcastState``. Only the broadcast side of
a function writes, since every subtask sees the same broadcast elements in the same order; elsewhere the map is
read-only, for a write there would be lost or make the subtasks differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

from state_engine.core.errors import StateAccessError
from state_engine.core.state.map_access import MapAccess
from state_engine.core.state.map_state import MapState


class ReadOnlyBroadcastState(MapAccess):
    """Handle of a broadcast state where it may be read only; every write raises StateAccessError."""

    __slots__ = ("_map", "_where")

    def __init__(self, entries: MapState, *, where: str) -> None:
        """``entries``: the map of this subtask; ``where``: names operator and state in messages."""
        self._map, self._where = entries, where

    def get(self, key: Any) -> Any:
        """The value of a map key; None where it is missing."""
        return self._map.get(key)

    def contains(self, key: Any) -> bool:
        """Whether there is an entry for the map key."""
        return self._map.contains(key)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """The (key, value) entries."""
        return self._map.items()

    def keys(self) -> Iterator[Any]:
        """The map keys."""
        return self._map.keys()

    def values(self) -> Iterator[Any]:
        """The values."""
        return self._map.values()

    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return self._map.is_empty()

    def put(self, key: Any, value: Any) -> None:
        """Refused: this side only reads."""
        self._refuse("put")

    def put_all(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        """Refused: this side only reads."""
        self._refuse("put_all")

    def remove(self, key: Any) -> None:
        """Refused: this side only reads."""
        self._refuse("remove")

    def clear(self) -> None:
        """Refused: this side only reads."""
        self._refuse("clear")

    def _refuse(self, method: str) -> NoReturn:
        raise StateAccessError(
            f"{self._where} is read-only here, so it has no {method}: "
            "change it in process_broadcast_element, which runs on every subtask"
        )


class BroadcastState(ReadOnlyBroadcastState):
    """Handle of a broadcast state on the broadcast side. Values may be None, keys not.

    Whatever is written must follow from the broadcast elements alone: every subtask keeps its own copy while a batch
    runs, and the checkpoint holds one of them.
    """

    __slots__ = ()

    def put(self, key: Any, value: Any) -> None:
        """Store one entry."""
        self._map.put(key, value)

    def put_all(self, entries: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        """Store the entries of a dict, or (key, value) pairs."""
        self._map.put_all(entries)

    def remove(self, key: Any) -> None:
        """Remove one entry."""
        self._map.remove(key)

    def clear(self) -> None:
        """Remove all entries."""
        self._map.clear()
