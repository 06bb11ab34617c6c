"""Runs of a job in time partitions: which one is next, in what order they may be run, and how far each of them is.

The order is kept here, at the parent that the micro-batch is committed on, whatever a scheduler does: a partition
runs only where the head ends with the one before it. Two runners of one partition both begin; the fence of the commit
lets one of them end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.history import History
from state_engine.core.errors import ConfigurationError
from state_engine.core.time.partitions import Partition, TimePartitions, order_refusal
from state_engine.job.job import StatefulJob
from state_engine.microbatch.findings import Finding, Part
from state_engine.microbatch.planning import PartitionInput, PlannedStep
from state_engine.publishing.stale_outputs import stale_outputs
from state_engine.sources.base import Slice
from state_engine.sources.partitioned_input import PartitionSlice

STOP = "stop"
"""Mode of a backfill that leaves later partitions stale; recorded in the rows that it commits."""


@dataclass(frozen=True)
class Cut:
    """What was planned, as a batch takes it.

    Attributes:
        without_rows: that move a position only.
        partition: that they are of, or the parent's; None in a continuous job.
    """

    slices: dict[str, Slice]
    without_rows: dict[str, Slice] = field(default_factory=dict)
    partition: Partition | None = None
    late_rows: int = 0


def cut_of(planned: Mapping[str, Slice], parent: CheckpointRow | None) -> Cut:
    """What slices of a partition show of it; a batch without any is of its parent's partition."""
    details = {n: s.detail for n, s in planned.items() if isinstance(s.detail, PartitionSlice)}
    if not details:
        return Cut(
            {n: s for n, s in planned.items() if not s.without_rows},
            {n: s for n, s in planned.items() if s.without_rows},
            partition=partition_of(parent) if parent else None,
        )
    empty = {n for n, detail in details.items() if not detail.pieces}
    return Cut(
        {n: s for n, s in planned.items() if n not in empty},
        {n: s for n, s in planned.items() if n in empty},
        next(iter(details.values())).partition,
        sum(detail.late_rows for detail in details.values()),
    )


def partition_of(row: CheckpointRow) -> Partition | None:
    """The partition that a row ends with; None in a continuous job."""
    if row.partition_start_ms is None or row.partition_end_ms is None:
        return None
    return Partition(row.partition, row.partition_start_ms, row.partition_end_ms)


def partitions_of(job: StatefulJob, what: str) -> TimePartitions:
    """The partitions of a job; raises ConfigurationError where it is continuous, naming the call."""
    if job.partitions is None:
        raise ConfigurationError(
            f"job '{job.name}' is continuous, and {what} is for jobs in time partitions: declare "
            "StatefulJob(partitions=TimePartitions(…)) on a new job. To correct a continuous job, run what was "
            "recorded again on a branch and make that the head: engine.replay(job, …), then engine.promote(job, …)"
        )
    return job.partitions


def partition_findings(job: StatefulJob, parent: CheckpointRow | None) -> Iterator[Finding]:
    """A job that was continuous and is sliced now, or the other way round."""
    if parent is None or bool(parent.partition) == (job.partitions is not None):
        return
    part = Part("job", job.name)
    if parent.partition:
        error = ConfigurationError(
            f"job '{job.name}' was run in time partitions up to {parent.partition}, and is declared without: its "
            "sources' positions would be misread. Declare its partitions again, or give the job a new name"
        )
        yield Finding(part, error)
        return
    moved = [s.name for s in parent.sources if '"elements": 0' not in s.position_to]
    if moved:
        error = ConfigurationError(
            f"job '{job.name}' read its sources {moved} without time partitions before: give the job a new name, or "
            "declare it without partitions again"
        )
        yield Finding(part, error)


