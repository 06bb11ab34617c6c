"""``python -m benchmarks.large_state``: does a small micro-batch cost what it touches, however large the state is?

Three questions, each with a job that takes turns with another one that is alike in all but a size, so that whatever
disturbs the machine disturbs both; medians are compared, and the last line of each is their ratio:

    timers  1,000 events and 100 due timers, with a million pending timers, against ten thousand
    keys    1,000 and 10,000 events, with the state of ten million keys, against a hundred thousand
    maps    one entry of a hundred changed in the maps of a thousand keys, against all of them: bytes that are written

What comes out is counted after every micro-batch: a timer that is missed, or a change, is an error, and no figure.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from pyspark.sql import SparkSession

from benchmarks.comparison import OnStep, site
from benchmarks.figures import Comparison, Timed, load_of_machine
from benchmarks.sized_jobs import Counting, Mapped, SizedJob, Took, Waiting
from benchmarks.unequal import UnequalResultsError

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
    done = measure_timers((base, pending), due=due, events=events, rounds=rounds, warm_up=warm_up)
    _show(done, f"ratio {pending:,} timers to {base:,}")


@app.command()
def keys(
    size: Annotated[int, typer.Option(min=10, help="Keys that have state.")] = 10_000_000,
    base: Annotated[int, typer.Option(min=10, help="Those of the job that it is compared with.")] = 100_000,
    events: Events = 10_000,
    rounds: Rounds = 9,
    warm_up: WarmUp = 6,
) -> None:
    """Compare a micro-batch on the state of many keys to one on the state of few."""
    done = measure_keys({base: events, size: events}, rounds=rounds, warm_up=warm_up)
    _show(done, f"ratio {size:,} keys to {base:,}")


@app.command()
def maps(
    size: Annotated[int, typer.Option(min=10, help="Keys that have state.")] = 10_000,
    entries: Annotated[int, typer.Option(min=2, help="Entries of each key's map.")] = 100,
    events: Events = 1000,
    rounds: Rounds = 3,
    warm_up: WarmUp = 1,
) -> None:
    """Compare the bytes that one changed entry of a map writes to those of all entries."""
    bytes_of = measure_maps(size, entries, events=events, rounds=rounds, warm_up=warm_up)
    for changed, each in bytes_of.items():
        print(f"{changed} of {entries} entries changed: {each:.1f} bytes an entry")
    print(
        f"ratio bytes of {entries} changed entries to one = {entries * bytes_of[entries] / bytes_of[1]:.2f}"
    )


def timers_name(pending: int) -> str:
    """How a job with so many pending timers is called in figures."""
    return f"{pending:,} pending timers"


def keys_name(keys: int, events: int) -> str:
    """How micro-batches of so many events on the state of so many keys are called in figures."""
    return f"{keys:,} keys, {events:,} events"


def measure_timers(
    sizes: Sequence[int], *, due: int, events: int, rounds: int, warm_up: int, done: OnStep = print
) -> Comparison:
    """Time micro-batches that reach ``due`` timers, of so many that are pending.

    Raises:
        UnequalResultsError: another number of timers fired.
    """
    with site() as (spark, directory):
        jobs = {n: _given(spark, directory, Waiting(), n, done) for n in sizes}
        took = _in_turn(jobs, lambda job: job.run(events, due=due), rounds, warm_up, done)
        for job in jobs.values():
            job.close()
    for size, of_job in took.items():
        for one in of_job:
            if one.rows_out != due:
                raise UnequalResultsError(f"{size:,} timers: {one.rows_out} fired, {due} were due")
    series = [_timed(timers_name(n), events, t[warm_up:]) for n, t in took.items()]
    return Comparison(f"{events:,} events, {due} due timers", series)


def measure_keys(
    events_of: Mapping[int, int], *, rounds: int, warm_up: int, done: OnStep = print
) -> Comparison:
    """Time micro-batches on the state of so many keys, with so many events each.

    Raises:
        UnequalResultsError: the numbers that are kept do not count the events.
    """
    with site() as (spark, directory):
        jobs = {n: _given(spark, directory, Counting(), n, done) for n in events_of}
        took = _in_turn(jobs, lambda job: job.run(events_of[job.keys]), rounds, warm_up, done)
        for size, job in jobs.items():
            job.check_counts()
            done(f"equal: the state of {size:,} keys counts all events")
            job.close()
    series = [_timed(keys_name(n, events_of[n]), events_of[n], t[warm_up:]) for n, t in took.items()]
    return Comparison("a micro-batch on the state of so many keys", series)


def measure_maps(
    size: int, entries: int, *, events: int, rounds: int, warm_up: int, done: OnStep = print
) -> dict[int, float]:
    """Bytes that a changed entry takes, by the number of entries of a map that changed: one, and all of them."""
    with site() as (spark, directory):
        job = SizedJob(spark, directory / "maps", Mapped(), size, entries=entries)
        written: dict[int, list[Took]] = {1: [], entries: []}
        for _ in range(warm_up + rounds):
            for changed, took in written.items():
                took.append(changed_entries(job, events, changed))
                done(f"{changed} of {entries} entries of {events:,} keys: {took[-1].changelog_bytes:,} bytes")
        job.close()
    return {
        n: statistics.median(t.changelog_bytes / (n * events) for t in took) for n, took in written.items()
    }


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


def _given(spark: SparkSession, directory: Path, function: Any, size: int, done: OnStep) -> SizedJob:
    began = time.perf_counter()
    job = SizedJob(spark, directory / f"{size}", function, size)
    done(f"{size:,} keys are given their state: {time.perf_counter() - began:.1f} s")
    return job


def _in_turn(
    jobs: dict[int, SizedJob], run: Callable[[SizedJob], Took], rounds: int, warm_up: int, done: OnStep
) -> dict[int, list[Took]]:
    """Micro-batches of several jobs, one each in turn."""
    took: dict[int, list[Took]] = {size: [] for size in jobs}
    for number in range(warm_up + rounds):
        for size, job in jobs.items():
            took[size].append(run(job))
            kind = "round" if number >= warm_up else "warm-up"
            done(f"{size:,} keys, {kind}: {took[size][-1].seconds:.3f} s")
    return took


def _timed(name: str, events: int, took: Sequence[Took]) -> Timed:
    subtasks = statistics.median(max(sum(s.values()) for s in one.subtasks) for one in took)
    return Timed(name, [one.seconds for one in took], events, f"the longer subtask {subtasks:.3f} s")


def _show(done: Comparison, ratio: str) -> None:
    print(done.title)
    for one in done.series:
        print(f"{one.name}: {one.spread}; {one.note}")
    print(load_of_machine())
    base, size = done.series
    print(f"{ratio} = {size.spread.median / base.spread.median:.2f}", flush=True)


if __name__ == "__main__":
    app()
