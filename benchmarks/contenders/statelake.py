"""Statelake on the reference workload: one ``StateEngine.run`` a batch, always on the same root.

Counted is the whole call: publishing pending outputs, planning, the micro-batch with all its commits, publishing to a
Delta table, the second look for new files. Log checkpoints that fall due are written beside it, by the same cores.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import SparkSession

from benchmarks.contenders.contender import Contender, Taken
from benchmarks.workload import EVENT_SCHEMA, FILES, PARALLELISM, WINDOW, Results, hand_over
from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
    VectorizedKeyedFunction,
)
from state_engine.storage.stores.durability import Durability


class CountWindowAverage(KeyedProcessFunction):
    """Emit (key, average) for every ``WINDOW`` values of a key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.window = runtime_context.get_state(ValueStateDescriptor("window", tuple[int, float]))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[int, float]]:
        count, total = self.window.value() or (0, 0.0)
        count += 1
        total += value.v
        if count == WINDOW:
            self.window.clear()
            yield value.k, total / count
        else:
            self.window.update((count, total))


def reference_job(
    directory: Path, function: type[KeyedProcessFunction | VectorizedKeyedFunction] = CountWindowAverage
) -> StatefulJob:
    """The job of the reference workload, with input and sink below a directory."""
    job = StatefulJob("count_window_average", parallelism=PARALLELISM)
    source = FileSource(str(directory / "input"), schema=EVENT_SCHEMA, max_files_per_batch=FILES)
    averages = (
        job.source("events", source)
        .key_by("k")
        .process(function(), uid="averages", output_type="k bigint, a double")
    )
    averages.sink("averages", DeltaSink(str(directory / "averages")))
    return job


class Statelake(Contender):
    """This engine; see the module docstring.

    Args:
        spark: session; its job groups are used to count jobs.
        directory: for input, state and sink.
        durability: of the engine.
    """

    name = "statelake"
    function: ClassVar[type[KeyedProcessFunction | VectorizedKeyedFunction]] = CountWindowAverage

    def __init__(self, spark: SparkSession, directory: Path, *, durability: Durability = "sync") -> None:
        self._spark, self._input = spark, directory / "input"
        self.root, self._sink = directory / "root", directory / "averages"
        self._input.mkdir(parents=True)
        self.job = reference_job(directory, self.function)
        self.engine = StateEngine(self.root, spark, durability=durability)
        self._batches = 0

    def run(self, batch: Path) -> Taken:
        self._batches += 1
        group, commits, context = (
            f"{self.root} batch {self._batches}",
            self._commits(),
            self._spark.sparkContext,
        )
        hand_over(batch, self._input)
        context.setJobGroup(group, group)
        started = time.perf_counter()
        try:
            report = self.engine.run(self.job)
        finally:
            context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        seconds = time.perf_counter() - started
        if len(report.batches) != 1:
            raise RuntimeError(f"{self.name} cut one batch into {len(report.batches)}")
        one = report.batches[0]
        return Taken(
            seconds=seconds,
            spark_jobs=len(context.statusTracker().getJobIdsForGroup(group)),
            delta_commits=self._commits() - commits,
            detail={"micro-batch": one.seconds, **one.steps_s},
        )

    def results(self) -> Results:
        rows = self._spark.read.format("delta").load(str(self._sink)).collect()
        outputs = Counter((int(r["k"]), float(r["a"])) for r in rows)
        state = self.engine.read_state(self.job, "averages", "window").collect()
        return Results(outputs, {int(r["k"]): (int(r["value"][0]), float(r["value"][1])) for r in state})

    def close(self) -> None:
        self.engine.close()

    def _commits(self) -> int:
        """Versions in the logs of all Delta tables of the job: what Delta itself recorded."""
        logs = [*self.root.rglob("_delta_log"), self._sink / "_delta_log"]
        return sum(1 for log in logs for file in log.glob("[0-9]*.json") if file.stem.isdigit())
