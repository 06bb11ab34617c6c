"""``python -m benchmarks.bootstrap``: how fast is a job given the state of a million keys, and that state compacted?

Both engines get the same open windows, one a key, from the same Parquet files: this one by
``StateProcessor.bootstrap``, Spark's ``transformWithState`` as the initial state of a new query. Spark loads it within
its first trigger, which needs an event to begin; so both are given the same small batch of events with it, and ours is
counted together with the micro-batch that takes it. Then a micro-batch changes the state of every key, and a compaction
folds as many changes into the base. Spark has nothing to compare that with: its stores compact by themselves, in the
background.

**Equal results come first**: after each step the state of every key must be what a formula says, of both engines;
before any time is taken, over few keys; and again over all, before any figure is printed. The last line is
``ratio transformWithState_rows = N``: its first trigger, divided by our bootstrap and first micro-batch.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import typer
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.comparison import OnStep, spark_application
from benchmarks.contenders.statelake import Statelake
from benchmarks.contenders.transform_with_state import TransformWithState
from benchmarks.report import steps
from benchmarks.unequal import UnequalResultsError
from benchmarks.workload import FILES, Feed, Workload, scratch

EVENTS = 1000
"""Events of the batch that comes with the given state, where there are as many keys."""
VERIFY_KEYS = 10_000

BOOTSTRAP, FIRST, TRIGGER = "statelake: bootstrap", "statelake: first micro-batch", "transformWithState_rows"
EVERY, COMPACTION = "statelake: micro-batch over all keys", "statelake: compaction"
STEPS = (BOOTSTRAP, FIRST, TRIGGER, EVERY, COMPACTION)


@dataclass(frozen=True)
class Round:
    """What one round took, by step, in seconds."""

    seconds: dict[str, float]

    @property
    def ratio(self) -> float:
        """Spark's first trigger, divided by our bootstrap and first micro-batch."""
        return self.seconds[TRIGGER] / (self.seconds[BOOTSTRAP] + self.seconds[FIRST])


