"""Published tables: a check of each, and the asset ``tables``: do they show the state, and what to do where not."""

from collections.abc import Iterator
from typing import Any, Self

import dagster as dg
from pydantic import Field, model_validator

from state_engine.core.errors import ConfigurationError, SinkError
from state_engine.dagster.dagster_job import DagsterJob
from state_engine.dagster.engine_resource import StateEngineResource
from state_engine.dagster.metadata import moves_table
from state_engine.dagster.naming import SHOWS_STATE, table_key
from state_engine.dagster.operations import OperationRun, operation, operation_spec, result
from state_engine.state_tables.base import TableReport
from state_engine.state_tables.states import published_in

ABOUT = """The published tables, compared with the states that they show.

A plain click brings tables that lag to the head, compares each with its state, and changes nothing else: what differs
is shown. `rebuild` and `accept` name tables that somebody else changed, and show what that would do; with
`dry_run: false`, too, it is done."""


class TablesConfig(dg.Config):
    """Configuration of the operation on tables; all of it is optional."""

    rebuild: list[str] = Field(
        default=[], description="Tables to rebuild from the state, even if others changed them."
    )
    accept: list[str] = Field(
        default=[], description="Tables to leave as others changed them, until the state of a key changes."
    )
    dry_run: bool = Field(default=True, description="Only show what rebuilding or accepting would do.")

    @model_validator(mode="after")
    def _something_to_do(self) -> Self:
        if twice := sorted(set(self.rebuild) & set(self.accept)):
            raise ValueError(f"either rebuild or accept the table '{twice[0]}', not both")
        if not self.dry_run and not (self.rebuild or self.accept):
            raise ValueError("dry_run: false rebuilds or accepts tables: name them in rebuild or accept")
        return self


def definitions(dagster_job: DagsterJob) -> dg.Definitions:
    """Nothing where the job publishes no state."""
    if not dagster_job.job.published:
        return dg.Definitions()
    spec = operation_spec(dagster_job, "tables", ABOUT)
    about = "Compare, rebuild or accept published tables."
    return operation(dagster_job, spec, "tables", _settled, TablesConfig, about, moves_head=True)


def table_checks(dagster_job: DagsterJob) -> list[dg.AssetChecksDefinition]:
    """One for each published table, which blocks nothing."""
    return [_shows_state(dagster_job, name) for name in dagster_job.job.published]


def _shows_state(dagster_job: DagsterJob, table: str) -> dg.AssetChecksDefinition:
    key = dagster_job.key(table_key(dagster_job.name, table))

    @dg.asset_check(
        name=SHOWS_STATE,
        asset=key,
        description="All rows are those of the state, as of the checkpoint that it shows.",
    )
    def shows_state(state_engine: StateEngineResource) -> dg.AssetCheckResult:
        engine = state_engine.engine()
        if not engine.checkpoints(dagster_job.job):
            return dg.AssetCheckResult(
                passed=True, description=f"job '{dagster_job.name}' has no checkpoint yet"
            )
        try:
            compared = engine.published(dagster_job.job).verify(table)
        except SinkError as error:
            return dg.AssetCheckResult(passed=False, description=str(error))
        return dg.AssetCheckResult(
            passed=not (compared.rows or compared.deleted),
            description=_words(compared),
            metadata={
                "rows_missing": compared.rows,
                "rows_too_many": compared.deleted,
                "place": compared.place,
            },
        )

    return shows_state


def _words(compared: TableReport) -> str:
    if not (compared.rows or compared.deleted):
        return "it is equal to the state"
    return compared.difference


def _settled(run: OperationRun, config: TablesConfig) -> Iterator[dg.MaterializeResult[None]]:
    if run.never_ran():
        return
    _check_names(run, [*config.rebuild, *config.accept])
    metadata: dict[str, Any] = {}
    published = run.engine.published(run.job)
    with run.committing():
        moves = [
            call(name, dry_run=config.dry_run, requested_by=run.requested_by)
            for call, names in ((published.rebuild, config.rebuild), (published.accept, config.accept))
            for name in names
        ]
    if moves:
        metadata = {"dry_run": config.dry_run, "tables": dg.MetadataValue.md(moves_table(moves))}
        done = "would rebuild or accept" if config.dry_run else "rebuilt or accepted"
        run.log(f"{done} {[move.name for move in moves]}")
    if not (moves and config.dry_run):
        run.log("publishing what is not published yet")
        metadata["published_pending"] = dg.MetadataValue.json(run.engine.publish_pending(run.job))
    left_out = _named(config) if config.dry_run else set()
    known = {one.name for row in run.path() for one in published_in(row)} & run.job.published.keys()
    compared = [published.verify(name) for name in sorted(known - left_out)]
    differ = [move.name for move in compared if move.rows or move.deleted]
    metadata |= {
        "compared": dg.MetadataValue.md(moves_table(compared)),
        "differ": dg.MetadataValue.json(differ),
    }
    yield result(run.path()[-1].checkpoint_id, metadata)


def _named(config: TablesConfig) -> set[str]:
    return {*config.rebuild, *config.accept}


def _check_names(run: OperationRun, names: list[str]) -> None:
    unknown = sorted(set(names) - set(run.job.published))
    if unknown:
        raise ConfigurationError(
            f"job '{run.job.name}' publishes no state to a table '{unknown[0]}'; its tables: "
            f"{sorted(run.job.published)}"
        )
