"""The commands ``statelake branch list``, ``create``, ``compare``, ``promote`` and ``drop``: replays of a job.

What they do is the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from pyspark.sql import DataFrame
from rich.table import Table

from state_engine.cli.operations import say_moved
from state_engine.cli.options import Branch, DryRun, Job, LeaveAlone, Outputs, Rebatch
from state_engine.cli.output import AsCsv, AsJson, show
from state_engine.cli.renamed import Commands
from state_engine.cli.session import declared, known, listed, opened, progress, say
from state_engine.replay.comparison import ComparisonReport

app = typer.Typer(
    help="Replays on a branch: look at what other code would have done, then promote or drop it.",
    no_args_is_help=True,
    cls=Commands,
)


@app.command(name="list")
def list_branches(job: Job, as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """List the branches of a job that are neither promoted nor dropped."""
    with opened() as engine:
        heads = engine.branches(job)
    records = [
        {"branch": name, "head": h.checkpoint_id, "created_at": h.created_at, "requested_by": h.requested_by}
        for name, h in heads.items()
    ]

    def table() -> Table:
        shown = Table("branch", "head", "UTC", "asked for by")
        for name, h in heads.items():
            shown.add_row(name, str(h.checkpoint_id), f"{h.created_at:%Y-%m-%d %H:%M:%S}", h.requested_by)
        return shown

    columns = ("branch", "head", "created_at", "requested_by")
    show(records, table, as_json=as_json, as_csv=as_csv, columns=columns)


@app.command()
def create(
    job: Job,
    from_checkpoint: Annotated[
        int | None, typer.Option("--from", min=0, help="Checkpoint to begin at; 0 for the very beginning.")
    ] = None,
    to_checkpoint: Annotated[
        int | None, typer.Option("--to", min=1, help="Last one to replay; all by default.")
    ] = None,
    branch: Annotated[
        str | None, typer.Option(help="Name; replay_<n> by default. One that there is goes on.")
    ] = None,
    rebatch: Rebatch = False,
) -> None:
    """Run recorded micro-batches again with today's code, on a branch that publishes nothing."""
    code = declared(job)
    with opened() as engine, progress(f"{job}: looking up what was recorded") as on_progress:
        report = engine.replay(
            code.job,
            from_checkpoint=from_checkpoint,
            to_checkpoint=to_checkpoint,
            branch=branch,
            rebatch=rebatch,
            on_progress=on_progress,
        )
    if report.branch_head_id is None:
        say(f"{job}: there is nothing to replay")
        return
    left = f", {report.remaining} left out" if report.remaining else ""
    say(
        f"{job}: branch {report.branch}: {len(report.batches)} micro-batches, head {report.branch_head_id}{left}"
    )
    say(f"look at it: statelake branch compare {job} {report.branch}")
    say(f"then:       statelake branch promote {job} {report.branch} --expected-head {report.main_head_id}")
    say(f"or:         statelake branch drop {job} {report.branch}")


@app.command()
def compare(
    job: Job,
    branch: Branch,
    rows: Annotated[int, typer.Option(min=0, help="Show so many rows of every difference.")] = 0,
) -> None:
    """Show what differs between a branch and main: outputs row by row, and state. Ends with 1 where something does."""
    with opened("Comparing") as engine:
        report = engine.compare(job, branch)
        say(report.summary())
        for frame in _differing(report) if rows else ():
            frame.show(rows, truncate=False)
    if not report.is_equal:
        raise typer.Exit(code=1)


@app.command()
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
    """Make a branch the head of the job, and its outputs those of the sinks."""
    code = known(job)
    with opened("Promoting") as engine:
        report = engine.promote(
            code,
            branch,
            expected_head=expected_head,
            outputs=outputs,
            leave_alone=leave_alone or (),
            dry_run=dry_run,
        )
    say_moved(job, report)


@app.command()
def drop(job: Job, branch: Branch, dry_run: DryRun = False) -> None:
    """Drop a branch: it can neither go on nor be promoted, and vacuum may delete what only it needs."""
    with opened() as engine:
        expired = engine.drop_branch(job, branch, dry_run=dry_run)
    done = "would be dropped" if dry_run else "is dropped"
    say(f"{job}: branch {branch} {done}; expired: {listed(expired)}")


def _differing(report: ComparisonReport) -> Iterator[DataFrame]:
    for output in report.outputs.values():
        sides = ((output.only_old, output.rows_only_old), (output.only_new, output.rows_only_new))
        yield from (frame for frame, rows in sides if rows)
    yield from (s.changes for s in report.states if s.added or s.removed or s.changed)
