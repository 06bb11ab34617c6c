"""Published tables and states of the jobs of a root, registered in a catalog."""

from __future__ import annotations

from collections.abc import Collection

from state_engine.core.errors import ConfigurationError
from state_engine.core.names import check_table_name
from state_engine.engine.arguments import job_name
from state_engine.engine.context import EngineContext
from state_engine.job.job import StatefulJob
from state_engine.queries.catalog_views import RegistrationReport, names_of
from state_engine.queries.catalog_views import register as register_names
from state_engine.storage.layout import JobLayout
from state_engine.storage.root import jobs_in


def register(
    context: EngineContext,
    catalog: str,
    schema: str,
    jobs: Collection[StatefulJob | str] | None,
    *,
    dry_run: bool = False,
) -> RegistrationReport:
    check_table_name(f"{catalog}.{schema}.name")
    if isinstance(jobs, str | StatefulJob):
        raise ConfigurationError(f"jobs= takes a list of jobs: jobs=[{job_name(jobs)!r}]")
    names = jobs_in(context.root) if jobs is None else [job_name(job) for job in jobs]
    given = {}
    for name in names:
        tables = context.ran(name)
        path = tables.log.load().main_path
        given[name] = names_of(
            JobLayout(context.root, name), tables.log.app, path, catalog=catalog, schema=schema
        )
    if not given:
        raise ConfigurationError(f"no job ran in {context.root} yet: run one first")
    return register_names(context.kernel, given, dry_run=dry_run)