def one_round(spark: SparkSession, keys: int, directory: Path, *, on_step: OnStep = print) -> Round:
    """Give both engines the state of all keys, go on from it, and compare all of it after every step.

    Raises:
        UnequalResultsError: the state of an engine is not what it must be.
    """
    workload, seconds = Workload(keys), dict[str, float]()
    feed = Feed(workload, directory / "feed")
    feed.events = keys  # every key has had one: that is the given state
    given = directory / "given"
    _write_given(workload, given)
    few = feed.write(min(EVENTS, keys // 2))
    ours = Statelake(spark, directory / "statelake")

    def done(step: str, took: float) -> None:
        seconds[step] = took
        on_step(f"{keys:,} keys, {step}: {took:.2f} s")

    started = time.perf_counter()
    frame = spark.read.parquet(str(given)).selectExpr("k", "count AS f0", "total AS f1")
    report = ours.engine.state_processor(ours.job).bootstrap({"averages": {"window": frame}})
    done(BOOTSTRAP, time.perf_counter() - started)
    if report.entries != {"averages": {"window": keys}}:
        raise UnequalResultsError(f"{BOOTSTRAP}: {report.entries}, expected {keys} windows")
    done(FIRST, ours.run(few).seconds)
    check(FIRST, state_of(ours), workload, feed.events)

    session = spark.newSession()
    peer = TransformWithState(session, directory / "tws", initial=session.read.parquet(str(given)))
    try:
        done(TRIGGER, peer.run(few).seconds)
        check(TRIGGER, peer.state(), workload, feed.events)
    finally:
        peer.close()

    done(EVERY, ours.run(feed.write(2 * keys - feed.events)).seconds)
    started = time.perf_counter()
    compacted = ours.engine.compact(ours.job)
    done(COMPACTION, time.perf_counter() - started)
    if compacted.entries != {"averages": keys}:
        raise UnequalResultsError(
            f"{COMPACTION}: {compacted.entries} in the new bases, expected {keys} windows"
        )
    check(COMPACTION, state_of(ours), workload, feed.events)
    ours.close()
    return Round(seconds)


def state_of(engine: Statelake) -> pa.Table:
    """The open windows that our engine keeps: k, count and total."""
    return (
        engine.engine.read_state(engine.job, "averages", "window")
        .selectExpr("k", "value.f0 AS count", "value.f1 AS total")
        .toArrow()
    )


def check(name: str, state: pa.Table, workload: Workload, events: int) -> None:
    """Compare the whole state with what so many events must lead to; raises UnequalResultsError."""
    wanted = _windows(workload, events)
    state = state.select(wanted.column_names).cast(wanted.schema).sort_by("k").combine_chunks()
    if state.equals(wanted):
        return
    if state.num_rows != wanted.num_rows or not state["k"].equals(wanted["k"]):
        raise UnequalResultsError(f"{name}: {state.num_rows} keys have state, or other keys than they must; "
                                  f"expected are {wanted.num_rows}")  # fmt: skip
    differ = np.flatnonzero(
        np.any([pc.not_equal(state[c], wanted[c]).to_numpy() for c in ("count", "total")], axis=0)
    )
    first = int(differ[0])
    raise UnequalResultsError(
        f"{name}: the state of {len(differ)} keys is wrong; for example {state.slice(first, 1).to_pylist()}, expected "
        f"{wanted.slice(first, 1).to_pylist()}"
    )


def _windows(workload: Workload, events: int) -> pa.Table:
    state = sorted(workload.expected(events).state.items())
    counts, totals = [window[0] for _, window in state], [window[1] for _, window in state]
    return pa.table({"k": [k for k, _ in state], "count": counts, "total": totals})


def _write_given(workload: Workload, directory: Path) -> None:
    directory.mkdir(parents=True)
    table = _windows(workload, workload.keys)
    mixed = table.take(np.random.default_rng(0).permutation(table.num_rows))
    for place in range(FILES):
        start, end = place * table.num_rows // FILES, (place + 1) * table.num_rows // FILES
        pq.write_table(mixed.slice(start, end - start), directory / f"part-{place:04d}.parquet")


# -- the command -------------------------------------------------------------------------------------------------------


def run(
    keys: Annotated[int, typer.Option(min=10, help="Keys whose state is given.")] = 1_000_000,
    rounds: Annotated[int, typer.Option(min=1, help="Counted rounds; medians are printed.")] = 1,
    warm_up: Annotated[int, typer.Option(min=1, help="Rounds over few keys before these.")] = 2,
) -> None:
    """Give this engine and Spark's transformWithState the same state, compare, and print how fast they took it."""
    console = Console()
    rounds_done: list[Round] = []
    total = (rounds + warm_up) * len(STEPS)
    with steps(console, total) as on_step, spark_application() as spark:
        for number in range(warm_up + rounds):
            size = keys if number >= warm_up else min(keys, VERIFY_KEYS)
            with scratch() as directory:
                one = one_round(spark, size, directory, on_step=on_step)
            if number >= warm_up:
                rounds_done.append(one)
    console.print(_table(rounds_done, keys))
    print(
        f"ratio {TransformWithState.name} = {statistics.median(r.ratio for r in rounds_done):.2f}", flush=True
    )


def _table(rounds_done: list[Round], keys: int) -> Table:
    table = Table(
        title=f"{keys:,} keys with state; equal in both engines, {len(rounds_done)} round(s)",
        title_justify="left",
    )
    table.add_column("step")
    for column in ("median s", "keys/s", "÷ bootstrap"):
        table.add_column(column, justify="right")
    medians = {step: statistics.median(r.seconds[step] for r in rounds_done) for step in STEPS}
    for step, seconds in medians.items():
        rate = "" if step == FIRST else f"{keys / seconds:,.0f}"
        table.add_row(step, f"{seconds:.2f}", rate, f"{seconds / medians[BOOTSTRAP]:.2f}")
    return table


if __name__ == "__main__":
    typer.run(run)
