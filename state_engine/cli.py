"""The command ``statelake``: sets the machine up, shows the settings, tells what is missing, lists checkpoints.

An entry point: the one place besides ``orchestration`` that reads the environment. Mirrors Flink's
``CliFrontend``.
"""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from state_engine.core.checkpoint import CheckpointRow
from state_engine.core.errors import StatelakeError
from state_engine.runtime import doctor as checks
from state_engine.runtime.engine import StateEngine
from state_engine.runtime.jars import delta_jars
from state_engine.runtime.java import find_java_home
from state_engine.runtime.session import local_session
from state_engine.runtime.settings import FILE_NAME, FILE_VARIABLE, LoadedSettings, load

app = typer.Typer(
    help="Flink's state model for scheduled, incremental PySpark batches.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
config = typer.Typer(help="The settings.", no_args_is_help=True)
app.add_typer(config, name="config")

console = Console()
errors = Console(stderr=True)

_STYLES = {"ok": "green", "warning": "yellow", "missing": "red"}


@app.command()
def setup() -> None:
    """Find or make a Java, and fetch Delta's jars; a second run only checks."""
    settings = _loaded().settings.spark
    java = find_java_home(environ=os.environ, explicit=settings.java_home)
    console.print(f"Java {java.version}, {escape(java.origin)}: {java.path}", soft_wrap=True, highlight=False)
    with console.status("Delta's jars: checking, and fetching what is missing (once, about ten seconds) …"):
        jars = delta_jars(settings.jars_dir, java=java)
    console.print(f"Delta's jars: {len(jars)} in {jars[0].parent}", soft_wrap=True, highlight=False)


@app.command()
def doctor(
    spark: Annotated[bool, typer.Option(help="Also start Spark, which takes some seconds.")] = True,
) -> None:
    """Tell what this machine has, and what to do about what is missing."""
    loaded = _loaded()
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
    if any(check.status == "missing" for check in found):
        raise typer.Exit(code=1)
    console.print("Ready to run.")


@config.command()
def show() -> None:
    """Print every effective setting and where it came from; secrets are masked."""
    loaded = _loaded()
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
    settings = _loaded().settings
    with console.status("Starting Spark …"):
        engine = StateEngine(settings.root, local_session(settings.spark))
    with engine:
        rows = engine.checkpoints(job)
    if not rows:
        errors.print(f"job '{job}' has no checkpoint in {settings.root}", soft_wrap=True, markup=False)
        raise typer.Exit(code=1)
    console.print(f"{job}: {len(rows)} checkpoints in {settings.root}", soft_wrap=True, markup=False)
    console.print(_table(rows[-last:]))


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


def _loaded() -> LoadedSettings:
    return load(environ=os.environ, directory=Path.cwd())


def _cells(row: CheckpointRow) -> list[str]:
    numbers = (
        row.rows_in,
        row.rows_refused,
        sum(sink.rows for sink in row.sinks),
        sum(operator.changed_entries for operator in row.operators),
    )
    parent = "" if row.parent_id is None else str(row.parent_id)
    counts = [f"{number:,}" for number in numbers]
    created = f"{row.created_at:%m-%d %H:%M:%S}"
    return [str(row.checkpoint_id), parent, *counts, row.kind, created, escape(row.requested_by)]


def _table(rows: list[CheckpointRow]) -> Table:
    """One line a checkpoint; columns in which nothing happened are left out."""
    names = ("id", "parent", "rows in", "refused", "rows out", "changes", "kind", "UTC", "asked for by")
    usual = {"refused": {"0"}, "kind": {"checkpoint"}}
    columns = dict(zip(names, zip(*map(_cells, rows), strict=True), strict=True))
    columns = {name: cells for name, cells in columns.items() if set(cells) != usual.get(name)}
    table = Table(box=box.SIMPLE)
    for name in columns:
        # Only who asked may be broken: half a number would be worse than none.
        justify: Literal["left", "right"] = "left" if name in names[6:] else "right"
        table.add_column(name, justify=justify, no_wrap=name != names[-1], overflow="fold")
    for line in zip(*columns.values(), strict=True):
        table.add_row(*line)
    return table
