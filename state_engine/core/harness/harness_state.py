"""``HarnessState``: what a harness keeps between micro-batches, and restores from.

The part that committed checkpoints play on the engine, for ``state_engine.testing``: the state of all subtasks is
taken over at once, after the last of them is through.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.checkpointed import CheckpointListener
from state_engine.core.harness.harness_batch import combined_ms
from state_engine.core.harness.harness_run import HarnessRun
from state_engine.core.operator_state.operator_snapshot import (
    BROADCAST,
    StateElements,
    SubtaskSnapshot,
    assign,
)
from state_engine.core.state.descriptors import TIMERS
from state_engine.core.state.memory_state import MemoryState
from state_engine.core.types.every_type import TypeInformation
from state_engine.core.types.json_values import from_json
from state_engine.core.types.plain_type import PlainType
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.core.types.type_parsing import to_type


@dataclass
class HarnessState:
    """Stored state of a harness between two batches, or a snapshot of it.

    Attributes:
        operator: None where no batch has run yet.
        clock_ms: when the snapshot was made.
        restored: whether the next batch is the first one after a restore.
        idle: inputs that hold back no other one.
        reached_ms: the watermark of the operator, below which it does not go; the smallest long while none was idle.
    """

    keyed: MemoryState = field(default_factory=MemoryState)
    operator: tuple[SubtaskSnapshot, ...] | None = None
    clock_ms: int = 0
    watermarks_ms: tuple[int, ...] = (MIN_TIMESTAMP,)
    checkpoint_id: int = 0
    elements: int = 0
    restored: bool = False
    idle: frozenset[int] = frozenset()
    reached_ms: int = MIN_TIMESTAMP

    @property
    def watermark_ms(self) -> int:
        """That of the slowest input which is not idle."""
        return combined_ms(self.watermarks_ms, self.idle, self.reached_ms)

    def restart(self) -> HarnessState:
        """The state to continue from a snapshot with, which stays as it is."""
        return replace(self, keyed=self.keyed.copied(), restored=True)

    def snapshot(self, *, clock_ms: int) -> HarnessState:
        """A full snapshot: where a state asks for it, what has expired is left out, here and not in what is kept."""
        watermark_ms = None if self.watermark_ms == MIN_TIMESTAMP else self.watermark_ms
        keyed = self.keyed.without_expired(clock_ms=clock_ms, watermark_ms=watermark_ms)
        return replace(self, keyed=keyed, clock_ms=clock_ms)

    def assigned(
        self, operator: str, *, parallelism: int, max_parallelism: int
    ) -> list[SubtaskSnapshot | None]:
        """The operator state that each subtask starts with. Raises RescaleError where it cannot be divided."""
        if self.operator is None:
            return [None] * parallelism
        return list(
            assign(
                self.operator,
                parallelism,
                operator=operator,
                max_parallelism=max_parallelism,
                restored=self.restored,
            )
        )

    def commit(self, runs: list[HarnessRun]) -> None:
        """Take over the state of all subtasks, and notify listeners."""
        for run in runs:
            for descriptor, changes in run.changes:
                self.keyed.fold(descriptor, changes)
        self.operator, self.restored = tuple(run.state for run in runs), False
        self.checkpoint_id += 1
        for run in runs:
            if isinstance(run.function, CheckpointListener):
                run.function.notify_checkpoint_complete(self.checkpoint_id)

    def values(self, name: str) -> Any:
        """What is stored of one state: keyed state by key, operator state by subtask."""
        if name in self.keyed.entries:
            return self.keyed.values(name)
        snapshots = self.operator or ()
        subtasks = [snapshot.state(name) for snapshot in snapshots]
        if not any(subtasks):
            operator = {state.name for snapshot in snapshots for state in snapshot.states}
            known = sorted({*self.keyed.entries, *operator} - {TIMERS})
            raise ConfigurationError(f"there is no state '{name}' yet; states: {known}")
        return [stored_elements(subtask_state) if subtask_state else [] for subtask_state in subtasks]


def stored_elements(state: StateElements) -> Any:
    """The elements of a list state, without the function that declared it; a dict of the entries of broadcast state.

    Records come as tuples with the names of their fields, whatever class they were declared with.

    Example:
        >>> stored_elements(StateElements("buffered", "even_split", "bigint", ("1", "2")))
        [1, 2]
    """
    plain = PlainType()
    kind: TypeInformation = plain if state.type == str(plain) else to_type(state.type, parameter="type")
    values = from_json(kind, state.elements)
    return dict(values) if state.scheme == BROADCAST else values
