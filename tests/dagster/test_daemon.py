"""The sensors of a job in a real daemon: they launch what they are for, upon real files, failures and settings."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from tests.day.day_jobs import TTL_HOURS
from tests.day.workspace import Workspace, readings, sums, until, workspace

FILE_ROWS = 1_100
ROWS = readings(3 * FILE_ROWS, apart=timedelta(seconds=10))
SUCCESS, FAILURE = dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Workspace]:
    with workspace(tmp_path / "place") as made:
        yield made


def daemon(place: Workspace) -> subprocess.Popen[bytes]:
    return place.start("dagster-daemon", "run", "-w", "workspace.yaml")


def sensor(place: Workspace, switch: str, name: str) -> None:
    place.run("dagster", "sensor", switch, name, "-w", "workspace.yaml")


def arrive(place: Workspace, i: int) -> None:
    place.put("readings", f"{i}", ROWS[i * FILE_ROWS :][:FILE_ROWS])


def launched_by(place: Workspace, name: str, job: str = "readings") -> list[dg.DagsterRun]:
    return [run for run in place.runs(job) if run.tags.get("dagster/sensor_name") == name]


def quiet(place: Workspace, job: str = "readings") -> None:
    until(lambda: all(run.is_finished for run in place.runs(job)), f"all runs of {job} to end")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1_200)
def test_sensors_launch_what_they_are_for(place: Workspace) -> None:
    running = daemon(place)
    files_arrive(place)
    a_run_fails(place)
    running.terminate()
    running.wait(timeout=120)
    the_policy_is_tightened(place)
    assert place.outputs("readings") == sums(ROWS, ttl=timedelta(hours=TTL_HOURS["readings"]))
    assert place.problems("readings") == []


def files_arrive(place: Workspace) -> None:
    """Each is taken; nothing runs for nothing."""
    arrive(place, 0)
    sensor(place, "start", "readings__new_data")
    until(lambda: place.rows_in("readings") == FILE_ROWS, "the first file")
    arrive(place, 1)
    until(lambda: place.rows_in("readings") == 2 * FILE_ROWS, "the second file")
    sensor(place, "stop", "readings__new_data")
    quiet(place)
    runs = launched_by(place, "readings__new_data")
    assert [run.status for run in runs] == [SUCCESS] * len(place.runs("readings"))
    who = {row.requested_by for row in place.path("readings")}
    assert who == {f"dagster run {run.run_id}" for run in runs}


def a_run_fails(place: Workspace) -> None:
    """It is run again as soon as somebody watches."""
    place.signal("broken")
    arrive(place, 2)
    place.run("dagster", "job", "launch", "-j", "readings", "-w", "workspace.yaml")
    [failed] = until(lambda: place.ended("readings", FAILURE), "a run that fails")
    assert failed.tags.get("dagster/sensor_name") is None
    place.unsignal("broken")
    sensor(place, "start", "readings__watch")
    until(lambda: place.rows_in("readings") == 3 * FILE_ROWS, "the run after the one that failed")
    quiet(place)
    [again] = launched_by(place, "readings__watch")
    assert (again.status, again.tags["statelake/retry"]) == (SUCCESS, "1")


def the_policy_is_tightened(place: Workspace) -> None:
    """By new settings and a new daemon; sensors that were on stay on, and have nothing to do."""
    assert {row.kind for row in place.path("readings")} == {"checkpoint"}
    before = len(place.runs("readings"))
    place.configure(compact_files=4)
    daemon(place)
    sensor(place, "start", "readings__compaction")
    until(lambda: place.path("readings")[-1].kind == "compaction", "a compaction")
    quiet(place, "readings__compact")
    [run] = launched_by(place, "readings__compaction", "readings__compact")
    assert run.status == SUCCESS
    assert len(place.runs("readings")) == before
