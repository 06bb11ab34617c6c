"""Commands for jobs in time partitions: backfill, and the list of partitions. What they do is the engine's."""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from rich.status import Status
from rich.table import Table

from state_engine.cli.session import console, declared, opened
from state_engine.microbatch.partition_runs import PartitionStatus
from state_engine.microbatch.reports import BatchReport
from state_engine.replay.backfill import BackfillReport

Job = Annotated[str, typer.Argument(help="Name of the job.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (backfill, partitions):
        app.command()(command)


def backfill(
    job: Job,
    start: Annotated[str, typer.Option("--from", help="First partition, for example 2013-01-02.")],
    end: Annotated[str, typer.Option("--to", help="Last partition.")],
    mode: Annotated[
        str,
        typer.Option(
            help="roll_forward: later partitions too, then swap; stop: later ones become stale; branch: look first."
        ),
    ] = "roll_forward",
    rebatch: Annotated[
        bool, typer.Option("--rebatch", help="Read what the sources hold now, rows that were late included.")
    ] = False,
    outputs: Annotated[
        Literal["withdraw", "keep"],
        typer.Option(help="Whether old outputs leave the sinks, or stay beside the new ones (roll_forward)."),
    ] = "withdraw",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would happen.")] = False,
) -> None:
    """Run time partitions again with today's code; the same call goes on with one that was interrupted."""
    found = declared(job)
    with opened() as engine, console.status(f"{job}: looking up what was recorded …") as status:
        if not dry_run:
            found.prepare()
        report = engine.backfill(
            found.job, start, end, mode, rebatch=rebatch, outputs=outputs, dry_run=dry_run,
            on_progress=lambda batch: _partition(batch, status),
        )  # fmt: skip
    _print(told(report, dry_run=dry_run))


def partitions(job: Job) -> None:
    """The time partitions of a job: done, stale or missing."""
    found = declared(job)
    with opened() as engine:
        states = engine.partitions(found.job)
    console.print(_listed(job, states))


def told(report: BackfillReport, *, dry_run: bool) -> str:
    """What a backfill did, in words.

    Example:
        >>> seen = BackfillReport("delays", "stop", "backfill_1", 3, ["2013-01-02"], [], {"2013-01-02": 842},
        ...                       ["2013-01-03"], rows_withdrawn={"out": 842}, rows_added={"out": 842})
        >>> print(told(seen, dry_run=True))
        delays: 1 partitions, 2013-01-02 to 2013-01-02, would run on branch backfill_1 from checkpoint 3
          2013-01-02: 842 rows were read before
        sink out: 842 rows would leave, and if they come to the same, 842 would come
        stale until they run again: 2013-01-03
    """
    if not report.partitions:
        return f"{report.job}: nothing to do"
    span = f"{len(report.partitions)} partitions, {report.partitions[0]} to {report.partitions[-1]}"
    lines = []
    if dry_run:
        begin = f"checkpoint {report.begin_id}" if report.begin_id else "the very beginning"
        lines.append(f"{report.job}: {span}, would run on branch {report.branch} from {begin}")
        for key in report.partitions:
            done = " (done on the branch)" if key in report.resumed else ""
            rows = report.rows_recorded.get(key)
            lines.append(
                f"  {key}: "
                + ("never run before" if rows is None else f"{rows:,} rows were read before")
                + done
            )
    else:
        lines.append(
            f"{report.job}: {span}, on branch {report.branch}; {len(report.batches)} run by this call"
        )
    for sink in sorted(report.rows_withdrawn.keys() | report.rows_added.keys()):
        left, came = report.rows_withdrawn.get(sink, 0), report.rows_added.get(sink, 0)
        if dry_run:
            lines.append(
                f"sink {sink}: {left:,} rows would leave, and if they come to the same, {came:,} would come"
            )
        else:
            lines.append(f"sink {sink}: {left:,} rows left, {came:,} came")
    if report.stale:
        lines.append(f"stale until they run again: {', '.join(report.stale)}")
    if report.mode == "branch" and not dry_run:
        lines.append(f"look at it: statelake compare {report.job} {report.branch}")
        lines.append(f"then:       statelake promote {report.job} {report.branch}")
    return "\n".join(lines)


def _partition(batch: BatchReport, status: Status) -> None:
    late = f", {batch.late_rows:,} late" if batch.late_rows else ""
    _print(
        f"{batch.partition}: {batch.rows_in:,} rows in{late}, checkpoint {batch.checkpoint_id} ({batch.seconds:.1f} s)"
    )
    status.update(f"after {batch.partition} …")


def _listed(job: str, states: list[PartitionStatus]) -> Table:
    table = Table("partition", "state", "checkpoint", "rows", "late", title=job, title_justify="left")
    for one in states:
        checkpoint = "" if one.checkpoint_id is None else str(one.checkpoint_id)
        table.add_row(one.key, one.state, checkpoint, f"{one.rows:,}", f"{one.late_rows:,}")
    return table


def _print(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)
