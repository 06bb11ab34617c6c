"""A job for a cluster of executors, run in a process of its own: ``python -m tests.spark.cluster_job <settings>``.

Its operator can be held up at two moments: while its function runs, and after its files are written, before the subtask
reports. There it says which process it is, and waits until it is signalled to go on, or dies.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.state_backends.heap_backend import HashMapStateBackend
from state_engine.state_backends.state_backend import KeyedStateBackend

ROWS = 100
"""Of a file, and of a micro-batch."""
HELD_UP = 1
"""The subtask that waits."""
IN_FUNCTION, WRITTEN = "in_function", "written"
"""Moments."""
_LONG_S = 600.0


def hold_up(directory: str, moment: str) -> None:
    """Wait at a moment if a test holds it, until the test lets go or kills this process."""
    asked, reached, go = (Path(directory) / f"{moment}.{what}" for what in ("asked", "reached", "go"))
    if not asked.exists() or go.exists():
        return
    reached.write_text(f"{os.getpid()}")
    until = time.monotonic() + _LONG_S
    while not go.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"nobody let go of the moment {moment}")
        time.sleep(0.05)


class Sum(KeyedProcessFunction):
    """The sum of ``v`` per key."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int, default=0))
        self.subtask = runtime_context.get_index_of_this_subtask()

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        if self.subtask == HELD_UP:
            hold_up(self.directory, IN_FUNCTION)
        total = self.total.value() + value.v
        self.total.update(total)
        yield value.k, value.v, total


@dataclass(frozen=True)
class SlowToLeave(HashMapStateBackend):
    """Keeps state like any other, but its end, which comes when all files are written, can be held up."""

    directory: str = ""

    @contextmanager
    def create_keyed_backend(self, operator: str, **options: Any) -> Iterator[KeyedStateBackend]:  # type: ignore[override]
        with super().create_keyed_backend(operator, **options) as backend:
            yield backend
        if options["key_groups"].start > 0:
            hold_up(self.directory, WRITTEN)


def build(directory: str) -> StatefulJob:
    """source → key_by → sum → Delta sink, with two subtasks; a micro-batch reads one file."""
    job = StatefulJob("sums", parallelism=2, state_backend=SlowToLeave(directory))
    events = job.source("events", FileSource(f"{directory}/feed", max_rows_per_batch=ROWS))
    sums = events.key_by("k").process(
        Sum(directory), uid="sums", output_type="k string, v bigint, total bigint"
    )
    sums.sink("out", DeltaSink(f"{directory}/out"))
    return job


def main(directory: str, master: str, options: dict[str, str]) -> None:
    """Run until all input is consumed, and write the report to ``result.json``."""
    from state_engine.machine.settings import SparkSettings
    from state_engine.spark.session import local_session

    spark = local_session(SparkSettings(master=master, driver_memory="1g", options=options))
    try:
        with StateEngine(Path(directory) / "root", spark) as engine:
            report = engine.run(build(directory))
            state = {r["k"]: r["value"] for r in engine.read_state("sums", "sums", "total").collect()}
            listed = [f.path for c in engine.checkpoints("sums") for o in c.operators for f in o.changelog]
            compacted = engine.compact("sums").entries
    finally:
        spark.stop()
    result = {"batches": len(report.batches), "state": state, "listed": listed, "compacted": compacted}
    (Path(directory) / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
