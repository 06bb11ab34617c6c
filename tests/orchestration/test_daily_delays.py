"""The registered job in time partitions, launched as Dagster does, against a plain loop over the published rows."""

from __future__ import annotations

from collections import defaultdict
from datetime import date
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs.daily_delays import LATE_MINUTES, SCHEDULE_ORDER
from jobs.flights_data import NEW_YORK, read_flights
from state_engine.dagster import JobOptions, statelake_definitions
from state_engine.dagster.naming import sink_key
from state_engine.dagster.time_partitions import range_tags
from state_engine.machine.settings import JobsSettings, Settings
from tests.dagster.sites import QUIET

JOB = "daily_delays"
LAST = date(2013, 1, 4)


def reference() -> list[tuple[Any, ...]]:
    """Late departures of the first days, and how many in a row; nothing expires in so short a time."""
    flights = read_flights().select([*SCHEDULE_ORDER, "dest", "tailnum", "dep_delay", "day", "month"])
    rows = [
        r
        for r in flights.to_pylist()
        if r["month"] == 1 and r["day"] <= LAST.day and r["dep_delay"] is not None
    ]
    assert {r["time_hour"].astimezone(ZoneInfo(NEW_YORK)).day for r in rows} == {1, 2, 3, 4}
    in_a_row: dict[str, int] = defaultdict(int)
    expected_rows = []
    for row in sorted(rows, key=lambda r: tuple(r[name] for name in SCHEDULE_ORDER)):
        late = row["dep_delay"] >= LATE_MINUTES
        in_a_row[row["tailnum"]] = in_a_row[row["tailnum"]] + 1 if late else 0
        if late:
            expected_rows.append(
                (row["time_hour"], row["tailnum"], row["flight"], row["dep_delay"], in_a_row[row["tailnum"]])
            )
    return sorted(expected_rows)


@pytest.mark.long
@pytest.mark.spark
def test_four_days_of_real_flights(tmp_path: Path, spark: SparkSession) -> None:
    settings = Settings(root=str(tmp_path / "state"), jobs=JobsSettings(modules=["jobs.daily_delays"]))
    with dg.DagsterInstance.ephemeral() as instance:
        job = statelake_definitions(settings=settings, options=JobOptions.everything()).resolve_job_def(JOB)
        first = range_tags("2013-01-01", "2013-01-03")
        assert job.execute_in_process(instance=instance, run_config=QUIET, tags=first).success
        last = LAST.isoformat()
        assert job.execute_in_process(instance=instance, run_config=QUIET, partition_key=last).success
        assert len(instance.get_materialized_partitions(sink_key(JOB, "delays"))) == LAST.day
    sink = DeltaTable(str(tmp_path / "sinks" / JOB / "delays")).to_pyarrow_table()
    columns = ["time_hour", "tailnum", "flight", "dep_delay", "in_a_row"]
    outputs = sorted(tuple(row[name] for name in columns) for row in sink.to_pylist())
    assert outputs == reference()
    assert max(row[-1] for row in outputs) > 3
