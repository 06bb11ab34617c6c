"""U: many small files wait, and one run catches up with them, a micro-batch each; of this version and of another one.

Each measurement is a new process with the same files. Another version is a checkout of this project: the same program
runs with it on the module path.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.comparison import OnStep
from benchmarks.figures import Comparison, Figures, Timed
from benchmarks.processes import answer_of
from benchmarks.unequal import check
from benchmarks.workload import PARALLELISM, WINDOW, Feed, Results, Workload, scratch

THIS, BASELINE = "statelake", "statelake 0.1.0"
NO_BASELINE = "0.1.0: `--baseline DIR` names a checkout of it"
_PROGRAM = Path(__file__).with_name("catch_up_run.py")
_REPOSITORY = Path(__file__).parents[2]


def measure(
    *,
    batches: int,
    events: int,
    keys: int,
    rounds: int,
    warm_up: int,
    baseline: Path | None = None,
    done: OnStep = print,
) -> Figures:
    """Versions by turns, each in a new process.

    Args:
        batches: files that wait, with so many ``events`` each.
        warm_up: files that are processed before.
        baseline: a checkout of the version that this one is compared with.

    Raises:
        UnequalResultsError: outputs or state of a version are not those of the formula.
        RuntimeError: a version failed; with what it wrote.
    """
    places = {THIS: _REPOSITORY, **({BASELINE: baseline.resolve()} if baseline else {})}
    seconds: dict[str, list[float]] = {name: [] for name in places}
    for _ in range(rounds):
        for name, place in places.items():
            seconds[name].append(one_run(name, place, batches, events, keys, warm_up))
            done(f"{name}: {batches} micro-batches in {seconds[name][-1]:.2f} s, and equal results")
    series = [Timed(name, of_name, batches * events) for name, of_name in seconds.items()]
    title = f"{batches} waiting files of {events:,} events over {keys:,} keys, a micro-batch each"
    return Figures({"full": Comparison(title, series)}, missing=[] if baseline else [NO_BASELINE])


def one_run(name: str, place: Path, batches: int, events: int, keys: int, warm_up: int) -> float:
    """Seconds that a version takes; its results are compared before they are given."""
    with scratch() as directory:
        feed = Feed(Workload(keys), directory / "feed")
        (directory / "input").mkdir()
        for kind, count in (("warm_up", warm_up), ("waiting", batches)):
            (directory / kind).mkdir()
            for number in range(count):
                [file] = feed.write(events).iterdir()
                file.rename(directory / kind / f"{number:04d}.parquet")
        took = _started(name, place, directory)
        if took["batches"] != batches:
            raise RuntimeError(f"{name}: {batches} files were processed in {took['batches']} micro-batches")
        check(name, _results(directory), feed.workload.expected(feed.events))
    return took["seconds"]


def _started(name: str, place: Path, directory: Path) -> dict[str, float]:
    environment = {"PYTHONPATH": str(place), "STATELAKE__SPARK__MASTER": f"local[{PARALLELISM}]"}
    # -P: the directory of the program is not a place of modules
    arguments = ["-P", str(_PROGRAM), *map(str, (directory, PARALLELISM, WINDOW))]
    return answer_of(arguments, what=name, environment=environment, directory=directory)


def _results(directory: Path) -> Results:
    outputs, state = (pq.read_table(directory / f"{name}.parquet") for name in ("outputs", "state"))
    pairs = zip(outputs["k"].to_pylist(), outputs["a"].to_pylist(), strict=True)
    windows = zip(state["count"].to_pylist(), state["total"].to_pylist(), strict=True)
    return Results(Counter(pairs), dict(zip(state["k"].to_pylist(), windows, strict=True)))
