"""``BatchContext``: what one attempt at a micro-batch works on, and ``PlannedInput``: what was planned for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow, RescaledOperator
from state_engine.core.checkpoints.dead_letters import LETTERS
from state_engine.core.time.partitions import Partition
from state_engine.core.time.time_plan import ROWS_ALONE, TimePlan
from state_engine.microbatch.routing.origins import EventTimes
from state_engine.sources.base import Slice
from state_engine.storage.state.copy_directory import NO_COPIES, LocalCopies

if TYPE_CHECKING:
    from state_engine.microbatch.dead_letters import LettersSlice


@dataclass(frozen=True)
class PlannedInput:
    """What a micro-batch reads, and its time.

    Attributes:
        slices: what each source gives; sources without new data are absent.
        clock_ms: processing time, in milliseconds; never below the parent's.
        rescaled: operators whose parallelism an operation had changed, instead of the parent's; None for the parent's.
        letters: dead letters that are sent again; the sources give nothing then.
    """

    slices: Mapping[str, Slice]
    clock_ms: int
    drain: bool = False
    rescaled: list[RescaledOperator] | None = None
    letters: LettersSlice | None = None
    time: TimePlan = ROWS_ALONE
    recorded_clock: bool = False


Script = Callable[[list[CheckpointRow]], PlannedInput | None]
"""Plans what comes after a path; None where there is nothing more."""


@dataclass(frozen=True)
class BatchContext:
    """What one attempt works on.

    Attributes:
        slices: what each source gives to this batch; sources without new data are absent.
        watermarks_ms: watermark of each source with event time before the batch; None before its first row.
        parallelism: number of subtasks of every operator, by uid.
        without_rows: slices that move the position of their source and bring no rows.
        partition: the time partition that it is of; None in a continuous job.
        late_rows: rows found whose partition had been run before.
        local_copies: of files of bases, on the machines that run subtasks.
    """

    write_id: str
    path: list[CheckpointRow]
    slices: Mapping[str, Slice]
    clock_ms: int
    watermarks_ms: Mapping[str, int | None]
    parameters: Mapping[str, str]
    checkpoint_id: int
    parallelism: Mapping[str, int]
    branch: str = MAIN
    drain: bool = False
    without_rows: Mapping[str, Slice] = field(default_factory=dict)
    partition: Partition | None = None
    late_rows: int = 0
    backfill: str = ""
    letters: LettersSlice | None = None
    time: TimePlan = ROWS_ALONE
    local_copies: LocalCopies = NO_COPIES

    def on_branch(self, branch: str) -> BatchContext:
        """The same, to be committed on another branch."""
        return replace(self, branch=branch)

    @property
    def event_times(self) -> EventTimes:
        """How far event time is before the batch."""
        known = self.parent.operator_watermarks_ms if self.parent else {}
        return EventTimes(self.watermarks_ms, self.time.idle, known)

    @property
    def moved(self) -> dict[str, Slice]:
        """What every source whose position moves gives, rows or none."""
        sent = {} if self.letters is None else {LETTERS: self.letters.slice}
        return {**self.slices, **self.without_rows, **sent}

    @property
    def parent(self) -> CheckpointRow | None:
        return self.path[-1] if self.path else None
