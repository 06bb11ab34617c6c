"""A process that dies: runs cases, each in a root of its own, stops each for good at its fault, then kills itself.

    python -m tests.faults.child '[[workload, directory, [fault, …]], …]'

A thread that has reached its fault never does anything again, and holds what it held. When all have, or with a single
case at the very point, the process group dies by SIGKILL: Python, its workers and the JVM. Cases that ended without
reaching their fault are told on standard output.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from state_engine.runtime.session import local_session
from state_engine.runtime.settings import SparkSettings
from tests.faults.plane import Fault, installed, kill_process
from tests.faults.workloads import WORKLOADS, Site


def run_to_the_fault(site: Site, schedule: list[Fault], *, alone: bool) -> str:
    """Run a first micro-batch, and then up to the fault; empty, or what happened instead."""
    site.run(max_batches=1)
    ended, told = threading.Event(), ["stopped"]

    def stop() -> None:
        if alone:
            kill_process()
        told[0] = ""
        ended.set()
        threading.Event().wait()

    def run() -> None:
        try:
            site.run()
            told[0] = "did not reach the fault"
        except BaseException as error:
            told[0] = repr(error)
        ended.set()

    with installed(schedule, kill=stop):
        threading.Thread(target=run, daemon=True).start()
        ended.wait()
    return told[0]


def main(text: str) -> None:
    cases = json.loads(text)
    options = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    settings = SparkSettings(master="local[2]", driver_memory="2g", options=options)
    spark = local_session(settings, app_name="statelake-faults")
    for workload, directory, faults in cases:
        schedule = [Fault(**fault) for fault in faults]
        site = Site(Path(directory), WORKLOADS[workload], spark)
        told = run_to_the_fault(site, schedule, alone=len(cases) == 1)
        if told:
            print(f"{workload} {schedule[0]}: {told}", flush=True)
    kill_process()


if __name__ == "__main__":
    main(sys.argv[1])
