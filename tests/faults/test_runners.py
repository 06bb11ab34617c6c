"""Two and four runners of one job at once, as threads and as processes, for 20 checkpoints.

Each id is committed once, no row is lost or comes twice, and each loser is reported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults.child import REPOSITORY
from tests.faults.runner import CUT_OF_RUNNERS, WORKLOAD, RunnerReport, run_to_the_end
from tests.faults.workloads import EVENTS, WORKLOADS, Seen, Site

pytestmark = [pytest.mark.spark, pytest.mark.faults, pytest.mark.timeout(1800)]
several = pytest.mark.parametrize("runners", [2, 4])


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Seen:
    """The results of one runner."""
    site = Site(tmp_path_factory.mktemp("alone"), WORKLOADS[WORKLOAD], spark, cut=CUT_OF_RUNNERS)
    site.run()
    return site.seen()


def check(site: Site, reports: Iterable[RunnerReport], expected: Seen) -> None:
    """Every id was committed by exactly one runner, and the others were reported so."""
    all_reports = list(reports)
    ids = list(range(1, len(EVENTS) // CUT_OF_RUNNERS + 1))
    assert len(ids) == 20
    rows = site.rows()
    assert [row.checkpoint_id for row in rows] == ids
    assert len({row.write_id for row in rows}) == len(ids)
    assert sorted(i for report in all_reports for i in report.committed) == ids
    lost = [one for report in all_reports for one in report.lost]
    assert lost
    for kind, message in lost:
        assert kind == "StaleParentError", message
        assert "was committed by another runner" in message
        assert "Run again to go on from there" in message
    assert site.seen() == expected
    print(
        f"{len(all_reports)} runners: committed {[len(r.committed) for r in all_reports]}, lost {len(lost)} attempts"
    )


@several
def test_runners_in_threads(runners: int, tmp_path: Path, spark: SparkSession, expected: Seen) -> None:
    site = Site(tmp_path, WORKLOADS[WORKLOAD], spark, cut=CUT_OF_RUNNERS)
    start = threading.Barrier(runners)

    def run(_: int) -> RunnerReport:
        start.wait()
        return run_to_the_end(site.again())

    with ThreadPoolExecutor(runners) as pool:
        check(site, pool.map(run, range(runners)), expected)


@several
def test_runners_in_processes(runners: int, tmp_path: Path, spark: SparkSession, expected: Seen) -> None:
    command = [sys.executable, "-m", "tests.faults.runner", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    processes = []
    for i in range(runners):
        with (tmp_path / f"stderr-{i}").open("w") as stderr:
            processes.append(
                subprocess.Popen(command, cwd=REPOSITORY, env=environment, text=True, stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, stderr=stderr)
            )  # fmt: skip
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        with ThreadPoolExecutor(runners) as pool:
            ended = list(pool.map(lambda p: p.communicate("go\n", timeout=1500), processes))
    finally:
        for process in processes:
            process.kill()
    errors = [(tmp_path / f"stderr-{i}").read_text()[-3000:] for i in range(runners)]
    assert [process.returncode for process in processes] == [0] * runners, "\n".join(errors)
    reports = [RunnerReport(**json.loads(text)) for text, _ in ended]
    check(Site(tmp_path, WORKLOADS[WORKLOAD], spark, cut=CUT_OF_RUNNERS), reports, expected)
