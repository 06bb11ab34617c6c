"""One of several runners of a job, as a thread or as a process: consumes all input, and reports commits and errors.

    python -m tests.faults.runner <directory>

A process says ``ready`` when its session stands, starts when it is given a line, and prints its report as JSON.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from state_engine.core.errors import CommitFailedError
from tests.faults.child import child_session
from tests.faults.workloads import WORKLOADS, Site

CUT_OF_RUNNERS = 1
"""Every row is a micro-batch."""
WORKLOAD = "sinks"


@dataclass
class RunnerReport:
    """The report of one runner."""

    committed: list[int] = field(default_factory=list)
    lost: list[tuple[str, str]] = field(default_factory=list)


def run_to_the_end(site: Site) -> RunnerReport:
    """Run, and after every lost attempt run again, until the sources have nothing new."""
    shown = RunnerReport()
    while True:
        try:
            if site.run(on_progress=lambda batch: shown.committed.append(batch.checkpoint_id)).caught_up:
                return shown
        except CommitFailedError as error:
            shown.lost.append((type(error).__name__, str(error)))


def main(directory: str) -> None:
    site = Site(Path(directory), WORKLOADS[WORKLOAD], child_session(), cut=CUT_OF_RUNNERS)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(asdict(run_to_the_end(site))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
