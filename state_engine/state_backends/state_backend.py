"""``StateBackend`` and ``KeyedStateBackend``: where the working state of a subtask lives during a micro-batch.

A ``StateBackend`` is configuration: it can be pickled, is shared by threads, and makes one ``KeyedStateBackend`` a
subtask and attempt. That one fills states with what the checkpoint holds, gives handles, freezes what changed
(``snapshot``), and gives its resources back (``close``, also when the batch fails: use it as a context manager).
Checkpoint storage is chosen apart from it. Mirror ``org.apache.flink.runtime.state.StateBackend`` and
``AbstractKeyedStateBackend``.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Self

from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.keyed_state import KeyedStateStore, Loader
from state_engine.core.state.state_table import Change, KeyContext


class StateBackend(ABC):
    """Makes working state; holds configuration and nothing else.

    Attributes:
        spills: whether state that was loaded need not be in memory; then it is handed over piece by piece.
    """

    spills = False

    @abstractmethod
    def create_keyed_backend(
        self, operator: str, *, key_groups: KeyGroupRange, context: KeyContext, load: Loader
    ) -> KeyedStateBackend:
        """Working state of one subtask for one micro-batch.

        Args:
            operator: uid of the operator, for messages.
            key_groups: the key groups that the subtask owns.
            context: the current key and the clocks, shared with the operator that runs the function.
            load: gives what the parent checkpoint holds for the touched keys of a state: a mapping, or (key, stored)
                pairs, where a repeated key adds elements to its list or entries to its map.
        """


class KeyedStateBackend(ABC):
    """Working state of one subtask for one micro-batch; made by a StateBackend.

    Attributes:
        store: the states by name, for the operator that runs the function.
    """

    def __init__(self, operator: str, key_groups: KeyGroupRange, context: KeyContext, load: Loader) -> None:
        self.operator, self.key_groups = operator, key_groups
        self._context, self._load = context, load
        self._pending: list[SnapshotTask] = []
        self.store = KeyedStateStore(operator, context, self.entries)

    @abstractmethod
    def entries(self, descriptor: StateDescriptor) -> MutableMapping[Any, Any]:
        """The entries of one state, filled with what the checkpoint holds."""

    def snapshot(self, checkpoint_id: int, write: Write | None = None) -> SnapshotTask:
        """Freeze what has changed since loading; the task does the rest.

        The synchronous part is this call. State may be written to at once; the snapshot stays as it was.

        Args:
            write: what writes the changes out when the task runs; it gets (descriptor, changes) pairs and its result
                is the task's. Without it the result is a list of (descriptor, list of changes).
        """
        parts = [(table.descriptor, table.freeze()) for table in self.store.tables.values()]
        task = SnapshotTask(checkpoint_id, parts, write)
        if write is None and not self.is_asynchronous():
            task.run()
        self._pending = [t for t in self._pending if not t.done()] + [task]
        return task

    def is_asynchronous(self) -> bool:
        """Whether reading the frozen changes is work of its own, for the task."""
        return False

    def compact(self) -> int:
        """Drop expired items of states with compaction-filter clean-up; how many items were looked at."""
        return 0

    def close(self) -> None:
        """Give everything back; snapshots that have not run are cancelled. May be called twice."""
        for task in self._pending:
            task.cancel()
        self._pending = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stored(self, descriptor: StateDescriptor) -> Iterator[tuple[Any, Any]]:
        """What the checkpoint holds, in the parts that the loader gives."""
        loaded: Any = self._load(descriptor)
        parts: Iterable[tuple[Any, Any]] = loaded.items() if isinstance(loaded, Mapping) else loaded
        return iter(parts)


def fill(entries: MutableMapping[Any, Any], shape: str, parts: Iterable[tuple[Any, Any]]) -> None:
    """Put loaded parts into entries: a repeated key adds to its list or map."""
    if shape == "value":
        entries.update(parts)
        return
    for key, stored in parts:
        collected = entries.get(key)
        if collected is None:
            entries[key] = stored
        elif shape == "list":
            collected.extend(stored)
        else:
            collected.update(stored)


Frozen = list[tuple[StateDescriptor, Callable[[], Iterable[Change]]]]
Write = Callable[[Iterable[tuple[StateDescriptor, Iterable[Change]]]], Any]
"""Writes changes out: gets each state with its changes, and returns what the task's result shall be."""


class SnapshotTask:
    """The asynchronous part of a snapshot, like a future; made by ``KeyedStateBackend.snapshot``.

    The synchronous part has frozen what changed before the task exists. ``run`` writes it out, in any thread;
    ``result`` waits for that, or does it; ``cancel`` gives the frozen state back unwritten. A snapshot that is purely
    synchronous is done from the start. Mirrors ``RunnableFuture<SnapshotResult>`` as Flink's ``Snapshotable.snapshot``
    returns it.

    Example:
        >>> task = SnapshotTask(1, [], None)
        >>> task.done(), task.result(), task.done(), task.cancel()
        (False, [], True, False)
    """

    def __init__(self, checkpoint_id: int, parts: Frozen, write: Write | None) -> None:
        self.checkpoint_id = checkpoint_id
        self._parts: Frozen | None = parts
        self._write = write or _collect
        self._lock = threading.Lock()
        self._result: Any = None
        self._error: BaseException | None = None
        self._cancelled = False

    def run(self) -> None:
        """Write the changes out, once; does nothing where that is done or cancelled."""
        with self._lock:
            parts = self._parts
            if parts is None:
                return
            try:
                self._result = self._write((descriptor, changes()) for descriptor, changes in parts)
            except BaseException as error:
                self._error = error
            finally:
                self._parts = None  # whatever was frozen may go

    def result(self) -> Any:
        """What was written; runs the task where nobody has. Raises what writing raised, CancelledError if cancelled."""
        self.run()
        if self._cancelled:
            raise CancelledError(f"the snapshot for checkpoint {self.checkpoint_id} was cancelled")
        if self._error is not None:
            raise self._error
        return self._result

    def cancel(self) -> bool:
        """Give up and release what was frozen; False where the task has run. Waits for a run that is under way."""
        with self._lock:
            if self._parts is not None:
                self._parts, self._cancelled = None, True
            return self._cancelled

    def done(self) -> bool:
        return self._parts is None

    def cancelled(self) -> bool:
        return self._cancelled


def _collect(
    parts: Iterable[tuple[StateDescriptor, Iterable[Change]]],
) -> list[tuple[StateDescriptor, list[Change]]]:
    return [(descriptor, list(changes)) for descriptor, changes in parts]
