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
        """Clear what is stored for the current key."""


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
    """Appending state whose contents in two places can become one, as those of windows do when sessions meet.

    ``get_internal`` gives what is stored, ``merge`` takes it in: for another key, which it reaches as an element, or in
    another state with the same types. So keys, sessions or entries that turn out to be one collapse, and keep
    what was added to either. Mirrors ``InternalMergingState`` and ``InternalAppendingState`` of Flink, too.

    Example:
        >>> from state_engine.core.state.descriptors import ListStateDescriptor
        >>> from state_engine.core.functions.every_function import KeyedProcessFunction
        >>> from state_engine.testing import KeyedHarness
        >>> class Pages(KeyedProcessFunction):
        ...     def open(self, runtime_context):
        ...         self.pages = runtime_context.get_list_state(ListStateDescriptor("pages", str))
        ...     def process_element(self, value, ctx):
        ...         visitor, pages, turns_out_to_be = value
        ...         self.pages.merge(pages)
        ...         if turns_out_to_be is not None:
        ...             yield turns_out_to_be, self.pages.get_internal(), None
        ...             self.pages.clear()
        >>> harness = KeyedHarness(Pages(), key_by=lambda value: value[0])
        >>> moved = harness.process([("ann", ["a"], None), ("guest", ["b", "c"], None), ("guest", None, "ann")])
        >>> moved, harness.process(moved), harness.state("pages")
        ([('ann', ['b', 'c'], None)], [], {'ann': ['a', 'b', 'c']})
    """

    __slots__ = ()

    @abstractmethod
    def get_internal(self) -> Any:
        """What is stored for the current key, as a fresh copy: a list, a value, an accumulator; None for nothing.

        A read as ``get`` is one: with a time to live it leaves out what has expired, and may renew the rest.
        """

    @abstractmethod
    def merge(self, internal: Any) -> None:
        """Take in, for the current key, what ``get_internal`` of a state with the same types gave.

        A write as ``add`` is one: with a time to live, what is merged lives from now on. None and an empty list
        change nothing.

        Raises:
            ValueTypeError: it is not what such a state stores.
        """
