"""Drivers of one site on a cluster, one after the other, and what is done to the cluster meanwhile."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from tests.cluster.held import COMMITTING, PUBLISHING, SINKS, Gate
from tests.faults.child import REPOSITORY
from tests.faults.workloads import Seen
from tests.stores.many import expected, rows_of
from tests.support.clusters import Cluster, executor_of, python_program
from tests.support.java import SHORT_LIVED_JAVA
from tests.support.waiting import until

WAIT_S = 600.0
TASK, EXECUTOR, WORKER = "task", "executor", "worker"
"""What can be killed."""
OPTIONS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": SHORT_LIVED_JAVA,
    "spark.executor.extraJavaOptions": SHORT_LIVED_JAVA,
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
    "spark.locality.wait": "0s",
    # else Delta has 50 tasks read a table's log
    "spark.databricks.delta.snapshotPartitions": "1",
    # what is killed in these tests is no fault of the task
    "spark.task.maxFailures": "50",
    "spark.stage.maxConsecutiveAttempts": "50",
}


@dataclass
class Session:
    """A driver process."""

    process: subprocess.Popen[bytes]
    notes: Path

    @property
    def log(self) -> str:
        return self.notes.with_suffix(".log").read_text()

    def noted(self, what: str) -> list[Any]:
        """The values of the notes of one kind; a line that a kill cut off does not count."""
        lines = self.notes.read_text().split("\n")[:-1] if self.notes.exists() else []
        return [value for kind, value in map(json.loads, lines) if kind == what]

    def check_running(self) -> None:
        """Raises AssertionError where it has ended by itself, and too early."""
        assert self.process.poll() is None, self.log[-8000:]

    def wait_for(self, what: str, *, count: int) -> None:
        """Wait until it has noted something so many times."""

        def is_noted() -> bool:
            ended = self.process.poll() is not None
            there = len(self.noted(what)) >= count
            assert there or not ended, self.log[-8000:]
            return there

        until(is_noted, f"{what}, {count} times", within_s=WAIT_S)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def held_up(gate: Gate, session: Session, number: int) -> int:
    """Wait until a process is held up at a moment; its id."""

    def process() -> int | None:
        session.check_running()
        return gate.reached(number)

    return until(process, f"moment {number}", within_s=WAIT_S)


def kill_at(cluster: Cluster, moment: str, victim: str, process: int) -> None:
    """Kill what a process that is held up runs on; or if it is the driver, any executor or worker."""
    if moment in (COMMITTING, PUBLISHING):
        number = random.randrange(2)
        until(lambda: cluster.executors(number), f"an executor of worker {number}", within_s=WAIT_S)
        executor = cluster.executors(number)[0]
    else:
        executor = executor_of(process)
        number = cluster.worker_of(executor)
    if victim == WORKER:
        cluster.kill_worker(number)
        cluster.start_worker(number)
        return
    dead = psutil.Process(process) if victim == TASK else executor
    os.kill(dead.pid, signal.SIGKILL)
    psutil.wait_procs([dead], timeout=60)


@dataclass
class Place:
    """A site with its root in a store, and a cluster that its drivers use."""

    directory: Path
    cluster: Cluster
    endpoint: str
    rows: int
    sessions: list[Session] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate = Gate(self.directory / "gate")
        self.store = f"s3a://bucket/{uuid4().hex}"
        self.program = python_program(self.directory / "python")
        for name in ("gate", "site"):
            (self.directory / name).mkdir()

    @contextmanager
    def session(self, options: dict[str, str] | None = None, **settings: Any) -> Iterator[Session]:
        """Start a driver; it is killed at the end if it still runs."""
        notes = self.directory / f"notes-{len(self.sessions)}"
        of_place = {
            "directory": str(self.directory),
            "store": self.store,
            "endpoint": self.endpoint,
            "master": self.cluster.master,
            "rows": self.rows,
            "notes": str(notes),
            "options": OPTIONS
            | {
                "spark.pyspark.python": str(self.program),
                "spark.sql.warehouse.dir": str(self.directory / "warehouse"),
            }
            | (options or {}),
        }
        with notes.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.driver", json.dumps(of_place | settings)],
                cwd=REPOSITORY, env=self.cluster.environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        session = Session(process, notes)
        self.sessions.append(session)
        try:
            yield session
        finally:
            session.kill()

    def finish(self) -> dict[str, Any]:
        """Consume all input that is left, and compare everything with a plain loop; what was seen."""
        result = self.directory / "result"
        with self.session(cut=self.rows, result=str(result)) as session:
            assert session.process.wait(900) == 0, session.log[-8000:]
        seen: dict[str, Any] = pickle.loads(result.read_bytes())
        assert seen["ids"] == list(range(1, len(seen["ids"]) + 1))
        assert seen["write_ids"] == len(seen["ids"])
        shown: Seen = seen["seen"]
        whole = expected(rows_of(self.rows), SINKS)
        for sink, rows in whole.outputs.items():
            assert shown.outputs[sink] == rows, sink
        assert set(shown.outputs) == set(whole.outputs)
        assert shown.state == whole.state
        return seen


@contextmanager
def place(directory: Path, endpoint: str, *, rows: int, cores: int = 1) -> Iterator[Place]:
    """A new site and a new cluster of two workers."""
    with ExitStack() as stack:
        (directory / "cluster").mkdir()
        cluster = Cluster(directory / "cluster", stack, cores=cores)
        yield Place(directory, cluster, endpoint, rows)
