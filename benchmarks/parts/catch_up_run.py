"""Runs a job over files that wait, and prints the seconds that it took.

``benchmarks.parts.catch_up`` starts this file by its path, with any version of this project on the module path: so it
uses what 0.1.0 had, and imports nothing of ``benchmarks``. Settings of Spark come from the environment.

Usage: catch_up_run.py DIRECTORY PARALLELISM WINDOW, with files in ``DIRECTORY/warm_up`` and ``DIRECTORY/waiting``
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)


class CountWindowAverage(KeyedProcessFunction):
    """Emit (key, average) for every ``window`` values of a key."""

    def __init__(self, window: int) -> None:
        self.size = window

    def open(self, runtime_context: RuntimeContext) -> None:
        self.window = runtime_context.get_state(ValueStateDescriptor("window", tuple[int, float]))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[int, float]]:
        count, total = self.window.value() or (0, 0.0)
        count += 1
        total += value.v
        if count == self.size:
            self.window.clear()
            yield value.k, total / count
        else:
            self.window.update((count, total))


def run(directory: Path, parallelism: int, window: int) -> dict[str, float]:
    """Catch up once for warm-up, and once for the figure; then write outputs and state as Parquet files."""
    job = StatefulJob("count_window_average", parallelism=parallelism)
    source = FileSource(str(directory / "input"), schema="k bigint, v double", max_files_per_batch=1)
    keyed = job.source("events", source).key_by("k")
    averages = keyed.process(CountWindowAverage(window), uid="averages", output_type="k bigint, a double")
    averages.sink("averages", DeltaSink(str(directory / "averages")))
    engine = StateEngine(directory / "root")
    took = {}
    for name in ("warm_up", "waiting"):
        (directory / name).rename(directory / "input" / name)
        started = time.perf_counter()
        batches = len(engine.run(job).batches)
        took = {"seconds": time.perf_counter() - started, "batches": batches}
    state = engine.read_state(job, "averages", "window").selectExpr(
        "k", "value.f0 AS count", "value.f1 AS total"
    )
    outputs = state.sparkSession.read.format("delta").load(str(directory / "averages"))
    pq.write_table(outputs.toArrow(), directory / "outputs.parquet")
    pq.write_table(state.toArrow(), directory / "state.parquet")
    engine.close()
    return took


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), *map(int, sys.argv[2:4]))), flush=True)
