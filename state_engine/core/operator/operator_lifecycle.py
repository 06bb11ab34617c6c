"""``OperatorLifecycle``: one subtask's function from the state it is given to the state it leaves.

Calls the hooks in Flink's order: ``initialize_state`` or ``restore_state``, then ``open``, the elements, then
``snapshot_state`` (also where no element came), then ``close``. Runs any function class, with operator state or
without. Mirrors Flink's ``StreamOperatorStateHandler`` and ``StreamingFunctionUtils``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.functions.checkpointed import (
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    ListCheckpointed,
)
from state_engine.core.functions.runtime_context import RuntimeContext, TaskInfo
from state_engine.core.keys.key_groups import key_group_range
from state_engine.core.operator_state.operator_snapshot import SubtaskSnapshot
from state_engine.core.operator_state.raw_state import (
    RawKeyedInput,
    RawKeyedOutput,
    RawOperatorInput,
    RawOperatorOutput,
)
from state_engine.core.operator_state.store import OperatorStateStore
from state_engine.core.state.descriptors import TIMERS
from state_engine.core.state.keyed_state import KeyedStateStore
from state_engine.core.state.state_table import KeyContext
from state_engine.core.types.plain_type import PlainType
from state_engine.core.types.type_parsing import to_type


@dataclass(frozen=True)
class Resumption:
    """Where an operator continues.

    Attributes:
        checkpoint_id: of the checkpoint that this micro-batch makes.
        restored: what the subtask starts with, as ``assign`` gave it; None where no checkpoint knows the operator.
        parent_id: the parent checkpoint; None where there is none.
    """

    checkpoint_id: int = 1
    restored: SubtaskSnapshot | None = None
    parent_id: int | None = None


FIRST_RUN = Resumption()


class OperatorLifecycle:
    """One function of one subtask during one micro-batch.

    Args:
        keyed_store: keyed states; None outside of keyed streams.
        context: the current element, whose refusal also takes back its writes to operator state.
    """

    def __init__(
        self,
        function: Any,
        *,
        info: TaskInfo,
        clock_ms: int,
        resumption: Resumption = FIRST_RUN,
        keyed_store: KeyedStateStore | None = None,
        context: KeyContext | None = None,
    ) -> None:
        self.function, self._info, self._restored = function, info, resumption.restored
        self._checkpoint_id, self._clock_ms = resumption.checkpoint_id, clock_ms
        self._parent_id = resumption.parent_id
        self._keyed_store = keyed_store
        self.store = OperatorStateStore(info.task_name, resumption.restored, context)
        self.runtime_context = RuntimeContext(info, keyed_store)

    def initialize(self) -> None:
        """Hand out the state, before ``open``: ``initialize_state``, or ``restore_state`` if there is any."""
        function = self.function
        if isinstance(function, CheckpointedFunction) and isinstance(function, ListCheckpointed):
            raise ConfigurationError(
                f"operator '{self._info.task_name}': {type(function).__name__} is both a CheckpointedFunction and a "
                "ListCheckpointed, which take different arguments for snapshot_state; choose one"
            )
        if isinstance(function, CheckpointedFunction):
            function.initialize_state(self._initialization_context())
        elif isinstance(function, ListCheckpointed) and self._restored is not None:
            function.restore_state(self.list_state().get())

    def open(self) -> None:
        if hasattr(self.function, "open"):
            self.function.open(self.runtime_context)

    @property
    def asked(self) -> frozenset[str]:
        """Names of the states that the function has asked for by now, keyed and of the operator."""
        keyed = self._keyed_store.tables if self._keyed_store is not None else {}
        return frozenset(keyed) - {TIMERS} | self.store.asked

    def snapshot(self) -> SubtaskSnapshot:
        """What the checkpoint holds of this subtask; call it after the last element, for every checkpoint."""
        restored = self._restored or SubtaskSnapshot()
        raw_operator, raw_keyed = restored.raw_operator, restored.raw_keyed  # kept where no function takes it
        if isinstance(self.function, CheckpointedFunction):
            context = self._snapshot_context()
            self.function.snapshot_state(context)
            raw_operator, raw_keyed = context.raw_operator_state.finish(), context.raw_keyed_state.finish()
        elif isinstance(self.function, ListCheckpointed):
            self._snapshot_list(self.function)
        return SubtaskSnapshot(self.store.snapshot(), raw_operator, raw_keyed)

    def close(self) -> None:
        if hasattr(self.function, "close"):
            self.function.close()

    def _initialization_context(self) -> FunctionInitializationContext:
        restored = self._restored or SubtaskSnapshot()
        return FunctionInitializationContext(
            restored_checkpoint_id=self._parent_id if self._restored is not None else None,
            is_restored=self._restored is not None,
            operator_state_store=self.store,
            keyed_state_store=self.runtime_context,
            raw_operator_state=RawOperatorInput(restored.raw_operator),
            raw_keyed_state=RawKeyedInput(restored.raw_keyed),
        )

    def _snapshot_context(self) -> FunctionSnapshotContext:
        info = self._info
        own = (
            key_group_range(info.max_parallelism, info.parallelism, info.subtask)
            if self._keyed_store is not None
            else None
        )
        return FunctionSnapshotContext(
            checkpoint_id=self._checkpoint_id,
            timestamp_ms=self._clock_ms,
            raw_operator_state=RawOperatorOutput(info.task_name),
            raw_keyed_state=RawKeyedOutput(info.task_name, info.subtask, own),
        )

    def _snapshot_list(self, function: ListCheckpointed) -> None:
        elements: Any = function.snapshot_state(self._checkpoint_id, self._clock_ms)
        if elements is not None and not isinstance(elements, list | tuple):
            raise ValueTypeError(
                f"operator '{self._info.task_name}': snapshot_state of {type(function).__name__} returned "
                f"{elements!r}; return a list, [{elements!r}] for a state that cannot be divided"
            )
        self.list_state().update(elements or [])

    def list_state(self) -> Any:
        declared = self.function.state_type
        kind = PlainType() if declared is None else to_type(declared, parameter="state_type")
        return self.store.list_checkpointed(kind)
