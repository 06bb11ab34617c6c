"""``MapAccess``: a state of entries, spelled as a Python mapping.

The part that handles of maps share, whatever is behind them: ``key in state``, ``state[key]``, ``del state[key]`` and
iteration mean ``contains``, ``get``, ``put``, ``remove`` and ``keys``. As in Flink, and other than in a dict,
``state[key]`` of a missing key is None and deleting a missing key is no error.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from state_engine.core.state.state import State


class MapAccess(State):
    """Base of the handles of maps; what they do is their own."""

    __slots__ = ()

    @abstractmethod
    def get(self, key: Any) -> Any:
        """The value of a map key; None where it is missing."""

    @abstractmethod
    def put(self, key: Any, value: Any) -> None:
        """Store one entry."""

    @abstractmethod
    def remove(self, key: Any) -> None:
        """Remove one entry."""

    @abstractmethod
    def contains(self, key: Any) -> bool:
        """Whether there is an entry for the map key."""

    @abstractmethod
    def keys(self) -> Iterator[Any]:
        """The map keys."""

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def __getitem__(self, key: Any) -> Any:
        return self.get(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        self.remove(key)

    def __iter__(self) -> Iterator[Any]:
        return self.keys()
