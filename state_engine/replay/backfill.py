"""Backfills: time partitions run again from the state in front of them, on a branch, and the swap that ends it.

A branch begins where ``main`` stood before the first of them. Partitions that ``main`` ran are run again as they were
recorded (the same rows, clock and parallelism), or from what the sources hold of them now (``rebatch``, which takes
rows that were late); those that it did not run yet follow. One fenced row then makes the branch's head that of the job,
and one commit a sink takes old outputs out and puts new ones in. How far a backfill came stands in the rows of its
branch, each of which names its backfill, so that the same call goes on with it. Flink has no
counterpart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.sink_moves import content
from state_engine.core.errors import StaleParentError
from state_engine.core.time.partitions import TimePartitions
from state_engine.microbatch.partition_runs import STOP, by_partition, partition_of
from state_engine.microbatch.planning import PartitionInput, PlannedStep
from state_engine.microbatch.reports import BatchReport
from state_engine.operations.head_operations import HeadOperations, RestoreReport
from state_engine.operations.outputs_policy import OutputsPolicy, outputs_of
from state_engine.replay.backfill_plan import BackfillPlan, Mode
from state_engine.replay.replay import was_drained


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
