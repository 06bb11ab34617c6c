"""The commands ``statelake savepoint create``, ``list``, ``verify`` and ``delete``. What they do is the engine's."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from state_engine.cli.options import DryRun, Job
from state_engine.cli.output import AsCsv, AsJson, show
from state_engine.cli.renamed import Commands
from state_engine.cli.session import console, opened, progress, say
from state_engine.operations.savepoints import described, verified
from state_engine.storage.files import normal_uri

app = typer.Typer(help="Copies of checkpoints that can be moved.", no_args_is_help=True, cls=Commands)

Name = Annotated[str, typer.Argument(help="Name of the savepoint.")]


@app.command()
def create(
    job: Job,
    name: Name,
    path: Annotated[str | None, typer.Option(help="Directory; beside the job's tables by default.")] = None,
    checkpoint_id: Annotated[
        int | None, typer.Option("--checkpoint", help="Copy this checkpoint; the head by default.")
    ] = None,
) -> None:
    """Copy the head into a directory that can be moved; micro-batches go on."""
    with opened() as engine, progress("Copying") as on_progress:
        made = engine.savepoints(job).create(name, path, checkpoint_id=checkpoint_id, on_progress=on_progress)
    say(
        f"{job}: savepoint {name} of checkpoint {made.checkpoint_id}: {made.files} files, {made.bytes:,} bytes in "
        f"{made.path}"
    )


@app.command(name="list")
def list_savepoints(job: Job, as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """List the savepoints of a job."""
    with opened() as engine:
        savepoints = engine.savepoints(job).list()
    columns = ("name", "checkpoint", "directory")
    records = [
        dict(zip(columns, (name, pin.checkpoint_id, pin.path), strict=True))
        for name, pin in sorted(savepoints.items())
    ]

    def table() -> Table:
        shown = Table(*columns)
        for record in records:
            shown.add_row(*map(str, record.values()))
        return shown

    show(records, table, as_json=as_json, as_csv=as_csv, columns=columns)


@app.command()
def verify(path: Annotated[str, typer.Argument(help="Directory of the savepoint.")]) -> None:
    """Compare all files of a savepoint with their checksums."""
    with console.status("Reading …"):
        uri = normal_uri(path)
        savepoint = described(uri, verified(uri))
    say(f"savepoint {savepoint.name}: {savepoint.files} files are what was written")


@app.command()
def delete(
    job: Job,
    name: Name,
    keep_files: Annotated[bool, typer.Option("--keep-files", help="Only let its checkpoint go.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Delete a savepoint's files and let its checkpoint go."""
    with opened() as engine:
        files = engine.savepoints(job).delete(name, keep_files=keep_files, dry_run=dry_run)
    if dry_run:
        say(f"{job}: would delete savepoint {name}: {len(files):,} files")
    else:
        say(f"{job}: savepoint {name} is deleted")
