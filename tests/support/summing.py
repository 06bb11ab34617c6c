"""A job that sums numbers by key; a test says where the sums go."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from state_engine import (
    DataStream,
    FileSource,
    KeyedProcessFunction,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.monitoring.job_history import read_history
from state_engine.monitoring.job_status import JobStatus, status_of_history


class Sum(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", int))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.sum.update((self.sum.value() or 0) + value.n)
        yield value.key, self.sum.value()


class SumSite:
    """A directory with a feed and the root of the job ``sums``, which reads one file a micro-batch."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.directory, self.spark = directory, spark
        (directory / "feed").mkdir()

    def send(self, sums: DataStream) -> None:
        """Send the sums somewhere."""
        raise NotImplementedError

    def job(self) -> StatefulJob:
        job = StatefulJob("sums", parallelism=2)
        rows = job.source("rows", FileSource(str(self.directory / "feed"), max_files_per_batch=1))
        self.send(rows.key_by("key").process(Sum(), uid="sum", output_type="key string, sum bigint"))
        return job

    def new_engine(self) -> StateEngine:
        return StateEngine(self.directory / "root", self.spark)

    def status(self) -> JobStatus:
        history = read_history(f"file://{self.directory}/root", "sums")
        return status_of_history("sums", history, job=self.job(), now_ms=0, stuck_after=timedelta(hours=1))

    def arrive(self, name: str, *rows: tuple[str, int]) -> None:
        keys, numbers = zip(*rows, strict=True)
        table = pa.table({"key": keys, "n": pa.array(numbers, pa.int64())})
        pq.write_table(table, self.directory / "feed" / f"{name}.parquet")
