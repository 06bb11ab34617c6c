"""``python -m benchmarks.start``: a scheduled run, from the start of its process to its commit.

A thousand events on the state of a million keys: ``statelake run`` in a new process, and by turns a new process with a
``transformWithState`` query that takes what is there and ends. Both begin with the same events, which touch every key
once; then each round brings the same small batch to both.

**Equal results come first**: before any figure is printed the state of every key must be what a formula says, of both
engines. Counted is the wall time from the start of the process to its commit, outputs published, and the processor time
of the process and its children by then. The last line is ``ratio transformWithState = N``: its median, divided by ours.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pyarrow.parquet as pq
import typer

from benchmarks.bootstrap import check
from benchmarks.comparison import SMALL_BATCH
from benchmarks.figures import Spread, load_of_machine
from benchmarks.processes import answer_of
from benchmarks.started import STATELAKE, TRANSFORM_WITH_STATE
from benchmarks.workload import PARALLELISM, Feed, Workload, hand_over, scratch
from state_engine import open_state
from state_engine.machine.java import find_java_home
from state_engine.spark.class_archive import class_archive

ENGINES = (STATELAKE, TRANSFORM_WITH_STATE)
_MEMORY = "3g"


@dataclass(frozen=True)
class Started:
    """One new process.

    Attributes:
        seconds: from its start to its commit.
        processor_s: of it and its children by then.
    """

    seconds: float
    processor_s: float


def run(
    keys: Annotated[int, typer.Option(min=10, help="Keys that have state.")] = 1_000_000,
    events: Annotated[int, typer.Option(min=1, help="Events of each round.")] = SMALL_BATCH,
    rounds: Annotated[int, typer.Option(min=1, help="New processes of each engine that are counted.")] = 5,
    warm_up: Annotated[int, typer.Option(min=1, help="Rounds before these; they fill the disk's cache.")] = 1,
) -> None:
    """Compare a scheduled run with one of transformWithState, each in a new process."""
    _show_machine()
    _show(measure(keys, events=events, rounds=rounds, warm_up=warm_up), keys, events)


def measure(
    keys: int, *, events: int, rounds: int, warm_up: int, done: Callable[[str], None] = print
) -> dict[str, list[Started]]:
    """Start both engines by turns on the same state; those that count, by engine.

    Raises:
        UnequalResultsError: the state of an engine is not what it must be, after the first round or the last.
    """
    workload = Workload(keys)
    series: dict[str, list[Started]] = {engine: [] for engine in ENGINES}
    with scratch() as place:
        directories = {engine: place / engine for engine in ENGINES}
        feed = Feed(workload, place / "feed")
        _make(directories)
        _bring(feed, keys, directories)
        for engine, directory in directories.items():
            done(f"{engine}: {keys:,} events, one a key: {started(engine, directory).seconds:.1f} s")
        started(f"{STATELAKE} compact", directories[STATELAKE])
        for number in range(warm_up + rounds):
            _bring(feed, events, directories)
            for engine, directory in directories.items():
                one = started(engine, directory)
                series[engine] += [one] if number >= warm_up else []
                done(
                    f"{engine}: {one.seconds:.2f} s, {one.processor_s:.2f} s of processor; {load_of_machine()}"
                )
            if number in (0, warm_up + rounds - 1):
                check_states(directories, workload, feed.events)
                done(f"equal: the state of all keys after {feed.events:,} events, of both")
    return series


def started(work: str, directory: Path) -> Started:
    """A new process that does some work of ``benchmarks.started``.

    Raises:
        RuntimeError: it failed; with what it wrote.
    """
    environment = {
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "PYSPARK_PYTHON": sys.executable,
        "STATELAKE__SPARK__DRIVER_MEMORY": _MEMORY,
    }
    began_at = time.time()
    record = answer_of(["-m", "benchmarks.started", work, str(directory)], what=work, environment=environment)
    return Started(record["done_at"] - began_at, record["processor_s"])


def check_states(directories: dict[str, Path], workload: Workload, events: int) -> None:
    """Compare the whole state of both engines with what so many events must lead to; raises UnequalResultsError."""
    root = directories[STATELAKE] / "root"
    ours = open_state.read_state(root, "count_window_average", "averages", "window").flatten().flatten()
    check(STATELAKE, ours.rename_columns(["k", "count", "total"]), workload, events)
    peer = directories[TRANSFORM_WITH_STATE]
    started(f"{TRANSFORM_WITH_STATE} state", peer)
    check(TRANSFORM_WITH_STATE, pq.read_table(peer / "state.parquet"), workload, events)


def _make(directories: dict[str, Path]) -> None:
    for directory in directories.values():
        (directory / "input").mkdir(parents=True)
    settings = ['root = "root"', "[spark]", f'master = "local[{PARALLELISM}]"']
    settings += ["[jobs]", 'modules = ["benchmarks.started"]', ""]
    (directories[STATELAKE] / "statelake.toml").write_text("\n".join(settings))


def _bring(feed: Feed, events: int, directories: dict[str, Path]) -> None:
    batch = feed.write(events)
    for directory in directories.values():
        hand_over(batch, directory / "input")


def _show_machine() -> None:
    java = find_java_home(environ=os.environ, explicit=None)
    kept = "with" if class_archive(java).is_file() else "without"
    print(
        f"{os.cpu_count()} cores, Java {java.version}, {kept} an archive of Java's classes; {load_of_machine()}",
        flush=True,
    )


def _show(series: dict[str, list[Started]], keys: int, events: int) -> None:
    print(f"process start to commit, {events:,} events on the state of {keys:,} keys:")
    wall = {engine: Spread.of([one.seconds for one in o]) for engine, o in series.items()}
    processor = {engine: Spread.of([one.processor_s for one in o]) for engine, o in series.items()}
    for engine in series:
        print(f"{engine}: {wall[engine]}; processor {processor[engine].median:.2f} s")
    ours, peer = ENGINES
    print(f"ratio of processor time = {processor[peer].median / processor[ours].median:.2f}")
    print(f"ratio transformWithState = {wall[peer].median / wall[ours].median:.2f}", flush=True)


if __name__ == "__main__":
    typer.run(run)
