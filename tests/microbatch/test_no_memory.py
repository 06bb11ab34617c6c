"""Memory that is refused ends a micro-batch with an error that says what to do; no row and no file is blamed for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSink,
    FileSource,
    KeySelector,
    StatefulJob,
    TimestampAssigner,
    WatermarkStrategy,
)
from state_engine.core.errors import MemoryLimitError
from state_engine.microbatch.routing.arrow_router import OwnInput, OwnRows
from state_engine.microbatch.routing.routed_columns import Edge
from state_engine.microbatch.routing.routing import nothing_new
from state_engine.sources.stream_columns import Constant
from state_engine.spark.failures import without_memory
from state_engine.spark.read_failures import reading_file
from state_engine.spark.tasks import OwnReads, run
from tests.support.limits import SetLimits
from tests.support.tiny import OUTPUT, ROWS, Site, Sum

REPOSITORY = Path(__file__).parents[2]


def no_memory(*_: Any) -> Any:
    raise MemoryError


class NoKey(KeySelector):
    def get_key(self, value: Any) -> str:
        return str(no_memory())


class NoTime(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(no_memory())


@pytest.mark.parametrize("on_error", ["fail", "dead_letter"])
def test_a_function_without_memory_is_no_fault_of_its_row(
    tmp_path: Path, spark: SparkSession, on_error: str
) -> None:
    site = Site(tmp_path, spark).put(ROWS)
    with pytest.raises(MemoryLimitError, match=r"job 'tiny': operator 'sums', subtask \d"):
        site.engine().run(site.job(Sum(no_memory), on_error=on_error))
    assert site.nothing_happened()
    site.engine().run(site.job(on_error=on_error))  # the rows are still to come
    assert len(site.outputs()) == 4


def by_key(site: Site) -> StatefulJob:
    """A job whose key selector has no memory."""
    job = StatefulJob("tiny", parallelism=2, on_error="dead_letter")
    keyed = job.source("events", FileSource(str(site.feed))).key_by(NoKey(), key_type=str)
    keyed.process(Sum(), uid="sums", output_type=OUTPUT).sink("out", DeltaSink(str(site.sink)))
    return job


def by_time(site: Site) -> StatefulJob:
    """A job whose event times come from a function that has no memory."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(NoTime())
    return site.job(
        on_error="dead_letter", through=lambda stream: stream.assign_timestamps_and_watermarks(strategy)
    )


@pytest.mark.parametrize("where", ["driver", "tasks"])
@pytest.mark.parametrize("job", [by_key, by_time])
def test_what_routes_rows_without_memory_blames_none_of_them(
    tmp_path: Path,
    spark: SparkSession,
    limits: SetLimits,
    job: Callable[[Site], StatefulJob],
    where: str,
) -> None:
    if where == "tasks":
        limits(stored_bytes=0)
    who = "this process" if where == "driver" else "a task that read or routed rows"
    site = Site(tmp_path, spark).put(ROWS)
    with pytest.raises(MemoryLimitError, match=f"job 'tiny': {who} had no memory left"):
        site.engine().run(job(site))
    assert site.nothing_happened()


def test_a_file_that_is_read_without_memory_is_not_bad() -> None:
    with pytest.raises(MemoryError), reading_file("file:///data/0.parquet"):
        raise pa.ArrowMemoryError("malloc of size 64 failed")


def test_a_subtask_that_reads_rows_without_memory_blames_none_of_them(spark: SparkSession) -> None:
    one = OwnInput(no_memory, 1, Edge((), (), Constant(None, pa.string()), None, everywhere=False))
    rows = OwnRows([one], pa.table({}), nothing_new(1, event_time=False).layout, 1, 1, 1)
    with pytest.raises(CapturedException) as raised:
        run(spark, OwnReads(1, rows.of), lambda rows, attempt: {}, label="reads", prefix="")
    failure = without_memory(raised.value, job="tiny")
    assert failure is not None
    assert str(failure).startswith("job 'tiny': a task that read or routed rows had no memory left.")


@pytest.mark.spark
def test_what_java_cannot_hold_names_the_setting(spark: SparkSession) -> None:
    java: Any = spark._jvm
    with pytest.raises(Py4JJavaError, match="OutOfMemoryError") as raised:
        java.java.util.ArrayList(2**31 - 1)
    failure = without_memory(raised.value, job="tiny")
    assert failure is not None
    assert str(failure).startswith("job 'tiny': Spark's Java (spark.driver_memory) had no memory left.")


def test_other_errors_are_not_about_memory() -> None:
    assert without_memory(ValueError("MemoryError"), job="tiny") is None


@pytest.mark.more
def test_a_list_that_outgrows_the_memory_of_its_process_ends_with_a_message(tmp_path: Path) -> None:
    """A real limit: the process may have 64 MB more than it has."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.limits.large", "more_than_fits", "64", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
        timeout=250,
    )
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["error"].startswith("MemoryLimitError: job 'gathering': operator 'gather', subtask 0")
    assert "map state" in outcome["error"]
    assert outcome["kept"] % 200_000 == 1  # whole micro-batches, and the first element
