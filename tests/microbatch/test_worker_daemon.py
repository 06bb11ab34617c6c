"""Workers and their daemon: what they begin with, how they end, and when subtasks run without them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from state_engine import StatefulJob
from state_engine.microbatch.subtask.worker_daemon import without_archives
from state_engine.spark.session import NO_THREADS
from state_engine.testing import run_in_memory, subtasks_in_process
from tests.support.tiny import ROWS, Site, Sum

ENGINE = "state_engine.microbatch.subtask.subtask"

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere PySpark's own daemon serves")


def test_only_archives_of_an_installed_pyspark_are_left_out() -> None:
    lib = "/env/lib/site-packages/pyspark/python/lib"
    path = [
        f"{lib}/pyspark.zip",
        f"{lib}/py4j-src.zip",
        "/env/lib/site-packages/job.zip",
        "/env/lib/site-packages",
    ]
    assert without_archives(path) == path[2:]
    assert without_archives(path[:3]) == path[:3], "that PySpark cannot be had elsewhere"
    assert without_archives(["", "/job.zip"]) == ["", "/job.zip"]


@linux_only
def test_what_is_preloaded_starts_no_thread() -> None:
    program = (
        "import os, sys, json; from state_engine.microbatch.subtask.worker_daemon import preload; preload(); "
        f"names = [{ENGINE!r}, 'pandas']; "  # which each worker would import for its first array of numpy's
        "print(json.dumps([len(os.listdir('/proc/self/task')), *(name in sys.modules for name in names)]))"
    )
    # As Spark starts workers: a task has one core.
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | NO_THREADS,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(answer.stdout) == [1, True, True]


@linux_only
@pytest.mark.spark_tasks
def test_a_worker_begins_with_the_engine_and_without_archives(spark: SparkSession) -> None:
    def loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        list(batches)
        origin = sys.modules["pyspark.worker"].__file__
        archives = [entry for entry in sys.path if entry.endswith("pyspark.zip")]
        threads_of_daemon = len(os.listdir(f"/proc/{os.getppid()}/task"))
        seen = [ENGINE in sys.modules, ".zip" in str(origin), archives, threads_of_daemon]
        yield pa.RecordBatch.from_pydict({"seen": [str(seen)]})

    (row,) = spark.range(0, 1, 1, 1).mapInArrow(loaded, "seen string").collect()
    assert row["seen"] == "[True, False, [], 1]"


@pytest.mark.parametrize(
    ("ends", "code", "printed"),
    [
        pytest.param(
            "quietly",
            "1",
            False,
            marks=pytest.mark.skipif(
                pyspark.__version__.startswith("4.1."),
                reason="the daemon of PySpark 4.1 writes to the closed connection whatever its worker does",
            ),
        ),
        ("as in PySpark", "", True),
    ],
)
def test_an_idle_worker_ends_without_a_traceback_when_spark_closes_its_connection(
    ends: str, code: str, printed: bool
) -> None:
    """PySpark's own worker prints one; if Java has gone, only its first line reaches a terminal."""
    quietly = "end_quietly('pyspark.worker')" if ends == "quietly" else "None"
    script = (
        "import os, socket, sys; from pyspark import daemon; "
        "from state_engine.microbatch.subtask.worker_daemon import end_quietly; "
        f"sys.argv[1:] = ['pyspark.worker']; {quietly}; here, there = socket.socketpair(); there.close(); "
        "print(daemon.worker(here, True))"
    )
    variables = {**os.environ, "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", script], env=variables, capture_output=True, text=True, check=False
    )
    assert (ended.stdout.strip(), "Traceback" in ended.stderr) == (code, printed), ended.stderr


def with_process(element: Any, total: int) -> list[tuple[str, int, int]]:
    """The sum, and the process that made it."""
    return [(element.k, total, os.getpid())]


def processes(site: Site) -> set[int]:
    return {row[2] for row in site.outputs()}


@pytest.mark.spark_tasks
def test_subtasks_run_in_this_process_only_where_that_is_asked_for(
    tmp_path: Path, spark: SparkSession
) -> None:
    site = Site(tmp_path, spark)
    job = site.job(Sum(with_process), output="k string, total bigint, process bigint")
    engine = site.engine()
    site.put(ROWS, "0")
    engine.run(job)
    assert os.getpid() not in processes(site)
    before = processes(site)
    with subtasks_in_process(spark):
        with subtasks_in_process(spark):
            pass
        site.put(ROWS, "1")
        engine.run(job)
    assert processes(site) - before == {os.getpid()}
    assert site.state() == {"a": 8, "b": 4, "c": 8}
    during = site.outputs()
    site.put(ROWS, "2")
    engine.run(job)
    assert os.getpid() not in {row[2] for row in site.outputs() if row not in during}
    assert site.state() == {"a": 12, "b": 6, "c": 12}


@pytest.mark.spark_tasks
def test_what_runs_in_this_process_moves_no_subtasks_of_other_engines(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Neither a job in memory does, nor an engine with another session, in other threads."""
    inside, beside = (Site(tmp_path / name, spark.newSession()) for name in ("inside", "beside"))
    jobs = [
        site.job(Sum(with_process), output="k string, total bigint, process bigint")
        for site in (inside, beside)
    ]

    def run(site: Site, job: StatefulJob) -> set[int]:
        site.put(ROWS)
        site.engine().run(job)
        return processes(site)

    with (
        ThreadPoolExecutor(1) as thread,
        subtasks_in_process(inside.spark),
        run_in_memory(jobs[0], types={"events": "k string, v bigint"}) as memory,
    ):
        while_in_memory = thread.submit(run, beside, jobs[1])
        [out] = memory.process({"events": [("a", 1)]}).values()
        assert out == [("a", 1, os.getpid())]
        assert run(inside, jobs[0]) == {os.getpid()}
        assert os.getpid() not in while_in_memory.result()
