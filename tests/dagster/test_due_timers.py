"""Timers that are due although no row comes: status, the sensor for new data and what finds stuck jobs know of them."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine.cli.status import notes
from state_engine.dagster import job_health
from state_engine.dagster.naming import MOVES_ON
from state_engine.monitoring.job_history import read_history
from state_engine.monitoring.job_status import JobStatus, status_of_history
from tests.dagster.quiet import BEGIN_MS, DELAY, GAP, JOB, MINUTE_MS, Quiet

DUE_MS = BEGIN_MS + (GAP + DELAY) * MINUTE_MS + 1


def status(site: Quiet, now_ms: int) -> JobStatus:
    history = read_history(site.settings.root, JOB)
    return status_of_history(JOB, history, job=site.job, now_ms=now_ms, stuck_after=timedelta(minutes=30))


def asked(site: Quiet) -> dg.RunRequest | str:
    """What the sensor for new data answers."""
    with dg.build_sensor_context(instance=site.instance) as context:
        tick = site.defs.resolve_sensor_def(f"{JOB}__new_data")(context)
    assert isinstance(tick, dg.RunRequest | dg.SkipReason)
    return tick if isinstance(tick, dg.RunRequest) else tick.skip_message or ""


def moves_on(site: Quiet) -> tuple[bool, str, int]:
    with dg.build_sensor_context(instance=site.instance) as context:
        watched = site.defs.resolve_sensor_def(f"{JOB}__watch")(context)
    assert isinstance(watched, dg.SensorResult)
    [event] = watched.asset_events
    assert isinstance(event, dg.AssetCheckEvaluation)
    assert event.check_name == MOVES_ON
    return event.passed, event.description or "", len(watched.run_requests or [])


@pytest.mark.spark
def test_whoever_starts_runs_knows_when_timers_are_due(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        site = Quiet(tmp_path, instance)
        site.arrive("a", "xyz")
        with site.engine(spark) as engine:
            assert len(engine.run(site.job, clock=BEGIN_MS + MINUTE_MS, accept_clock=True).batches) == 1
            assert engine.run(site.job, clock=DUE_MS - 1).batches == []

            early = status(site, DUE_MS - 1)
            assert (early.state, early.timers_due, early.timers_due_s) == ("ok", 0, None)
            monkeypatch.setattr(job_health, "now_ms", lambda: DUE_MS - 1)
            assert "the sources have nothing new" in str(asked(site))

            due = status(site, DUE_MS + 5_000)
            assert (due.state, due.timers_due, due.timers_due_s) == ("ok", 3, 5.0)
            assert any(text.startswith("3 timers due since ") for text in notes(due))
            monkeypatch.setattr(job_health, "now_ms", lambda: DUE_MS)
            assert isinstance(asked(site), dg.RunRequest)

            late_ms = DUE_MS + 31 * MINUTE_MS
            assert (status(site, late_ms).state, status(site, late_ms).exit_code) == ("stuck", 1)
            monkeypatch.setattr(job_health, "now_ms", lambda: DUE_MS + 365 * 24 * 60 * MINUTE_MS)
            passed, why, runs = moves_on(site)
            assert (passed, runs) == (False, 1)
            assert "3 timers are due" in why

            assert len(engine.run(site.job, clock=DUE_MS).batches) == 1
            assert status(site, DUE_MS).timers_due == 0
    ended = DeltaTable(str(tmp_path / "sink")).to_pyarrow_table().to_pylist()
    assert sorted((r["k"], r["ended"]) for r in ended) == [(k, BEGIN_MS + GAP * MINUTE_MS) for k in "xyz"]


@pytest.mark.spark
def test_timers_of_later_times_do_not_count(tmp_path: Path, spark: SparkSession) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        site = Quiet(tmp_path, instance)
        site.arrive("a", "xy")
        site.arrive("b", "z", minutes=5)
        with site.engine(spark) as engine:
            engine.run(site.job, clock=BEGIN_MS + 6 * MINUTE_MS, accept_clock=True)
        counted = [status(site, DUE_MS + minutes * MINUTE_MS).timers_due for minutes in (-1, 0, 4, 5)]
        assert counted == [0, 2, 2, 3]
