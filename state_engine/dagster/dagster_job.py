"""``DagsterJob``: a job with all that decides how Dagster shows it; and how several of them hang together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import dagster as dg

from state_engine.core.errors import ConfigurationError
from state_engine.dagster.asset_specs import default_parts, location_of, source_part
from state_engine.dagster.naming import sink_key, source_key, table_key
from state_engine.dagster.options import JobOptions
from state_engine.dagster.translator import StatelakeTranslator, StatelakeTranslatorData
from state_engine.job.job import StatefulJob
from state_engine.machine.settings import Settings
from state_engine.registry import RegisteredJob
from state_engine.sinks.base import Sink
from state_engine.state_tables.base import StateTable


@dataclass(frozen=True, kw_only=True)
class DagsterJob:
    """A job, and how Dagster shows it.

    Attributes:
        upstream: the asset that makes what a source reads, by name of the source; others get an asset of their own.
    """

    registered: RegisteredJob
    settings: Settings
    options: JobOptions = field(default_factory=JobOptions)
    translator: StatelakeTranslator = field(default_factory=StatelakeTranslator)
    upstream: Mapping[str, dg.AssetKey] = field(default_factory=dict)

    @property
    def job(self) -> StatefulJob:
        return self.registered.job

    @property
    def name(self) -> str:
        return self.job.name

    @property
    def root(self) -> str:
        return self.settings.root

    @cached_property
    def sources(self) -> dict[str, dg.AssetSpec]:
        """External assets of the sources that nothing is upstream of, by name."""
        return {
            name: self.translator.get_asset_spec(source_part(self.job, name))
            for name in self.job.sources
            if name not in self.upstream
        }

    @cached_property
    def assets(self) -> list[dg.AssetSpec]:
        """What the micro-batches make: the checkpoint, then every sink, every keyed state, every published table."""
        specs = [self.translator.get_asset_spec(part) for part in self._parts]
        return [spec.replace_attributes(deps=[self._followed(dep) for dep in spec.deps]) for spec in specs]

    def key(self, default: dg.AssetKey) -> dg.AssetKey:
        """The key that the translator gave to the part that has this one by default."""
        return self._keys.get(default, default)

    @cached_property
    def _parts(self) -> list[StatelakeTranslatorData]:
        return default_parts(self.registered, self.settings)

    @cached_property
    def _keys(self) -> dict[dg.AssetKey, dg.AssetKey]:
        sources = {name: spec.key for name, spec in self.sources.items()} | dict(self.upstream)
        made = {part.spec.key: self.translator.get_asset_spec(part).key for part in self._parts}
        return made | {source_key(self.name, name): key for name, key in sources.items()}

    def _followed(self, dep: dg.AssetDep) -> dg.AssetDep:
        return dg.AssetDep(self.key(dep.asset_key), partition_mapping=dep.partition_mapping)


def connected(
    jobs: Sequence[RegisteredJob],
    settings: Settings,
    options: JobOptions | Mapping[str, JobOptions],
    translator: StatelakeTranslator,
) -> list[DagsterJob]:
    """Jobs with what is upstream of their sources: by the translator, or else by location.

    Of jobs that read what the other writes in a circle, the last one gets an external asset: Dagster knows no circles.
    """
    names = [registered.job.name for registered in jobs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"two jobs are named '{twice[0]}': a job is shown once")
    by_name = {} if isinstance(options, JobOptions) else options
    if unknown := sorted(set(by_name) - set(names)):
        raise ConfigurationError(f"options of the job '{unknown[0]}': there is no such job. Jobs are {names}")
    of_all = options if isinstance(options, JobOptions) else JobOptions()
    plain = [
        DagsterJob(
            registered=registered,
            settings=settings,
            options=by_name.get(registered.job.name, of_all),
            translator=translator,
        )
        for registered in jobs
    ]
    lineage = _Lineage(plain)
    return [replace(job, upstream=lineage.upstream_of(job)) for job in plain]


def _ends(job: StatefulJob) -> Iterator[tuple[dg.AssetKey, Sink | StateTable]]:
    """What a job writes, by the keys that these assets have by default."""
    for name, sink in job.sinks.items():
        yield sink_key(job.name, name), sink.sink
    for name, node in job.published.items():
        yield table_key(job.name, name), node.table


class _Lineage:
    def __init__(self, jobs: Sequence[DagsterJob]) -> None:
        self._makers = {
            location: (job.name, job.key(key))
            for job in jobs
            for key, end in _ends(job.job)
            if (location := location_of(end))
        }
        self._sources: dict[str, dg.AssetKey] = {}
        self._jobs_before: dict[str, set[str]] = {}

    def upstream_of(self, job: DagsterJob) -> dict[str, dg.AssetKey]:
        upstream = {}
        for name, node in job.job.sources.items():
            key = job.translator.get_upstream_key(source_part(job.job, name))
            location = location_of(node.source)
            if key is None and location:
                key = self._at(job.name, location)
            if key is not None:
                upstream[name] = key
            elif location:
                self._sources[location] = job.sources[name].key
        return upstream

    def _at(self, reader: str, location: str) -> dg.AssetKey | None:
        maker, key = self._makers.get(location, (reader, None))
        if key is not None and maker != reader and not self._is_before(reader, maker):
            self._jobs_before.setdefault(reader, set()).add(maker)
            return key
        return self._sources.get(location)

    def _is_before(self, first: str, second: str) -> bool:
        """Whether the second job reads, directly or not, what the first one makes."""
        before = self._jobs_before.get(second, set())
        return first in before or any(self._is_before(first, job) for job in before)
