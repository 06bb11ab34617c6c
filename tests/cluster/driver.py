"""A driver on a cluster: ``python -m tests.cluster.driver <settings>``; executors have no engine installed.

It either goes through moments, one a micro-batch or compaction, at which it is held up (``Gate``), or runs micro-batch
after micro-batch until it is asked to stop. What it did it appends to a file of notes, a line of JSON each.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from state_engine.core.errors import StatelakeError
from state_engine.machine.settings import SparkSettings
from state_engine.spark.session import local_session
from state_engine.spark.stores import reach_stores
from state_engine.storage.stores.object_stores import PROCESS_STORES
from tests.cluster.held import COMPACTING, Gate, held_in_driver, workload
from tests.faults.workloads import Site
from tests.stores.many import rows_of
from tests.support.stores import access_to
from tests.support.waiting import until

CUT = 8
"""Rows of a micro-batch."""
LONGEST_STAY_S = 900.0
COMPACT_EVERY = 5
"""Micro-batches between two compactions of a driver that runs on."""


class Driver:
    """See the module docstring."""

    def __init__(self, site: Site, gate: Gate, notes: Path) -> None:
        self.site, self.gate, self.notes = site, gate, notes

    def note(self, what: str, value: Any = None) -> None:
        with self.notes.open("a") as file:
            file.write(json.dumps([what, value]) + "\n")

    def go_through(self, moments: list[tuple[int, str]]) -> None:
        """One micro-batch for each moment, and a compaction of it where that is the moment."""
        for number, moment in moments:
            self.gate.ask(number, moment)
            with held_in_driver(self.gate, moment):
                self.site.run(max_batches=1)
                if moment == COMPACTING:
                    self.compact()
            assert self.gate.reached(number) is not None, f"moment {number}, {moment}, was not reached"
            self.note("done", number)

    def run_on(self, asked_to_stop: Path) -> None:
        """Micro-batches, and now and then a compaction, until asked to stop."""
        done = 0
        while not asked_to_stop.exists():
            try:
                batches = self.site.run(max_batches=1).batches
                self.note("committed", [batch.checkpoint_id for batch in batches])
                done += 1
                if done % COMPACT_EVERY == 0:
                    self.compact()
                    self.note("compacted")
            except StatelakeError as error:
                self.note("lost", [type(error).__name__, str(error)])

    def compact(self) -> None:
        with self.site.engine() as engine:
            engine.compact(self.site.workload.name)

    def finish(self, result: Path) -> None:
        """Consume what is left, and save what readers see."""
        while not self.site.run().caught_up:
            pass
        rows = self.site.rows()
        seen = {
            "ids": [row.checkpoint_id for row in rows],
            "write_ids": len({row.write_id for row in rows}),
            "kinds": Counter(str(row.kind.value) for row in rows),
            "seen": self.site.seen(),
        }
        result.write_bytes(pickle.dumps(seen))


def main(settings: dict[str, Any]) -> None:
    directory, cut = Path(settings["directory"]), settings.get("cut", CUT)
    PROCESS_STORES.describe(access_to(settings["endpoint"]))
    spark = local_session(
        SparkSettings(master=settings["master"], driver_memory="1g", options=settings["options"]),
        app_name="statelake-cluster",
    )
    reach_stores(spark)  # a table is made before there is an engine
    gate = Gate(directory / "gate")
    job = workload(rows_of(settings["rows"]), gate)
    site = Site(directory / "site", job, spark, cut=cut, store=settings["store"])
    driver = Driver(site, gate, Path(settings["notes"]))
    driver.note("ready", spark.sparkContext.parallelize([0], 1).map(lambda _: _engine_of_task()).collect()[0])
    try:
        driver.go_through(settings.get("moments", []))
        if "stay" in settings:  # what goes on in executors would end with this process
            until(Path(settings["stay"]).exists, "the end", within_s=LONGEST_STAY_S)
        if "until" in settings:
            driver.run_on(Path(settings["until"]))
        if "result" in settings:
            driver.finish(Path(settings["result"]))
    finally:
        spark.stop()


def _engine_of_task() -> list[str | None]:
    """The file that a task without anything of ours would import the engine from, and its Python's."""
    import importlib.util

    spec = importlib.util.find_spec("state_engine")
    return [None if spec is None else spec.origin, sys.executable]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
