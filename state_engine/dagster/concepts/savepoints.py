"""Savepoints: the asset ``savepoints``, one partition each; materialising one makes it, or verifies it."""

from collections.abc import Iterator

import dagster as dg
from pydantic import Field

from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.operations import OperationRun, operation, operation_spec, result
from state_engine.monitoring.job_history import read_history
from state_engine.storage.layout import JobLayout
from state_engine.storage.stores.files import join, normal_uri

ABOUT = """Copies of checkpoints that can be moved, and restored into any root: one partition each, by its name.

Materialise a new partition to make one of the head; micro-batches go on meanwhile. Materialise one that is there to
compare all of its files with their checksums."""


class SavepointConfig(dg.Config):
    """Configuration of a savepoint; all of it is optional."""

    checkpoint_id: int | None = Field(default=None, ge=1, description="What to copy; the head by default.")
    path: str | None = Field(
        default=None,
        min_length=1,
        description="A new or empty directory; beside the job's tables by default.",
    )


def savepoint_partitions(job: str) -> dg.DynamicPartitionsDefinition:
    return dg.DynamicPartitionsDefinition(name=f"{job}_savepoints")


def definitions(dagster_job: DagsterJob) -> dg.Definitions:
    """With a sensor that keeps the partitions in step."""
    layout = JobLayout(normal_uri(dagster_job.root), dagster_job.name)
    partitions = savepoint_partitions(dagster_job.name)
    uri = {"dagster/uri": join(layout.directory, "savepoints")}
    spec = operation_spec(dagster_job, "savepoints", ABOUT, metadata=uri, partitions=partitions)
    in_step = "savepoint_partitions" in dagster_job.options.automation
    sensors = [_partitions_sensor(dagster_job, spec.key)] if in_step else []
    about = "Make a savepoint, or verify one."
    return operation(dagster_job, spec, "savepoint", _savepoint, SavepointConfig, about, sensors=sensors)


def _savepoint(run: OperationRun, config: SavepointConfig) -> Iterator[dg.MaterializeResult[None]]:
    if run.never_ran():
        return
    name = run.context.partition_key
    known = run.engine.savepoints(run.job).list().get(name)
    if known is None:
        run.log(f"copying into the savepoint {name}")
        with run.committing():
            made = run.engine.savepoints(run.job).create(
                name,
                config.path,
                checkpoint_id=config.checkpoint_id,
                requested_by=run.requested_by,
                on_progress=run.log_tasks,
            )
    else:
        if config.checkpoint_id not in (None, known.checkpoint_id) or config.path is not None:
            raise ConfigurationError(
                f"job '{run.job.name}': the savepoint '{name}' is there already, of checkpoint "
                f"{known.checkpoint_id} in {known.path}: take another name, or leave the configuration out to verify it"
            )
        run.log(f"comparing the savepoint {name} with its checksums")
        made = run.engine.savepoints(run.job).verify(known.path)
    yield result(
        made.checkpoint_id,
        {
            "checkpoint_id": made.checkpoint_id,
            "files": made.files,
            "bytes": made.bytes,
            "path": dg.MetadataValue.path(made.path),
            "verified": known is not None,
        },
    )


def _partitions_sensor(dagster_job: DagsterJob, key: dg.AssetKey) -> dg.SensorDefinition:
    name = dagster_job.name
    partitions = savepoint_partitions(name)

    @dg.sensor(
        name=f"{name}__savepoint_partitions",
        description="Keeps the partitions in step with the existing savepoints, also those of other tools.",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.STOPPED,
        asset_selection=dg.AssetSelection.assets(key),
    )
    def in_step(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        history = read_history(dagster_job.root, name)
        there = set(history.checkpoints.pins) if history else set()
        shown = set(context.instance.get_dynamic_partitions(f"{name}_savepoints"))
        made = context.instance.get_materialized_partitions(key)
        requests: list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest] = []
        if there - shown:
            requests.append(partitions.build_add_request(sorted(there - shown)))
        if gone := (shown - there) & made:  # others were only named so far
            requests.append(partitions.build_delete_request(sorted(gone)))
        return dg.SensorResult(
            dynamic_partitions_requests=requests,
            skip_reason=None if requests else f"{counted(len(there), 'savepoint')}, all of them shown",
        )

    return in_step
