"""Sensors on real tables and a real Dagster instance, without Spark: what starts runs and what does not."""

from __future__ import annotations

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from state_engine.dagster import job_health
from state_engine.dagster.concepts.automation import MOST_RETRIES
from state_engine.dagster.naming import MOVES_ON, operation_key
from state_engine.microbatch.coordinator import CheckpointCoordinator
from tests.dagster.sites import JOB, Site

HOUR_MS = 3_600_000


def tick(
    site: Site, sensor: str, *, cursor: str | None = None
) -> dg.SensorResult | dg.SkipReason | dg.RunRequest:
    definition = site.defs.resolve_sensor_def(JOB + sensor)
    with dg.build_sensor_context(instance=site.instance, cursor=cursor) as context:
        tick_result = definition(context)
        site.cursor = context.cursor  # type: ignore[attr-defined]
        assert tick_result is None or isinstance(tick_result, dg.SensorResult | dg.SkipReason | dg.RunRequest)
        return tick_result  # type: ignore[return-value]


def later(monkeypatch: pytest.MonkeyPatch, hours: float) -> None:
    now = job_health.now_ms()
    monkeypatch.setattr(job_health, "now_ms", lambda: now + int(hours * HOUR_MS))


def skipped(tick_result: object) -> str:
    assert isinstance(tick_result, dg.SkipReason), tick_result
    return tick_result.skip_message or ""


def watched(site: Site) -> tuple[bool, str, int]:
    """Whether the job moves on, why, and how many runs were asked for."""
    tick_result = tick(site, "__watch")
    assert isinstance(tick_result, dg.SensorResult)
    [event] = tick_result.asset_events
    assert isinstance(event, dg.AssetCheckEvaluation)
    assert event.check_name == MOVES_ON
    return event.passed, event.description or "", len(tick_result.run_requests or [])


def test_sensors_of_a_job_that_never_ran(site: Site) -> None:
    assert isinstance(tick(site, "__new_data"), dg.RunRequest)
    assert "0 files" in skipped(tick(site, "__compaction"))
    assert "has no checkpoint yet" in skipped(tick(site, "__retention"))
    assert watched(site) == (True, f"job '{JOB}' has no checkpoint yet", 0)
    assert not (site.directory / "state").exists()


def test_a_run_under_way_is_not_doubled(site: Site) -> None:
    site.instance.create_run_for_job(site.defs.resolve_job_def(JOB), status=dg.DagsterRunStatus.STARTED)
    assert "is under way" in skipped(tick(site, "__new_data"))


@pytest.mark.long
@pytest.mark.spark
def test_new_data_stuck_jobs_failures_and_retention(
    site: Site, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.run()
    assert "have new data" not in skipped(tick(site, "__new_data"))
    assert watched(site)[0]
    assert "1 file of changes" in skipped(tick(site, "__compaction"))

    site.arrive("b", [(1, 8), (1, 10)])
    assert isinstance(tick(site, "__new_data"), dg.RunRequest)
    assert watched(site)[::2] == (True, 0)  # it had no chance yet
    with monkeypatch.context() as patched:
        later(patched, 0.6)
        passed, why, runs = watched(site)
        assert (passed, runs) == (False, 1)
        assert "['pairs'] have new data" in why
        moves_on = site.defs.resolve_job_def(f"{JOB}__check").execute_in_process(instance=site.instance)
        shown = {e.check_name: e.passed for e in moves_on.get_asset_check_evaluations()}
        assert shown[MOVES_ON] is False

    def die(self: CheckpointCoordinator, *_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointCoordinator, "publish", die)
        site.run(raise_on_error=False)
    passed, why, runs = watched(site)
    assert (passed, runs) == (False, 1), why
    assert "checkpoints [4] are committed, and not published" in why
    with monkeypatch.context() as patched:
        patched.setattr(CheckpointCoordinator, "publish_pending", die)
        for failures in range(2, MOST_RETRIES + 1):
            site.run(raise_on_error=False)
            passed, why, runs = watched(site)
            assert (passed, runs) == (False, int(failures < MOST_RETRIES)), why
            assert f"the last {failures} runs failed" in why
    # that would go on every half minute, for ever
    assert "launch one by hand" in skipped(tick(site, "__new_data"))
    site.run()
    assert watched(site)[0]

    assert isinstance(tick(site, "__retention"), dg.RunRequest)
    cursor: str = site.cursor  # type: ignore[attr-defined]
    assert "less than a day ago" in skipped(tick(site, "__retention", cursor=cursor))
    aged = f"0 {cursor.split()[1]}"
    assert "nothing was committed since checkpoint 4" in skipped(tick(site, "__retention", cursor=aged))


@pytest.mark.long
@pytest.mark.spark
def test_partitions_follow_the_savepoints(site: Site, spark: SparkSession) -> None:
    site.run()
    name, key = f"{JOB}_savepoints", operation_key(JOB, "savepoints")
    site.run("__savepoint", partition="kept")
    site.instance.add_dynamic_partitions(name, ["planned"])
    engine_made = site.engine(spark)
    engine_made.savepoints(JOB).create("by_hand")
    tick_result = tick(site, "__savepoint_partitions")
    assert isinstance(tick_result, dg.SensorResult)
    [request] = tick_result.dynamic_partitions_requests or []
    assert isinstance(request, dg.AddDynamicPartitionsRequest)
    assert request.partition_keys == ["by_hand"]
    engine_made.savepoints(JOB).delete("kept")
    site.instance.add_dynamic_partitions(name, ["by_hand"])
    tick_result = tick(site, "__savepoint_partitions")
    assert isinstance(tick_result, dg.SensorResult)
    [gone] = tick_result.dynamic_partitions_requests or []
    assert isinstance(gone, dg.DeleteDynamicPartitionsRequest)
    assert gone.partition_keys == ["kept"]  # "planned" was only named so far
    assert site.instance.get_materialized_partitions(key) == {"kept"}
