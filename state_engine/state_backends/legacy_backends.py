"""State backends under their names of Flink 1.x; deprecated: they warn, and are the new ones.

In Flink 1.x these also named where checkpoints go. Here that is the root of the engine; the warning says so where a
location is given. Mirror ``org.apache.flink.runtime.state.memory.MemoryStateBackend``, ``FsStateBackend`` and
``org.apache.flink.contrib.streaming.state.RocksDBStateBackend``.
"""

from __future__ import annotations

import warnings
from typing import Any, Self

from state_engine.core.argument_checks import checked_class
from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.core.state.keyed_state import Loader
from state_engine.core.state.state_table import KeyContext
from state_engine.state_backends.heap_backend import HashMapStateBackend
from state_engine.state_backends.rocksdb_backend import EmbeddedRocksDBStateBackend
from state_engine.state_backends.rocksdb_options import PredefinedOptions
from state_engine.state_backends.state_backend import KeyedStateBackend, StateBackend


class _Legacy(StateBackend):
    def __init__(self, delegate: StateBackend, instead: str, checkpoints: str | None) -> None:
        where = (
            ""
            if checkpoints is None
            else f"; checkpoints go to the root of the engine, not to {checkpoints!r}"
        )
        warnings.warn(
            f"{type(self).__name__} is deprecated: use {instead}{where}", DeprecationWarning, stacklevel=4
        )
        self._delegate = delegate
        self.spills = delegate.spills

    @property
    def delegate(self) -> StateBackend:
        """The state backend that does the work."""
        return self._delegate

    def create_keyed_backend(
        self, operator: str, *, key_groups: KeyGroupRange, context: KeyContext, load: Loader
    ) -> KeyedStateBackend:
        """Working state of one subtask, made by the new backend."""
        return self._delegate.create_keyed_backend(
            operator, key_groups=key_groups, context=context, load=load
        )


@checked_class
class MemoryStateBackend(_Legacy):
    """Deprecated: use HashMapStateBackend."""

    def __init__(self, checkpoint_path: str | None = None) -> None:
        super().__init__(HashMapStateBackend(), "HashMapStateBackend", checkpoint_path)


@checked_class
class FsStateBackend(_Legacy):
    """Deprecated: use HashMapStateBackend; the engine's root is where checkpoints go."""

    def __init__(self, checkpoint_directory_uri: str | None = None) -> None:
        super().__init__(HashMapStateBackend(), "HashMapStateBackend", checkpoint_directory_uri)


@checked_class
class RocksDBStateBackend(_Legacy):
    """Deprecated: use EmbeddedRocksDBStateBackend; the engine's root is where checkpoints go."""

    def __init__(self, checkpoint_data_uri: str | None = None, **settings: Any) -> None:
        super().__init__(
            EmbeddedRocksDBStateBackend(**settings), "EmbeddedRocksDBStateBackend", checkpoint_data_uri
        )

    def set_predefined_options(self, options: PredefinedOptions) -> Self:
        """As EmbeddedRocksDBStateBackend."""
        assert isinstance(self._delegate, EmbeddedRocksDBStateBackend)
        self._delegate.set_predefined_options(options)
        return self
