"""A day of two jobs by commands alone: ticks, kills, recovery, maintenance, a backfill; results equal a calm run.

Nothing is done by this process: the schedule ticks in a daemon, the rest are commands as somebody types them. What is
compared is another site, where the same input was run in one go.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.storage.stores.files import normal_uri
from state_engine.storage.stores.locks import table_lock
from tests.day.day_jobs import BATCH_ROWS, FIRST_DAY, TTL_HOURS
from tests.day.sites import Reading, Site, new_site, readings, sums
from tests.support.waiting import until

FILE_ROWS = 1_300
"""No multiple of the rows of a batch: in the day, batches are cut otherwise than in one go."""
FILES = [readings(4 * FILE_ROWS, apart=timedelta(seconds=10))[i * FILE_ROWS :][:FILE_ROWS] for i in range(4)]
LATE_EVERY = 17
DAYS = readings(2_000, apart=timedelta(days=5) / 2_000, meters=60)
SECOND, THIRD, FOURTH = "2013-01-02", "2013-01-03", "2013-01-04"
SUCCESS, FAILURE = dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE
IN_THE_SECOND_BATCH = FILES[0][800].n
IN_THE_THIRD_DAY = 1_000


def is_late(row: Reading) -> bool:
    """One of the second to fourth days that comes after all others."""
    return 500 <= row.n < 1_500 and row.n % LATE_EVERY == 0


@pytest.fixture
def day(tmp_path: Path) -> Iterator[Site]:
    with new_site(tmp_path / "day") as site:
        yield site


@pytest.fixture
def right(tmp_path: Path) -> Iterator[Site]:
    """Where all of the input is there from the first."""
    with new_site(tmp_path / "right") as site:
        for i, rows in enumerate(FILES):
            site.put("readings", f"{i}", rows)
        site.put("daily", "all", DAYS)
        yield site


def test_commands_know_the_jobs_of_the_directory_that_they_are_started_in(day: Site) -> None:
    shown = list(map(json.loads, day.run("statelake", "status", "--json", code=2).splitlines()))
    assert {job["job"]: job["state"] for job in shown} == {
        "readings": "never_ran",
        "daily": "never_ran",
    }


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1_500)
def test_a_day_from_the_command_line_alone(day: Site, right: Site) -> None:
    daemon = day.start("dagster-daemon", "run", "-w", "workspace.yaml")
    day.put("daily", "on_time", [row for row in DAYS if not is_late(row)])
    # what has nothing to do with one another goes side by side: the first tick is up to a minute away
    beside = [(w, w.start("statelake", "run", job)) for w, job in ((right, "readings"), (day, "daily"))]
    ticks_and_a_kill(day)
    beside.append((right, right.start("statelake", "run", "daily")))
    a_run_of_the_shell_is_killed_before_it_publishes(day)
    the_doctor_and_a_recovery(day)
    maintenance(day)
    assert daemon.poll() is None
    for where, process in beside:
        assert "caught up" in where.finish(process)
    a_backfill_that_is_killed(day)

    for job in ("readings", "daily"):
        assert day.results(job) == right.results(job)
        assert day.problems(job) == []
    assert right.outputs("readings") == sums(
        [r for rows in FILES for r in rows], ttl=timedelta(hours=TTL_HOURS["readings"])
    )
    assert right.outputs("daily") == sums(DAYS, ttl=timedelta(hours=TTL_HOURS["daily"]))
    shown = list(map(json.loads, day.run("statelake", "status", "--json").splitlines()))
    assert [job["state"] for job in shown] == ["ok", "ok"]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_backfill_that_ignores_the_order_does_no_harm(day: Site, right: Site) -> None:
    """`dagster job backfill` makes a run of each partition; those whose turn it is not fail, and change nothing."""
    beside = right.start("statelake", "run", "daily")
    day.start("dagster-daemon", "run", "-w", "workspace.yaml")
    day.put("daily", "all", DAYS)
    asked = f"{FOURTH},{SECOND},{FIRST_DAY},{THIRD}"
    backfill = ("dagster", "job", "backfill", "-w", "workspace.yaml", "-j", "daily", "--noprompt")
    day.run(*backfill, "--partitions", asked)
    until(
        lambda: len(day.ended("daily", SUCCESS)) + len(day.ended("daily", FAILURE)) == 4, "four runs to end"
    )
    done = [row.partition for row in day.path("daily") if row.partition]
    assert done == [FIRST_DAY, SECOND, THIRD, FOURTH][: len(done)]
    assert {run.tags["dagster/partition"] for run in day.ended("daily", SUCCESS)} == set(done)
    assert "caught up" in right.finish(beside)
    assert "caught up" in day.run("statelake", "run", "daily")
    assert day.results("daily") == right.results("daily")
    assert day.problems("daily") == []


def ticks_and_a_kill(day: Site) -> None:
    """A tick's run dies in its second batch while that of the next one waits; both take the rest."""
    day.put("readings", "0", FILES[0])
    day.signal("hold", str(IN_THE_SECOND_BATCH))
    day.run("dagster", "schedule", "start", "readings_schedule", "-w", "workspace.yaml")
    until(lambda: len(day.runs("readings")) >= 2, "two ticks")
    day.run("dagster", "schedule", "stop", "readings_schedule", "-w", "workspace.yaml")
    day.kill_who_waits()
    assert [row.rows_in for row in day.path("readings")] == [BATCH_ROWS]  # the first batch stays
    day.put("readings", "1", FILES[1])
    [killed] = until(lambda: day.ended("readings", FAILURE), "the run that was killed to be called failed")
    until(lambda: [run for run in day.runs("readings") if run.parent_run_id == killed.run_id], "the retry")
    until(lambda: all(run.is_finished for run in day.runs("readings")), "all runs to end")
    assert day.rows_in("readings") == 2 * FILE_ROWS
    runs = {run.run_id: run for run in day.runs("readings")}
    assert all(run.tags["dagster/schedule_name"] == "readings_schedule" for run in runs.values())
    assert [i for i, run in runs.items() if run.status != SUCCESS] == [killed.run_id]
    assert {requested_by(row) for row in day.path("readings")} <= {f"dagster run {i}" for i in runs}


