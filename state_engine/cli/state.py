"""Commands that change what a job remembers, for people who must: ``statelake state forget``. The engine does it."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from state_engine.cli.operations import DryRun, Job
from state_engine.cli.session import console, opened
from state_engine.core.errors import ConfigurationError
from state_engine.state_processor.forget import EraseReport


def add_to(app: typer.Typer) -> None:
    """Add the commands to the application ``statelake state``."""
    app.command()(forget)


def forget(
    job: Job,
    key: Annotated[
        list[str],
        typer.Option("--key", help="""A key as JSON, such as '{"tailnum": "N123"}'; may be repeated."""),
    ],
    operator: Annotated[str | None, typer.Option(help="Only this operator.")] = None,
    dry_run: DryRun = False,
    purge: Annotated[
        bool, typer.Option("--purge", help="Also compact, give older checkpoints up, and collect.")
    ] = False,
    sinks: Annotated[
        bool, typer.Option("--sinks", help="With --purge, also delete rows from Delta sinks.")
    ] = False,
    drop_branch: Annotated[
        list[str] | None,
        typer.Option("--drop-branch", help="With --purge, a replay to give up; may be repeated."),
    ] = None,
) -> None:
    """Take keys out of all states and timers, and tell what else still holds them."""
    keys = [_parsed(text) for text in key]
    with opened() as engine, console.status("Forgetting …"):
        report = engine.state_processor(job).erase_keys(
            keys,
            operator=operator,
            dry_run=dry_run,
            purge=purge,
            sinks=sinks,
            drop_branches=drop_branch or (),
        )
    _tell(report, dry_run=dry_run)


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(
            f"--key {text!r} is no JSON ({error}): give the columns of the key"
        ) from None
    if not isinstance(found, dict) or not found:
        raise ConfigurationError(f"--key {text!r} is no JSON object with the columns of the key")
    return found


def _tell(report: EraseReport, *, dry_run: bool) -> None:
    done = report.transform
    would = "would leave" if dry_run else "left"
    for one in (s for s in done.states if s.deleted):
        console.print(
            f"{one.operator}, {one.state}: {one.deleted:,} entries {would} the state",
            highlight=False,
            markup=False,
        )
    if not done.changes:
        console.print(
            f"{report.job}: the state at checkpoint {done.parent_id} does not hold the keys", highlight=False
        )
    if done.committed_id is not None:
        console.print(f"{report.job}: checkpoint {done.committed_id} says so", highlight=False)
    if report.retired:
        told = ", ".join(map(str, report.retired))
        console.print(f"given up: checkpoints {told}", soft_wrap=True, highlight=False)
    if report.traces:
        table = Table("still held by", "", "rows", "what takes them away", title_justify="left")
        for trace in report.traces:
            table.add_row(trace.kind, trace.name, f"{trace.rows:,}", trace.remedy)
        console.print(table)
    else:
        console.print("nothing that was looked at holds them any more", highlight=False)
    for what in report.not_looked_at:
        console.print(f"not looked at: {what}", soft_wrap=True, markup=False, highlight=False)
