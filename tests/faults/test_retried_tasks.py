"""On a master that runs a task again, every kind of sink shows what was recorded, whatever its first attempt left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.faults.retried_tasks import EVERY_SINK, POSTGRES
from tests.faults.workloads import LETTERS, POSTGRES_PASSWORD, POSTGRES_URL
from tests.runtime.sinks.servers import Server, postgres_binaries
from tests.runtime.test_executors import REPOSITORY, Cluster

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1200)]


@pytest.fixture
def server() -> Iterator[Server | None]:
    """A PostgreSQL server where its programs are installed."""
    if postgres_binaries() is None:
        yield None
        return
    with Server.started() as made:
        yield made


def tried(directory: Path, master: str, server: Server | None, options: dict[str, str]) -> dict[str, Any]:
    """What a process of its own saw on a master."""
    options = {
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
    } | options
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    if server is not None:
        environment |= {POSTGRES_URL: server.new_database(), POSTGRES_PASSWORD: server.password}
    given = {
        "directory": str(directory),
        "master": master,
        "options": options,
        "postgres": server is not None,
    }
    ran = subprocess.run(
        [sys.executable, "-m", "tests.faults.retried_tasks", json.dumps(given)],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-5000:]
    result: dict[str, Any] = json.loads((directory / "result.json").read_text())
    return result


def check(result: dict[str, Any], server: Server | None) -> None:
    kinds = {name.split("_")[0] for name in EVERY_SINK} | {LETTERS} | ({POSTGRES} if server else set())
    one, two = result["1"], result["2"]
    assert set(two["outputs"]) == kinds
    assert all(two["outputs"][kind] and two["outputs"][kind] != one["outputs"][kind] for kind in kinds)
    for found in (result["whole"], result["torn"]):
        names = {path.rsplit("/", 1)[-1] for path in found["first"]}
        assert len(names) >= len(kinds) - 1, "the first attempt wrote to every sink"
        assert not names & set(found["listed"])
        assert found["seen"] == found["woken"] == two
        assert found["left_alone"] == ["function"]
        for seen, calm in ((found["restored"], one), (found["again"], two)):
            assert seen["state"] == calm["state"]
            assert seen["outputs"] == {k: rows for k, rows in calm["outputs"].items() if k != "function"}


def test_a_task_that_runs_again_changes_no_result(tmp_path: Path, server: Server | None) -> None:
    check(tried(tmp_path, "local[2,3]", server, {}), server)


@pytest.mark.long
def test_a_task_that_runs_again_on_a_cluster_changes_no_result(tmp_path: Path, server: Server | None) -> None:
    options = {
        "spark.pyspark.python": sys.executable,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, stack)
        check(tried(tmp_path, cluster.master, server, options), server)
