"""Custom backends, what their factories must give, and the names of Flink 1.x."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from state_engine.core.errors import ConfigurationError
from state_engine.core.state.descriptors import ListStateDescriptor, ValueStateDescriptor
from state_engine.core.state.state_table import KeyContext
from state_engine.state_backends.custom_backend import CustomStateBackend
from state_engine.state_backends.heap_backend import HashMapStateBackend
from state_engine.state_backends.legacy_backends import (
    FsStateBackend,
    MemoryStateBackend,
    RocksDBStateBackend,
)
from state_engine.state_backends.rocksdb_backend import EmbeddedRocksDBStateBackend
from state_engine.state_backends.rocksdb_options import PredefinedOptions
from tests.core.state.steps import Steps
from tests.state_backends.backends import ALL_GROUPS, keyed, on


def test_a_factory_must_give_empty_mappings_that_keep_objects() -> None:
    class Copies(dict[Any, Any]):
        def __getitem__(self, key: Any) -> Any:
            return list(super().__getitem__(key))

    def use(factory: Any) -> None:
        backend = CustomStateBackend(factory)
        keyed_backend = backend.create_keyed_backend(
            "counter", key_groups=ALL_GROUPS, context=KeyContext(), load=lambda d: {1: [1]}
        )
        keyed_backend.store.handle(ListStateDescriptor("s", int), "list")

    with pytest.raises(ConfigurationError, match="takes a function from a state descriptor to a mapping"):
        CustomStateBackend(5)  # type: ignore[arg-type]
    factories: list[Any] = [lambda d: [], lambda d: {1: 1}]
    for wrong in factories:
        with pytest.raises(ConfigurationError, match=r"'counter'.*must give an empty mutable mapping for"):
            use(wrong)
    with pytest.raises(ConfigurationError, match="state 's' gives copies of what was put into it"):
        use(lambda d: Copies())


def test_mappings_of_a_factory_are_closed() -> None:
    class Closing(dict[Any, Any]):
        closed = 0

        def close(self) -> None:
            Closing.closed += 1

    with keyed(CustomStateBackend(lambda d: Closing()), KeyContext()) as keyed_backend:
        keyed_backend.store.handle(ValueStateDescriptor("s", int), "value")
    assert Closing.closed == 1


def test_old_names_warn_and_delegate() -> None:
    cases: list[tuple[Any, Any, str]] = [
        (
            MemoryStateBackend,
            HashMapStateBackend,
            "MemoryStateBackend is deprecated: use HashMapStateBackend",
        ),
        (FsStateBackend, HashMapStateBackend, "FsStateBackend is deprecated: use HashMapStateBackend"),
        (RocksDBStateBackend, EmbeddedRocksDBStateBackend, "deprecated: use EmbeddedRocksDBStateBackend"),
    ]
    for old, new, message in cases:
        with pytest.warns(DeprecationWarning, match=message):
            backend = old()
        assert isinstance(backend.delegate, new)
        steps = Steps(ValueStateDescriptor("s", int), opener=on(pickle.loads(pickle.dumps(backend))))
        steps.at(0, lambda s: s.update(5))
        assert steps.at(0, lambda s: s.value()) == 5
        with pytest.warns(
            DeprecationWarning, match="checkpoints go to the root of the engine, not to 's3://b'"
        ):
            old("s3://b")
    with pytest.warns(DeprecationWarning, match="deprecated"):
        old = RocksDBStateBackend(options={"max_open_files": 10})
    old.set_predefined_options(PredefinedOptions.FLASH_SSD_OPTIMIZED)
    assert isinstance(old.delegate, EmbeddedRocksDBStateBackend)
    assert old.delegate.get_options() == {"max_open_files": 10, "increase_parallelism": 4}
