"""``python -m benchmarks.micro_batches``: does a job that runs for long stay as fast, and as small, as it was?

A thousand micro-batches of a thousand events over a hundred thousand keys, each with an engine call of its own, and
compacted by the job's own policy in between. After every hundredth, two days pass: retention gives up all but the last
ten checkpoints, and what nobody needs any more is collected. Time passes by clocks that are handed over, and by making
the files of Delta's logs older, which is what Delta goes by.

Counted is the whole call, compactions and merges of checkpoint rows included. The last line is
``ratio last 50 to first 50 = N``, after fifty for warm-up.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.comparison import site
from benchmarks.contenders.statelake import Statelake
from benchmarks.figures import Spread
from benchmarks.unequal import check
from benchmarks.workload import Feed, Workload
from state_engine import RetentionPolicy
from state_engine.core.checkpoints.compaction_policy import CompactionPolicy, compaction_need
from state_engine.core.checkpoints.history import History
from state_engine.dagster.pictures import svg_lines

KEEP = RetentionPolicy(keep_last=10)
PAUSE = timedelta(days=2, hours=1)
"""What passes between two collections: more than the age of orphans, and than that of Delta's logs."""
FIRST, LAST = "the first", "the last"
"""Series of micro-batches that are compared."""


@dataclass(frozen=True)
class Point:
    """What there is after so many micro-batches.

    Attributes:
        batches: done so far.
        median_s: of the calls since the point before.
        total_s: of the calls since the point before, the slow ones with a compaction included.
        upon: files of changes that lie upon the base.
        files: data files under the root, the sink left out.
        log_files, log_bytes: of all Delta logs under the root.
    """

    batches: int
    median_s: float
    total_s: float
    upon: int
    files: int
    log_files: int
    log_bytes: int


@dataclass(frozen=True)
class Measured:
    """Many micro-batches.

    Attributes:
        points: after every so many of them.
        seconds: of each call, without the warm-up.
    """

    points: list[Point]
    seconds: list[float]

    def ratio(self, edge: int) -> float:
        """What the last ``edge`` took, divided by what the first took; compactions are counted."""
        return sum(self.seconds[-edge:]) / sum(self.seconds[:edge])


def run(
    batches: Annotated[int, typer.Option(min=20, help="Micro-batches after the warm-up.")] = 1000,
    events: Annotated[int, typer.Option(min=1, help="Events in each.")] = 1000,
    keys: Annotated[int, typer.Option(min=10, help="Distinct keys.")] = 100_000,
    warm_up: Annotated[int, typer.Option(min=0, help="Micro-batches that are not counted.")] = 50,
    every: Annotated[int, typer.Option(min=1, help="Micro-batches between two collections.")] = 100,
    edge: Annotated[
        int, typer.Option(min=1, help="Compare so many of the first with as many of the last.")
    ] = 50,
    picture: Annotated[Path | None, typer.Option(help="Write the curve to this file, as SVG.")] = None,
) -> None:
    """Run many small micro-batches, and print how long they take and what they leave."""
    console = Console()

    def shown(what: str) -> None:
        console.print(what, highlight=False)

    measured = measure(batches, events=events, keys=keys, warm_up=warm_up, every=every, done=shown)
    console.print(_table(measured.points))
    if picture is not None:
        picture.write_text(drawn(curves(measured.points)))
    first, last = measured.seconds[:edge], measured.seconds[-edge:]
    shown(f"first {edge}: {Spread.of(first)}; last {edge}: {Spread.of(last)}")
    print(f"ratio last {edge} to first {edge} = {measured.ratio(edge):.2f}", flush=True)


def measure(
    batches: int, *, events: int, keys: int, warm_up: int, every: int, done: Callable[[str], None] = print
) -> Measured:
    """Run many small micro-batches, with a collection after every so many of them.

    Raises:
        UnequalResultsError: outputs or state are not what so many events must lead to.
    """
    points: list[Point] = []
    seconds: list[float] = []
    with site() as (spark, directory):
        feed, job = Feed(Workload(keys), directory / "feed"), Statelake(spark, directory / "statelake")
        for number in range(warm_up + batches):
            seconds.append(job.run(feed.write(events)).seconds)
            count = number + 1 - warm_up
            if count > 0 and count % every == 0:
                points.append(_point(job, count, seconds[-every:]))
                done(f"{count} micro-batches: {points[-1]}")
                _let_time_pass(job, passed=PAUSE * (count // every))
        check(job.name, job.results(), feed.workload.expected(feed.events))
        job.close()
    return Measured(points, seconds[warm_up:])


def _point(job: Statelake, done: int, seconds: list[float]) -> Point:
    rows = History(job.engine.checkpoints(job.job))
    need = compaction_need(rows.main_path, "averages", job.job.compaction or CompactionPolicy())
    job.engine.kernel.join_hooks()  # they write and clean up the logs
    logs = [file for log in job.root.rglob("_delta_log") for file in log.iterdir()]
    return Point(
        batches=done,
        median_s=statistics.median(seconds),
        total_s=sum(seconds),
        upon=need.files,
        files=len(list(job.root.rglob("*.parquet"))) - sum(f.suffix == ".parquet" for f in logs),
        log_files=len(logs),
        log_bytes=sum(f.stat().st_size for f in logs),
    )


def _let_time_pass(job: Statelake, *, passed: timedelta) -> None:
    """Retire and collect at a later time, twice: what leaves the logs at first is deleted later."""
    job.engine.expire_checkpoints(job.job, KEEP)
    later_ms = int((time.time() + passed.total_seconds()) * 1000)
    for clock_ms in (later_ms, later_ms + int(PAUSE.total_seconds() * 500)):
        job.engine.vacuum(job.job, clock=clock_ms)
    for log in job.root.rglob("_delta_log"):
        for file in log.iterdir():
            aged = file.stat().st_mtime - PAUSE.total_seconds()
            os.utime(file, (aged, aged))


def curves(points: list[Point]) -> dict[str, list[float]]:
    """Numbers after every so many micro-batches, by name."""
    return {
        "micro-batches": [p.batches for p in points],
        "median s": [p.median_s for p in points],
        "files": [p.files for p in points],
        "files of logs": [p.log_files for p in points],
        "KiB of logs": [p.log_bytes // 1024 for p in points],
    }


def drawn(numbers: Mapping[str, Sequence[float]]) -> str:
    """Curves as SVG, each line from zero to its own largest value."""
    lines = {name: values for name, values in numbers.items() if name != "micro-batches"}
    first, last = numbers["micro-batches"][0], numbers["micro-batches"][-1]
    return svg_lines("", lines, ends=(f"{first:.0f}", f"{last:,.0f} micro-batches"))


def _table(points: list[Point]) -> Table:
    table = Table(
        "micro-batches", "median s", "sum s", "changes upon the base", "files", "log files", "log KiB"
    )
    for p in points:
        table.add_row(
            f"{p.batches:,}", f"{p.median_s:.3f}", f"{p.total_s:.1f}", str(p.upon), f"{p.files:,}",
            f"{p.log_files:,}", f"{p.log_bytes / 1024:,.0f}",
        )  # fmt: skip
    return table


if __name__ == "__main__":
    typer.run(run)
