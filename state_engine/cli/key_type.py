"""The command ``statelake change-key-type``: keyed state gets the key that the job's code declares."""

from __future__ import annotations

from typing import Annotated

import typer

from state_engine.cli.jobs import Job
from state_engine.cli.operations import DryRun
from state_engine.cli.session import console, declared, opened
from state_engine.state_processor.key_change import KeyTypeReport


def add_to(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(change_key_type)


def change_key_type(
    job: Job,
    operator: Annotated[str, typer.Option(help="Uid of the operator.")],
    key_type: Annotated[
        str | None,
        typer.Option(help="Columns and types of the key, where sources have no input yet that tells them."),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Write the state of an operator anew under keys of the type that the job's code declares; old ones are cast."""
    found = declared(job)
    with opened() as engine, console.status(f"{job}: reading the state of {operator} …"):
        found.prepare()
        report = engine.state_processor(found.job).change_key_type(
            operator, key_type=key_type, dry_run=dry_run
        )
    for line in _told(report, dry_run=dry_run):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _told(report: KeyTypeReport, *, dry_run: bool) -> list[str]:
    change = f"{report.job}, {report.operator}: {report.before} → {report.after}"
    if not report.is_needed:
        return [change, "the keys are stored alike, so there is nothing to write"]
    entries = ", ".join(f"{state} {n:,}" for state, n in report.entries.items())
    done = "would be written" if dry_run else "are written"
    lines = [change, f"{report.keys:,} keys {done} anew; entries: {entries or 'none'}"]
    if report.committed_id is not None:
        lines.append(
            f"checkpoint {report.committed_id} says so; run the job to go on from there, or restore checkpoint "
            f"{report.parent_id} to go back"
        )
    return lines
