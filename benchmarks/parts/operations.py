"""What is done to a job with the state of many keys: recovery, savepoint, rescale, restore and compaction."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.comparison import SMALL_BATCH, OnStep, site
from benchmarks.figures import Comparison, Fact, Figures, Timed
from benchmarks.sized_jobs import Counting, SizedJob
from benchmarks.unequal import UnequalResultsError
from benchmarks.workload import PARALLELISM
from state_engine import StateEngine

OF_ALL_KEYS = ("bootstrap", "compaction", "savepoint")
"""What handles each key."""


class Stopwatch:
    """Seconds of steps that come again, by name."""

    def __init__(self, done: OnStep) -> None:
        self.seconds: dict[str, list[float]] = {}
        self._done = done

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time what is done inside."""
        began = time.perf_counter()
        yield
        self.seconds.setdefault(name, []).append(time.perf_counter() - began)
        self._done(f"{name}: {self.seconds[name][-1]:.2f} s")


def measure(*, keys: int, events: int, rounds: int, done: OnStep = print) -> Figures:
    """Rounds of each operation on the state of so many keys; all of it is counted after each one.

    Args:
        events: of the micro-batch before each compaction.

    Raises:
        UnequalResultsError: an operation loses or changes state.
    """
    watch, rescaled, saved = Stopwatch(done), [], 0
    with site() as (spark, directory):
        with watch.step("bootstrap"):
            job = SizedJob(spark, directory / "job", Counting(), keys)
        for number in range(rounds):
            _recover(job, events, watch)
            _compact(job, watch)
            with watch.step("savepoint"):
                savepoint = job.engine.savepoints(job.job).create(f"round{number}")
            held, saved = job.events, savepoint.bytes
            rescaled.append(_rescale(job, watch))
            job.run(SMALL_BATCH)
            job.check_counts()
            with watch.step("restore"):
                job.engine.restore(job.job, savepoint=savepoint.name)
            # the small batch is undone, and waits to be read again
            job.check_counts(events=held)
        done(f"equal: the state of {keys:,} keys counts all events")
        job.close()
    series = [
        Timed(name, of_name, keys if name in OF_ALL_KEYS else 0) for name, of_name in watch.seconds.items()
    ]
    facts = {
        "rescale_bytes": Fact("most that a rescale wrote below the keyed tables", max(rescaled), "bytes"),
        "savepoint_bytes": Fact("size of the last savepoint", saved, "bytes"),
    }
    comparison = Comparison(f"operations on the state of {keys:,} keys", series, alike=False)
    return Figures({"full": comparison}, facts)


def _recover(job: SizedJob, events: int, watch: Stopwatch) -> None:
    """A micro-batch by an engine that knows nothing of those before."""
    job.close()
    job.engine = StateEngine(job.engine.root, job.engine.spark)
    with watch.step("recovery: first micro-batch of a new engine"):
        job.run(SMALL_BATCH)
    job.run(events)


def _compact(job: SizedJob, watch: Stopwatch) -> None:
    with watch.step("compaction"):
        report = job.engine.compact(job.job, full=True)
    if report.entries != {"kept": job.keys}:
        raise UnequalResultsError(
            f"compaction: {report.entries} in the new bases, expected {job.keys:,} keys"
        )


def _rescale(job: SizedJob, watch: Stopwatch) -> int:
    """Bytes that a change of parallelism writes below the keyed tables."""
    [operator] = job.engine.checkpoints(job.job)[-1].operators
    wanted = PARALLELISM if operator.parallelism != PARALLELISM else 2 * PARALLELISM
    before = keyed_files(job)
    with watch.step("rescale"):
        report = job.engine.rescale(job.job, parallelism=wanted)
    if not report.changes or report.parallelism != {"kept": wanted}:
        raise UnequalResultsError(f"rescale: {report.parallelism} is in force, expected {wanted}")
    return sum(size for file, size in keyed_files(job).items() if before.get(file) != size)


def keyed_files(job: SizedJob) -> dict[Path, int]:
    """Files below the job's keyed tables, logs included, with their sizes in bytes."""
    tables = job.directory / "root" / job.job.name / "operators"
    return {file: file.stat().st_size for file in tables.rglob("*") if file.is_file()}
