"""``python -m tests.limits.large WHAT SIZE DIRECTORY``: something large, in a process whose memory is then looked at.

The last line that it prints is JSON: what came out, and the largest memory that each kind of process ever had, in MB.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.memory import peaks
from benchmarks.sized_jobs import Counting, SizedJob
from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    RuntimeContext,
    StateEngine,
    StatefulJob,
)
from state_engine.machine.settings import SparkSettings
from state_engine.spark.session import local_session
from state_engine.testing import CollectSink, run_in_memory

SCHEMA = "k bigint, v bigint"
FILES = 20_000
MEMORY = "2g"
"""Of Spark's Java."""


class Gather(KeyedProcessFunction):
    """Keeps all numbers of a key in a list; a negative one emits how many there are, and their sum."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.numbers = runtime_context.get_list_state(ListStateDescriptor("numbers", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[int, int]]:
        if value.v >= 0:
            self.numbers.add(value.v)
        else:
            numbers = list(self.numbers.get())
            yield len(numbers), sum(numbers)


def gathering(directory: Path) -> StatefulJob:
    """A job of ``Gather`` with a file source and a Delta sink."""
    job = StatefulJob("gathering", parallelism=2)
    source = job.source(
        "numbers", FileSource(str(directory / "input"), schema=SCHEMA, max_files_per_batch=FILES)
    )
    sums = source.key_by("k").process(Gather(), uid="gather", output_type="n bigint, total bigint")
    sums.sink("out", DeltaSink(str(directory / "out")))
    return job


def elements_of_one_key(size: int, directory: Path) -> dict[str, Any]:
    """A list of so many elements: added in one micro-batch, read and added to in another."""
    with engine_on(directory) as engine:
        bring(directory, np.zeros(size, np.int64), np.arange(size))
        engine.run(gathering(directory))
        bring(directory, [0, 0], [size, -1])
        (batch,) = engine.run(gathering(directory)).batches
        (row,) = engine.spark.read.format("delta").load(str(directory / "out")).collect()
        return {"elements": row.n, "total": row.total, "written": batch.operators["gather"].changed_entries}


def keys_with_state(size: int, directory: Path) -> dict[str, Any]:
    """State of so many keys, given at once; then a micro-batch that touches a thousand of them, and a compaction."""
    with engine_on(directory) as engine:
        job = SizedJob(engine.spark, directory, Counting(), size)
        job.run(1_000)
        given = peaks()
        job.compact()
        (entries,) = job.engine.checkpoints("sized")[-1].operators
        return {"keys": sum(entries.entries.values()), "given": given}


def files_at_once(size: int, directory: Path) -> dict[str, Any]:
    """A micro-batch of so many files with a row each."""
    for number in range(size):
        bring(directory, [number % 100], [number], name=f"{number}")
    with engine_on(directory) as engine:
        (batch,) = engine.run(gathering(directory)).batches
        return {"rows": batch.rows_in, "keys": batch.operators["gather"].keys}


def more_than_fits(size: int, directory: Path) -> dict[str, Any]:
    """A list that does not fit into the memory that this process may have: ``size`` MB more than it has now."""
    job = StatefulJob("gathering", parallelism=1)
    source = job.source("numbers", FileSource(str(directory), schema=SCHEMA))
    sums = source.key_by("k").process(Gather(), uid="gather", output_type="n bigint, total bigint")
    sums.sink("out", CollectSink())
    with run_in_memory(job) as run:
        run.process({"numbers": [(0, 1)]})
        now = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (now + (size << 20), resource.RLIM_INFINITY))
        try:
            for _ in range(100):
                run.process({"numbers": [(0, number) for number in range(200_000)]})
            return {"error": ""}
        except Exception as error:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            return {
                "error": f"{type(error).__name__}: {error}",
                "kept": len(run.state("gather", "numbers")[0]),
            }


WORK: dict[str, Callable[[int, Path], dict[str, Any]]] = {
    work.__name__: work for work in (elements_of_one_key, keys_with_state, files_at_once, more_than_fits)
}


def engine_on(directory: Path) -> StateEngine:
    """An engine on a session of its own with little memory."""
    return StateEngine(
        directory / "engine", local_session(SparkSettings(master="local[2]", driver_memory=MEMORY))
    )


def bring(directory: Path, keys: Any, values: Any, *, name: str = "") -> None:
    """Add a file to the input."""
    (directory / "input").mkdir(parents=True, exist_ok=True)
    name = name or str(len(list((directory / "input").iterdir())))
    pq.write_table(pa.table({"k": keys, "v": values}), directory / "input" / f"{name}.parquet")


if __name__ == "__main__":
    outcome = WORK[sys.argv[1]](int(sys.argv[2]), Path(sys.argv[3]))
    print(json.dumps({**outcome, "peaks": peaks()}), flush=True)
