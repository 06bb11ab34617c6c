"""Executors that are processes of their own, as on a cluster: one dies in mid-batch, none has the engine installed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.spark.cluster_job import IN_FUNCTION, ROWS, WRITTEN
from tests.support.clusters import Cluster, executor_of, python_program
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]

REPOSITORY = Path(__file__).parents[2]
FEEDS = 3
KEYS = 20
_WAIT_S = 600.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def kill_executor_at(directory: Path, moment: str, driver: subprocess.Popen[bytes]) -> int:
    """Wait until a subtask is held up at a moment, and kill its executor; the executor's process id."""
    reached = directory / f"{moment}.reached"

    def worker_id() -> str | None:
        assert driver.poll() is None, f"the process ended before moment {moment}"
        return reached.read_text() if reached.exists() else None

    worker = int(until(worker_id, f"moment {moment}", within_s=_WAIT_S))
    executor = executor_of(worker)
    os.kill(executor.pid, signal.SIGKILL)
    psutil.wait_procs([executor], timeout=60)
    (directory / f"{moment}.go").touch()
    return executor.pid


def test_a_killed_executor_changes_no_result(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "feed").mkdir()
    expected, totals = [], dict[str, int]()
    for number in range(FEEDS):
        keys, values = [f"key{i % KEYS}" for i in range(ROWS)], [number * ROWS + i for i in range(ROWS)]
        pq.write_table(pa.table({"k": keys, "v": values}), tmp_path / "feed" / f"{number}.parquet")
        for key, value in zip(keys, values, strict=True):
            totals[key] = totals.get(key, 0) + value
            expected.append((key, value, totals[key]))
    options = {
        "spark.pyspark.python": str(python_program(tmp_path / "python")),
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.local.dir": str(tmp_path / "local"),
    }
    given = json.dumps({"directory": str(tmp_path), "master": cluster.master, "options": options})
    for moment in (IN_FUNCTION, WRITTEN):
        (tmp_path / f"{moment}.asked").touch()
    log = tmp_path / "driver.log"
    with log.open("wb") as output:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.cluster_job", given],
            cwd=REPOSITORY, env=cluster.environment, stdout=output, stderr=output,
        )  # fmt: skip
        try:
            killed = {kill_executor_at(tmp_path, moment, driver) for moment in (IN_FUNCTION, WRITTEN)}
            assert driver.wait(_WAIT_S) == 0, log.read_text()[-5000:]
        finally:
            driver.kill()
            driver.wait()
    assert len(killed) == 2

    result = json.loads((tmp_path / "result.json").read_text())
    assert result["batches"] == FEEDS
    assert result["state"] == totals
    assert result["compacted"] == {"sums": KEYS}
    outputs = DeltaTable(str(tmp_path / "out")).to_pyarrow_table().to_pylist()
    assert sorted(tuple(row.values()) for row in outputs) == sorted(expected)

    # what the second one left behind is on the disk, and nobody sees it
    table = tmp_path / "root/sums/operators/sums/changelog"
    written = {str(f.relative_to(table)) for f in table.glob("write_id=*/*.parquet")}
    visible = {Path(f).relative_to(table).as_posix() for f in DeltaTable(str(table)).file_uris()}
    assert visible == set(result["listed"])
    assert len(visible) == 2 * FEEDS
    assert len(written - visible) == 1
