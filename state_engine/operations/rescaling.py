"""What a rescale is to change, planned from what the job declares and what its head says; refused where it cannot be.

Pure: the head and the job in, the parts of the row that differ out. Mirrors the checks of Flink's
``StateAssignmentOperation`` before it hands state to another number of subtasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from state_engine.core.checkpoints.checkpoint import CheckpointRow, RescaledOperator
from state_engine.core.errors import ConfigurationError
from state_engine.core.keys.key_groups import check_parallelism
from state_engine.core.operator_state.operator_state_ref import check_rescale
from state_engine.job.job import StatefulJob
from state_engine.job.parallelism import parallelism_in_force, rescaled_in_force


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

    @classmethod
    def of(cls, head: CheckpointRow, committed: CheckpointRow | None) -> Self:
        """What is in force at the head, and the row that a rescale committed."""
        return cls(
            head.job,
            {o.uid: o.parallelism for o in head.operators},
            {o.uid: o.max_parallelism for o in head.operators},
            changes=committed is not None,
            committed_id=committed.checkpoint_id if committed else None,
        )


@dataclass(frozen=True)
class Rescaling:
    """A planned change of parallelism.

    Attributes:
        parallelism: number of subtasks by uid, also of operators that keep theirs.
        rescaled: operators that run otherwise than declared from then on.
    """

    parallelism: Mapping[str, int]
    rescaled: list[RescaledOperator]
    changes: bool

    def applied(self, row: CheckpointRow) -> CheckpointRow:
        operators = [
            replace(o, parallelism=self.parallelism.get(o.uid, o.parallelism)) for o in row.operators
        ]
        return replace(row, operators=operators, rescaled=self.rescaled)


def foreseen(
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


def wanted_parallelism(job: StatefulJob, parallelism: int | Mapping[str, int] | None) -> dict[str, int]:
    """Number of subtasks that is asked for, by uid; None stands for what the job declares."""
    if parallelism is None:
        return {uid: job.parallelism_of(operator) for uid, operator in job.operators.items()}
    if isinstance(parallelism, Mapping):
        unknown = sorted(set(parallelism) - set(job.operators))
        if unknown:
            raise ConfigurationError(
                f"job '{job.name}' has no operators {unknown}; it has {sorted(job.operators)}"
            )
        return dict(parallelism)
    return dict.fromkeys(job.operators, parallelism)


def plan_rescaling(
    job: StatefulJob, head: CheckpointRow, wanted: Mapping[str, int], *, max_parallelism: int | None = None
) -> Rescaling:
    """What becomes of each operator, and whether anything does."""
    in_force = dict(parallelism_in_force(job, head))
    after, recorded = in_force | dict(wanted), {o.uid: o for o in head.operators}
    # one that keeps its number is only looked at where the key groups change under it
    for uid, number in (wanted if max_parallelism is None else after).items():
        groups = max_parallelism
        if groups is None:
            groups = recorded[uid].max_parallelism if uid in recorded else job.max_parallelism
        try:
            check_parallelism(max_parallelism=groups, parallelism=number)
        except ValueError as error:
            raise ConfigurationError(f"job '{job.name}', operator '{uid}': {error}") from None
    for ref in head.operator_state:
        if ref.operator in wanted:
            check_rescale(ref, wanted[ref.operator])
    rescaled = [
        RescaledOperator(uid, number, declared)
        for uid, number in after.items()
        if number != (declared := job.parallelism_of(job.operators[uid]))
    ]
    same = rescaled == rescaled_in_force(job, head) and all(
        after[uid] == o.parallelism for uid, o in recorded.items() if uid in after
    )
    return Rescaling(after, rescaled, changes=not same)
