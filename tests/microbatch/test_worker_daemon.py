"""Workers are forked with their imports done."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from state_engine.microbatch.subtask.worker_daemon import without_archives
from state_engine.spark.session import NO_THREADS

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
