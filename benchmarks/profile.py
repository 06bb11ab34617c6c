"""``python -m benchmarks.profile``, or ``make profile``: where the time of micro-batches goes.

Runs one of the workloads, warm, under a sampling profiler in the driver and in every Python worker, and records the JVM
by its own flight recorder. Writes for each of the three what its tools read, and flame graphs of the Python processes:

    driver.svg, workers.svg         flame graphs; hover over a box for its time
    driver-*.folded, worker-*.folded  the same as collapsed stacks
    jvm.jfr                         for ``jfr summary`` or Mission Control

and prints the functions with the most time of their own, with the load of the machine.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from pyspark.sql import SparkSession

from benchmarks.comparison import site
from benchmarks.contenders.statelake import Statelake
from benchmarks.parts.running_aggregate import totals
from benchmarks.profiled_daemon import DIRECTORY
from benchmarks.sampling import RECORDING, Sampler, flame_graph, own_seconds, read_stacks
from benchmarks.sized_jobs import Counting, Mapped, Registering, SizedJob, Waiting
from benchmarks.workload import Feed, Workload, hand_over
from state_engine import StateEngine
from state_engine.machine.settings import SparkSettings

OUTPUT = Path(".profiles")
_MOST = 25
"""Functions that are printed of each process."""

Batch = Callable[[], float]
"""Runs the next micro-batch; its seconds."""


def run(
    workload: Annotated[
        str, typer.Option(help="reference, aggregate, timers (pending ones), registering, keys, or maps.")
    ] = "reference",
    keys: Annotated[int, typer.Option(min=10, help="Keys that have state.")] = 100_000,
    events: Annotated[int, typer.Option(min=1, help="Events of a micro-batch.")] = 1_000_000,
    due: Annotated[int, typer.Option(min=0, help="Timers that each micro-batch reaches.")] = 0,
    batches: Annotated[int, typer.Option(min=1, help="Micro-batches that are profiled.")] = 3,
    warm_up: Annotated[int, typer.Option(min=0, help="Micro-batches before these.")] = 2,
    output: Annotated[Path, typer.Option(help="Directory for what is written.")] = OUTPUT,
) -> None:
    """Profile micro-batches of a workload."""
    if workload not in _STARTS:
        raise typer.BadParameter(f"there is no workload {workload!r}; there are {', '.join(_STARTS)}")
    directory = output.resolve() / workload
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    # Spark's JVM hands its environment on to the daemon
    os.environ[DIRECTORY] = str(directory)
    options = {"spark.python.daemon.module": "benchmarks.profiled_daemon"}
    with site(SparkSettings(options=options)) as (spark, home):
        batch = _STARTS[workload](spark, home, keys, events, due)
        for _ in range(warm_up):
            batch()
        Sampler(directory, "driver").start()
        with _recorded(spark, directory):
            seconds = [batch() for _ in range(batches)]
        time.sleep(1)  # samplers keep what they have every quarter of a second
    print("seconds:", *(f"{s:.3f}" for s in seconds), "load: {:.1f} {:.1f} {:.1f}".format(*os.getloadavg()))
    for kind in ("driver", "worker"):
        _show(directory, kind)


def _reference(spark: SparkSession, directory: Path, keys: int, events: int, due: int) -> Batch:
    feed, job = Feed(Workload(keys), directory / "feed"), Statelake(spark, directory / "statelake")
    return lambda: job.run(feed.write(events)).seconds


def _aggregate(spark: SparkSession, directory: Path, keys: int, events: int, due: int) -> Batch:
    feed, job = Feed(Workload(keys), directory / "feed"), totals(directory)
    (directory / "input").mkdir()
    engine = StateEngine(directory / "root", spark)

    def batch() -> float:
        hand_over(feed.write(events), directory / "input")
        started = time.perf_counter()
        engine.run(job)
        return time.perf_counter() - started

    return batch


def _sized(function: Any, *, entries: int = 0) -> Callable[..., Batch]:
    def start(spark: SparkSession, directory: Path, keys: int, events: int, due: int) -> Batch:
        job = SizedJob(spark, directory, function, keys, entries=entries)
        return lambda: job.run(events, due=due).seconds

    return start


_STARTS: dict[str, Callable[..., Batch]] = {
    "reference": _reference,
    "aggregate": _aggregate,
    "timers": _sized(Waiting()),
    "registering": _sized(Registering()),
    "keys": _sized(Counting()),
    "maps": _sized(Mapped(), entries=100),
}
"""By workload, what makes a job and gives its micro-batches."""


@contextmanager
def _recorded(spark: SparkSession, directory: Path) -> Iterator[None]:
    """Have samplers and the JVM's flight recorder record what runs inside."""
    flights: Any = spark._jvm.jdk.jfr  # type: ignore[union-attr]
    recording = flights.Recording(flights.Configuration.getConfiguration("profile"))
    recording.start()
    (directory / RECORDING).touch()
    try:
        yield
    finally:
        (directory / RECORDING).unlink()
        recording.stop()
        recording.dump(spark._jvm.java.io.File(str(directory / "jvm.jfr")).toPath())  # type: ignore[union-attr]
        recording.close()


def _show(directory: Path, kind: str) -> None:
    stacks = read_stacks(directory.glob(f"{kind}-*.folded"))
    name = "workers" if kind == "worker" else kind
    (directory / f"{name}.svg").write_text(flame_graph(stacks, name))
    print(f"{name}: {sum(stacks.values()) / 1e6:.2f} s; {directory / name}.svg")
    print("  own s  whole s  function")
    for function, own, whole in own_seconds(stacks)[:_MOST]:
        print(f"  {own:5.2f}  {whole:7.2f}  {function}")


if __name__ == "__main__":
    typer.run(run)
