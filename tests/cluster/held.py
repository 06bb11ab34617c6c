"""A job on a cluster that can be held up at any step of a micro-batch, while somebody kills what it runs on.

Whoever reaches the moment that is asked for first, of all tasks and all their attempts, says which process it is, and
waits until it is let go, or dies. That goes through files of one directory, as the whole cluster is on this machine.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.functions import udf

from state_engine import DataStream, RuntimeContext, StatefulJob
from state_engine.microbatch.subtask import subtask, subtask_outputs, subtask_state
from state_engine.operations import compaction
from tests.faults.plane import Fault, installed
from tests.faults.workloads import PAIR, Picky, Workload

# executors cannot import the tests

READING, FUNCTION, STATE, OUTPUTS, WRITTEN = "reading", "function", "state", "outputs", "written"
"""Moments of a task: on the map side of the shuffle, in the function, after the files of state, after the first file of
a sink, and after all files, before the subtask reports."""
COMMITTING, PUBLISHING = "committing", "publishing"
"""Moments of the driver: before the row, and after the first two sinks were published."""
COMPACTING = "compacting"
"""After the files of a base are written, before the task reports."""
IN_TASKS = (READING, FUNCTION, STATE, OUTPUTS, WRITTEN)
SINKS = ("delta", "spark_delta", "files", "csv", "sql", "function")
"""Of every kind."""
_LONG_S = 900.0
_HELD, _PATCHED = "held_in_tests", "patched_in_tests"
"""Names in the module of subtasks, which is the same for all that a worker is sent."""
_DRIVER_POINTS = {
    COMMITTING: Fault("before commit", 1, "zombie"),
    PUBLISHING: Fault("after sink published", 2, "zombie"),
}


@dataclass(frozen=True)
class Gate:
    """Where the job can be held up."""

    directory: Path

    def ask(self, number: int, moment: str) -> None:
        """From now on the first who reaches a moment is held up; numbers are never used twice."""
        file = self.directory / "asked.new"
        file.write_text(json.dumps([number, moment]))
        file.rename(self.directory / "asked")

    def reached(self, number: int) -> int | None:
        """The process that is held up, or was; None before."""
        file = self.directory / f"{number}.reached"
        return int(file.read_text()) if file.exists() else None

    def let_go(self, number: int) -> None:
        (self.directory / f"{number}.go").touch()

    def finished(self, number: int) -> bool:
        """Whether who was held up has written all its files since."""
        return (self.directory / f"{number}.finished").exists()

    def pass_by(self, moment: str) -> None:
        """Wait here if this is the moment, and nobody else was held up yet."""
        try:
            number, asked = json.loads((self.directory / "asked").read_text())
        except FileNotFoundError:
            return
        is_late = _HELD in vars(subtask)  # a task that lost against its twin, and still goes on
        if asked != moment or is_late or (self.directory / f"{number}.reached").exists():
            return
        mine = self.directory / f"{number}.{os.getpid()}.{time.monotonic_ns()}"
        mine.write_text(f"{os.getpid()}")
        try:
            os.link(mine, self.directory / f"{number}.reached")
        except FileExistsError:
            return
        if moment in IN_TASKS:
            vars(subtask)[_HELD] = number
        deadline = time.monotonic() + _LONG_S
        while not (self.directory / f"{number}.go").exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"nobody let go of moment {number}, {moment}")
            time.sleep(0.05)

    def finish(self) -> None:
        """Say that all files are written, where this process was held up before."""
        if (number := vars(subtask).pop(_HELD, None)) is not None:
            (self.directory / f"{number}.finished").touch()


@dataclass(frozen=True)
class Read:
    """The step before the operator, in the tasks that read: it changes nothing.

    Attributes:
        gate: where it is held up.
        column: of whole numbers.
    """

    gate: Gate
    column: str

    def __call__(self, rows: DataFrame) -> DataFrame:
        gate = self.gate

        @udf("bigint")
        def read(n: int) -> int:
            gate.pass_by(READING)
            return n

        return rows.withColumn(self.column, read(self.column))


class HeldPicky(Picky):
    """Sums, of all but one number; see the module docstring."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        hold_up_files(self.gate)

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.gate.pass_by(FUNCTION)
        yield from super().process_element(value, ctx)


def hold_up_files(gate: Gate) -> None:
    """Have the subtasks of this worker pass by the gate when they have written files."""
    if _PATCHED in vars(subtask):  # by an earlier task
        return
    changes, sink_file = subtask_state.write_changes, subtask_outputs.write_sink_file
    letters = subtask_outputs.SubtaskOutputs._write_dead_letters

    def write_changes(*args: Any, **options: Any) -> Any:
        written = changes(*args, **options)
        gate.pass_by(STATE)
        return written

    def write_sink_file(*args: Any, **options: Any) -> Any:
        written = sink_file(*args, **options)
        gate.pass_by(OUTPUTS)
        return written

    def write_dead_letters(self: Any) -> None:
        letters(self)
        gate.pass_by(WRITTEN)
        gate.finish()

    subtask_state.write_changes, subtask_outputs.write_sink_file = write_changes, write_sink_file
    subtask_outputs.SubtaskOutputs._write_dead_letters = write_dead_letters  # type: ignore[method-assign]
    vars(subtask)[_PATCHED] = True


@contextmanager
def held_in_driver(gate: Gate, moment: str) -> Iterator[None]:
    """Have the driver pass by the gate where the moment is one of its own, and tasks of a compaction do so."""
    real = compaction.run

    def run(spark: Any, rows: Any, work: Any, **names: str) -> Any:
        def held(*args: Any) -> Any:
            report = work(*args)
            gate.pass_by(COMPACTING)
            return report

        return real(spark, rows, held, **names)

    compaction.run = run
    schedule = [_DRIVER_POINTS[moment]] if moment in _DRIVER_POINTS else []
    try:
        with installed(schedule, meanwhile=lambda: gate.pass_by(moment)):
            yield
    finally:
        compaction.run = real


def workload(rows: Sequence[tuple[str, int]], gate: Gate) -> Workload:
    """source → a step in Spark → key_by → sums → every sink."""

    def build(job: StatefulJob, cut: int) -> Mapping[str, DataStream]:
        events = job.from_collection(rows, PAIR, name="events", max_rows_per_batch=cut).transform(
            Read(gate, "n")
        )
        stream = events.key_by("k").process(HeldPicky(gate), uid="sums", output_type=PAIR)
        return dict.fromkeys(SINKS, stream)

    return Workload("clustered", build, ("sums",), SINKS, letters=True, withdraws=False)
