"""The state backends under test, and how steps and random operations run on them."""

from __future__ import annotations

import os
from collections import UserDict
from collections.abc import Callable
from typing import Any

from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.keyed_state import Loader
from state_engine.core.state.state_table import KeyContext
from state_engine.state_backends.custom_backend import CustomStateBackend
from state_engine.state_backends.heap_backend import HashMapStateBackend
from state_engine.state_backends.rocksdb_backend import EmbeddedRocksDBStateBackend
from state_engine.state_backends.state_backend import KeyedStateBackend, StateBackend
from tests.core.state.steps import Opener, Session

ALL_GROUPS = KeyGroupRange(0, 127)


class Shelf(UserDict[Any, Any]):
    """Entries of a custom backend: a mapping that is no dict."""


def shelf(descriptor: StateDescriptor) -> Shelf:
    return Shelf()


BACKENDS: dict[str, Callable[[], StateBackend]] = {
    "heap": HashMapStateBackend,
    # in memory where the machine has such a directory: opening a database waits for a disk, and tests open thousands
    "rocksdb": lambda: EmbeddedRocksDBStateBackend(
        local_directory="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    ),
    "custom": lambda: CustomStateBackend(shelf),
}


def keyed(
    backend: StateBackend, context: KeyContext, load: Loader = lambda descriptor: {}
) -> KeyedStateBackend:
    return backend.create_keyed_backend("counter", key_groups=ALL_GROUPS, context=context, load=load)


def on(backend: StateBackend) -> Opener:
    """Steps on a backend; a checkpoint is a snapshot of it."""

    def opener(context: KeyContext, load: Loader) -> Session:
        keyed_backend = keyed(backend, context, load)
        return keyed_backend.store, lambda: keyed_backend.snapshot(1).result(), keyed_backend.close

    return opener
