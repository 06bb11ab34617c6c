"""A job whose time follows the clock, so that its last session ends although no row comes; for sensors and status."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from state_engine import DeltaSink, FileSource, KeyedProcessFunction, StatefulJob
from state_engine.machine.settings import JobsSettings, Settings
from state_engine.registry import JobParameters, RegisteredJob
from tests.dagster.sites import DagsterSite

JOB = "quiet"
BEGIN = datetime(2100, 1, 1, tzinfo=UTC)  # after the clock by which the age of a micro-batch is measured
BEGIN_MS = int(BEGIN.timestamp() * 1000)
MINUTE_MS = 60_000
GAP, DELAY = 30, 10
"""Minutes after its last row at which a session ends; and by which time follows the clock."""


class Parameters(JobParameters):
    """Where it reads and writes."""

    directory: Path


class Session(KeyedProcessFunction):
    """Ends a session after the gap."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer((ctx.timestamp() or 0) + GAP * MINUTE_MS)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp


def jobs(settings: Settings) -> list[RegisteredJob]:
    directory = Parameters.of(settings, JOB).directory
    job = StatefulJob(JOB, parallelism=2)
    rows = job.source(
        "rows",
        FileSource(str(directory / "feed")),
        order_by=["at"],
        event_time="at",
        watermark="clock",
        clock_delay=f"{DELAY} min",
    )
    sessions = rows.key_by("k").process(Session(), uid="sessions", output_type="k string, ended bigint")
    sessions.sink("sessions", DeltaSink(str(directory / "sink")))
    return [RegisteredJob(job=job)]


class Quiet(DagsterSite):
    @property
    def settings(self) -> Settings:
        given = {JOB: {"directory": str(self.directory)}}
        jobs_settings = JobsSettings(modules=["tests.dagster.quiet"], parameters=given)
        return Settings(root=str(self.directory / "state"), jobs=jobs_settings)

    @property
    def job(self) -> StatefulJob:
        return jobs(self.settings)[0].job

    def arrive(self, name: str, keys: str, *, minutes: int = 0) -> None:
        """A file with a row of each key, so many minutes after the beginning."""
        (self.directory / "feed").mkdir(exist_ok=True)
        at = pa.array([BEGIN + timedelta(minutes=minutes)] * len(keys), pa.timestamp("us", tz="UTC"))
        pq.write_table(pa.table({"k": list(keys), "at": at}), self.directory / "feed" / f"{name}.parquet")
