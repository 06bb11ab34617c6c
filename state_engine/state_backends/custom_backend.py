"""``CustomStateBackend``: working state in mappings of the user's own.

Takes the place of a custom ``StateBackendFactory`` in Flink.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from state_engine.core.errors import ConfigurationError
from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.keyed_state import Loader
from state_engine.core.state.state_table import KeyContext, TrackedEntries
from state_engine.state_backends.state_backend import KeyedStateBackend, StateBackend, fill

EntriesFactory = Callable[[StateDescriptor], MutableMapping[Any, Any]]


@dataclass(frozen=True)
class CustomStateBackend(StateBackend):
    """Asks a factory for an empty mapping per state.

    The mapping must give back the very objects that were put into it, for lists and maps are changed in place; one that
    keeps its entries elsewhere extends ``state_engine.core.state.state_table.TrackedEntries``. Where it has a method
    ``close``, that is called at the end.

    Args:
        factory: gives an empty mapping for a state; importable, so that it reaches the workers.

    Example:
        >>> from collections import OrderedDict
        >>> backend = CustomStateBackend(lambda descriptor: OrderedDict())
    """

    factory: EntriesFactory

    def __post_init__(self) -> None:
        if not callable(self.factory):
            raise ConfigurationError(
                f"CustomStateBackend takes a function from a state descriptor to a mapping, not {self.factory!r}"
            )

    def create_keyed_backend(
        self, operator: str, *, key_groups: KeyGroupRange, context: KeyContext, load: Loader
    ) -> KeyedStateBackend:
        """Working state of one subtask, in the factory's mappings."""
        return _CustomKeyedStateBackend(self.factory, operator, key_groups, context, load)


class _CustomKeyedStateBackend(KeyedStateBackend):
    def __init__(
        self,
        factory: EntriesFactory,
        operator: str,
        key_groups: KeyGroupRange,
        context: KeyContext,
        load: Loader,
    ) -> None:
        super().__init__(operator, key_groups, context, load)
        self._factory = factory
        self._made: list[MutableMapping[Any, Any]] = []

    def entries(self, descriptor: StateDescriptor) -> MutableMapping[Any, Any]:
        entries = self._factory(descriptor)
        if not isinstance(entries, MutableMapping) or len(entries):
            raise ConfigurationError(
                f"operator '{self.operator}': the factory of the CustomStateBackend must give an empty mutable mapping "
                f"for state '{descriptor.name}', not {type(entries).__name__} {entries!r}"
            )
        self._made.append(entries)
        fill(entries, descriptor.shape, self._stored(descriptor))
        if not isinstance(entries, TrackedEntries):
            self._check_identity(descriptor, entries)
        return entries

    def close(self) -> None:
        super().close()
        while self._made:
            getattr(self._made.pop(), "close", lambda: None)()

    def _check_identity(self, descriptor: StateDescriptor, entries: MutableMapping[Any, Any]) -> None:
        if descriptor.shape != "value":
            for key in entries:
                if entries[key] is not entries[key]:
                    raise ConfigurationError(
                        f"operator '{self.operator}': the mapping for state '{descriptor.name}' gives copies of what "
                        "was put into it, so added elements would be lost; extend TrackedEntries, or keep the objects"
                    )
                return
