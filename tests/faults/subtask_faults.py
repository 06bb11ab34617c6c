"""Faults inside subtasks as data, and a workload whose function meets one of them, once, in the worker that runs it.

The function itself is what is broken: its ``open`` is called in the Python worker, where it can put a fault between the
files that its subtask writes. A marker file records that the fault happened, so that the next attempt is spared.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from state_engine import CheckpointedFunction, DataStream, RuntimeContext, StatefulJob
from state_engine.microbatch.subtask import subtask_outputs, subtask_state
from tests.faults.workloads import PAIR, Sums, Workload, _events

Where = Literal["element", "snapshot_state", "file", "user function"]
MESSAGE = "this element is one too many"
UIDS = ("sums", "sums_of_sums")


@dataclass(frozen=True)
class SubtaskFault:
    """A fault in one subtask; it happens once.

    Attributes:
        where: ``element``: at the nth element, ``snapshot_state``: there, ``file``: after the nth file that the subtask
            wrote, the worker dies by SIGKILL; ``user function``: at the nth element, it raises.
        nth: counted in one subtask of one micro-batch.
        uid: of the operator.
    """

    where: Where
    nth: int = 1
    uid: str = UIDS[0]

    def __str__(self) -> str:
        return f"{self.where} {self.nth} of {self.uid}"


@dataclass(frozen=True)
class Planted:
    """A fault in a job that is run."""

    fault: SubtaskFault
    marker: Path

    def reach(self, where: Where, count: int) -> None:
        """Called in the worker."""
        if (where, count) != (self.fault.where, self.fault.nth):
            return
        try:
            with self.marker.open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return
        if where == "user function":
            raise ValueError(MESSAGE)
        os.kill(os.getpid(), signal.SIGKILL)


class Breakable(Sums, CheckpointedFunction):
    """Sums, with the fault."""

    def __init__(self, planted: Planted | None) -> None:
        self.planted = planted

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self.elements = 0
        if self.planted is not None and self.planted.fault.where == "file":
            _count_files(self.planted)

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.elements += 1
        if self.planted is not None:
            self.planted.reach("element", self.elements)
            self.planted.reach("user function", self.elements)
        yield from super().process_element(value, ctx)

    def initialize_state(self, context: Any) -> None:
        pass

    def snapshot_state(self, context: Any) -> None:
        if self.planted is not None:
            self.planted.reach("snapshot_state", 1)


def _count_files(planted: Planted) -> None:
    """Count what the subtask of this worker writes from now on: first its changes, then what goes to sinks."""
    written = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def write(*args: Any, **options: Any) -> Any:
            nonlocal written
            outcome = real(*args, **options)
            written += 1
            planted.reach("file", written)
            return outcome

        return write

    subtask_state.write_changes = counted(subtask_state.write_changes)
    subtask_outputs.write_sink_file = counted(subtask_outputs.write_sink_file)


def breakable(planted: Planted | None = None) -> Workload:
    """Two chained operators and a sink of each kind; with a fault in one of them, or none."""

    def build(job: StatefulJob, cut: int) -> Mapping[str, DataStream]:
        def sums(stream: DataStream, uid: str) -> DataStream:
            mine = planted if planted is not None and planted.fault.uid == uid else None
            return stream.key_by("k").process(Breakable(mine), uid=uid, output_type=PAIR)

        first = sums(_events(job, cut), UIDS[0])
        return {"delta": first, "files": sums(first, UIDS[1])}

    return Workload("breakable", build, UIDS, ("delta", "files"))
