"""The job in time partitions against a plain loop, what `make demo` names at its end, and Dagster's own commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
from orchestration import demo
from orchestration.demo import demo_settings, way_on
from state_engine import StateEngine
from state_engine.dagster import JobOptions, statelake_definitions
from state_engine.dagster.naming import checkpoint_key, sink_key, state_key
from state_engine.dagster.time_partitions import range_tags
from state_engine.machine.settings import JobsSettings, Settings
from state_engine.registry import load_jobs
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


PROJECT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def run(tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """In the project's directory, with a state root and a Dagster instance of its own."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("STATELAKE", "DAGSTER"))}
    home = tmp_path / "dagster"
    home.mkdir(exist_ok=True)
    (home / "dagster.yaml").write_text((PROJECT / "orchestration" / "dagster.yaml").read_text())
    return subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=PROJECT,
        env=environ
        | {
            "DAGSTER_HOME": str(home),
            "STATELAKE__ROOT": str(tmp_path / "state"),
            "STATELAKE__SPARK__MASTER": "local[2]",
            "STATELAKE__SPARK__DRIVER_MEMORY": "1g",
            "VIRTUAL_ENV": str(BIN.parent),
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_definitions_are_valid_to_dagster(tmp_path: Path) -> None:
    """``make check`` asks ``dg`` the same."""
    done = run(tmp_path, "dagster", "definitions", "validate", "-w", "workspace.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.long
@pytest.mark.spark
def test_launch_from_the_shell_leaves_a_history(tmp_path: Path) -> None:
    done = run(tmp_path, "dg", "launch", "--assets", "group:count_window_average")
    assert done.returncode == 0, done.stdout + done.stderr
    with dg.DagsterInstance.from_ref(
        dg.DagsterInstance.local_temp(str(tmp_path / "dagster")).get_ref()
    ) as instance:
        for key, expected in (
            (checkpoint_key("count_window_average"), "3"),
            (state_key("count_window_average", "count_window_average", "window"), "3"),
        ):
            event = instance.get_latest_materialization_event(key)
            assert event is not None
            assert event.asset_materialization is not None
            assert (event.asset_materialization.tags or {})["dagster/data_version"] == expected


MONTHS = ["2013-01", "2013-02"]


def shell(command: str, home: Path) -> str:
    """What a command prints in the project's directory."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("STATELAKE")}
    environ = inherited | {"DAGSTER_HOME": str(home), "VIRTUAL_ENV": str(PROJECT / ".venv")}
    command = command.replace(".venv/bin", str(Path(sys.executable).parent))
    done = subprocess.run(
        ["/bin/sh", "-c", command], cwd=PROJECT, env=environ, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.spark
def test_what_the_demo_names_at_its_end(tmp_path: Path, spark: SparkSession) -> None:
    settings = demo_settings(Settings(), home=tmp_path, feeds=tmp_path / "feeds")
    settings.jobs.parameters[demo.JOB]["months"] = MONTHS
    [registered] = load_jobs(settings)
    registered.prepare()
    with StateEngine(settings.root, spark) as engine:
        engine.run(registered.job)
        recorded = [row.checkpoint_id for row in engine.checkpoints(demo.JOB)]
    ui, checkpoints, again, any_state, tables = (command for _, command in way_on(settings))
    assert f"\n{ui.removeprefix('make ')}:" in (PROJECT / "Makefile").read_text()
    (tmp_path / "dagster").mkdir()
    assert "RUN_SUCCESS" in shell(again, tmp_path / "dagster")
    listed = shell(f"{checkpoints} --json", tmp_path / "dagster")
    assert [json.loads(line)["id"] for line in listed.splitlines()] == recorded, "nothing happened"
    for python in (any_state.replace("checkpoint_id=6", "checkpoint_id=2"), tables):
        exec(python, {})
