"""Commands that operate on what a job has recorded. What they do is the engine's.

They run nothing of the job's code; where the settings name its module, it says which sinks are still the job's.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import groupby
from typing import Annotated, Literal

import typer
from pyspark.sql import DataFrame
from rich.table import Table

from state_engine.cli.session import console, known, opened
from state_engine.core.checkpoints.disposal import Disposal
from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.operations.head_moves import RestoreReport
from state_engine.operations.savepoints import described, verified
from state_engine.replay.comparison import ComparisonReport
from state_engine.storage.files import normal_uri

Job = Annotated[str, typer.Argument(help="Name of the job.")]
Branch = Annotated[str, typer.Argument(help="Branch of a replay.")]
Outputs = Annotated[Literal["withdraw", "keep"], typer.Option(help="What becomes of outputs since.")]
LeaveAlone = Annotated[
    list[str] | None,
    typer.Option(
        help="Name of a sink that stays as it is, such as one that was given up; may be repeated. Sinks that the code "
        "does not have any more are left alone where the settings name the job's module."
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell what would happen.")]

savepoints = typer.Typer(help="Copies of checkpoints that can be moved.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(savepoints, name="savepoint")
    for command in (restore, compare, promote, drop_branch, compact, retain, collect):
        app.command()(command)


def restore(
    job: Job,
    checkpoint_id: Annotated[
        int, typer.Argument(help="Checkpoint to go back to; see: statelake checkpoints")
    ],
    outputs: Outputs = "withdraw",
    leave_alone: LeaveAlone = None,
    dry_run: DryRun = False,
) -> None:
    """Go back to a checkpoint: state, source positions and sinks."""
    code = known(job)
    with opened() as engine:
        move = engine.restore(
            code, checkpoint_id=checkpoint_id, outputs=outputs, leave_alone=leave_alone or (), dry_run=dry_run
        )
        _tell(job, move)


def promote(
    job: Job,
    branch: Branch,
    expected_head: Annotated[
        int | None, typer.Option(min=1, help="Refuse if the job has gone on since.")
    ] = None,
    outputs: Outputs = "withdraw",
    leave_alone: LeaveAlone = None,
    dry_run: DryRun = False,
) -> None:
    """Make a replay's branch the head of the job, and its outputs those of the sinks."""
    code = known(job)
    with opened() as engine:
        move = engine.promote(
            code, branch, expected_head=expected_head, outputs=outputs, leave_alone=leave_alone or (),
            dry_run=dry_run,
        )  # fmt: skip
        _tell(job, move)


def compare(
    job: Job,
    branch: Branch,
    rows: Annotated[int, typer.Option(min=0, help="Show so many rows of every difference.")] = 0,
) -> None:
    """Tell what differs between a branch and main: outputs row by row, and state. Ends with 1 where something does."""
    with opened() as engine:
        with console.status("Comparing …"):
            found = engine.compare(job, branch)
        console.print(found.summary(), soft_wrap=True, highlight=False, markup=False)
        for frame in _differing(found) if rows else ():
            frame.show(rows, truncate=False)
    if not found.is_equal:
        raise typer.Exit(code=1)


def drop_branch(job: Job, branch: Branch) -> None:
    """Give up a branch: it can neither go on nor be promoted."""
    with opened() as engine:
        engine.drop_branch(job, branch)
    console.print(f"{job}: branch {branch} is given up", highlight=False)


def compact(job: Job) -> None:
    """Fold the keyed state into new bases; micro-batches go on meanwhile."""
    with opened() as engine, console.status("Compacting …") as status:
        done = engine.compact(
            job, on_progress=lambda at: status.update(f"Compacting: {at.done} of {at.of} tasks …")
        )
    for uid, entries in done.entries.items():
        console.print(f"{uid}: {entries:,} entries, {done.bytes[uid]:,} bytes", highlight=False, markup=False)
    if done.committed_id is not None:
        told = f"checkpoint {done.committed_id} puts them in force"
    elif done.entries:
        told = "dropped: the head moved elsewhere meanwhile; run it again"
    else:
        told = "nothing changed since the last compaction"
    console.print(f"{job}: {told}", highlight=False)


