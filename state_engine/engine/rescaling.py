"""Rescales: another parallelism by metadata, or another number of key groups by writing state again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.engine.context import EngineContext
from state_engine.job.job import StatefulJob
from state_engine.operations.max_parallelism import MaxParallelismChange
from state_engine.operations.rescaling import plan_rescaling, wanted_parallelism


@dataclass(frozen=True)
class RescaleReport:
    """What a rescale did, or in a dry run would do.

    Attributes:
        job: name.
        parallelism: number of subtasks that is in force afterwards, by uid.
        max_parallelism: number of key groups that is in force afterwards, by uid.
        changes: whether that differs from what was in force.
        committed_id: the row that records it; None in a dry run, and where nothing changes.
    """

    job: str
    parallelism: Mapping[str, int]
    max_parallelism: Mapping[str, int]
    changes: bool
    committed_id: int | None = None


def rescale(
    context: EngineContext,
    job: StatefulJob,
    parallelism: int | Mapping[str, int] | None,
    max_parallelism: int | None,
    *,
    dry_run: bool,
    requested_by: str | None,
) -> RescaleReport:
    operations = context.operations(job, requested_by)
    change = None
    if max_parallelism is not None:
        change = MaxParallelismChange(
            job,
            max_parallelism,
            operations=operations,
            tables=context.ran(job.name),
            kernel=context.kernel,
            spark=context.spark,
        )
    if dry_run:
        return _planned(job, _head(context, job), parallelism, max_parallelism)
    row = operations.rescale(job, parallelism) if change is None else change.run(parallelism)
    in_force = row or _head(context, job)
    return RescaleReport(
        job.name,
        {o.uid: o.parallelism for o in in_force.operators},
        {o.uid: o.max_parallelism for o in in_force.operators},
        changes=row is not None,
        committed_id=row.checkpoint_id if row else None,
    )


def _head(context: EngineContext, job: StatefulJob) -> CheckpointRow:
    head = context.history(job.name).head
    assert head is not None, "a job that has run has a head"
    return head


def _planned(
    job: StatefulJob,
    head: CheckpointRow,
    parallelism: int | Mapping[str, int] | None,
    max_parallelism: int | None,
) -> RescaleReport:
    keeps = parallelism is None and max_parallelism is not None
    wanted = {} if keeps else wanted_parallelism(job, parallelism)
    planned = plan_rescaling(job, head, wanted, max_parallelism=max_parallelism)
    groups = {o.uid: max_parallelism or o.max_parallelism for o in head.operators}
    changes = planned.changes or any(groups[o.uid] != o.max_parallelism for o in head.operators)
    return RescaleReport(job.name, dict(planned.parallelism), groups, changes)
