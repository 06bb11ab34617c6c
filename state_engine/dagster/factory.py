"""From a registered job to Dagster's assets: one multi-asset a job, because a micro-batch is one transaction.

Its checkpoint, its sinks and its keyed states change together or not at all. Whichever of them is selected, the whole
micro-batch runs and all of them get their new version; none turns green without a commit. Sources are shown as
external assets.
"""

# No "from __future__ import annotations" here: Dagster reads the annotations of the function below.
from collections.abc import Iterator, Sequence
from datetime import timedelta

import dagster as dg

from state_engine.core.types.ddl import ddl_text
from state_engine.dagster.declared import code_references, columns_of, states_of, text_of
from state_engine.dagster.engine_resource import StateEngineResource
from state_engine.dagster.job_health import stuck_after
from state_engine.dagster.micro_batches import MicroBatchConfig, run_micro_batches
from state_engine.dagster.naming import checkpoint_key, pool_of, sink_key, source_key, state_key
from state_engine.dagster.partition_assets import PartitionConfig, run_partitions
from state_engine.dagster.time_partitions import definition_of, previous_of_itself
from state_engine.job.graph import OperatorNode, SinkNode
from state_engine.job.job import StatefulJob
from state_engine.machine.settings import Settings
from state_engine.registry import RegisteredJob
from state_engine.sources.base import Source
from state_engine.sources.partitioned_input import PartitionedSource
from state_engine.storage.files import normal_uri
from state_engine.storage.layout import JobLayout


def micro_batch_assets(registered: RegisteredJob, settings: Settings) -> dg.AssetsDefinition:
    """The multi-asset of a job: materialising it runs micro-batches until the sources have nothing new."""
    job = registered.job
    specs = asset_specs(registered, settings)
    keys = {spec.key for spec in specs}
    if job.partitions is not None:
        return _partition_assets(registered, specs)

    @dg.multi_asset(
        name=f"{job.name}_micro_batches",
        specs=specs,
        pool=pool_of(job.name),
        description=text_of(registered.description) or f"Runs the job {job.name}.",
        can_subset=True,
    )
    def micro_batches(
        context: dg.AssetExecutionContext, config: MicroBatchConfig, state_engine: StateEngineResource
    ) -> Iterator[dg.MaterializeResult[None]]:
        yield from run_micro_batches(context, config, registered, state_engine.engine(), declared=keys)

    return micro_batches


def _partition_assets(registered: RegisteredJob, specs: Sequence[dg.AssetSpec]) -> dg.AssetsDefinition:
    """The multi-asset of a job in time partitions: many of them are one run, because each needs the one before."""
    job, keys = registered.job, {spec.key for spec in specs}

    @dg.multi_asset(
        name=f"{job.name}_micro_batches",
        specs=specs,
        pool=pool_of(job.name),
        description=text_of(registered.description) or f"Runs the job {job.name}.",
        can_subset=True,
        backfill_policy=dg.BackfillPolicy.single_run(),
    )
    def partitions(
        context: dg.AssetExecutionContext, config: PartitionConfig, state_engine: StateEngineResource
    ) -> Iterator[dg.MaterializeResult[None]]:
        yield from run_partitions(context, config, registered, state_engine.engine(), declared=keys)

    return partitions


def asset_specs(registered: RegisteredJob, settings: Settings) -> list[dg.AssetSpec]:
    """The checkpoint, then a spec for every sink and every keyed state."""
    job, layout = registered.job, JobLayout(normal_uri(settings.root), registered.job.name)
    specs = [_checkpoint(registered, layout)]
    specs += [_sink(job, sink) for sink in job.sinks.values()]
    for operator in job.operators.values():
        specs += _states(job, operator, layout)
    version = job.code_version
    sliced = definition_of(job.partitions) if job.partitions is not None else None
    return [
        spec.replace_attributes(
            partitions_def=sliced,
            code_version=version,
            skippable=True,
            group_name=job.name,
            owners=list(registered.owners),
            tags={**spec.tags, "statelake/job": job.name},
        )
        for spec in specs
    ]


