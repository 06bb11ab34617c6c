"""A small job in time partitions, five days of New York around a day of 23 hours; and how to launch it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSink,
    DeltaStateTable,
    FileSource,
    StatefulJob,
    TimePartitions,
)
from state_engine.dagster.micro_batches import DATA_VERSION_TAG
from state_engine.dagster.naming import checkpoint_key, sink_key, state_key, table_key
from state_engine.dagster.time_partitions import range_tags
from state_engine.machine.settings import JobsSettings, Settings
from state_engine.registry import JobParameters, RegisteredJob
from tests.dagster.sites import QUIET, DagsterSite
from tests.support.tiny import Sum

JOB = "days"
KEYS = [f"2013-03-{d:02}" for d in range(8, 13)]
CHECKPOINT, SUMS, TOTAL = checkpoint_key(JOB), sink_key(JOB, "sums"), state_key(JOB, "sums", "total")
TABLE = table_key(JOB, "totals")
ASSETS = [CHECKPOINT, SUMS, TOTAL, TABLE]
ZONE = ZoneInfo("America/New_York")
Event = tuple[str, int, int, int]
"""Key, value, day of March, hour on New York's clock."""
EVENTS: list[Event] = [
    ("a", 1, 8, 0), ("b", 2, 8, 23), ("a", 3, 9, 12), ("b", 4, 10, 4), ("a", 5, 11, 0), ("b", 6, 12, 23),
]  # fmt: skip


class Parameters(JobParameters):
    """Where it reads and writes; the factor stands for its code, which may change."""

    directory: Path
    factor: int = 1
    late: str = "warn"


def jobs(settings: Settings) -> list[RegisteredJob]:
    given = Parameters.of(settings, JOB)
    partitions = TimePartitions("at", start=KEYS[0], end="2013-03-13", timezone=str(ZONE), late=given.late)
    job = StatefulJob(JOB, parallelism=1, partitions=partitions, code_version=f"v{given.factor}")
    stream = job.source("events", FileSource(str(given.directory / "feed")), order_by=["at"], event_time="at")
    sums = stream.key_by("k").process(
        Sum(factor=given.factor), uid="sums", output_type="k string, v bigint, total bigint"
    )
    sums.sink("sums", DeltaSink(str(given.directory / "sink")))
    sums.publish_state("total", DeltaStateTable(str(given.directory / "totals")), name="totals")
    return [RegisteredJob(job=job)]


class Days(DagsterSite):
    def __init__(self, directory: Path, instance: dg.DagsterInstance) -> None:
        super().__init__(directory, instance)
        self.factor, self.late = 1, "warn"
        self.arrive("a", EVENTS)

    @property
    def settings(self) -> Settings:
        given = {"directory": str(self.directory), "factor": self.factor, "late": self.late}
        jobs = JobsSettings(modules=["tests.dagster.days"], parameters={JOB: given})
        return Settings(root=str(self.directory / "state"), jobs=jobs)

    def arrive(self, name: str, events: Sequence[Event]) -> None:
        feed = self.directory / "feed"
        feed.mkdir(exist_ok=True)
        keys, values, days, hours = zip(*events, strict=True)
        at = [datetime(2013, 3, d, h, tzinfo=ZONE) for d, h in zip(days, hours, strict=True)]
        columns = {"k": keys, "v": values, "at": pa.array(at, pa.timestamp("us", "UTC"))}
        pq.write_table(pa.table(columns), feed / f"{name}.parquet")

    def run(
        self, first: str | None = None, last: str | None = None, *, raise_on_error: bool = True, **config: Any
    ) -> dg.ExecuteInProcessResult:
        """Launch one partition, or the range up to ``last``; without either, all that wait."""
        job = self.defs.resolve_job_def(JOB)
        return job.execute_in_process(
            instance=self.instance,
            run_config={"ops": {f"{JOB}_micro_batches": {"config": config}}, **QUIET},
            partition_key=first if last is None else None,
            tags=range_tags(first, last) if first and last else None,
            raise_on_error=raise_on_error,
        )

    def events(self, key: dg.AssetKey = CHECKPOINT) -> list[dg.AssetMaterialization]:
        return super().events(key)

    def log(self, key: dg.AssetKey = CHECKPOINT) -> list[tuple[str | None, str]]:
        """Partition and data version of every materialisation, oldest first, the year and month left out."""
        return [((e.partition or "")[8:], (e.tags or {})[DATA_VERSION_TAG]) for e in self.events(key)]

    def shown(self, partition: str, key: dg.AssetKey = CHECKPOINT) -> dict[str, Any]:
        """Metadata of a partition's newest materialisation."""
        event = [e for e in self.events(key) if e.partition == partition][-1]
        return {name: value.value for name, value in event.metadata.items()}

    def observed(self) -> dict[str, Any]:
        """Metadata of the newest observation of the checkpoint."""
        [record] = self.instance.fetch_observations(CHECKPOINT, limit=1).records
        assert record.asset_observation is not None
        return {name: value.value for name, value in record.asset_observation.metadata.items()}

    def outputs(self) -> list[tuple[int, str, int]]:
        table = DeltaTable(str(self.directory / "sink")).to_pyarrow_table()
        return sorted(tuple(row.values()) for row in table.select(["v", "k", "total"]).to_pylist())

    def totals(self) -> dict[str, int]:
        return dict(pl.read_delta(str(self.directory / "totals")).rows())

    def states(self, spark: SparkSession) -> list[str]:
        job = jobs(self.settings)[0].job
        return [f"{one.key[8:]} {one.state}" for one in self.engine(spark).partitions(job)]
