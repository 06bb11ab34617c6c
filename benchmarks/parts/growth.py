"""G: growth: micro-batches on the state of ten times as many keys, its compaction, and one core against two.

A keyed function and a declared aggregate are each given the state of few keys and of many. Micro-batches of both sizes
take turns, and all state is counted in the end. Memory is that of the Python worker which had the most in a
micro-batch, the median of all. One core and two run the same programs in new processes: those of A over columns, and
of C.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from pyspark.sql import SparkSession

from benchmarks import memory
from benchmarks.comparison import OnStep, site, spark_application
from benchmarks.contenders.statelake_columns import StatelakeColumns
from benchmarks.figures import Comparison, Fact, Figures, Timed
from benchmarks.large_state import keys_name
from benchmarks.parts import running_aggregate
from benchmarks.processes import answer_of
from benchmarks.sized_jobs import TOTALS, Counting, SizedJob
from benchmarks.unequal import UnequalResultsError
from benchmarks.workload import Feed, Workload, scratch

OPERATORS: Mapping[str, Any] = {"function": Counting(), "aggregate": TOTALS}
ONE, TWO = "one core", "two cores"


def compaction_name(keys: int) -> str:
    """How the compaction of the state of so many keys is called in figures."""
    return f"compaction of {keys:,} keys"


def measure(
    *,
    keys: Sequence[int],
    events: Sequence[int],
    rounds: int,
    warm_up: int,
    core_sizes: Mapping[str, Mapping[str, int]],
    core_rounds: int,
    done: OnStep = print,
) -> Figures:
    """Micro-batches and compactions on each number of keys; then one core and two.

    Args:
        keys: few and many.
        events: of micro-batches.
        core_sizes: arguments of each program of ``PROGRAMS``.
        core_rounds: new processes of each, on one core and on two.

    Raises:
        UnequalResultsError: state or results are not those of all events.
    """
    comparisons, facts = dict[str, Comparison](), dict[str, Fact]()
    for name in OPERATORS:
        with site() as (spark, directory):
            took, compactions, most = _on_keys(
                spark, directory, name, keys, events, warm_up, warm_up + rounds, done
            )
        for number in events:
            of_size = [Timed(keys_name(size, number), took[size, number][warm_up:], number) for size in keys]
            comparisons[f"{name}_{number}"] = Comparison(f"{name}: {number:,} events", of_size)
        timed = [Timed(compaction_name(size), compactions[size], size) for size in keys]
        comparisons[f"{name}_compaction"] = Comparison(f"{name}: compaction", timed, alike=False)
        facts |= {
            f"{name}_memory_{size}": Fact(f"{name}: memory of a worker on {size:,} keys", most[size], "MB")
            for size in keys
        }
    for program, sizes in core_sizes.items():
        comparisons[program] = _on_cores(program, sizes, core_rounds, done)
    return Figures(comparisons, facts)


def _on_keys(
    spark: SparkSession,
    directory: Path,
    name: str,
    keys: Sequence[int],
    events: Sequence[int],
    warm_up: int,
    rounds: int,
    done: OnStep,
) -> tuple[dict[tuple[int, int], list[float]], dict[int, list[float]], dict[int, float]]:
    """Seconds by keys and events, those of the compactions, and the memory of workers in MB."""
    jobs, took = dict[int, SizedJob](), dict[tuple[int, int], list[float]]()
    compactions = dict[int, list[float]]()
    most: dict[int, list[int]] = {size: [] for size in keys}
    for size in keys:
        with _timed(f"{name}: {size:,} keys are given their state", done):
            jobs[size] = SizedJob(spark, directory / f"{size}", OPERATORS[name], size)
    for number in events:
        for turn in range(rounds):
            for size, job in jobs.items():
                memory.forget()
                took.setdefault((size, number), []).append(job.run(number).seconds)
                most[size] += [memory.peaks().get("worker", 0)] if turn >= warm_up else []
                done(f"{name}, {keys_name(size, number)}: {took[size, number][-1]:.3f} s")
    for size, job in jobs.items():
        with _timed(f"{name}: {compaction_name(size)}", done) as seconds:
            report = job.engine.compact(job.job, full=True)
        compactions[size] = seconds
        if report.entries != {"kept": size}:
            raise UnequalResultsError(f"{compaction_name(size)}: {report.entries} in the new bases")
        job.check_counts()
        done(f"equal: {name} of {size:,} keys has all events")
        job.close()
    return took, compactions, {size: statistics.median(of) for size, of in most.items()}


@contextmanager
def _timed(what: str, done: OnStep) -> Iterator[list[float]]:
    began, seconds = time.perf_counter(), list[float]()
    yield seconds
    seconds.append(time.perf_counter() - began)
    done(f"{what}: {seconds[0]:.2f} s")


# -- one core and two ------------------------------------------------------------------------------------------------


def columns(spark: SparkSession, *, events: int, keys: int, rounds: int, warm_up: int) -> list[float]:
    """Seconds of batches of A over columns."""
    with scratch() as directory:
        feed, contender = (
            Feed(Workload(keys), directory / "feed"),
            StatelakeColumns(spark, directory / "statelake"),
        )
        seconds = [contender.run(feed.write(events)).seconds for _ in range(warm_up + rounds)]
        contender.close()
    return seconds[warm_up:]


def totals(
    spark: SparkSession, *, events: int, keys: int, batches: int, rounds: int, warm_up: int
) -> list[float]:
    """Seconds of rounds of C."""
    seconds = [running_aggregate.one_round(spark, events, keys, batches) for _ in range(warm_up + rounds)]
    return seconds[warm_up:]


PROGRAMS: Mapping[str, Callable[..., list[float]]] = {
    "columns": columns,
    "large_columns": columns,
    "totals": totals,
}
"""What runs on one core and on two, by name."""


def _on_cores(program: str, sizes: Mapping[str, int], rounds: int, done: OnStep) -> Comparison:
    taken: dict[str, list[float]] = {ONE: [], TWO: []}
    arguments = ["-m", "benchmarks.parts.growth", program, json.dumps(sizes)]
    for _ in range(rounds):
        for cores, name in enumerate((ONE, TWO), start=1):
            with _pinned(cores):
                seconds = answer_of(arguments, what=f"{program} on {name}", environment=_ENVIRONMENT)
            taken[name] += seconds["seconds"]
            done(f"{program} on {name}: {statistics.median(seconds['seconds']):.2f} s")
    series = [Timed(name, of, sizes["events"]) for name, of in taken.items()]
    return Comparison(f"{PROGRAMS[program].__doc__} {sizes['events']:,} events".replace(".", ":"), series)


_ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[2])}


@contextmanager
def _pinned(cores: int) -> Iterator[None]:
    """New processes of this thread run on so many cores, or on those that there are."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run(program: str, sizes: str) -> None:
    """Run one program, and print its seconds as JSON."""
    with spark_application() as spark:
        seconds = PROGRAMS[program](spark, **json.loads(sizes))
    print(json.dumps({"seconds": seconds}), flush=True)


if __name__ == "__main__":
    typer.run(run)
