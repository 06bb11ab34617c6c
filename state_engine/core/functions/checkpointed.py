"""Hooks of a function into checkpoints: ``CheckpointedFunction``, ``ListCheckpointed``, ``CheckpointListener``.

Mix them into any function class. A checkpoint's barrier is the end of the micro-batch: ``snapshot_state`` is called for
every checkpoint, also on subtasks that saw no element, and ``initialize_state`` before every micro-batch. Mirror the
interfaces of these names in Flink's ``streaming.api.checkpoint``, ``FunctionSnapshotContext`` and
``FunctionInitializationContext``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.operator_state.raw_state import (
    RawKeyedInput,
    RawKeyedOutput,
    RawOperatorInput,
    RawOperatorOutput,
)
from state_engine.core.operator_state.store import OperatorStateStore


class FunctionSnapshotContext:
    """Given to ``snapshot_state``.

    Attributes:
        raw_operator_state: stream of bytes of this subtask: ``write(bytes)``.
        raw_keyed_state: stream of bytes by key group: ``start_key_group(g)``, then ``write(bytes)``.
    """

    def __init__(
        self,
        *,
        checkpoint_id: int,
        timestamp_ms: int,
        raw_operator_state: RawOperatorOutput,
        raw_keyed_state: RawKeyedOutput,
    ) -> None:
        self._checkpoint_id, self._timestamp_ms = checkpoint_id, timestamp_ms
        self.raw_operator_state, self.raw_keyed_state = raw_operator_state, raw_keyed_state

    def get_checkpoint_id(self) -> int:
        """Id of the checkpoint that this snapshot is for."""
        return self._checkpoint_id

    def get_checkpoint_timestamp(self) -> int:
        """The batch's recorded clock, in milliseconds since 1970."""
        return self._timestamp_ms


class FunctionInitializationContext:
    """Given to ``initialize_state``.

    Attributes:
        raw_operator_state: what the last snapshot of this subtask wrote; iterate to read.
        raw_keyed_state: what was written for this subtask's key groups; iterate over (key group, bytes).
    """

    def __init__(
        self,
        *,
        restored_checkpoint_id: int | None,
        is_restored: bool,
        operator_state_store: OperatorStateStore,
        keyed_state_store: RuntimeContext,
        raw_operator_state: RawOperatorInput,
        raw_keyed_state: RawKeyedInput,
    ) -> None:
        self._restored, self._restored_checkpoint_id = is_restored, restored_checkpoint_id
        self._operator_state_store, self._keyed_state_store = operator_state_store, keyed_state_store
        self.raw_operator_state, self.raw_keyed_state = raw_operator_state, raw_keyed_state

    def is_restored(self) -> bool:
        """Whether this operator continues from a checkpoint; False only where there is none that knows it."""
        return self._restored

    def get_restored_checkpoint_id(self) -> int | None:
        """Id of the checkpoint that the operator continues from; None where it starts empty."""
        return self._restored_checkpoint_id

    def get_operator_state_store(self) -> OperatorStateStore:
        """Where operator state is asked for."""
        return self._operator_state_store

    def get_keyed_state_store(self) -> RuntimeContext:
        """Where keyed state may be asked for already: ``get_state``, ``get_list_state`` and so on.

        The handles can be used once there is a key. Outside of keyed streams asking raises StateAccessError.
        """
        return self._keyed_state_store


class CheckpointedFunction:
    """A function with operator state.

    Example:
        >>> class Seen(CheckpointedFunction):
        ...     def initialize_state(self, context):
        ...         descriptor = ListStateDescriptor("seen", int)
        ...         self.stored = context.get_operator_state_store().get_list_state(descriptor)
        ...         self.seen = sum(self.stored.get())
        ...     def snapshot_state(self, context):
        ...         self.stored.update([self.seen])
        >>> from state_engine.core.state.descriptors import ListStateDescriptor
    """

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Called at the end of every micro-batch: bring the states up to date."""
        raise NotImplementedError(f"{type(self).__name__} must define snapshot_state(self, context)")

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Called before ``open`` in every micro-batch: ask for the states, and take over what was restored."""
        raise NotImplementedError(f"{type(self).__name__} must define initialize_state(self, context)")


class ListCheckpointed:
    """A function whose state is one list, dealt out evenly over the subtasks when the parallelism changes.

    Attributes:
        state_type: type of an element, as a descriptor would take it; without it, elements are plain Python values
            (numbers, text, bytes, dates, None, and tuples, lists and dicts of them).

    Example:
        >>> class Counter(ListCheckpointed):
        ...     offset = 0
        ...     def snapshot_state(self, checkpoint_id, timestamp):
        ...         return [self.offset]
        ...     def restore_state(self, state):
        ...         self.offset = sum(state)
    """

    state_type: ClassVar[Any] = None

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[Any]:
        """Called at the end of every micro-batch; ``timestamp`` is its recorded clock in milliseconds.

        Return the whole state; no list (None) is an empty one.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define snapshot_state(self, checkpoint_id, timestamp)"
        )

    def restore_state(self, state: list[Any]) -> None:
        """Called before ``open`` where the operator continues from a checkpoint; the list may be empty."""
        raise NotImplementedError(f"{type(self).__name__} must define restore_state(self, state)")


class CheckpointListener:
    """Is notified of what became of a checkpoint: at least once, in order, never before the commit."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is committed: other systems may be notified."""
        raise NotImplementedError(
            f"{type(self).__name__} must define notify_checkpoint_complete(self, checkpoint_id)"
        )

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """The checkpoint will never be committed. Need not be defined."""


def has_checkpoint_hooks(function: object) -> bool:
    """Whether checkpoints concern a function: it keeps state of its own, or is notified of them.

    Example:
        >>> has_checkpoint_hooks(CheckpointListener()), has_checkpoint_hooks(max)
        (True, False)
    """
    return has_operator_state(function) or isinstance(function, CheckpointListener)


def has_operator_state(function: object) -> bool:
    """Whether a function keeps state of its own over checkpoints, through ``snapshot_state``."""
    return isinstance(function, CheckpointedFunction | ListCheckpointed)
