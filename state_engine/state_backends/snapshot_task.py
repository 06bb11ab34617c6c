"""``SnapshotTask``: the asynchronous part of a snapshot, like a future.

The synchronous part has frozen what changed before the task exists. ``run`` writes it out, in any thread; ``result``
waits for that, or does it; ``cancel`` gives the frozen state back unwritten. A snapshot that is purely synchronous is
done from the start. Mirrors ``RunnableFuture<SnapshotResult>`` as Flink's ``Snapshotable.snapshot`` returns it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from typing import Any

from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.state_table import Change

Frozen = list[tuple[StateDescriptor, Callable[[], Iterable[Change]]]]
Write = Callable[[Iterable[tuple[StateDescriptor, Iterable[Change]]]], Any]
"""Writes changes out: gets each state with its changes, and returns what the task's result shall be."""


class SnapshotTask:
    """What is left to do for a snapshot; made by ``KeyedStateBackend.snapshot``.

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
        """Whether it has run or was cancelled."""
        return self._parts is None

    def cancelled(self) -> bool:
        return self._cancelled


def _collect(
    parts: Iterable[tuple[StateDescriptor, Iterable[Change]]],
) -> list[tuple[StateDescriptor, list[Change]]]:
    return [(descriptor, list(changes)) for descriptor, changes in parts]
