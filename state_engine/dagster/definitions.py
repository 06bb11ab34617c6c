"""``statelake_definitions`` and ``statelake_assets``: jobs as Dagster's assets, jobs, schedules, sensors and checks.

Loading imports no PySpark and reads no data: a job is configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import ModuleType

import dagster as dg

from state_engine.dagster.concepts import (
    automation,
    checkpointing,
    checks,
    compaction,
    expectations,
    recovery,
    rescaling,
    retention,
    savepoints,
    tables,
)
from state_engine.dagster.concepts.checkpointing import micro_batch_assets
from state_engine.dagster.dagster_job import DagsterJob, connected
from state_engine.dagster.engine_resource import StateEngineResource
from state_engine.dagster.external.launch import PipesLaunch
from state_engine.dagster.naming import Operation
from state_engine.dagster.options import JobOptions
from state_engine.dagster.translator import StatelakeTranslator
from state_engine.job.job import StatefulJob
from state_engine.machine.defects import guarded_function
from state_engine.machine.settings import Settings, load_settings
from state_engine.registry import RegisteredJob, load_jobs, registered_job
from state_engine.storage.stores.object_stores import PROCESS_STORES

CONCEPTS = (checkpointing, checks, expectations, automation)
"""What every job gets; its options say how much of it."""
OPERATIONS: Mapping[Operation, ModuleType] = {
    "base": compaction,
    "head": recovery,
    "layout": rescaling,
    "savepoints": savepoints,
    "retention": retention,
    "tables": tables,
}


@guarded_function
def statelake_definitions(
    jobs: Sequence[StatefulJob | RegisteredJob] | None = None,
    *,
    root: str | None = None,
    settings: Settings | None = None,
    options: JobOptions | Mapping[str, JobOptions] | None = None,
    translator: StatelakeTranslator | None = None,
    in_process: bool = True,
) -> dg.Definitions:
    """Definitions of jobs, to be a code location or to be merged into one by ``dg.Definitions.merge``.

    Args:
        jobs: to show; by default those that the settings name.
        root: the state root, instead of that of the settings.
        settings: by default those that ``load_settings`` reads, with or without a file.
        options: what the jobs bring beside their assets, of all of them or by name; few things by default.
        translator: keys, groups, tags, owners, descriptions and upstream keys of the assets.
        in_process: whether runs that no job of ours starts stay in one process, because a Spark session cannot be
            shared; False where the project that these are merged into has an executor of its own.

    Raises:
        ConfigurationError: a name of a job is taken twice, or there are options of a job that does not exist; other
            definitions of this process reach object stores in another way.

    Example:
        >>> from state_engine import DeltaSink, FileSource, StatefulJob
        >>> job = StatefulJob("clicks")
        >>> stream = job.source("clicks", FileSource("/lake/inbox", schema="user string"))
        >>> _ = stream.sink("copy", DeltaSink("/lake/clicks"))
        >>> defs = statelake_definitions([job], root="/lake/state")
        >>> sorted(spec.key.to_user_string() for spec in defs.resolve_all_asset_specs())
        ['clicks/checkpoint', 'clicks/sinks/copy', 'clicks/sources/clicks']
    """
    known = _settings(settings, root)
    registered = load_jobs(known) if jobs is None else [registered_job(job) for job in jobs]
    shown = connected(registered, known, options or JobOptions(), translator or StatelakeTranslator())
    executor = dg.in_process_executor if in_process else None
    engine = _engine_of(known.root, tuple(known.jobs.modules), tuple(known.jobs.package_data))
    parts = [dg.Definitions(resources={"state_engine": engine}, executor=executor)]
    return dg.Definitions.merge(*parts, *(part for job in shown for part in _parts(job)))


@guarded_function
def statelake_assets(
    job: StatefulJob | RegisteredJob,
    *,
    root: str | None = None,
    settings: Settings | None = None,
    translator: StatelakeTranslator | None = None,
    launch: PipesLaunch | None = None,
) -> dg.AssetsDefinition:
    """The assets of one job by themselves, for ``Definitions`` of your own.

    They need the resource ``state_engine``, a ``StateEngineResource``, unless a process of their own is launched. What
    the job reads is upstream of them, under the key that the translator gives it, or ``<job>/sources/<source>``.

    Args:
        job: to show.
        root: the state root, instead of that of the settings; the same as that of the resource.
        settings: by default those that ``load_settings`` reads, with or without a file.
        translator: keys, groups, tags, owners, descriptions and upstream keys of the assets.
        launch: a process of their own for the micro-batches; None: they run in the process of the run.

    Example:
        >>> from state_engine import DeltaSink, FileSource, StatefulJob
        >>> from state_engine.dagster import StateEngineResource
        >>> job = StatefulJob("clicks")
        >>> stream = job.source("clicks", FileSource("/lake/inbox", schema="user string"))
        >>> _ = stream.sink("copy", DeltaSink("/lake/clicks"))
        >>> engine = StateEngineResource(root="/lake/state")
        >>> defs = dg.Definitions(
        ...     assets=[statelake_assets(job, root="/lake/state")], resources={"state_engine": engine}
        ... )
    """
    known = _settings(settings, root)
    [shown] = connected(
        [registered_job(job)], known, JobOptions(launch=launch), translator or StatelakeTranslator()
    )
    return micro_batch_assets(shown)


def _settings(settings: Settings | None, root: str | None) -> Settings:
    known = settings or load_settings()
    PROCESS_STORES.describe(known.storage)  # sensors look at the root without Spark
    return known if root is None else known.model_copy(update={"root": root})


@cache  # definitions of several jobs are merged where their resource is one and the same object
def _engine_of(root: str, modules: tuple[str, ...], package_data: tuple[str, ...]) -> StateEngineResource:
    return StateEngineResource(root=root, modules=list(modules), package_data=list(package_data))


def _parts(job: DagsterJob) -> list[dg.Definitions]:
    chosen = [concept for name, concept in OPERATIONS.items() if name in job.options.operations]
    return [concept.definitions(job) for concept in (*CONCEPTS, *chosen)]
