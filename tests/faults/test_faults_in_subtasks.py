"""A Python worker that dies, or a function that raises, in the middle of a subtask; then plain runs: nothing differs.

Both on the route by which the driver sends few rows, and on Spark's. In ``local[n]`` Spark runs no task again, so the
micro-batch fails, and nothing of it is seen.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.sql import SparkSession

from state_engine import CheckpointedFunction, DataStream, RuntimeContext, StatefulJob
from state_engine.core.errors import SubtaskLostError, UserFunctionError
from state_engine.microbatch.subtask import subtask_outputs, subtask_state
from state_engine.spark.tasks import DriverTables
from tests.faults.cases import SavedSite
from tests.faults.workloads import PAIR, Site, Sums, Workload, _events
from tests.support.limits import NOTHING_BY_DRIVER, SetLimits

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


PLACES: list[tuple[Where, int]] = [
    ("element", 3),
    ("snapshot_state", 1),
    ("file", 1),
    ("file", 2),
    ("user function", 3),
]
FAULTS = [SubtaskFault(where, nth, uid) for uid in UIDS for where, nth in PLACES]
QUICK = {("driver", SubtaskFault("file", 1, UIDS[1]))}
CASES = [
    pytest.param(
        route, fault, id=f"{route}-{fault}", marks=() if (route, fault) in QUICK else pytest.mark.faults
    )
    for route in ("driver", "spark")
    for fault in FAULTS
]


@pytest.fixture(scope="module")
def saved_site(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> SavedSite:
    return SavedSite.prepare(breakable(), tmp_path_factory.mktemp("subtasks"), spark)


@pytest.fixture
def sent_by_driver(monkeypatch: pytest.MonkeyPatch, limits: SetLimits, route: str) -> Iterator[list[int]]:
    """Numbers of tables that the driver sent to subtasks."""
    sent, real = list[int](), DriverTables.answers

    def answers(given: DriverTables, spark: SparkSession, answer: Any) -> list[str]:
        sent.append(len(given.tables))
        return real(given, spark, answer)

    monkeypatch.setattr(DriverTables, "answers", answers)
    if route == "spark":
        limits(**NOTHING_BY_DRIVER)
    yield sent
    assert bool(sent) == (route == "driver")


@pytest.mark.parametrize(("route", "fault"), CASES)
def test_a_fault_in_a_subtask_changes_no_result(
    route: str, fault: SubtaskFault, saved_site: SavedSite, sent_by_driver: list[int], tmp_path: Path
) -> None:
    marker = tmp_path / "happened"
    site = saved_site.fresh()
    broken = Site(site.directory, breakable(Planted(fault, marker)), site.spark, cut=site.cut)
    kind = UserFunctionError if fault.where == "user function" else SubtaskLostError
    with pytest.raises(kind) as failed:
        broken.run()
    assert marker.exists()
    check_message(failed.value, fault)
    assert len(site.rows()) == 1
    assert site.seen() == saved_site.after[1]
    saved_site.check_recovery(broken)


def check_message(error: BaseException, fault: SubtaskFault) -> None:
    """Whether the error says what happened."""
    if fault.where == "user function":
        assert f"operator '{fault.uid}'" in str(error)
        assert MESSAGE in str(error)
    else:
        assert f"operator '{fault.uid}': the process of a subtask died" in str(error)
        assert len(str(error)) < 700
