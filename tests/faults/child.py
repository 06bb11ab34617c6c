"""A process that dies: runs cases, each in a root of its own, stops each for good at its fault, then kills itself.

A thread that has reached its fault never does anything again, and holds what it held. When all have, or with a single
case at the very point, the process group dies by SIGKILL: Python, its workers and the JVM. Cases that ended without
reaching their fault are reported on standard output.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

import pytest
from pyspark.sql import SparkSession

from state_engine.machine.settings import SparkSettings
from state_engine.spark.session import local_session
from tests.faults.operations import CUT_OF_OPERATIONS, perform, prepare
from tests.faults.plane import Fault, from_json, installed, kill_process, to_json
from tests.faults.workloads import CUT, WORKLOADS, Site
from tests.support.java import SHORT_LIVED_JAVA
from tests.support.stores import quick_race

REPOSITORY = Path(__file__).parents[2]
C = TypeVar("C")


class CaseOfChild(NamedTuple):
    """One case of a process that dies."""

    workload: str
    directory: Path
    faults: Sequence[Fault]
    operation: str = ""
    store: str | None = None


def killed(cases: Sequence[CaseOfChild], environment: Mapping[str, str] = MappingProxyType({})) -> str:
    """Let one process run all these cases until their faults kill it; its output, empty if all struck."""
    shown = [case._replace(directory=str(case.directory), faults=to_json(case.faults)) for case in cases]  # type: ignore[arg-type]
    died = subprocess.run(
        [sys.executable, "-m", "tests.faults.child", json.dumps(shown)],
        cwd=REPOSITORY, env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment}, capture_output=True,
        timeout=900, check=False, start_new_session=True,
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stderr.decode()[-3000:]
    return died.stdout.decode()


class KilledCases(Generic[C]):
    """What killed processes left of cases: one process for all that die together, at the first use of one of them."""

    def __init__(
        self,
        together: Callable[[C], Sequence[C]],
        shown: Callable[[C, Path], CaseOfChild],
        new_directory: Callable[[], Path],
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._together, self._shown, self._new_directory = together, shown, new_directory
        self._environment = environment
        self._left: dict[str, CaseOfChild] = {}

    def __call__(self, case: C) -> CaseOfChild:
        """Where a case was left."""
        if str(case) not in self._left:
            base = self._new_directory()
            dying = {str(c): self._shown(c, base / str(i)) for i, c in enumerate(self._together(case))}
            assert killed(list(dying.values()), self._environment) == ""
            self._left |= dying
        return self._left[str(case)]


def child_session() -> SparkSession:
    """A session as the tests have it, in a process of its own."""
    options = {"spark.driver.extraJavaOptions": SHORT_LIVED_JAVA}
    settings = SparkSettings(master="local[2]", driver_memory="2g", options=options)
    return local_session(settings, app_name="statelake-faults")


def run_to_the_fault(site: Site, schedule: Sequence[Fault], operation: str, *, alone: bool) -> str:
    """Run the first micro-batches, and then up to the fault; empty, or a text about another end."""
    if operation:
        prepare(site, operation)
    else:
        site.run(max_batches=1)
    ended, shown = threading.Event(), ["stopped"]

    def stop() -> None:
        if alone:
            kill_process()
        shown[0] = ""
        ended.set()
        threading.Event().wait()

    def run() -> None:
        try:
            if operation:
                perform(site, operation)
            else:
                site.run()
            shown[0] = "did not reach the fault"
        except BaseException as error:
            shown[0] = repr(error)
        ended.set()

    with installed(schedule, kill=stop):
        threading.Thread(target=run, daemon=True).start()
        ended.wait()
    return shown[0]


def main(text: str) -> None:
    cases, spark = json.loads(text), child_session()
    quick_race(pytest.MonkeyPatch())  # each case in a store has a root of its own, and races for it
    for workload, directory, faults, operation, store in cases:
        schedule = from_json(faults)
        cut = CUT_OF_OPERATIONS if operation else CUT
        site = Site(Path(directory), WORKLOADS[workload], spark, cut=cut, store=store)
        shown = run_to_the_fault(site, schedule, operation, alone=len(cases) == 1)
        if shown:
            print(f"{workload} {operation} {schedule[0]}: {shown}", flush=True)
    kill_process()


if __name__ == "__main__":
    main(sys.argv[1])
