"""Checkpointing: one multi-asset a job, because a micro-batch is one transaction.

Its checkpoint, its sinks and its keyed states change together or not at all. Whichever of them is selected, the whole
micro-batch runs and all of them get their new version; none turns green without a commit.
"""

from collections.abc import Iterator

import dagster as dg

from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.declared import text_of
from state_engine.dagster.external.external_runner import ExternalRunner, JobRunner
from state_engine.dagster.micro_batches import MicroBatchConfig, run_micro_batches
from state_engine.dagster.naming import pool_of
from state_engine.dagster.partition_assets import PartitionConfig, run_partitions


def micro_batch_assets(dagster_job: DagsterJob) -> dg.AssetsDefinition:
    """The multi-asset of a job: materialising it runs micro-batches until the sources have nothing new.

    They run here, or in a process that the job's options launch. Of a job in time partitions, many partitions are one
    run, because each needs the one before.
    """
    name, partitions = dagster_job.name, dagster_job.job.partitions
    launch = dagster_job.options.launch
    declared = {spec.key for spec in dagster_job.assets}
    made_by = dg.multi_asset(
        name=f"{name}_micro_batches",
        specs=dagster_job.assets,
        pool=pool_of(name),
        description=text_of(dagster_job.registered.description) or f"Runs the job {name}.",
        can_subset=True,
        required_resource_keys=set(launch.resource_keys) if launch else {"state_engine"},
        backfill_policy=None if partitions is None else dg.BackfillPolicy.single_run(),
    )

    def runner(context: dg.AssetExecutionContext) -> JobRunner:
        if launch is not None:
            return ExternalRunner(context, dagster_job, launch)
        engine: JobRunner = context.resources.state_engine.engine()
        dagster_job.registered.prepare()
        return engine

    def run_continuous(
        context: dg.AssetExecutionContext, config: MicroBatchConfig
    ) -> Iterator[dg.MaterializeResult[None]]:
        yield from run_micro_batches(context, config, dagster_job, runner(context), declared=declared)

    def run_sliced(
        context: dg.AssetExecutionContext, config: PartitionConfig
    ) -> Iterator[dg.MaterializeResult[None]]:
        yield from run_partitions(context, config, dagster_job, runner(context), declared=declared)

    return made_by(run_continuous if partitions is None else run_sliced)


def definitions(dagster_job: DagsterJob) -> dg.Definitions:
    """The multi-asset of a job, and what it reads and nothing else makes."""
    return dg.Definitions(
        assets=[*dagster_job.sources.values(), micro_batch_assets(dagster_job)],
    )
