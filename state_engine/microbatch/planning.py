"""``InputPlanner``: what micro-batches read, in which order, and under which processing time; one for every run.

    step    what the next micro-batch is to be, decided from the path alone (``Steps``)
    slices  what each source gives for that: its new input, its rows of a partition, or what was recorded
    clock   that of the micro-batch that is repeated, else that of the run
    time    what moves event time besides the rows: as recorded, else by the clock and the partition

A run, a run of time partitions, a replay and a backfill differ in their steps only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, cast

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.clock_jumps import check_jump, is_behind, standing_time
from state_engine.core.time.partitions import Partition
from state_engine.core.time.time_plan import PlannedSource, TimePlan, plan_time
from state_engine.job.job import StatefulJob
from state_engine.microbatch.batch import PlannedInput
from state_engine.microbatch.quiet_time import any_timer_due, recorded_time, waiting_sources
from state_engine.sources.base import Slice, Source, naming_source
from state_engine.sources.partitioned_input import PartitionedSource
from state_engine.sources.source_positions import SourcePositions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class NewInput:
    """What the sources have after the path.

    Attributes:
        bounded: whether somebody says how many batches there are; else a source without end gives one.
    """

    bounded: bool = False


@dataclass(frozen=True)
class RecordedInput:
    """What micro-batches read before.

    Attributes:
        again: whether the sources cut it again by their own bounds; else it is the slices of one micro-batch.
    """

    batches: Sequence[CheckpointRow]
    anew: bool = False


@dataclass(frozen=True)
class PartitionInput:
    """The rows of a partition, as the sources hold them now.

    Attributes:
        recorded: the micro-batch that read them before. What it read is read again by each source that stands where
            it stood then.
    """

    partition: Partition
    recorded: CheckpointRow | None = None


@dataclass(frozen=True)
class PlannedStep:
    """What the next micro-batch is to be.

    Attributes:
        repeats: the micro-batch whose processing time and parallelism it has; None for those of the run.
        drain: whether the input has ended for good, where the sources give nothing.
        optional: whether there is no micro-batch where the sources give nothing and no timer is due.
    """

    reads: NewInput | RecordedInput | PartitionInput | None
    repeats: CheckpointRow | None = None
    drain: bool = False
    optional: bool = False

    @property
    def cuts_anew(self) -> bool:
        """Whether the rows may be others than those of the micro-batch that is repeated, or be cut otherwise."""
        match self.reads:
            case RecordedInput(anew=anew):
                return anew
            case PartitionInput(recorded=recorded):
                return recorded is None
        return False


_LOG = logging.getLogger(__name__)

Steps = Callable[[list[CheckpointRow], Callable[[], int]], PlannedStep | None]
"""What comes after a path, given also the clock of processing time; None where there is nothing more."""


class InputPlanner:
    """Plans the micro-batches of one run; a ``Script`` for the coordinator.

    Args:
        clock: gives the processing time in milliseconds; asked at most once a micro-batch.
        sources: of the job, for this run, see ``Source.for_run``; None to make them.
        repeats_times: whether micro-batches that are repeated have their recorded time; else that of ``clock``.
    """

    def __init__(
        self,
        job: StatefulJob,
        steps: Steps,
        *,
        positions: SourcePositions,
        spark: SparkSession,
        clock: Callable[[], int],
        repeats_times: bool = True,
        sources: Mapping[str, Source] | None = None,
    ) -> None:
        self._job, self._steps, self._positions, self._spark = job, steps, positions, spark
        self._clock, self._repeats_times = clock, repeats_times
        self._sources = sources_of_run(job) if sources is None else sources
        self._exhausted: set[str] = set()
        self._begin_id: int | None = None
        self._warned = False

    def __call__(self, path: list[CheckpointRow]) -> PlannedInput | None:
        now = cache(self._clock)
        step = self._steps(path, now)
        if step is None:
            return None
        slices = self._slices(path, step)
        row, parent = step.repeats, path[-1] if path else None
        before_ms = parent.clock_ms if parent else 0
        repeated = row.clock_ms if row is not None and self._repeats_times else None
        clock_ms = max(before_ms, now() if repeated is None else repeated)
        if repeated is None and is_behind(now(), parent) and not self._warned:
            self._warned = True
            _LOG.warning("job '%s': %s", self._job.name, standing_time(now(), before_ms))
        drain = step.drain and not slices
        time = self._time(step, parent, slices, clock_ms)
        idle = step.optional and not slices
        if idle and self._fired_timers(path):
            return None
        if idle and not any_timer_due(self._job, parent, clock_ms=clock_ms, time=time, drain=drain):
            return None
        rescaled = row.rescaled if row is not None else None
        recorded = repeated is not None
        return PlannedInput(slices, clock_ms, drain, rescaled=rescaled, time=time, recorded_clock=recorded)

    def _fired_timers(self, path: Sequence[CheckpointRow]) -> bool:
        """Whether the last micro-batch of this run had no input, either.

        Timers that it set for later wait for the next run. Else a run whose timers are always due when the next
        micro-batch is planned would never end.
        """
        if self._begin_id is None:
            self._begin_id = path[-1].checkpoint_id if path else 0
        last = next((row for row in reversed(path) if row.kind.is_micro_batch), None)
        if last is None or last.checkpoint_id <= self._begin_id:
            return False
        return all(source.position_from == source.position_to for source in last.sources)

    def _time(
        self, step: PlannedStep, parent: CheckpointRow | None, slices: Mapping[str, Slice], clock_ms: int
    ) -> TimePlan:
        """What moves event time besides the rows."""
        if step.repeats is not None and not step.cuts_anew:
            recorded = recorded_time(step.repeats)
            return replace(recorded, idle=recorded.idle - {n for n, part in slices.items() if part.labels})
        partition = step.reads.partition if isinstance(step.reads, PartitionInput) else None
        known = waiting_sources(self._job, parent)
        planned = {n: _planned(one, slices.get(n), left_out=n in self._exhausted) for n, one in known.items()}
        return plan_time(planned, clock_ms=clock_ms, partition_end_ms=partition.end_ms if partition else None)

    def recorded(
        self, name: str, source: Source, path: Sequence[CheckpointRow], reads: RecordedInput
    ) -> Slice | None:
        """What a source gave to micro-batches before; None where that was nothing.

        Args:
            path: to the checkpoint after which it is to be read.
        """
        appended = self._positions.elements(list(reads.batches), name, source)
        if not appended:
            return None
        before = self._positions.elements(path, name, source)
        with self._naming(name, f"replay of checkpoint {reads.batches[-1].checkpoint_id}"):
            if reads.anew:
                return source.rebatch(self._spark, before, appended)
            return source.replan(self._spark, before, appended)

    def _slices(self, path: list[CheckpointRow], step: PlannedStep) -> dict[str, Slice]:
        slices: dict[str, Slice] = {}
        for name, source in self._sources.items():
            match step.reads:
                case NewInput() as reads:
                    part = self._new(name, source, path, reads)
                case RecordedInput() as reads:
                    part = self.recorded(name, source, path, reads)
                case PartitionInput() as reads:
                    part = self._of_partition(name, source, path, reads)
                case None:
                    part = None
            if part is not None:
                slices[name] = part
        return slices

    def _new(self, name: str, source: Source, path: list[CheckpointRow], reads: NewInput) -> Slice | None:
        if name in self._exhausted:
            return None
        elements = self._positions.elements(path, name, source)
        with self._naming(name):
            part = source.plan(self._spark, elements)
        if part is not None and part.endless and not reads.bounded:
            self._exhausted.add(name)
        return part

    def _of_partition(
        self, name: str, source: Source, path: list[CheckpointRow], reads: PartitionInput
    ) -> Slice | None:
        row = reads.recorded
        if row is not None and position_after(name, source, path) == _position_before(name, row):
            part = self.recorded(name, source, path, RecordedInput([row]))
            if part is not None:
                return part
        elements = self._positions.elements(path, name, source)
        with self._naming(name):
            return cast(PartitionedSource, source).plan_partition(self._spark, elements, reads.partition)

    def _naming(self, source: str, doing: str = "") -> AbstractContextManager[None]:
        return naming_source(self._job.name, source, doing)


def sources_of_run(job: StatefulJob) -> dict[str, Source]:
    return {name: node.source.for_run() for name, node in job.sources.items()}


def new_input(*, drain: bool, bounded: bool) -> Steps:
    """The steps of a run of a continuous job: what is new, as long as there is anything, or a timer is due.

    Args:
        drain: whether the input has ended for good, once all is read.
    """
    step = PlannedStep(NewInput(bounded), drain=drain, optional=True)
    return lambda path, now: step


def _planned(source: PlannedSource, part: Slice | None, *, left_out: bool) -> PlannedSource:
    more = left_out or (part is not None and (part.more or part.endless))
    return replace(source, unread=more or (part is not None and bool(part.labels)), more=more)


def position_after(name: str, source: Source, path: Sequence[CheckpointRow]) -> str:
    """Where a source stands after the last row of a path; at its beginning where that does not know it."""
    reached = {s.name: s.position_to for s in path[-1].sources} if path else {}
    return reached.get(name) or source.empty_position()


def _position_before(name: str, row: CheckpointRow) -> str | None:
    source = row.source(name)
    return source.position_from if source else None


def check_clock(job: StatefulJob, clock_ms: int, parent: CheckpointRow | None) -> None:
    """Refuse a clock that is further ahead than the job allows.

    Args:
        parent: the last checkpoint; None for the clock of this machine.
    """
    if job.max_clock_jump_ms is not None:
        now_ms = time.time_ns() // 1_000_000
        check_jump(clock_ms, parent, machine_ms=now_ms, bound_ms=job.max_clock_jump_ms, job=job.name)
