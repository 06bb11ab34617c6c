"""One of several runners of a job in a store: comes back again and again, as a scheduler's runs do, until all is done.

    python -m tests.stores.runner <directory> <URI in the store> <file of notes>

Notes are lines of JSON, each appended at once, so that they outlive the process.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from state_engine.core.errors import StatelakeError
from state_engine.machine.settings import SparkSettings
from state_engine.spark.session import local_session
from state_engine.testing import subtasks_in_process
from tests.faults.workloads import Site
from tests.stores.many import MANY
from tests.support.java import SHORT_LIVED_JAVA

AT_ONCE = (4, 24)
"""So many micro-batches in one run: each reads the history of the job anew, and the log of each table."""
PAUSE_S = 30.0
"""A runner waits up to so long between runs: on a small machine those that always work mostly lose."""


def main(directory: str, store: str, notes: str) -> None:
    options = {"spark.driver.extraJavaOptions": SHORT_LIVED_JAVA}
    settings = SparkSettings(master="local[1]", driver_memory="1g", options=options)
    session = local_session(settings, app_name="statelake-stores")
    with subtasks_in_process(session):
        go_on(Site(Path(directory), MANY, session, cut=1, store=store), notes)


def go_on(site: Site, notes: str) -> None:
    """Run micro-batches until there is nothing new."""

    def note(what: str, value: Any) -> None:
        with Path(notes).open("a") as file:
            file.write(json.dumps([what, value]) + "\n")

    parent = os.getppid()
    note("ready", None)
    while os.getppid() == parent:
        try:
            if site.run(
                max_batches=random.randint(*AT_ONCE),
                on_progress=lambda batch: note("committed", batch.checkpoint_id),
            ).caught_up:
                note("caught up", None)
                return
        except StatelakeError as error:
            note("lost", [type(error).__name__, str(error)])
        time.sleep(random.uniform(0, PAUSE_S))


if __name__ == "__main__":
    main(*sys.argv[1:])