def source_specs(job: StatefulJob) -> list[dg.AssetSpec]:
    """What the job reads, as external assets: they are shown, and nothing of ours makes them."""
    return [_source(job, name, node.source) for name, node in job.sources.items()]


def _source(job: StatefulJob, name: str, source: Source) -> dg.AssetSpec:
    read = source.source if isinstance(source, PartitionedSource) else source
    return dg.AssetSpec(
        source_key(job.name, name),
        description=f"Read by the job {job.name}: {text_of(read)}",
        metadata=_uri(getattr(read, "path", None)),
        group_name=job.name,
        kinds=_kinds(getattr(read, "format", None)),
    )


def _checkpoint(registered: RegisteredJob, layout: JobLayout) -> dg.AssetSpec:
    job = registered.job
    about = text_of(registered.description)
    deps: list[dg.AssetKey | dg.AssetDep] = [source_key(job.name, name) for name in job.sources]
    if job.partitions is not None:
        deps.append(previous_of_itself(checkpoint_key(job.name)))
    return dg.AssetSpec(
        checkpoint_key(job.name),
        deps=deps,
        description=f"{about}\n\nOne row a committed micro-batch; its data version is the checkpoint id.".strip(),
        metadata={
            **_uri(layout.checkpoints),
            **code_references(operator.function for operator in job.operators.values()),
            "parallelism": job.parallelism,
            "max_parallelism": job.max_parallelism,
        },
        kinds=_kinds("delta"),
        freshness_policy=_freshness(registered),
    )


def _freshness(registered: RegisteredJob) -> dg.FreshnessPolicy:
    """A warning after as many intervals as make a job stuck, a failure after a day: a source may just be quiet."""
    warn = stuck_after(registered)
    return dg.FreshnessPolicy.time_window(fail_window=max(timedelta(days=1), 2 * warn), warn_window=warn)


def _sink(job: StatefulJob, sink: SinkNode) -> dg.AssetSpec:
    columns = columns_of(sink)
    about = text_of(sink.parent.function) if isinstance(sink.parent, OperatorNode) else ""
    return dg.AssetSpec(
        sink_key(job.name, sink.name),
        deps=[checkpoint_key(job.name)],
        description=about or f"Published by the job {job.name}.",
        metadata={
            **_uri(getattr(sink.sink, "path", None)),
            **code_references([sink.parent.function] if isinstance(sink.parent, OperatorNode) else []),
            **({"dagster/column_schema": columns} if columns else {}),
        },
        kinds=_kinds(getattr(sink.sink, "format", None) or sink.sink.kind),
    )


def _states(job: StatefulJob, operator: OperatorNode, layout: JobLayout) -> list[dg.AssetSpec]:
    return [
        dg.AssetSpec(
            state_key(job.name, operator.uid, state.name),
            deps=[checkpoint_key(job.name)],
            description=(
                f"The {state.kind} state `{state.name}` of `{operator.uid}`, by {', '.join(operator.key_columns)}."
                f"\n\n{text_of(operator.function)}\n\nRead it with "
                f'`engine.read_state("{job.name}", "{operator.uid}", "{state.name}")`.'
            ),
            metadata={
                **_uri(layout.changelog(operator.uid)),
                **code_references([operator.function]),
                "state_kind": state.kind,
                "stored_type": ddl_text(state.column_type),
                "key": ", ".join(operator.key_columns),
            },
            kinds=_kinds("delta"),
        )
        for state in states_of(job, operator)
    ]


def _uri(location: str | None) -> dict[str, str]:
    return {"dagster/uri": location} if location else {}


def _kinds(format_: str | None) -> set[str]:
    return {"pyspark", {"delta": "deltalake"}.get(format_, format_)} if format_ else {"pyspark"}
