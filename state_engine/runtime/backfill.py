"""Backfills: time partitions run again from the state in front of them, on a branch, and the swap that ends it.

A branch begins where ``main`` stood before the first of them. Partitions that ``main`` ran are run again as they were
recorded (the same rows, clock and parallelism), or from what the sources hold of them now (``recut``, which takes rows
that were late); those that it did not run yet follow. One fenced row then makes the branch's head that of the job, and
one commit a sink takes old outputs out and puts new ones in. How far a backfill came is told by the rows of its branch,
each of which says in words which backfill it is of, so that the same call goes on with it. Flink has no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal

from pyspark.sql import SparkSession

from state_engine.core import lineage
from state_engine.core.checkpoint import MAIN, CheckpointRow
from state_engine.core.errors import ConfigurationError, PartitionOrderError, StaleParentError
from state_engine.core.lineage import Rows
from state_engine.core.partitions import Partition, TimePartitions
from state_engine.core.resumption import TRANSFORM
from state_engine.core.retention import restore_refusal
from state_engine.core.sink_moves import content, leaving, moves
from state_engine.runtime.batch import PlannedInput
from state_engine.runtime.job import StatefulJob
from state_engine.runtime.operations import HeadMove, Operations
from state_engine.runtime.partition_runs import STOP, by_partition, partition_of, planned_now
from state_engine.runtime.publication import Publication
from state_engine.runtime.replay import was_drained
from state_engine.runtime.reports import BatchReport
from state_engine.runtime.source_positions import SourcePositions
from state_engine.runtime.sources.base import Slice
from state_engine.runtime.stale_outputs import stale_of, withdrawing

Mode = Literal["roll_forward", "stop", "branch"]
MODES = ("roll_forward", STOP, "branch")


@dataclass(frozen=True)
class BackfillRequest:
    """What was asked for; two calls with the same one go on with one backfill.

    Attributes:
        first, last: partitions.
        mode: what becomes of it.
        recut: whether partitions are read anew from what the sources hold now.
        code_version: of the code that runs.
        branch: name; None for one that there is, or a new one.
    """

    first: Partition
    last: Partition
    mode: Mode
    recut: bool
    code_version: str
    branch: str | None = None

    @property
    def words(self) -> str:
        """As rows tell it."""
        return f"{self.first.key}..{self.last.key} {self.mode}{' recut' if self.recut else ''}"

    def owns(self, row: CheckpointRow) -> bool:
        """Whether a row belongs to it."""
        return row.backfill == self.words and row.code_version == self.code_version


@dataclass(frozen=True)
class BackfillPlan:
    """What is left to do.

    Attributes:
        request: what was asked for.
        head: of ``main``; None where it has none.
        branch: to run on; ``main`` where all partitions are still to be run for the first time.
        begin_id: the checkpoint that the branch begins at; None for nothing.
        todo: partitions to go through on the branch, those included that are done there.
        recorded: the micro-batches that ``main`` ran of them.
        own: the micro-batches of the branch, by partition.
        rows: all rows.
    """

    request: BackfillRequest
    head: CheckpointRow | None
    branch: str
    begin_id: int | None
    todo: list[Partition]
    recorded: dict[str, list[CheckpointRow]]
    own: dict[str, list[CheckpointRow]]
    rows: Rows

    def left(self) -> list[CheckpointRow]:
        """Micro-batches whose outputs the swap takes out of the sinks."""
        end_ms = self.todo[-1].end_ms
        past = [row for runs in self.recorded.values() for row in runs]
        return [row for row in past if (row.partition_end_ms or 0) <= end_ms]


@dataclass(frozen=True)
class BackfillReport:
    """What one call of ``StateEngine.backfill`` did, or in a dry run would do.

    Attributes:
        job: name.
        mode: as asked for.
        branch: that it ran on; ``main`` where the partitions were run for the first time.
        begin_id: the checkpoint that it began at; None for the very beginning.
        partitions: all that it goes through, in order.
        resumed: those of them that an earlier call had run already.
        rows_recorded: rows that each of them had read before, where it was run before.
        stale: partitions whose outputs are those of before, until they are run again.
        batches: micro-batches of this call.
        move: of the head and of the outputs; None in a dry run, on ``main``, and in the mode ``branch``.
        rows_withdrawn: rows of outputs that leave, by sink; what they are in a dry run.
        rows_added: rows of outputs that come, by sink; in a dry run as many as the recorded runs put out, None for
            partitions that were never run.
    """

    job: str
    mode: Mode
    branch: str
    begin_id: int | None
    partitions: list[str]
    resumed: list[str]
    rows_recorded: dict[str, int]
    stale: list[str] = field(default_factory=list)
    batches: list[BatchReport] = field(default_factory=list)
    move: HeadMove | None = None
    rows_withdrawn: dict[str, int] = field(default_factory=dict)
    rows_added: dict[str, int] = field(default_factory=dict)


def plan_backfill(job: str, partitions: TimePartitions, rows: Rows, request: BackfillRequest) -> BackfillPlan:
    """Find where a backfill begins, what it goes through, and on which branch.

    Raises:
        PartitionOrderError: partitions in front of the first were not run yet.
        ConfigurationError: it cannot begin there, or the branch is none that it can have.
    """
    head = lineage.head(rows)
    path = lineage.path(rows, head.checkpoint_id if head else None)
    last = partition_of(head) if head else None
    following = partitions.next_of(last.end_ms if last else None)
    reached_ms = last.end_ms if last else partitions.first().start_ms
    if request.first.start_ms > reached_ms:
        raise PartitionOrderError(
            f"job '{job}': a backfill from {request.first.key} needs the state at the end of the one before it, and "
            f"the last one that was run is {last.key if last else 'none'}: begin with "
            f"{following.key if following else 'an earlier one'}"
        )
    done = by_partition(path)
    if request.first.start_ms == reached_ms or _first_run_goes_on(request, partitions, last, done):
        todo = partitions.from_to(following, request.last.end_ms)
        return BackfillPlan(request, head, MAIN, head.checkpoint_id if head else None, todo, {}, {}, rows)
    begin_id = _begin(job, rows, path, request.first)
    end_ms = request.last.end_ms if request.mode == STOP else max(request.last.end_ms, reached_ms)
    todo = partitions.from_to(request.first, end_ms)
    starts = {
        key: runs for key, runs in done.items() if (runs[0].partition_start_ms or 0) >= request.first.start_ms
    }
    branch = _branch(job, rows, request, begin_id)
    top = lineage.head(rows, branch)
    on_branch = lineage.path(rows, top.checkpoint_id) if top else []
    own = by_partition([row for row in on_branch if row.branch == branch])
    return BackfillPlan(request, head, branch, begin_id, todo, starts, own, rows)


def _first_run_goes_on(
    request: BackfillRequest,
    partitions: TimePartitions,
    last: Partition | None,
    done: dict[str, list[CheckpointRow]],
) -> bool:
    """Whether this very call had begun to run partitions for the first time, and did not come to its end."""
    if last is None or last.end_ms >= request.last.end_ms:
        return False
    ran = partitions.from_to(request.first, last.end_ms)
    return all(request.owns(row) and row.branch == MAIN for p in ran for row in done.get(p.key, []))


def _begin(job: str, rows: Rows, path: list[CheckpointRow], first: Partition) -> int | None:
    """The row that the first partition was run upon; None for nothing."""
    at = next((i for i, row in enumerate(path) if row.partition_start_ms == first.start_ms), None)
    if at is None:
        raise ConfigurationError(
            f"job '{job}': partition {first.key} is not among those that the head goes back to: the job began "
            f"with '{path[0].kind}', or was sliced otherwise"
        )
    by_hand = [row.checkpoint_id for row in path[at:] if row.kind == TRANSFORM]
    if by_hand:
        raise ConfigurationError(
            f"job '{job}': checkpoint {by_hand[-1]} transformed the state, which a backfill from before it would undo: "
            "begin with a later partition"
        )
    if at == 0:
        return None
    # rows of operations after the last micro-batch hold the same state: any of them that is kept will do
    refusal = None
    for row in reversed(path[:at]):
        refusal = restore_refusal(rows, row.checkpoint_id)
        if refusal is None:
            return row.checkpoint_id
        if row.kind == "checkpoint":
            break
    raise ConfigurationError(
        f"job '{job}': the state in front of partition {first.key} is not kept: {refusal}"
    )


def _branch(job: str, rows: Rows, request: BackfillRequest, begin_id: int | None) -> str:
    known, open_ones = lineage.branches(rows), lineage.open_branches(rows)
    for name, head in open_ones.items():
        if name == MAIN or not request.owns(head) or request.branch not in (None, name):
            continue
        path = lineage.path(rows, head.checkpoint_id)
        if next(row for row in path if row.branch == name).parent_id == begin_id:
            return name
    if request.branch in known:
        raise ConfigurationError(
            f"job '{job}': branch '{request.branch}' is there already and is not of this backfill ({request.words}): "
            "choose another name, or drop it"
        )
    return request.branch or next(name for n in count(1) if (name := f"backfill_{n}") not in known)


class BackfillScript:
    """Plans the micro-batches of a backfill on its branch; a ``Script`` for the coordinator.

    Args:
        job: the code to run.
        plan: what to go through.
        positions: of the job's sources.
        spark: session.
        clock: processing time in place of the recorded one; None for the recorded one.
        now: processing time of partitions that were never run.
    """

    def __init__(
        self,
        job: StatefulJob,
        plan: BackfillPlan,
        *,
        positions: SourcePositions,
        spark: SparkSession,
        clock: Callable[[], int] | None,
        now: Callable[[], int],
    ) -> None:
        self._job, self._plan, self._positions, self._spark = job, plan, positions, spark
        self._clock, self._now = clock, now

    def __call__(self, path: list[CheckpointRow]) -> PlannedInput | None:
        own = by_partition([row for row in path if row.branch == self._plan.branch])
        for partition in self._plan.todo:
            recorded, ran = self._plan.recorded.get(partition.key, []), len(own.get(partition.key, []))
            if ran < max(1, len(recorded)):
                row = recorded[ran] if recorded else None
                slices = {} if ran else self._slices(path, partition, row)
                drain = row is not None and not slices and was_drained(self._plan.rows, row)
                return PlannedInput(slices, self._clock_ms(row), drain, row.rescaled if row else None)
        return None

    def _clock_ms(self, row: CheckpointRow | None) -> int:
        if self._clock is not None:
            return self._clock()
        return row.clock_ms if row is not None else self._now()

    def _slices(
        self, path: list[CheckpointRow], partition: Partition, row: CheckpointRow | None
    ) -> dict[str, Slice]:
        """As recorded, where the branch stands where ``main`` stood then; else what the sources hold now."""
        found: dict[str, Slice] = {}
        reached = {s.name: s.position_to for s in path[-1].sources} if path else {}
        then = {s.name: s.position_from for s in row.sources} if row else {}
        for name, node in self._job.sources.items():
            stands = reached.get(name, node.source.empty_position())
            appended = self._positions.elements([row], name) if row else []
            if appended and then[name] == stands and not self._plan.request.recut:
                found[name] = node.source.replan(self._spark, self._positions.elements(path, name), appended)
            else:
                found[name] = planned_now(self._job, name, path, partition, self._positions, self._spark)
        return found


def swap(operations: Operations, publication: Publication, plan: BackfillPlan) -> HeadMove:
    """Make the branch's head that of the job: one fenced row, and one commit a sink.

    Raises:
        StaleParentError: ``main`` went on since the plan was made; nothing was done.
        SinkError: a sink cannot let go of its outputs.
    """
    rows, head = operations.settled()
    if plan.head is None or lineage.may_reparent(rows, plan.head.checkpoint_id) != head:
        raise StaleParentError(f"the head is checkpoint {head.checkpoint_id} now")
    target = lineage.head(rows, plan.branch)
    assert target is not None
    left = leaving(rows, head.checkpoint_id, target.checkpoint_id)
    end_ms = target.partition_end_ms or 0
    later = [row.checkpoint_id for row in left if (row.partition_start_ms or 0) >= end_ms]
    # what stays now leaves when its partition is run again: better to know at once that it cannot
    publication.check_withdrawable(moves(rows, head.checkpoint_id, target.checkpoint_id))
    stale = stale_of(rows, head.checkpoint_id, [p.key for p in plan.todo])
    sinks = withdrawing(moves(rows, head.checkpoint_id, target.checkpoint_id, kept=later), stale)
    publication.check_withdrawable(sinks)
    abandoned = [row.checkpoint_id for row in left if row.kind == "checkpoint"]
    row = operations.commit(
        "promote",
        target,
        rows,
        lambda row: replace(row, replaced_id=head.checkpoint_id, sinks=sinks, backfill=plan.request.words),
    )
    return HeadMove("promote", target.checkpoint_id, head.checkpoint_id, abandoned, sinks, row.checkpoint_id)


def foreseen(job: str, plan: BackfillPlan, partitions: TimePartitions) -> BackfillReport:
    """What is known before anything runs."""
    outputs = {key[0]: sum(f.rows for f in files) for key, files in content(plan.left()).items()}
    last = partition_of(plan.head) if plan.head else None
    later = partitions.from_to(partitions.after(plan.todo[-1]), last.end_ms) if plan.todo and last else []
    return BackfillReport(
        job=job,
        mode=plan.request.mode,
        branch=plan.branch,
        begin_id=plan.begin_id,
        partitions=[p.key for p in plan.todo],
        resumed=[p.key for p in plan.todo if p.key in plan.own],
        rows_recorded={k: sum(r.rows_in for r in runs) for k, runs in plan.recorded.items()},
        stale=[p.key for p in later] if plan.request.mode == STOP else [],
        rows_withdrawn=outputs,
        rows_added=dict(outputs),
    )
