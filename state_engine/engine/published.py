"""``JobPublished``: the tables that show states of one job; and names for states and tables in a catalog."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.checkpoints.history import History
from state_engine.core.errors import ConfigurationError, SinkError
from state_engine.core.names import check_table_name
from state_engine.engine.arguments import job_name
from state_engine.engine.context import EngineContext
from state_engine.engine.guard import guarded
from state_engine.job.job import StatefulJob
from state_engine.publishing.publication import Publication
from state_engine.publishing.sink_places import Declared
from state_engine.queries.catalog_views import RegistrationReport, names_of
from state_engine.queries.catalog_views import register as register_names
from state_engine.state_tables.base import TableReport
from state_engine.state_tables.states import PublishedState, TablePolicy
from state_engine.storage.layout import JobLayout
from state_engine.storage.root import jobs_in

_LOG = logging.getLogger(__name__)


@guarded
class JobPublished:
    """Published tables of one job; from ``StateEngine.published``."""

    def __init__(self, context: EngineContext, job: StatefulJob | str) -> None:
        job_name(job)  # refuses what is neither a job nor a name
        self.context, self._job = context, job

    def rebuild(self, table: str, *, dry_run: bool = False, requested_by: str | None = None) -> TableReport:
        """Put the state as of the head in the place of all that a table holds, whoever wrote it.

        A row of ``checkpoints`` says that it was done, and who asked for it.

        Args:
            table: its name among the sinks of the job.
            dry_run: only compare: the rows that would come, or come in the place of others, and those that would go.
            requested_by: recorded with the row.

        Returns:
            How many rows the table holds then.

        Raises:
            ConfigurationError: the job publishes no state to such a table.
            SinkError: the table cannot hold the state.
        """
        publication, history, declared = self._opened()
        state, move = publication.tables.rebuild(history, table, declared, dry_run=dry_run)
        if not dry_run:
            self._record(state, "rebuild", requested_by)
        return move

    def verify(self, table: str) -> TableReport:
        """Compare a table with the state as of the checkpoint that it shows: the rows that would come and go.

        Raises:
            TableChangedError: the table itself shows that somebody else changed it.
        """
        publication, history, declared = self._opened()
        return publication.tables.verify(history, table, declared)

    def accept(self, table: str, *, dry_run: bool = False, requested_by: str | None = None) -> TableReport:
        """Leave what others changed in a table as it is, and go on from there: later changes of the state apply.

        The table of a ``SqlSink`` that somebody dropped and created again is accepted, too: as the one that holds what
        was published. Nothing is compared, and later outputs are appended. A row of ``checkpoints`` says that it was
        done, and who asked for it.

        Args:
            table: its name among the sinks of the job.
            dry_run: only compare.
            requested_by: recorded with the row.

        Returns:
            How the table differs from the state that it shows: rows that a rebuild would put there, and take away.

        Raises:
            ConfigurationError: the job has no such table.
            SinkIdentityError: it belongs to another job.
            SinkError: there is no table, it cannot be compared with the state, or it is a sink of another kind.
        """
        publication, history, declared = self._opened()
        tables = publication.tables
        if table not in {one.name for one in tables.states(history, declared)} and (
            sink := publication.accept(history.main_path, table, dry_run=dry_run)
        ):
            if not dry_run:
                self._settle(replace(sink, files=[], withdrawn=[]), requested_by)
            return TableReport(
                sink.name, sink.kind, sink.path, 0, 0, "nothing compares it with what was published"
            )
        state, move = tables.accept(history, table, declared, dry_run=dry_run)
        if not dry_run:
            self._record(state, "keep", requested_by)
        return move

    def tidy(self) -> int:
        """Rewrite files of tables of which much is deleted, and put small ones together; how many were rewritten.

        Compactions do the same. No row changes.
        """
        publication, history, declared = self._opened()
        return publication.tables.tidy(history, declared)

    def _record(self, state: PublishedState, policy: TablePolicy, requested_by: str | None) -> None:
        self._settle(replace(state, policy=policy).staged(), requested_by)

    def _settle(self, table: StagedSink, requested_by: str | None) -> None:
        self.context.maintenance(self._job, requested_by).settle_table(table)

    def _opened(self) -> tuple[Publication, History, Declared]:
        tables = self.context.ran(job_name(self._job))
        history = tables.log.load()
        return self.context.publication(tables), history, self.context.declared(tables, self._job)


def tidy_quietly(context: EngineContext, job: StatefulJob | str) -> None:
    """Have published tables rearranged; what fails there fails nothing else: the next publish says it."""
    try:
        JobPublished(context, job).tidy()
    except SinkError as error:
        _LOG.warning("job '%s': a published table was not rearranged: %s", job_name(job), error)


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
    if jobs is not None and not isinstance(jobs, Collection):
        raise ConfigurationError(f"jobs= takes a list of jobs or their names, not {jobs!r}")
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
