"""The fault plane: named points of the engine, and faults at them, given as data.

A test hands over a schedule, ``[Fault("after commit", action="raise")]``, as it hands over rows. Installing one wraps
the methods that it names in this process, and nothing else; without a schedule the engine is what it is, and knows
nothing of this module. Schedules are JSON, so that a child process can be given one.

Five things can happen at a point: ``raise`` (the run fails), ``interrupt`` (as by Ctrl-C, in the main thread only),
``sigkill`` (the process is gone, or in a child with many jobs: stops for good until it is killed), ``zombie`` (the run
pauses until another runner has done something, and goes on as if nothing had happened), and ``delay`` (the run pauses a
little, and nobody does anything meanwhile).
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

Action = Literal["raise", "sigkill", "zombie", "delay", "interrupt"]
DELAY_S = 0.02


class InjectedFault(Exception):
    """The error of a fault of kind ``raise``."""


@dataclass(frozen=True)
class FaultPoint:
    """A moment before or after a call.

    Attributes:
        owner: ``module:Class``, or ``module`` for a function as that module calls it.
        method: name.
        after: whether the call has done its work.
        ending: counts only calls with an argument that ends so.
    """

    owner: str
    method: str
    after: bool
    ending: str = ""

    @property
    def place(self) -> tuple[str, str]:
        return self.owner, self.method

    def counts(self, arguments: Iterable[Any]) -> bool:
        return not self.ending or any(isinstance(a, str) and a.endswith(self.ending) for a in arguments)


@dataclass(frozen=True)
class Fault:
    """A fault at the nth time that a point is reached; it happens once.

    Example:
        >>> to_json([Fault("after commit", nth=2, action="zombie")])
        '[{"point": "after commit", "nth": 2, "action": "zombie"}]'
    """

    point: str
    nth: int = 1
    action: Action = "raise"

    def __str__(self) -> str:
        return f"{self.action} {self.point}" + (f" {self.nth}" if self.nth > 1 else "")


def to_json(schedule: Sequence[Fault]) -> str:
    return json.dumps([asdict(fault) for fault in schedule])


def from_json(text: str) -> list[Fault]:
    return [Fault(**one) for one in json.loads(text)]


# -- points ------------------------------------------------------------------------------------------------------------

_COORDINATOR = "state_engine.microbatch.coordinator:CheckpointCoordinator"
_KERNEL = "state_engine.storage.delta.kernel:DeltaKernel"
STEPS = (
    "publish_pending", "plan", "judge", "execute", "commit_files", "commit_changelog", "commit_operator_state", "stage",
    "commit", "publish",
)  # fmt: skip
"""The methods of ``CheckpointCoordinator`` that are steps of a micro-batch."""


def _both(name: str, owner: str, method: str, ending: str = "") -> dict[str, FaultPoint]:
    return {
        f"{when} {name}": FaultPoint(owner, method, when == "after", ending) for when in ("before", "after")
    }


def _inside(name: str, owner: str, method: str) -> dict[str, FaultPoint]:
    """After the nth of several calls; before the first one and the next one are other points."""
    return {f"after {name}": FaultPoint(owner, method, True)}


POINTS: Mapping[str, FaultPoint] = {
    **{point: at for step in STEPS for point, at in _both(step, _COORDINATOR, step).items()},
    # inside of steps
    **_inside("file of positions", "state_engine.sources.source_positions", "write_parquet"),
    **_inside("file of the row", "state_engine.storage.checkpoint_log", "write_parquet"),
    **_inside("operator", "state_engine.microbatch.executor:GraphExecutor", "_run_operator"),
    **_inside("prepared sink", "state_engine.microbatch.attempt_outputs:AttemptSinks", "prepare"),
    **_inside("dropped exchange", _COORDINATOR, "_drop_exchange"),
    **_inside("table created", _KERNEL, "create_table"),
    **_inside("table committed", _KERNEL, "change"),
    **_inside("sink published", "state_engine.publishing.publication:Publication", "_publish"),
    **_both("rows of a Delta table", "state_engine.state_tables.delta:DeltaStateTarget", "apply"),
    **_both("rows of an SQL table", "state_engine.databases.shown_table:ShownTable", "apply"),
    **_both("entry of checkpoints", _KERNEL, "append", "/checkpoints"),
    **_inside("records for Kafka", "state_engine.spark.kafka.clients:TransactionalProducer", "send"),
    **_both("transaction of Kafka", "state_engine.spark.kafka.clients:TransactionalProducer", "commit"),
    # of operations
    **_both("head published", "state_engine.operations.head_operations:HeadOperations", "published_head"),
    **_both("row committed", "state_engine.operations.head_operations:HeadOperations", "commit"),
    **_both("row appended", "state_engine.storage.checkpoint_log:CheckpointLog", "_append"),
    **_inside("move of files begun", "state_engine.sinks.file_moves:Mover", "begin"),
    **_inside("move of files withdrawn", "state_engine.sinks.file_moves:Mover", "withdraw"),
    **_inside("move of files added", "state_engine.sinks.file_moves:Mover", "add"),
    # of maintenance and savepoints
    **_inside("base written", "state_engine.operations.maintenance", "write_base"),
    **_inside("base committed", "state_engine.operations.maintenance:Maintenance", "_write"),
    **_both("background row", "state_engine.operations.maintenance:Maintenance", "_commit"),
    **_inside("checkpoint pinned", "state_engine.operations.maintenance:Maintenance", "pin"),
    **_inside("keyed state copied", "state_engine.operations.savepoints:Savepoints", "_copy_keyed"),
    **_inside(
        "operator state copied", "state_engine.operations.savepoints:Savepoints", "_copy_operator_state"
    ),
    **_both("manifest", "state_engine.operations.savepoints", "write_text"),
    **_inside("checkpoint unpinned", "state_engine.operations.maintenance:Maintenance", "unpin"),
    # of savepoints that are imported, and of another number of key groups
    **_inside("savepoint verified", "state_engine.engine.engine", "savepoint_of"),
    **_inside("keyed state imported", "state_engine.operations.savepoint_import", "_import_keyed"),
    **_inside(
        "operator state imported", "state_engine.operations.savepoint_import", "_import_operator_state"
    ),
    **_inside("key groups written", "state_engine.operations.max_parallelism", "write_base"),
    **_inside("key groups listed", "state_engine.operations.max_parallelism:MaxParallelismChange", "_write"),
    # of collection
    **_both("collection planned", "state_engine.operations.file_collector:Collector", "_plan"),
    **_both("fence", "state_engine.operations.maintenance:Maintenance", "fence"),
    **_inside("files removed", "state_engine.operations.file_collector:Collector", "_remove"),
    **_inside("file deleted", "state_engine.operations.file_collector", "_delete"),
    **_inside("directory dropped", "state_engine.operations.file_collector", "_drop_empty"),
}
"""Every point by name."""


# -- installing --------------------------------------------------------------------------------------------------------


def kill_process() -> None:
    """Kill the whole process group, as a power cut of the machine does."""
    os.killpg(0, signal.SIGKILL)


class Plane:
    """Counts how often points are reached, and lets faults happen."""

    def __init__(
        self, schedule: Sequence[Fault], *, kill: Callable[[], None], meanwhile: Callable[[], None]
    ) -> None:
        self.hits: Counter[str] = Counter()
        self.fired: list[Fault] = []
        self._left, self._kill, self._meanwhile = list(schedule), kill, meanwhile
        self._asleep, self._lock = False, threading.Lock()

    def reach(self, point: str) -> None:
        """Called when a point is reached; other runners may work while a zombie sleeps."""
        interrupts = any(fault.action == "interrupt" for fault in self._left)
        if interrupts and threading.current_thread() is not threading.main_thread():
            return
        with self._lock:
            if self._asleep:
                return
            self.hits[point] += 1
            due = next((f for f in self._left if f.point == point and f.nth == self.hits[point]), None)
            if due is None:
                return
            self._left.remove(due)
            self.fired.append(due)
            self._asleep = due.action == "zombie"
        if due.action == "raise":
            raise InjectedFault(str(due))
        if due.action == "interrupt":
            raise KeyboardInterrupt
        if due.action == "sigkill":
            self._kill()
            return
        if due.action == "delay":
            time.sleep(DELAY_S)
            return
        try:
            self._meanwhile()
        finally:
            self._asleep = False


@contextmanager
def installed(
    schedule: Sequence[Fault],
    *,
    kill: Callable[[], None] = kill_process,
    meanwhile: Callable[[], None] = lambda: None,
    watch: Iterable[str] = (),
) -> Iterator[Plane]:
    """Wrap the methods that a schedule names, and those of points to watch, for as long as the block runs."""
    plane = Plane(schedule, kill=kill, meanwhile=meanwhile)
    wanted = {fault.point for fault in schedule} | set(watch)
    unknown = sorted(wanted - set(POINTS))
    if unknown:
        raise ValueError(f"there are no fault points {unknown}; there are {sorted(POINTS)}")
    undo: list[tuple[Any, str, Any]] = []
    try:
        for place in {POINTS[name].place for name in wanted}:
            owner, method = _owner(place[0]), place[1]
            real = vars(owner)[method]
            undo.append((owner, method, real))
            here = {name: POINTS[name] for name in sorted(wanted) if POINTS[name].place == place}
            setattr(owner, method, _wrapped(real, here, plane))
        yield plane
    finally:
        for owner, method, real in undo:
            setattr(owner, method, real)


def _owner(text: str) -> Any:
    module, _, name = text.partition(":")
    imported = importlib.import_module(module)
    return getattr(imported, name) if name else imported


def _wrapped(real: Callable[..., Any], points: Mapping[str, FaultPoint], plane: Plane) -> Callable[..., Any]:
    @functools.wraps(real)
    def call(*args: Any, **options: Any) -> Any:
        here = {name: point for name, point in points.items() if point.counts(args)}
        for name, point in here.items():
            if not point.after:
                plane.reach(name)
        result = real(*args, **options)
        for name, point in here.items():
            if point.after:
                plane.reach(name)
        return result

    return call