def retain(
    job: Job,
    keep_last: Annotated[int, typer.Option(min=1, help="Keep so many checkpoints.")] = 10,
    keep_hours: Annotated[float | None, typer.Option(min=0, help="Keep all that are younger.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Give up old checkpoints: they can no longer be restored, and their files may be collected."""
    younger = None if keep_hours is None else int(timedelta(hours=keep_hours) / timedelta(milliseconds=1))
    with opened() as engine:
        retired = engine.expire_checkpoints(job, RetentionPolicy(keep_last, younger), dry_run=dry_run)
    told = ", ".join(map(str, retired)) if retired else "none"
    console.print(f"{job}: {'would give' if dry_run else 'gave'} up {told}", soft_wrap=True, highlight=False)


def collect(
    job: Job,
    orphan_hours: Annotated[float, typer.Option(min=24, help="Files stay at least so long.")] = 24,
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Let Delta clean up the job's tables, too.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Delete the files that nobody needs any more: of retired checkpoints, and of attempts that crashed."""
    with opened() as engine, console.status("Looking for files …") as status:
        done = engine.vacuum(
            job,
            orphan_age=timedelta(hours=orphan_hours),
            delta_vacuum=vacuum,
            dry_run=dry_run,
            on_progress=lambda file: status.update(f"{file.path} …"),
        )
    for why, files in groupby(sorted(done.files, key=_step), key=_step):
        several = list(files)
        told = f"{' '.join(why)}: {len(several):,} files, {sum(f.bytes for f in several):,} bytes"
        console.print(f"{'would ' if dry_run else ''}{told}", soft_wrap=True, highlight=False, markup=False)
    if not done.files:
        console.print(f"{job}: there is nothing to collect", highlight=False)


def _step(file: Disposal) -> tuple[str, str]:
    return file.step, f"({file.why.partition(' of ')[0]})"  # not which attempt


def _differing(found: ComparisonReport) -> Iterator[DataFrame]:
    for output in found.outputs.values():
        yield from (
            f
            for f, n in ((output.only_old, output.rows_only_old), (output.only_new, output.rows_only_new))
            if n
        )
    yield from (s.changes for s in found.states if s.added or s.removed or s.changed)


@savepoints.command("create")
def create_savepoint(
    job: Job,
    name: Annotated[str, typer.Argument(help="Name of the savepoint.")],
    path: Annotated[str | None, typer.Option(help="Directory; beside the job's tables by default.")] = None,
) -> None:
    """Copy the head into a directory that can be moved; micro-batches go on."""
    with opened() as engine, console.status("Copying …") as status:
        made = engine.savepoints(job).create(
            name, path, on_progress=lambda at: status.update(f"Copying: {at.done} of {at.of} tasks …")
        )
    console.print(
        f"{job}: savepoint {name} of checkpoint {made.checkpoint_id}: {made.files} files, {made.bytes:,} bytes in "
        f"{made.path}",
        soft_wrap=True,
        highlight=False,
    )


@savepoints.command("list")
def list_savepoints(job: Job) -> None:
    """List the savepoints of a job."""
    with opened() as engine:
        found = engine.savepoints(job).list()
    table = Table("name", "checkpoint", "directory")
    for name, pin in sorted(found.items()):
        table.add_row(name, str(pin.checkpoint_id), pin.path)
    console.print(table)


@savepoints.command("verify")
def verify_savepoint(path: Annotated[str, typer.Argument(help="Directory of the savepoint.")]) -> None:
    """Compare all files of a savepoint with their checksums."""
    with console.status("Reading …"):
        uri = normal_uri(path)
        found = described(uri, verified(uri))
    console.print(f"savepoint {found.name}: {found.files} files are what was written", highlight=False)


@savepoints.command("delete")
def delete_savepoint(
    job: Job,
    name: Annotated[str, typer.Argument(help="Name of the savepoint.")],
    keep_files: Annotated[bool, typer.Option("--keep-files", help="Only let its checkpoint go.")] = False,
) -> None:
    """Delete a savepoint's files and let its checkpoint go."""
    with opened() as engine:
        engine.savepoints(job).delete(name, keep_files=keep_files)
    console.print(f"{job}: savepoint {name} is deleted", highlight=False)


def _tell(job: str, move: RestoreReport) -> None:
    done = "would go" if move.committed_id is None else "went"
    console.print(
        f"{job}: the head {done} from checkpoint {move.replaced_id} to {move.checkpoint_id}", highlight=False
    )
    if move.abandoned:
        console.print(f"abandoned: {', '.join(map(str, move.abandoned))}", soft_wrap=True, highlight=False)
    for sink in move.sinks:
        out, back = move.rows_withdrawn[sink.name], move.rows_added[sink.name]
        console.print(f"sink {sink.name}: {out:,} rows out, {back:,} rows back", highlight=False)
    for sink in move.left_alone:
        console.print(
            f"sink {sink.name} at {sink.path} is left alone: it is as it was", soft_wrap=True, highlight=False
        )
    if move.committed_id is not None:
        console.print(
            f"checkpoint {move.committed_id} says so; run the job to go on from there", highlight=False
        )
