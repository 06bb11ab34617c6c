"""The command ``statelake``: sets the machine up, shows the settings, tells what is missing, operates on jobs.

An entry point: the one place besides ``orchestration`` that reads the environment. Mirrors Flink's
``CliFrontend``.
"""

from __future__ import annotations

import os
from importlib import metadata
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from state_engine.cli import backfill as cli_backfill
from state_engine.cli import dead_letters as cli_dead_letters
from state_engine.cli import jobs, operations, queries
from state_engine.cli import key_type as cli_key_type
from state_engine.cli import state as cli_state
from state_engine.cli.history import history
from state_engine.cli.repair import repair_root
from state_engine.cli.session import console, loaded_settings, opened
from state_engine.cli.status import status
from state_engine.cli.upgrade import upgrade
from state_engine.core.errors import StatelakeError
from state_engine.machine.jars import delta_jars
from state_engine.machine.java import find_java_home
from state_engine.machine.settings import FILE_NAME, FILE_VARIABLE
from state_engine.monitoring import doctor as checks

app = typer.Typer(
    help="Flink's state model for scheduled, incremental PySpark batches.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
config = typer.Typer(help="The settings.", no_args_is_help=True)
app.add_typer(config, name="config")
app.command()(upgrade)
jobs.add_to(app)
cli_backfill.add_to(app)
cli_key_type.add_to(app)
operations.add_to(app)
app.command()(status)
queries.add_to(app)
cli_state.add_to(queries.state)
cli_dead_letters.add_to(app)

errors = Console(stderr=True)

_STYLES = {"ok": "green", "warning": "yellow", "missing": "red", "failed": "red"}


@app.command()
def setup() -> None:
    """Find or make a Java, and fetch Delta's jars; a second run only checks."""
    settings = loaded_settings().settings.spark
    java = find_java_home(environ=os.environ, explicit=settings.java_home)
    console.print(f"Java {java.version}, {escape(java.origin)}: {java.path}", soft_wrap=True, highlight=False)
    with console.status("Delta's jars: checking, and fetching what is missing (once, about ten seconds) …"):
        jars = delta_jars(settings.jars_dir, java=java)
    console.print(f"Delta's jars: {len(jars)} in {jars[0].parent}", soft_wrap=True, highlight=False)


@app.command()
def doctor(
    spark: Annotated[bool, typer.Option(help="Also start Spark, which takes some seconds.")] = True,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Repair what is damaged in the root, and nothing else. Stop its jobs first."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --repair: only show what would be done.")
    ] = False,
) -> None:
    """Tell what this machine has, and what to do about what is missing or damaged."""
    loaded = loaded_settings()
    if repair or dry_run:
        repair_root(loaded.settings.root, dry_run=dry_run)
        return
    found = checks.examine(loaded.settings, environ=os.environ)
    if spark:
        with console.status("Starting Spark …"):
            found.append(checks.check_spark(loaded.settings.spark))
    table = Table("", "check", "found", title="statelake doctor", title_justify="left")
    for check in found:
        style = _STYLES[check.status]
        table.add_row(f"[{style}]{check.status}[/]", check.name, escape(check.found))
    console.print(table)
    for check in found:
        if check.fix:
            heading = f"[{_STYLES[check.status]}]{check.name}[/]"
            console.print(f"{heading}: {escape(check.fix)}", soft_wrap=True, highlight=False)
    if any(check.status in ("missing", "failed") for check in found):
        raise typer.Exit(code=1)
    console.print("Ready to run.")


@config.command()
def show() -> None:
    """Print every effective setting and where it came from; secrets are masked."""
    loaded = loaded_settings()
    table = Table("setting", "value", "from")
    for row in loaded.rows():
        table.add_row(escape(row.key), escape(row.value), escape(row.origin))
    console.print(table)
    if loaded.file is None:
        console.print(f"No {FILE_NAME} here, and {FILE_VARIABLE} is not set.", highlight=False)


@app.command()
def checkpoints(
    job: Annotated[str, typer.Argument(help="Name of the job.")],
    last: Annotated[int, typer.Option(min=1, help="Show so many, the newest ones.")] = 20,
) -> None:
    """List what a job has committed, newest last."""
    with opened() as engine:
        rows = engine.checkpoints(job)
        if not rows:
            errors.print(f"job '{job}' has no checkpoint in {engine.root}", soft_wrap=True, markup=False)
            raise typer.Exit(code=1)
        console.print(f"{job}: {len(rows)} checkpoints in {engine.root}", soft_wrap=True, markup=False)
        console.print(history(rows, last=last))


@app.command()
def version() -> None:
    """Print the version."""
    console.print(metadata.version("statelake"), highlight=False)


def main() -> None:
    """Entry point: errors of our own end in one readable message, not in a traceback."""
    try:
        app()
    except StatelakeError as error:
        errors.print(f"[red]error[/]: {escape(str(error))}", soft_wrap=True, highlight=False)
        raise SystemExit(1) from None
