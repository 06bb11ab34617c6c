"""A crash after any step, then another run: outputs and state are those of one run without a crash."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import StateEngine
from state_engine.backends.delta.kernel import DeltaKernel
from state_engine.runtime.coordinator import CheckpointCoordinator
from state_engine.runtime.sinks.files import FilePublisher
from tests.runtime.small_job import CLOCK_MS, Results, build, results, write_feed


class Crash(Exception):
    """What a crash looks like to the test."""


@dataclass(frozen=True)
class Ground:
    """A root with one checkpoint of the small job, to be crashed again and again, and what must come out."""

    work: Path
    saved: Path
    feed: Path
    expected: Results

    def fresh(self, spark: SparkSession) -> tuple[StateEngine, Any]:
        """An engine and the job, after the first checkpoint."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.saved, self.work)
        return self.engine(spark), build(self.feed, self.work / "sinks")

    def engine(self, spark: SparkSession) -> StateEngine:
        return StateEngine(self.work / "root", spark)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Ground:
    base = tmp_path_factory.mktemp("crash")
    feed = write_feed(base / "feed")
    straight = StateEngine(base / "straight" / "root", spark)
    report = straight.run(build(feed, base / "straight" / "sinks"), clock=CLOCK_MS)
    assert [b.checkpoint_id for b in report.batches] == [1, 2, 3]

    first = StateEngine(base / "work" / "root", spark)
    first.run(build(feed, base / "work" / "sinks"), clock=CLOCK_MS, max_batches=1)
    first.close()
    shutil.copytree(base / "work", base / "saved")
    return Ground(base / "work", base / "saved", feed, results(straight, base / "straight" / "sinks"))


STEPS = (
    "settle", "plan", "execute", "commit_changelog", "commit_operator_state", "commit_files", "stage", "commit",
    "publish",
)  # fmt: skip
Plant = Callable[[pytest.MonkeyPatch], None]


def at_step(step: str, *, after: bool) -> Plant:
    """Crash at the first call of a step, before or after it did its work."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = getattr(CheckpointCoordinator, step)

        def crashing(self: Any, *args: Any) -> Any:
            if after:
                real(self, *args)
            raise Crash(step)

        patch.setattr(CheckpointCoordinator, step, crashing)

    return plant


def between_sinks(patch: pytest.MonkeyPatch) -> None:
    """The Delta sink has its rows, the files sink has not."""

    def crashing(*args: Any) -> None:
        raise Crash("between sinks")

    patch.setattr(FilePublisher, "publish", crashing)


def after_append_to(table: str) -> Plant:
    """Kernel has committed, and the driver dies before it hears of it."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        real = DeltaKernel.append

        def crashing(self: Any, uri: str, *args: Any, **options: Any) -> int:
            version = real(self, uri, *args, **options)
            if uri.endswith(table):
                raise Crash(table)
            return version

        patch.setattr(DeltaKernel, "append", crashing)

    return plant


POINTS: dict[str, Plant] = {
    **{f"before {step}": at_step(step, after=False) for step in STEPS},
    # after one step is before the next, but for the last step and those that run side by side
    **{
        f"after {step}": at_step(step, after=True)
        for step in ("commit_changelog", "commit_operator_state", "publish")
    },
    "between two sinks": between_sinks,
    **{
        f"after an append to {table}": after_append_to(table)
        for table in ("totals/changelog", "ranks/changelog", "operator_state", "checkpoints", "sinks/totals")
    },
}

COMMITTED = {"before publish", "after publish", "between two sinks", "after an append to checkpoints",
             "after an append to sinks/totals"}  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_point_changes_no_result(
    point: str, ground: Ground, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, job = ground.fresh(spark)
    with monkeypatch.context() as patch:
        POINTS[point](patch)
        with pytest.raises(Crash):
            engine.run(job, clock=CLOCK_MS)
    engine.close()

    again = ground.engine(spark)
    assert len(again.checkpoints(job)) == (2 if point in COMMITTED else 1)
    report = again.run(build(ground.feed, ground.work / "sinks"), clock=CLOCK_MS)

    assert report.caught_up
    assert [row.checkpoint_id for row in again.checkpoints(job)] == [1, 2, 3]
    assert report.settled == ([2] if point in COMMITTED - {"after publish"} else [])
    assert results(again, ground.work / "sinks") == ground.expected


def test_a_crash_that_keeps_coming_back_loses_nothing(
    ground: Ground, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second attempt crashes where the first one's outputs are published; so does the third."""
    _, job = ground.fresh(spark)
    for plant in (POINTS["before publish"], between_sinks, POINTS["before plan"], between_sinks):
        with monkeypatch.context() as patch:
            plant(patch)
            with pytest.raises(Crash):
                ground.engine(spark).run(job, clock=CLOCK_MS)
    engine = ground.engine(spark)
    engine.run(job, clock=CLOCK_MS)
    assert results(engine, ground.work / "sinks") == ground.expected


def test_settle_publishes_without_running(
    ground: Ground, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, job = ground.fresh(spark)
    with monkeypatch.context() as patch:
        POINTS["before publish"](patch)
        with pytest.raises(Crash):
            engine.run(job, clock=CLOCK_MS)
    other = ground.engine(spark)
    assert other.settle(job) == [2]
    assert other.settle(job) == []
    assert len(other.checkpoints(job)) == 2
    wanted = ground.expected["totals"]
    have = results(other, ground.work / "sinks")["totals"]
    assert 0 < len(have) < len(wanted)
    assert set(have) < set(wanted)


KILLED = """
import os, signal, sys
from pathlib import Path
from state_engine import StateEngine
from state_engine.runtime.coordinator import CheckpointCoordinator
from tests.runtime.small_job import CLOCK_MS, build

def killed(self, attempt):
    os.kill(os.getpid(), signal.SIGKILL)

CheckpointCoordinator.publish = killed
feed, work = Path(sys.argv[1]), Path(sys.argv[2])
StateEngine(work / "root").run(build(feed, work / "sinks"), clock=CLOCK_MS)
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_process_changes_no_result(ground: Ground, spark: SparkSession) -> None:
    """A process of its own dies between commit and publish; this one goes on from there."""
    ground.fresh(spark)
    root = Path(__file__).parents[2]
    died = subprocess.run(
        [sys.executable, "-c", KILLED, str(ground.feed), str(ground.work)],
        cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, timeout=200, check=False,
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()[-2000:]

    engine = ground.engine(spark)
    assert len(engine.checkpoints("small")) == 2
    report = engine.run(build(ground.feed, ground.work / "sinks"), clock=CLOCK_MS)
    assert report.settled == [2]
    assert results(engine, ground.work / "sinks") == ground.expected
