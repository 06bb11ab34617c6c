"""The asset ``layout``: which operators have state, and how many subtasks and key groups each has in force."""

from collections.abc import Iterator, Sequence
from typing import Self

import dagster as dg
from pydantic import Field, model_validator

from state_engine import CheckpointRow
from state_engine.core.counted_nouns import counted
from state_engine.core.keys.key_groups import MAX_PARALLELISM_LIMIT
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.metadata import markdown
from state_engine.dagster.operations import OperationRun, operation, operation_spec, result, since

ABOUT = """The number of subtasks and key groups in force for every operator.

A plain click brings into force what the job declares. Another parallelism is one row, and not a byte of state is
written; another max parallelism rewrites the state in the background. With the configuration drop_operators,
operators that the code no longer has leave the job with their state."""


class RescaleConfig(dg.Config):
    """Configuration of a rescale; all of it is optional."""

    parallelism: int | None = Field(
        default=None, ge=1, le=MAX_PARALLELISM_LIMIT, description="Number of subtasks, of all operators."
    )
    operators: dict[str, int] = Field(default={}, description="Number of subtasks, by uid of the operator.")
    max_parallelism: int | None = Field(
        default=None,
        ge=1,
        le=MAX_PARALLELISM_LIMIT,
        description="Number of key groups; the job must declare it from then on.",
    )
    drop_operators: list[str] = Field(
        default=[], description="Uids of operators that leave with their state; nothing else is done."
    )
    dry_run: bool = Field(default=True, description="Only log what drop_operators would drop.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.parallelism is not None and self.operators:
            raise ValueError("give either parallelism, of all operators, or operators, not both")
        wrong = {uid: n for uid, n in self.operators.items() if not 1 <= n <= MAX_PARALLELISM_LIMIT}
        if wrong:
            raise ValueError(f"a parallelism is a number from 1 to {MAX_PARALLELISM_LIMIT}, not {wrong}")
        return self


def definitions(dagster_job: DagsterJob) -> dg.Definitions:
    job = dagster_job.job
    declared = {"parallelism": job.parallelism, "max_parallelism": job.max_parallelism}
    spec = operation_spec(dagster_job, "layout", ABOUT, metadata=declared)
    about = "Bring the declared parallelism, or another, into force."
    return operation(dagster_job, spec, "rescale", _rescale, RescaleConfig, about, moves_head=True)


def _rescale(run: OperationRun, config: RescaleConfig) -> Iterator[dg.MaterializeResult[None]]:
    if run.never_ran():
        return
    if config.drop_operators:
        _drop(run, config)
    else:
        _bring_into_force(run, config)
    yield _layout(run.path())


def _drop(run: OperationRun, config: RescaleConfig) -> None:
    with run.committing():
        done = run.engine.state_processor(run.job).drop_operators(
            *config.drop_operators, dry_run=config.dry_run, requested_by=run.requested_by
        )
    verb = "would leave" if config.dry_run else "left"
    for uid, states in done.operators.items():
        run.log(f"operator '{uid}' {verb} the job with its entries: {states}")


def _bring_into_force(run: OperationRun, config: RescaleConfig) -> None:
    wanted = config.parallelism if config.parallelism is not None else config.operators or None
    key_groups = config.max_parallelism
    if key_groups is None and wanted is None and _key_groups(run) - {run.job.max_parallelism}:
        key_groups = run.job.max_parallelism
    with run.committing():
        if key_groups is not None:
            run.log(f"writing the state in {counted(key_groups, 'key group')}")
            run.engine.rescale(
                run.job, parallelism=wanted, max_parallelism=key_groups, requested_by=run.requested_by
            )
        if key_groups is None or (wanted is None and config.max_parallelism is None):
            run.engine.rescale(run.job, parallelism=wanted, requested_by=run.requested_by)


def _layout(path: Sequence[CheckpointRow]) -> dg.MaterializeResult[None]:
    operators = path[-1].operators
    lines = [[o.uid, o.parallelism, o.max_parallelism] for o in operators]
    return result(
        since(path, _numbers),
        {
            "operators": dg.MetadataValue.md(markdown(["operator", "subtasks", "key groups"], lines)),
            "subtasks": sum(o.parallelism for o in operators),
            "overruled": dg.MetadataValue.json({r.uid: r.parallelism for r in path[-1].rescaled}),
        },
    )


def _key_groups(run: OperationRun) -> set[int]:
    return {operator.max_parallelism for operator in run.path()[-1].operators}


def _numbers(row: CheckpointRow) -> object:
    return [(o.uid, o.parallelism, o.max_parallelism) for o in row.operators], row.rescaled
