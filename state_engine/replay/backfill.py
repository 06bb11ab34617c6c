"""Backfills: time partitions run again from the state in front of them, on a branch, and the swap that ends it.

A branch begins where ``main`` stood before the first of them. Partitions that ``main`` ran are run again as they were
recorded (the same rows, clock and parallelism), or from what the sources hold of them now (``rebatch``, which takes
rows that were late); those that it did not run yet follow. One fenced row then makes the branch's head that of the job,
and one commit a sink takes old outputs out and puts new ones in. How far a backfill came stands in the rows of its
branch, each of which names its backfill, so that the same call goes on with it. What is
to be done is found from the rows alone, time and again. Flink has no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from state_engine.core.checkpoints.checkpoint import MAIN, CheckpointRow
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.retention import restore_refusal
from state_engine.core.checkpoints.sink_moves import content
from state_engine.core.errors import ConfigurationError, PartitionOrderError, StaleParentError
from state_engine.core.time.partitions import Partition, TimePartitions
from state_engine.microbatch.partition_runs import STOP, by_partition, partition_of
from state_engine.microbatch.planning import PartitionInput, PlannedStep
from state_engine.microbatch.reports import BatchReport
from state_engine.operations.head_operations import HeadOperations, RestoreReport
from state_engine.operations.outputs_policy import OutputsPolicy, outputs_of
from state_engine.replay.replay import was_drained

Mode = Literal["roll_forward", "stop", "branch"]
ROLL_FORWARD, BRANCH = "roll_forward", "branch"
MODES = (ROLL_FORWARD, STOP, BRANCH)


@dataclass(frozen=True)
class BackfillRequest:
    """What was asked for; two calls with the same one go on with one backfill.

    Attributes:
        rebatch: whether partitions are read again from what the sources hold now.
        branch: name; None for one that there is, or a new one.
    """

    first: Partition
    last: Partition
    mode: Mode
    rebatch: bool
    code_version: str
    branch: str | None = None

    @property
    def text(self) -> str:
        """As rows of checkpoints name it; ``recut`` is what they call ``rebatch``."""
        return f"{self.first.key}..{self.last.key} {self.mode}{' recut' if self.rebatch else ''}"

    def owns(self, row: CheckpointRow) -> bool:
        return row.backfill == self.text and row.code_version == self.code_version


@dataclass(frozen=True)
class BackfillPlan:
    """What is left to do.

    Attributes:
        branch: to run on; ``main`` where all partitions are still to be run for the first time.
        begin_id: the checkpoint that the branch begins at; None for nothing.
        todo: partitions to go through on the branch, those included that are done there.
        recorded: the micro-batches that ``main`` ran of them.
        own: the micro-batches of the branch, by partition.
    """

    request: BackfillRequest
    head: CheckpointRow | None
    branch: str
    begin_id: int | None
    todo: list[Partition]
    recorded: dict[str, list[CheckpointRow]]
    own: dict[str, list[CheckpointRow]]
    history: History

    def left(self) -> list[CheckpointRow]:
        """Micro-batches whose outputs the swap takes out of the sinks."""
        end_ms = self.todo[-1].end_ms
        past = [row for runs in self.recorded.values() for row in runs]
        return [row for row in past if (row.partition_end_ms or 0) <= end_ms]


def plan_backfill(
    job: str, partitions: TimePartitions, history: History, request: BackfillRequest
) -> BackfillPlan:
    """Find where a backfill begins, what it goes through, and on which branch."""
    head = history.head
    path = history.main_path
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
        return BackfillPlan(request, head, MAIN, head.checkpoint_id if head else None, todo, {}, {}, history)
    begin_id = _begin(job, history, path, request.first)
    end_ms = request.last.end_ms if request.mode == STOP else max(request.last.end_ms, reached_ms)
    todo = partitions.from_to(request.first, end_ms)
    starts = {
        key: runs for key, runs in done.items() if (runs[0].partition_start_ms or 0) >= request.first.start_ms
    }
    branch = _branch(job, history, request, begin_id)
    top = history.head_of(branch)
    on_branch = history.path(top.checkpoint_id) if top else []
    own = by_partition([row for row in on_branch if row.branch == branch])
    return BackfillPlan(request, head, branch, begin_id, todo, starts, own, history)


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


def _begin(job: str, history: History, path: list[CheckpointRow], first: Partition) -> int | None:
    """The row that the first partition was run on; None for nothing."""
    at = next((i for i, row in enumerate(path) if row.partition_start_ms == first.start_ms), None)
    if at is None:
        raise ConfigurationError(
            f"job '{job}': partition {first.key} is not among those that the head goes back to: the job began "
            f"with '{path[0].kind}', or was sliced otherwise"
        )
    by_hand = [row.checkpoint_id for row in path[at:] if row.kind is CheckpointKind.TRANSFORM]
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
        refusal = restore_refusal(history, row.checkpoint_id)
        if refusal is None:
            return row.checkpoint_id
        if row.kind.is_micro_batch:
            break
    raise ConfigurationError(
        f"job '{job}': the state in front of partition {first.key} is not kept: {refusal}"
    )


def _branch(job: str, history: History, request: BackfillRequest, begin_id: int | None) -> str:
    known, open_ones = history.branches, history.open_branches
    for name, head in open_ones.items():
        if name == MAIN or not request.owns(head) or request.branch not in (None, name):
            continue
        path = history.path(head.checkpoint_id)
        if next(row for row in path if row.branch == name).parent_id == begin_id:
            return name
    if request.branch in known:
        raise ConfigurationError(
            f"job '{job}': branch '{request.branch}' is there already and is not of this backfill ({request.text}): "
            "choose another name, or drop it"
        )
    return request.branch or next(name for n in count(1) if (name := f"backfill_{n}") not in known)


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
        rows_added: rows of outputs that come, by sink; in a dry run as many as the recorded runs emitted, None for
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
    move: RestoreReport | None = None
    rows_withdrawn: dict[str, int] = field(default_factory=dict)
    rows_added: dict[str, int] = field(default_factory=dict)


class BackfillSteps:
    """The steps of a backfill on its branch: the micro-batches of one partition after the other."""

    def __init__(self, plan: BackfillPlan) -> None:
        self._plan = plan

    def __call__(self, path: list[CheckpointRow], now: Callable[[], int]) -> PlannedStep | None:
        own = by_partition([row for row in path if row.branch == self._plan.branch])
        for partition in self._plan.todo:
            recorded, ran = self._plan.recorded.get(partition.key, []), len(own.get(partition.key, []))
            if ran < max(1, len(recorded)):
                row = recorded[ran] if recorded else None
                again = None if self._plan.request.rebatch else row
                # all input of a partition is in its first micro-batch
                reads = None if ran else PartitionInput(partition, again)
                drained = row is not None and was_drained(self._plan.history, row)
                return PlannedStep(reads, repeats=row, drain=drained)
        return None


def swap(
    operations: HeadOperations, plan: BackfillPlan, *, outputs: OutputsPolicy = "withdraw"
) -> RestoreReport:
    """Make the branch's head that of the job; see ``HeadOperations.move``."""
    history, head = operations.published_head()
    if plan.head is None or history.may_reparent(plan.head.checkpoint_id) != head:
        raise StaleParentError(f"the head is checkpoint {head.checkpoint_id} now")
    target = history.head_of(plan.branch)
    assert target is not None
    end_ms = target.partition_end_ms or 0
    left = history.leaving(head.checkpoint_id, target.checkpoint_id)
    return operations.move(
        CheckpointKind.PROMOTE,
        history,
        head,
        target,
        outputs=outputs,
        # partitions after the backfill show theirs until they are run again
        kept=[row.checkpoint_id for row in left if (row.partition_start_ms or 0) >= end_ms],
        backfill=plan.request.text,
    )


def foreseen(
    job: str, plan: BackfillPlan, partitions: TimePartitions, *, outputs: OutputsPolicy = "withdraw"
) -> BackfillReport:
    """What is known before anything runs."""
    policy = outputs_of(outputs)
    shown = {key[0]: sum(f.rows for f in files) for key, files in content(plan.left()).items()}
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
        rows_withdrawn={name: rows for name, rows in shown.items() if not policy.keeps(name)},
        rows_added=dict(shown),
    )