class PartitionSteps:
    """The steps of a run of partitions, one after the other.

    Args:
        only: key of the one partition to run; None for all that are over by the processing time.
        up_to: the last partition to run, over or not; None for no such end.
    """

    def __init__(
        self,
        job: StatefulJob,
        *,
        only: str | None = None,
        drain: bool = False,
        up_to: Partition | None = None,
    ) -> None:
        self._job, self._partitions = job, partitions_of(job, "partition=")
        self._only = self._partitions.at(only) if only is not None else None
        self._drain, self._up_to = drain, up_to

    def __call__(self, path: list[CheckpointRow], now: Callable[[], int]) -> PlannedStep | None:
        following = self._following(path[-1] if path else None, now)
        if following is not None:
            return PlannedStep(PartitionInput(following))
        return PlannedStep(None, drain=True, optional=True) if self._drain else None

    def _following(self, parent: CheckpointRow | None, now: Callable[[], int]) -> Partition | None:
        last = partition_of(parent) if parent else None
        if self._only is not None:
            refusal = order_refusal(self._partitions, self._only, last=last, job=self._job.name)
            if refusal is not None:
                raise refusal
            return None if last is not None and last.end_ms == self._only.end_ms else self._only
        following = self._partitions.next_of(last.end_ms if last else None)
        if following is None:
            return None
        end_ms = now() if self._up_to is None else self._up_to.end_ms
        return following if following.end_ms <= end_ms else None


@dataclass(frozen=True)
class PartitionStatus:
    """One partition of a job.

    Attributes:
        key: of the partition.
        state: ``done``: on the head's path; ``stale``: its outputs are those of before a backfill of earlier ones, and
            are replaced when it runs again; ``missing``: it was not run, or was taken back.
        checkpoint_id: the last checkpoint of it; of a stale one, that of its outputs; None where it is missing.
        rows: read for it.
        late_rows: rows of earlier partitions that it found in the sources.
    """

    key: str
    state: Literal["done", "stale", "missing"]
    checkpoint_id: int | None = None
    rows: int = 0
    late_rows: int = 0


def partition_states(partitions: TimePartitions, history: History, *, now_ms: int) -> list[PartitionStatus]:
    """All partitions up to the last one that was ever run, and those that are complete by now, in order."""
    done, stale = by_partition(history.main_path), by_partition(stale_rows(history))
    last_ms = max(
        [r.partition_end_ms or 0 for runs in (done, stale) for one in runs.values() for r in one], default=0
    )
    states = []
    for partition in partitions.from_to(partitions.first(), max(now_ms, last_ms)):
        state: Literal["done", "stale", "missing"] = "missing"
        runs: list[CheckpointRow] = []
        if partition.key in done:
            state, runs = "done", done[partition.key]
        elif partition.key in stale:
            state, runs = "stale", stale[partition.key]
        states.append(
            PartitionStatus(
                partition.key,
                state,
                runs[-1].checkpoint_id if runs else None,
                sum(r.rows_in for r in runs),
                sum(r.late_rows for r in runs),
            )
        )
    return states


def by_partition(rows: list[CheckpointRow]) -> dict[str, list[CheckpointRow]]:
    """The micro-batches among rows, by partition, in order."""
    grouped: dict[str, list[CheckpointRow]] = {}
    for row in rows:
        if row.kind.is_micro_batch and row.partition:
            grouped.setdefault(row.partition, []).append(row)
    return grouped


def stale_rows(history: History) -> list[CheckpointRow]:
    """Micro-batches behind the head that a backfill left behind, or whose outputs are still shown otherwise."""
    top = history.head
    if top is None or top.partition_end_ms is None:
        return []
    left = {i for i, by in history.abandoned_by.items() if f" {STOP}" in history[by].backfill}
    left |= set(stale_outputs(history, top.checkpoint_id))
    micro_batches = [history[i] for i in sorted(left) if history[i].kind.is_micro_batch]
    return [
        r
        for r in micro_batches
        if r.partition_start_ms is not None and r.partition_start_ms >= top.partition_end_ms
    ]
