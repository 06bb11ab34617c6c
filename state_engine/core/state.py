"""``State``, ``AppendingState`` and ``MergingState``: what handles of keyed state have in common.

Mirror the interfaces of these names in ``org.apache.flink.api.common.state``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class State(ABC):
    """A handle of state, scoped to the key of the current element."""

    __slots__ = ()

    @abstractmethod
    def clear(self) -> None:
        """Forget what is stored for the current key."""


class AppendingState(State):
    """State that values are added to, one by one."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> Any:
        """What was added, as this state keeps it."""

    @abstractmethod
    def add(self, value: Any) -> None:
        """Add one value."""


class MergingState(AppendingState):
    """Appending state whose contents for two keys could be combined into one."""

    __slots__ = ()
