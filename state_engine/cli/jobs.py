"""Commands that need the code of a job: run, publish-pending, replay, rescale. What they do is the engine's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.status import Status

from state_engine.cli.session import console, declared, known, opened
from state_engine.engine.rescaling import RescaleReport
from state_engine.microbatch.reports import BatchReport

Job = Annotated[str, typer.Argument(help="Name of the job.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (run, publish_pending, replay, rescale):
        app.command()(command)


def run(
    job: Job,
    partition: Annotated[
        str | None,
        typer.Option(help="Of a job in time partitions: run this one; all that are over by default."),
    ] = None,
    max_batches: Annotated[int | None, typer.Option(min=1, help="Stop after so many.")] = None,
    drain: Annotated[
        bool, typer.Option("--drain", help="The input has ended: fire every event-time timer.")
    ] = False,
) -> None:
    """Run micro-batches until the sources have nothing new."""
    found = declared(job)
    with opened() as engine, _batches(f"{job}: preparing its input …") as on_progress:
        found.prepare()
        report = engine.run(
            found.job, partition=partition, max_batches=max_batches, drain=drain, on_progress=on_progress
        )
    if report.published_pending:
        _print(
            f"{job}: published first what an earlier run had committed: {_listed(report.published_pending)}"
        )
    for sink, path in report.left_alone.items():
        _print(f"{job}: sink {sink} at {path} is left alone: the code does not have it any more")
    if report.batches:
        told = "caught up" if report.caught_up else f"stopped after {len(report.batches)} micro-batches"
        _print(f"{job}: {report.rows_in:,} rows in, {told}, head {report.checkpoint_id}")
    else:
        _print(f"{job}: nothing new")
    for text in report.files_waiting:
        _print(f"{job}: waits: {text}")


def publish_pending(
    job: Job,
    from_checkpoint: Annotated[
        int | None,
        typer.Option(min=1, help="Publish again what sinks do not show of this checkpoint and later ones."),
    ] = None,
) -> None:
    """Publish what was committed and is not published; also to a sink that was put back from a backup."""
    found = known(job)
    with opened() as engine, console.status("Publishing …"):
        done = engine.publish_pending(found, from_checkpoint=from_checkpoint)
    _print(f"{job}: published {_listed(done)}" if done else f"{job}: everything is published")


def replay(
    job: Job,
    from_checkpoint: Annotated[
        int | None, typer.Option("--from", min=0, help="Checkpoint to begin at; 0 for the very beginning.")
    ] = None,
    to_checkpoint: Annotated[
        int | None, typer.Option("--to", min=1, help="Last one to replay; all by default.")
    ] = None,
    branch: Annotated[str | None, typer.Option(help="Its name; replay_<n> by default.")] = None,
    rebatch: Annotated[
        bool, typer.Option("--rebatch", help="Cut the recorded input anew, by the sources' own bounds.")
    ] = False,
) -> None:
    """Run recorded micro-batches again with today's code, on a branch that publishes nothing."""
    found = declared(job)
    with opened() as engine, _batches(f"{job}: looking up what was recorded …") as on_progress:
        report = engine.replay(
            found.job,
            from_checkpoint=from_checkpoint,
            to_checkpoint=to_checkpoint,
            branch=branch,
            rebatch=rebatch,
            on_progress=on_progress,
        )
    if report.branch_head_id is None:
        _print(f"{job}: there is nothing to replay")
        return
    left = f", {report.remaining} left out" if report.remaining else ""
    _print(
        f"{job}: branch {report.branch}: {len(report.batches)} micro-batches, head {report.branch_head_id}{left}"
    )
    _print(f"look at it: statelake compare {job} {report.branch}")
    _print(f"then:       statelake promote {job} {report.branch} --expected-head {report.main_head_id}")
    _print(f"or:         statelake drop-branch {job} {report.branch}")


def rescale(
    job: Job,
    parallelism: Annotated[
        int | None, typer.Option(min=1, help="Subtasks of every operator; what the job declares by default.")
    ] = None,
    max_parallelism: Annotated[
        int | None, typer.Option(min=1, help="Key groups: keyed state is written anew, while batches go on.")
    ] = None,
) -> None:
    """Give a job another parallelism: one row of metadata, not one byte of keyed state."""
    found = declared(job)
    with opened() as engine, console.status(f"{job}: rescaling …"):
        done = engine.rescale(found.job, parallelism=parallelism, max_parallelism=max_parallelism)
    if not done.changes:
        _print(f"{job}: this parallelism is in force already")
        return
    _print(f"{job}: checkpoint {done.committed_id} puts in force {_in_force(done)}")
    if max_parallelism is not None:
        _print(f"declare max_parallelism={max_parallelism} in the job from now on")


def _in_force(done: RescaleReport) -> str:
    groups = done.max_parallelism
    return ", ".join(f"{uid}: {n} of {groups.get(uid, n)}" for uid, n in done.parallelism.items())


def _listed(ids: list[int]) -> str:
    return ", ".join(map(str, ids))


@contextmanager
def _batches(before: str) -> Iterator[Callable[[BatchReport], None]]:
    """A line for every micro-batch, and below them what is going on."""
    with console.status(before) as status:
        yield lambda batch: _batch(batch, status)


def _batch(batch: BatchReport, status: Status) -> None:
    out = ", ".join(f"{rows:,} to {sink}" for sink, rows in batch.rows_out.items())
    refused = f", {batch.rows_refused:,} refused" if batch.rows_refused else ""
    of = f"{batch.partition}, " if batch.partition else ""
    late = f", {batch.late_rows:,} late" if batch.late_rows else ""
    _print(
        f"{of}checkpoint {batch.checkpoint_id}: {batch.rows_in:,} rows in{late}{refused}{', ' + out if out else ''} "
        f"({batch.seconds:.1f} s)"
    )
    status.update(f"after checkpoint {batch.checkpoint_id} …")


def _print(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)
