"""``python -m benchmarks.large_state``: does a small micro-batch cost what it touches, however large the state is?

Three questions, each with a job that takes turns with another one that is alike in all but a size, so that whatever
disturbs the machine disturbs both; medians are compared, and the last line of each is their ratio:

    timers  1,000 events and 100 due timers, with a million pending timers, against ten thousand
    keys    1,000 and 10,000 events, with the state of ten million keys, against a hundred thousand
    maps    one entry of a hundred changed in the maps of a thousand keys, against all of them: bytes that are written

What comes out is counted after every micro-batch: a timer that is missed, or a change, is an error, and no figure.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from pyspark.sql import SparkSession

from benchmarks.comparison import UnequalResultsError, spark_application
from benchmarks.sized_jobs import Counting, Mapped, SizedJob, Took, Waiting
from state_engine.storage.state.copy_directory import LocalCopies, use_local_copies

app = typer.Typer(help="Small micro-batches on large state.", no_args_is_help=True)

Rounds = Annotated[int, typer.Option(min=1, help="Micro-batches of each job that are counted.")]
WarmUp = Annotated[int, typer.Option(min=0, help="Micro-batches of each job before these.")]
Events = Annotated[int, typer.Option(min=1, help="Events in a micro-batch.")]


@app.command()
def timers(
    pending: Annotated[int, typer.Option(min=10, help="Pending timers, a key each.")] = 1_000_000,
    base: Annotated[int, typer.Option(min=10, help="Those of the job that it is compared with.")] = 10_000,
    due: Annotated[int, typer.Option(min=0, help="Timers that each micro-batch reaches.")] = 100,
    events: Events = 1000,
    rounds: Rounds = 9,
    warm_up: WarmUp = 6,
) -> None:
    """Compare a micro-batch with many pending timers to one with few."""
    with _site() as (spark, directory):
        jobs = {size: SizedJob(spark, directory / f"{size}", Waiting(), size) for size in (base, pending)}
        took = _in_turn(jobs, lambda job: job.run(events, due=due), rounds, warm_up)
        for size, of_job in took.items():
            for one in of_job:
                if one.rows_out != due:
                    raise UnequalResultsError(f"{size:,} timers: {one.rows_out} fired, {due} were due")
    _show(f"{events:,} events, {due} due timers, pending", took, "timers", warm_up)


@app.command()
def keys(
    size: Annotated[int, typer.Option(min=10, help="Keys that have state.")] = 10_000_000,
    base: Annotated[int, typer.Option(min=10, help="Those of the job that it is compared with.")] = 100_000,
    events: Events = 10_000,
    rounds: Rounds = 9,
    warm_up: WarmUp = 6,
) -> None:
    """Compare a micro-batch on the state of many keys to one on the state of few."""
    with _site() as (spark, directory):
        jobs = {n: SizedJob(spark, directory / f"{n}", Counting(), n) for n in (base, size)}
        took = _in_turn(jobs, lambda job: job.run(events), rounds, warm_up)
    _show(f"{events:,} events, keys", took, "keys", warm_up)


@app.command()
def maps(
    size: Annotated[int, typer.Option(min=10, help="Keys that have state.")] = 10_000,
    entries: Annotated[int, typer.Option(min=2, help="Entries of each key's map.")] = 100,
    events: Events = 1000,
    rounds: Rounds = 3,
    warm_up: WarmUp = 1,
) -> None:
    """Compare the bytes that one changed entry of a map writes to those of all entries."""
    with _site() as (spark, directory):
        job = SizedJob(spark, directory / "maps", Mapped(), size, entries=entries)
        written: dict[int, list[Took]] = {1: [], entries: []}
        for _ in range(warm_up + rounds):
            for changed, took in written.items():
                took.append(changed_entries(job, events, changed))
    bytes_of = {
        n: statistics.median(t.changelog_bytes / (n * events) for t in took) for n, took in written.items()
    }
    for changed, each in bytes_of.items():
        print(f"{changed} of {entries} entries changed: {each:.1f} bytes an entry")
    print(
        f"ratio bytes of {entries} changed entries to one = {entries * bytes_of[entries] / bytes_of[1]:.2f}"
    )


def changed_entries(job: SizedJob, keys: int, changed: int) -> Took:
    """A micro-batch that changes so many entries in the maps of so many keys, and nothing else.

    Raises:
        UnequalResultsError: another number of entries was written.
    """
    took = job.run(keys, changed=changed, keys=np.arange(keys))
    if took.changed_entries != keys * changed:
        raise UnequalResultsError(
            f"{took.changed_entries} entries were written, {keys * changed} had changed"
        )
    return took


@contextmanager
def _site() -> Iterator[tuple[SparkSession, Path]]:
    """A Spark application and a directory, for one comparison."""
    with tempfile.TemporaryDirectory(prefix="statelake-bench-") as name, spark_application() as spark:
        use_local_copies(LocalCopies(f"{name}/copies"))
        yield spark, Path(name)


def _in_turn(
    jobs: dict[int, SizedJob], run: Callable[[SizedJob], Took], rounds: int, warm_up: int
) -> dict[int, list[Took]]:
    """Micro-batches of several jobs, one each in turn."""
    took: dict[int, list[Took]] = {size: [] for size in jobs}
    for _ in range(warm_up + rounds):
        for size, job in jobs.items():
            took[size].append(run(job))
    for job in jobs.values():
        job.close()
    return took


def _show(what: str, took: dict[int, list[Took]], unit: str, warm_up: int) -> None:
    medians = {}
    for size, of_job in took.items():
        seconds = [one.seconds for one in of_job[warm_up:]]
        medians[size] = statistics.median(seconds)
        subtasks = statistics.median(max(sum(s.values()) for s in one.subtasks) for one in of_job[warm_up:])
        print(
            f"{what} {size:,}: median {medians[size]:.3f} s, from {min(seconds):.3f} to {max(seconds):.3f} s; "
            f"the longer subtask {subtasks:.3f} s"
        )
    print("load of the machine: {:.1f} {:.1f} {:.1f}".format(*os.getloadavg()))
    base, size = medians
    print(f"ratio {size:,} {unit} to {base:,} = {medians[size] / medians[base]:.2f}", flush=True)


if __name__ == "__main__":
    app()
