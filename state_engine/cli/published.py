"""Commands on the tables that show states: rebuild, verify, accept."""

from __future__ import annotations

from typing import Annotated

import typer

from state_engine.cli.options import Job
from state_engine.cli.output import plain, report
from state_engine.cli.session import known, opened
from state_engine.publication.published_tables import TableMove

Table = Annotated[str, typer.Argument(help="Name of the table among the sinks of the job.")]


def rebuild_table(job: Job, table: Table) -> None:
    """Put the state as of the head in the place of all that a published table holds."""
    code = known(job)
    with opened(f"{job}: rebuilding {table}") as engine:
        done = engine.published(code).rebuild(table)
    report({"job": job, **plain(done)}, [f"{table}: {done.rows:,} rows, as of the head; {done.place}"])


def verify_table(job: Job, table: Table) -> None:
    """Compare a published table with the state that it shows. Ends with 1 where they differ."""
    code = known(job)
    with opened(f"{job}: comparing {table}") as engine:
        done = engine.published(code).verify(table)
    report({"job": job, **plain(done)}, [_compared(done)])
    if done.rows or done.deleted:
        raise typer.Exit(1)


def accept_table(job: Job, table: Table) -> None:
    """Leave what others changed in a published table as it is, and go on from there."""
    code = known(job)
    with opened(f"{job}: accepting {table}") as engine:
        engine.published(code).accept(table)
    text = f"{table}: what others changed stays, until the state of its keys changes"
    report({"job": job, "table": table}, [text])


def _compared(done: TableMove) -> str:
    if not done.rows and not done.deleted:
        return f"{done.name}: equal to the state"
    return (
        f"{done.name}: differs from the state: {done.rows:,} rows are missing or other ones, {done.deleted:,} are too "
        f"many; `statelake rebuild-table` puts the state's rows there"
    )
