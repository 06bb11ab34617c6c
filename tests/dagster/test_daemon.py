"""The sensors of a job in a real daemon: they launch their runs for real files, failures and settings."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from tests.day.day_jobs import TTL_HOURS
from tests.day.sites import Site, new_site, readings, sums, until

FILE_ROWS = 1_100
ROWS = readings(3 * FILE_ROWS, apart=timedelta(seconds=10))
SUCCESS, FAILURE = dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with new_site(tmp_path / "site") as new:
        yield new


def daemon(site: Site) -> subprocess.Popen[bytes]:
    return site.start("dagster-daemon", "run", "-w", "workspace.yaml")


def sensor(site: Site, switch: str, name: str) -> None:
    site.run("dagster", "sensor", switch, name, "-w", "workspace.yaml")


def arrive(site: Site, i: int) -> None:
    site.put("readings", f"{i}", ROWS[i * FILE_ROWS :][:FILE_ROWS])


def launched_by(site: Site, name: str, job: str = "readings") -> list[dg.DagsterRun]:
    return [run for run in site.runs(job) if run.tags.get("dagster/sensor_name") == name]


def quiet(site: Site, job: str = "readings") -> None:
    until(lambda: all(run.is_finished for run in site.runs(job)), f"all runs of {job} to end")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1_200)
def test_sensors_launch_what_they_are_for(site: Site) -> None:
    running = daemon(site)
    files_arrive(site)
    a_run_fails(site)
    running.terminate()
    running.wait(timeout=120)
    the_policy_is_tightened(site)
    assert site.outputs("readings") == sums(ROWS, ttl=timedelta(hours=TTL_HOURS["readings"]))
    assert site.problems("readings") == []


def files_arrive(site: Site) -> None:
    """Each is taken; nothing runs for nothing."""
    arrive(site, 0)
    sensor(site, "start", "readings__new_data")
    until(lambda: site.rows_in("readings") == FILE_ROWS, "the first file")
    arrive(site, 1)
    until(lambda: site.rows_in("readings") == 2 * FILE_ROWS, "the second file")
    sensor(site, "stop", "readings__new_data")
    quiet(site)
    runs = launched_by(site, "readings__new_data")
    assert [run.status for run in runs] == [SUCCESS] * len(site.runs("readings"))
    who = {row.requested_by for row in site.path("readings")}
    assert who == {f"dagster run {run.run_id}" for run in runs}


def a_run_fails(site: Site) -> None:
    """The daemon runs it again as soon as the sensor is on."""
    site.signal("broken")
    arrive(site, 2)
    site.run("dagster", "job", "launch", "-j", "readings", "-w", "workspace.yaml")
    [failed] = until(lambda: site.ended("readings", FAILURE), "a run that fails")
    assert failed.tags.get("dagster/sensor_name") is None
    site.unsignal("broken")
    sensor(site, "start", "readings__watch")
    until(lambda: site.rows_in("readings") == 3 * FILE_ROWS, "the run after the one that failed")
    quiet(site)
    [again] = launched_by(site, "readings__watch")
    assert (again.status, again.tags["statelake/retry"]) == (SUCCESS, "1")


def the_policy_is_tightened(site: Site) -> None:
    """New settings and a new daemon; sensors that were on stay on, and launch nothing."""
    assert {row.kind for row in site.path("readings")} == {"checkpoint"}
    before = len(site.runs("readings"))
    site.configure(compact_files=4)
    daemon(site)
    sensor(site, "start", "readings__compaction")
    until(lambda: site.path("readings")[-1].kind == "compaction", "a compaction")
    quiet(site, "readings__compact")
    [run] = launched_by(site, "readings__compaction", "readings__compact")
    assert run.status == SUCCESS
    assert len(site.runs("readings")) == before
