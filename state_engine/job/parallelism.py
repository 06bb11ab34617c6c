"""How many subtasks an operator has in force: what the job declares, unless an operation changed it since.

The later of the two counts: ``StateEngine.rescale`` overrules the job's declaration until the declaration changes.
Plays the part of Flink's rescale request to a running job.
"""

from __future__ import annotations

from collections.abc import Mapping

from state_engine.core.checkpoints.checkpoint import CheckpointRow, RescaledOperator
from state_engine.job.job import StatefulJob


def rescaled_in_force(job: StatefulJob, parent: CheckpointRow | None) -> list[RescaledOperator]:
    """The operators whose parallelism an operation changed, and whose declaration is what it was then."""
    return [
        one
        for one in (parent.rescaled if parent else [])
        if one.uid in job.operators and one.declared == job.parallelism_of(job.operators[one.uid])
    ]


def parallelism_in_force(job: StatefulJob, parent: CheckpointRow | None) -> Mapping[str, int]:
    """Number of subtasks of every operator, by uid."""
    declared = {uid: job.parallelism_of(operator) for uid, operator in job.operators.items()}
    return declared | {one.uid: one.parallelism for one in rescaled_in_force(job, parent)}
