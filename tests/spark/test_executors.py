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
import pyspark
import pytest
from deltalake import DeltaTable

from state_engine.machine.java import find_java_home
from tests.spark.cluster_job import IN_FUNCTION, ROWS, WRITTEN
from tests.support.bare_python import bare_python
from tests.support.ports import free_port
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]

REPOSITORY = Path(__file__).parents[2]
FEEDS = 3
KEYS = 20
_WAIT_S = 600.0


class Cluster:
    """A standalone master and two workers, each with one core for one executor."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        home = Path(pyspark.__file__).parent
        self.directory = directory
        java = find_java_home(environ=os.environ, explicit=None)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYTHONPATH"))},
            "JAVA_HOME": str(java.path),
            "SPARK_HOME": str(home),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        port = free_port()
        self.master = f"spark://127.0.0.1:{port}"
        where = ["--host", "127.0.0.1", "--webui-port", "0"]
        spark_class = [str(home / "bin" / "spark-class")]
        kind = "org.apache.spark.deploy"
        self._start([*spark_class, f"{kind}.master.Master", *where, "--port", f"{port}"], "master", stack)
        log = directory / "master.log"
        until(lambda: "I have been elected leader" in log.read_text(), "master", within_s=_WAIT_S)
        for number in (0, 1):
            work = ["--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"work{number}")]
            self._start(
                [*spark_class, f"{kind}.worker.Worker", *where, *work, self.master], f"worker{number}", stack
            )

    def _start(self, command: list[str], name: str, stack: ExitStack) -> None:
        log = stack.enter_context((self.directory / f"{name}.log").open("wb"))
        process = subprocess.Popen(command, cwd=self.directory, env=self.environment, stdout=log, stderr=log)
        stack.callback(process.wait)
        stack.callback(process.terminate)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(tmp_path, stack)


def executor_of(worker: int) -> psutil.Process:
    """The executor whose Python worker a process is."""
    process = psutil.Process(worker)
    return next(p for p in process.parents() if "CoarseGrainedExecutorBackend" in " ".join(p.cmdline()))


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
        "spark.pyspark.python": str(bare_python(tmp_path)),
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
