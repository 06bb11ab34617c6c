"""Assets of a job as they are by default: its checkpoint, sinks, keyed states and sources."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import timedelta

import dagster as dg

from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.types.ddl import ddl_text
from state_engine.dagster.declared import code_references, columns_of, columns_of_table, states_of, text_of
from state_engine.dagster.job_health import stuck_after
from state_engine.dagster.naming import checkpoint_key, sink_key, source_key, state_key, table_key
from state_engine.dagster.time_partitions import definition_of, previous_of_itself
from state_engine.dagster.translator import StatelakeTranslatorData
from state_engine.job.graph import OperatorNode, PublishedNode, SinkNode
from state_engine.job.job import StatefulJob
from state_engine.machine.settings import Settings
from state_engine.registry import RegisteredJob
from state_engine.sinks.base import Sink
from state_engine.sources.base import Source
from state_engine.state_tables.base import StateTable
from state_engine.storage.layout import JobLayout
from state_engine.storage.stores.files import normal_uri


def default_parts(registered: RegisteredJob, settings: Settings) -> list[StatelakeTranslatorData]:
    """The checkpoint, then every sink, every keyed state and every published table."""
    job, layout = registered.job, JobLayout(normal_uri(settings.root), registered.job.name)
    parts = [
        StatelakeTranslatorData(
            job=job, part="checkpoint", name="checkpoint", spec=_checkpoint(registered, layout)
        )
    ]
    parts += [
        StatelakeTranslatorData(job=job, part="sink", name=name, spec=_sink(job, sink))
        for name, sink in job.sinks.items()
    ]
    for operator in job.operators.values():
        parts += _states(job, operator, layout)
    known = {part.spec.key for part in parts}
    parts += [
        StatelakeTranslatorData(job=job, part="table", name=name, spec=_table(job, node, known))
        for name, node in job.published.items()
    ]
    sliced = definition_of(job.partitions) if job.partitions is not None else None
    return [
        replace(
            part,
            spec=part.spec.replace_attributes(
                partitions_def=sliced,
                code_version=job.code_version,
                skippable=True,
                group_name=job.name,
                owners=list(registered.owners),
                tags={**part.spec.tags, "statelake/job": job.name},
            ),
        )
        for part in parts
    ]


def source_part(job: StatefulJob, name: str) -> StatelakeTranslatorData:
    """What the job reads, as an external asset: it is shown, and nothing of ours makes it."""
    return StatelakeTranslatorData(
        job=job, part="source", name=name, spec=_source(job, name, job.sources[name].source)
    )


def location_of(end: Source | Sink | StateTable) -> str | None:
    """Where a source reads, or a sink or published table is, as an URI; None where that is no directory or file."""
    inner = end.inner if isinstance(end, Source) else end
    path = getattr(inner, "path", None)
    return normal_uri(path) if path else None


def _source(job: StatefulJob, name: str, source: Source) -> dg.AssetSpec:
    read = source.inner
    return dg.AssetSpec(
        source_key(job.name, name),
        description=f"Read by the job {job.name}: {text_of(read)}",
        metadata=_uri(location_of(read)),
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
            **_uri(location_of(sink.sink)),
            **code_references([sink.parent.function] if isinstance(sink.parent, OperatorNode) else []),
            **({"dagster/column_schema": columns} if columns else {}),
        },
        kinds=_kinds(getattr(sink.sink, "format", None) or sink.sink.kind),
    )


def _table(job: StatefulJob, node: PublishedNode, known: Collection[dg.AssetKey]) -> dg.AssetSpec:
    columns, state = columns_of_table(job, node), state_key(job.name, node.operator.uid, node.state)
    return dg.AssetSpec(
        table_key(job.name, node.name),
        deps=[state if state in known else checkpoint_key(job.name)],
        description=f"Shows the state `{node.state}` of `{node.operator.uid}`, as of the head.",
        metadata={
            **_uri(location_of(node.table)),
            **code_references([node.operator.function]),
            **({"dagster/column_schema": columns} if columns else {}),
            "place": node.table.shown,
        },
        kinds=_kinds(_TABLES[SinkKind(node.table.kind)]),
    )


def _states(job: StatefulJob, operator: OperatorNode, layout: JobLayout) -> Iterator[StatelakeTranslatorData]:
    for state in states_of(job, operator):
        spec = dg.AssetSpec(
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
        yield StatelakeTranslatorData(
            job=job, part="state", name=state.name, operator=operator.uid, spec=spec
        )


_TABLES = {SinkKind.DELTA_STATE: "delta", SinkKind.SQL_STATE: "sql"}
"""Where published tables are."""


def _uri(location: str | None) -> dict[str, str]:
    return {"dagster/uri": location} if location else {}


def _kinds(format_: str | None) -> set[str]:
    return {"pyspark", {"delta": "deltalake"}.get(format_, format_)} if format_ else {"pyspark"}
