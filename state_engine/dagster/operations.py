"""What all operations on a job have in common: who asked, the rows that they appended, and an asset for each.

An operation's asset stands for a present state: materialising it by a plain click brings that about, and does nothing
where it is so already. Nothing is upstream of it, so it never waits for a micro-batch, and nothing is downstream. Where
it appended rows to ``checkpoints``, each is shown as a materialisation of the asset ``checkpoint`` as well.
"""

# No "from __future__ import annotations" here: Dagster reads the annotations of the function below.
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import dagster as dg
from py4j.protocol import Py4JError

from state_engine import CheckpointRow, StatefulJob
from state_engine.core.checkpoints.history import History
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import StatelakeError
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.engine_resource import StateEngineResource
from state_engine.dagster.micro_batches import requester_of, row_event, show_stopped_commit
from state_engine.dagster.naming import Operation, operation_key, operations_group, pool_of
from state_engine.dagster.translator import StatelakeTranslatorData

if TYPE_CHECKING:
    from state_engine import StateEngine, TaskProgress

Config = TypeVar("Config", bound=dg.Config)


@dataclass(frozen=True)
class OperationRun:
    """One run of an operation."""

    context: dg.AssetExecutionContext
    engine: "StateEngine"
    dagster_job: DagsterJob

    @property
    def job(self) -> StatefulJob:
        return self.dagster_job.job

    @property
    def requested_by(self) -> str:
        return requester_of(self.context)

    def rows(self) -> list[CheckpointRow]:
        """All rows of the job, newest last; empty where it never ran."""
        return self.engine.checkpoints(self.job)

    def history(self) -> History:
        return History(self.rows())

    def path(self) -> list[CheckpointRow]:
        """From the first row to the head; empty where the job never ran."""
        return self.history().main_path

    def log(self, text: str) -> None:
        """Write to the event log how far it is."""
        self.context.log.info(f"job '{self.job.name}': {text}")

    def log_tasks(self, progress: "TaskProgress") -> None:
        """Write to the event log how many tasks of long Spark work are done."""
        self.log(f"{progress.done:,} of {counted(progress.of, 'task is', 'tasks are')} done")

    def never_ran(self) -> bool:
        """Whether there is nothing to operate on, which is logged, and is no failure."""
        if self.rows():
            return False
        self.log("it has no checkpoint yet, so there is nothing to do; run it first")
        return True

    @contextmanager
    def committing(self) -> Iterator[None]:
        """Show every row that this run commits inside, also where it fails after that."""
        before = {row.checkpoint_id for row in self.rows()}
        try:
            yield
        except BaseException as failure:
            show_stopped_commit(self.context, self.dagster_job, failure)
            try:
                self._show_since(before)
            except (StatelakeError, Py4JError) as error:  # must not hide the failure that led here
                self.context.log.warning(f"the checkpoints could not be looked at: {error}")
            raise
        self._show_since(before)

    def _show_since(self, before: set[int]) -> None:
        history = self.history()
        for row in history.values():
            if row.checkpoint_id not in before and row.requested_by == self.requested_by:
                self.log(f"row {row.checkpoint_id} of kind {row.kind} was committed")
                self.context.log_event(row_event(self.dagster_job, row, None, history))


def operation_spec(
    dagster_job: DagsterJob,
    name: Operation,
    about: str,
    *,
    metadata: Mapping[str, Any] | None = None,
    partitions: dg.PartitionsDefinition[str] | None = None,
) -> dg.AssetSpec:
    job = dagster_job.job
    spec = dg.AssetSpec(
        operation_key(job.name, name),
        description=about,
        group_name=operations_group(job.name),
        kinds={"pyspark", "deltalake"},
        owners=list(dagster_job.registered.owners),
        tags={"statelake/job": job.name, "statelake/operation": name},
        metadata=dict(metadata or {}),
        code_version=job.code_version,
        partitions_def=partitions,
        skippable=True,
    )
    part = StatelakeTranslatorData(job=job, part="operation", name=name, spec=spec)
    return dagster_job.translator.get_asset_spec(part)


def operation(
    dagster_job: DagsterJob,
    spec: dg.AssetSpec,
    verb: str,
    perform: Callable[[OperationRun, Config], Iterator[dg.MaterializeResult[None]]],
    config_type: type[Config],
    about: str,
    *,
    moves_head: bool = False,
    sensors: Sequence[dg.SensorDefinition] = (),
) -> dg.Definitions:
    """The asset of an operation, and a job that materialises it, to be launched by itself."""
    name = dagster_job.name

    @dg.multi_asset(name=f"{name}_{verb}", specs=[spec], pool=pool_of(name) if moves_head else None)
    def asset(
        context: dg.AssetExecutionContext,
        config: config_type,  # type: ignore[valid-type]
        state_engine: StateEngineResource,
    ) -> Iterator[dg.MaterializeResult[None]]:
        yield from perform(OperationRun(context, state_engine.engine(), dagster_job), config)

    job = dg.define_asset_job(
        f"{name}__{verb}",
        selection=dg.AssetSelection.assets(spec.key),
        description=about,
        executor_def=dg.in_process_executor,
    )
    return dg.Definitions(assets=[asset], jobs=[job], sensors=sensors)


def result(version: int | str, metadata: Mapping[str, Any]) -> dg.MaterializeResult[None]:
    """The present state; its data version stays as long as that state does."""
    return dg.MaterializeResult(metadata=dict(metadata), data_version=dg.DataVersion(str(version)))


def since(path: Sequence[CheckpointRow], of: Any) -> int:
    """Id of the first row from which on what ``of`` takes from a row is what the head has."""
    oldest = path[-1]
    for row in reversed(path):
        if of(row) != of(path[-1]):
            break
        oldest = row
    return oldest.checkpoint_id