def a_run_of_the_shell_is_killed_before_it_publishes(day: Site) -> None:
    """Whoever holds the sink's lock keeps the run between its commit and its publishing."""
    day.put("readings", "2", FILES[2])
    with table_lock(normal_uri(str(day.directory / "sinks" / "readings"))):
        launched = day.start("dg", "launch", "-m", "orchestration.definitions", "--job", "readings")
        until(lambda: len(unpublished(day)) == 1, "a checkpoint that is not published")
        launched.kill()
        launched.wait()
    shown = json.loads(day.run("statelake", "status", "readings", "--json", code=1))
    assert shown["unpublished"] == unpublished(day)
    assert day.rows_in("readings") == 2 * FILE_ROWS + BATCH_ROWS


def the_doctor_and_a_recovery(day: Site) -> None:
    """The dead run holds its slot until the doctor gives it back; a recovery publishes; the next run takes the rest."""
    doctor = ("python", "-m", "state_engine.dagster.doctor")
    assert "pool readings_head: held by run" in day.run(*doctor, code=1)
    assert "The slot is free again" in day.run(*doctor, "--free")
    launch = ("dg", "launch", "-m", "orchestration.definitions", "--job")
    day.run(*launch, "readings__recover")
    assert unpublished(day) == []
    assert len(day.outputs("readings")) == day.rows_in("readings") == 2 * FILE_ROWS + BATCH_ROWS
    day.run(*launch, "readings")
    assert day.rows_in("readings") == 3 * FILE_ROWS


def maintenance(day: Site) -> None:
    """A compaction and a rescale, and the rest of the input upon them."""
    day.run("statelake", "compact", "readings")
    day.run("statelake", "rescale", "readings", "--parallelism", "3")
    day.put("readings", "3", FILES[3])
    assert "caught up" in day.run("statelake", "run", "readings")
    path = day.path("readings")
    kinds = [row.kind for row in path if row.kind != "checkpoint"]
    # each full batch is longer than the TTL: all of the base before it has expired
    assert kinds == ["compaction", "rescale", "compaction", "compaction"]
    assert [operator.parallelism for operator in path[-1].operators] == [3]


def a_backfill_that_is_killed(day: Site) -> None:
    """Rows of three days come late; the days are run again, and once more after a kill in the second of them."""
    before = day.outputs("daily")
    day.put("daily", "late", [row for row in DAYS if is_late(row)])
    backfill = ("statelake", "backfill", "daily", "--from", SECOND, "--to", FOURTH, "--rebatch")
    day.signal("hold", str(IN_THE_THIRD_DAY))
    begun = day.start(*backfill)
    day.kill_who_waits()
    assert SECOND in day.finish(begun, code=-9)
    assert day.outputs("daily") == before  # until the swap
    gone_on = day.run(*backfill)
    assert f"{SECOND}, checkpoint" not in gone_on
    assert f"{THIRD}, checkpoint" in gone_on
    assert "nothing new" in day.run("statelake", "run", "daily")


def unpublished(day: Site) -> list[int]:
    """Checkpoints that the sink has not seen."""
    history = day.history("readings")
    return [row.checkpoint_id for row, _ in history.unpublished()] if history else []


def requested_by(row: CheckpointRow) -> str:
    """The process that wrote a row."""
    return str(row.requested_by)
