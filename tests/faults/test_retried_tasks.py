"""On a master that retries tasks, every kind of sink shows the recorded outputs, whatever else fails.

All cases run in one Spark application, see ``retried_child``: on ``local[2,3]``, and, long, on a cluster.
"""

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

from tests.faults.child import REPOSITORY
from tests.faults.retried_tasks import EVERY_SINK, POSTGRES
from tests.faults.workloads import LETTERS, POSTGRES_PASSWORD, POSTGRES_URL
from tests.support.clusters import Cluster
from tests.support.java import SHORT_LIVED_JAVA
from tests.support.postgres import Server

pytestmark = [pytest.mark.faults, pytest.mark.timeout(2400), pytest.mark.xdist_group("retried tasks")]

OF_A_CLUSTER = {
    "spark.pyspark.python": sys.executable,
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
NEVER_WITHDRAWN = "function"


@pytest.fixture(scope="module", params=["local[2,3]", pytest.param("cluster", marks=pytest.mark.long)])
def result(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """The results of a process of its own on a master; with PostgreSQL."""
    directory, options, master = tmp_path_factory.mktemp("retried"), {}, request.param
    with ExitStack() as stack:
        server = stack.enter_context(Server.started())
        if master == "cluster":
            master, options = Cluster(directory, stack).master, OF_A_CLUSTER
        yield run(directory, master, server, options)


def run(directory: Path, master: str, server: Server, options: dict[str, str]) -> dict[str, Any]:
    options = {
        "spark.driver.extraJavaOptions": SHORT_LIVED_JAVA,
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.local.dir": str(directory / "local"),
    } | options
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    environment |= {POSTGRES_URL: server.new_database(), POSTGRES_PASSWORD: server.password}
    given = {"directory": str(directory), "master": master, "options": options}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.faults.retried_child", json.dumps(given)],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-5000:]
    result_of_run: dict[str, Any] = json.loads((directory / "result.json").read_text())
    return result_of_run


def case(result: dict[str, Any], name: str) -> Any:
    assert name not in result["failures"], result["failures"][name]
    return result[name]


def test_every_kind_of_sink_has_rows_of_each_micro_batch(result: dict[str, Any]) -> None:
    calm = result["calm"]
    kinds = {name.split("_")[0] for name in EVERY_SINK} | {LETTERS, POSTGRES}
    for shown, before in ((calm["2"], calm["1"]), (calm["3"], calm["2"])):
        assert set(shown["outputs"]) == kinds
        assert all(shown["outputs"][kind] != before["outputs"][kind] for kind in kinds - {LETTERS})
    assert calm["2"]["outputs"][LETTERS] != calm["1"]["outputs"][LETTERS] != []


def test_what_the_first_attempt_left_shows_nowhere(result: dict[str, Any]) -> None:
    one, two, three = (result["calm"][i] for i in "123")
    for outputs in case(result, "outputs").values():
        names = {path.rsplit("/", 1)[-1] for path in outputs["first"]}
        assert len(names) >= len(one["outputs"]) - 1, "the first attempt wrote to every sink"
        assert not names & set(outputs["listed"])
        assert outputs["seen"] == two
        assert outputs["woken"] == three
        assert outputs["left_alone"] == [NEVER_WITHDRAWN]
        for seen, calm in ((outputs["restored"], one), (outputs["again"], three)):
            assert seen["state"] == calm["state"]
            assert seen["outputs"] == {k: rows for k, rows in calm["outputs"].items() if k != NEVER_WITHDRAWN}


def test_flipped_bits_are_refused_and_put_back_the_job_runs_on(result: dict[str, Any]) -> None:
    flips = case(result, "flips")
    assert set(flips["sinks"]["outcomes"].values()) == {"refused"}, flips["sinks"]["outcomes"]
    assert flips["sinks"]["seen"] == result["calm"]["3"]
    assert set(flips["readers"].values()) == {"refused"}, flips["readers"]


def test_a_power_cut_loses_nothing(result: dict[str, Any]) -> None:
    power_cuts = case(result, "power_cuts")
    assert any(one["died"] for one in power_cuts.values())
    assert any(one["lost"] for one in power_cuts.values())
    for moment, one in power_cuts.items():
        assert not one["failure"], (moment, one["lost"], one["failure"])
        assert one["seen"] == result["calm"]["3"], (moment, one["lost"])
        assert one["missing"] == [], (moment, one["lost"])
