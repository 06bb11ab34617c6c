"""The commands ``statelake savepoint create``, ``list``, ``verify`` and ``delete``. What they do is the engine's."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from state_engine.cli.groups import Group
from state_engine.cli.options import DryRun, Job
from state_engine.cli.output import plain, report, show
from state_engine.cli.progress import progress
from state_engine.cli.session import errors, history_of, opened
from state_engine.cli.tables import table
from state_engine.core.counted_nouns import counted
from state_engine.operations.savepoints import described, verified
from state_engine.storage.stores.files import normal_uri

savepoint = Group("Make, check and delete copies of checkpoints that can be moved.")

Name = Annotated[str, typer.Argument(help="Name of the savepoint.")]


@savepoint.command()
def create(
    job: Job,
    name: Name,
    path: Annotated[str | None, typer.Option(help="Directory; beside the job's tables by default.")] = None,
    checkpoint_id: Annotated[
        int | None, typer.Option("--checkpoint", help="Copy this checkpoint; the head by default.")
    ] = None,
) -> None:
    """Copy the head into a directory that can be moved; micro-batches continue."""
    with opened() as engine, progress("Copying") as on_progress:
        made = engine.savepoints(job).create(name, path, checkpoint_id=checkpoint_id, on_progress=on_progress)
    text = (
        f"{job}: savepoint {name} of checkpoint {made.checkpoint_id}: {counted(made.files, 'file')}, "
        f"{counted(made.bytes, 'byte')} in "
        f"{made.path}"
    )
    report({"job": job, **plain(made)}, [text])


@savepoint.command(name="list")
def list_savepoints(job: Job) -> None:
    """List the savepoints of a job."""
    savepoints = history_of(job).checkpoints.pins
    columns = ("name", "checkpoint", "directory")
    records = [
        dict(zip(columns, (name, pin.checkpoint_id, pin.path), strict=True))
        for name, pin in sorted(savepoints.items())
    ]

    def listing() -> Table:
        rows = [[str(cell) for cell in record.values()] for record in records]
        return table(columns, rows, right=("checkpoint",))

    show(records, listing, columns=columns)


@savepoint.command()
def verify(path: Annotated[str, typer.Argument(help="Directory of the savepoint.")]) -> None:
    """Compare all files of a savepoint with their checksums."""
    with errors.status("Reading …"):
        uri = normal_uri(path)
        savepoint = described(uri, verified(uri))
    report(
        savepoint,
        [f"savepoint {savepoint.name}: {counted(savepoint.files, 'file is', 'files are')} as written"],
    )


@savepoint.command()
def delete(
    job: Job,
    name: Name,
    keep_files: Annotated[bool, typer.Option("--keep-files", help="Only release its checkpoint.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Delete a savepoint's files and release its checkpoint."""
    with opened() as engine:
        files = engine.savepoints(job).delete(name, keep_files=keep_files, dry_run=dry_run)
    text = (
        f"{job}: would delete savepoint {name}: {counted(len(files), 'file')}"
        if dry_run
        else f"{job}: savepoint {name} is deleted"
    )
    report({"job": job, "savepoint": name, "files": files, "dry_run": dry_run}, [text])
