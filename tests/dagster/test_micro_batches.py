"""Runs through real Dagster and the real engine: events, data versions, metadata, ticks without anything new."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import StateEngine, StatefulJob
from state_engine.core.errors import SetupError, UserFunctionError
from state_engine.dagster import JobOptions, statelake_definitions
from state_engine.dagster.micro_batches import DATA_VERSION_TAG
from state_engine.dagster.naming import checkpoint_key, sink_key, state_key
from state_engine.machine.settings import JobsSettings, Settings
from state_engine.microbatch.coordinator import CheckpointCoordinator
from state_engine.registry import load_jobs

pytestmark = pytest.mark.spark

JOB = "count_window_average"
NODE = f"{JOB}_micro_batches"
CHECKPOINT = checkpoint_key(JOB)
AVERAGES = sink_key(JOB, "averages")
WINDOW = state_key(JOB, JOB, "window")
PAIRS = [(1, 3), (1, 5), (1, 7), (1, 4), (1, 2)]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    parameters = {JOB: {"feed": str(tmp_path / "feed"), "max_rows_per_batch": 2, "parallelism": 1}}
    arrive(tmp_path, "a", PAIRS)
    modules = ["jobs.count_window_average"]
    return Settings(root=str(tmp_path / "state"), jobs=JobsSettings(modules=modules, parameters=parameters))


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as one:
        yield one


def arrive(tmp_path: Path, name: str, pairs: list[tuple[int, int]]) -> None:
    (tmp_path / "feed").mkdir(exist_ok=True)
    keys, values = zip(*pairs, strict=True)
    pq.write_table(pa.table({"key": keys, "value": values}), tmp_path / "feed" / f"{name}.parquet")


def tick(
    settings: Settings, instance: dg.DagsterInstance, *, raise_on_error: bool = True, **config: Any
) -> dg.ExecuteInProcessResult:
    job = statelake_definitions(settings=settings, options=JobOptions.everything()).resolve_job_def(JOB)
    run_config = {
        "ops": {NODE: {"config": config}},
        "loggers": {"console": {"config": {"log_level": "CRITICAL"}}},
    }
    return job.execute_in_process(instance=instance, run_config=run_config, raise_on_error=raise_on_error)


def events(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[dg.AssetMaterialization]:
    """Oldest first."""
    records = instance.fetch_materializations(key, limit=100, ascending=True).records
    return [r.asset_materialization for r in records if r.asset_materialization is not None]


def versions(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[str]:
    return [(event.tags or {})[DATA_VERSION_TAG] for event in events(instance, key)]


def shown(event: dg.AssetMaterialization) -> dict[str, Any]:
    return {name: value.value for name, value in event.metadata.items()}


def averages(settings: Settings) -> list[tuple[int, int]]:
    table = DeltaTable(str(Path(settings.root).parent / "sinks" / JOB)).to_pyarrow_table()
    return sorted(zip(*table.to_pydict().values(), strict=True))


def test_what_was_run_outside_of_dagster_is_shown_by_the_next_run(
    spark: SparkSession, settings: Settings, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    def outside() -> None:
        [registered] = load_jobs(settings)
        with StateEngine(settings.root, spark) as engine:
            engine.run(registered.job, requested_by="statelake run")

    outside()
    tick(settings, instance)  # finds nothing new
    assert versions(instance, CHECKPOINT) == ["1", "2", "3"]
    assert versions(instance, AVERAGES) == ["3"]
    assert shown(events(instance, CHECKPOINT)[-1])["requested_by"] == "statelake run"
    assert shown(events(instance, AVERAGES)[-1])["rows_out"] == 2
    assert tick(settings, instance).get_asset_materialization_events() == []

    arrive(tmp_path, "b", [(1, 8)])
    outside()
    arrive(tmp_path, "c", [(2, 1)])
    tick(settings, instance)
    assert versions(instance, CHECKPOINT) == ["1", "2", "3", "4", "5"]
    assert versions(instance, AVERAGES) == ["3", "5"]


def test_what_a_run_that_died_had_committed_is_shown_by_the_next_run(
    spark: SparkSession, settings: Settings, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    defs = statelake_definitions(settings=settings)
    dead, alive = (instance.create_run_for_job(defs.resolve_job_def(JOB)) for _ in range(2))
    instance.report_run_failed(dead)
    [registered] = load_jobs(settings)
    with StateEngine(settings.root, spark) as engine:
        for run in (alive, dead):
            engine.run(registered.job, max_batches=1, requested_by=f"dagster run {run.run_id}")
    tick(settings, instance)
    assert versions(instance, CHECKPOINT) == ["2", "3"]  # the first one is left to its run
    arrive(tmp_path, "b", [(1, 8)])
    tick(settings, instance)
    assert versions(instance, CHECKPOINT) == ["2", "3", "4"]


def test_every_micro_batch_is_one_version_and_an_empty_tick_is_none(
    spark: SparkSession, settings: Settings, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    first = tick(settings, instance)
    assert averages(settings) == [(1, 4), (1, 5)]
    # One event a checkpoint, all of the same run; what follows from it has the last one's version.
    assert versions(instance, CHECKPOINT) == ["1", "2", "3"]
    assert versions(instance, AVERAGES) == versions(instance, WINDOW) == ["3"]

    quiet = tick(settings, instance)
    assert quiet.success
    assert quiet.get_asset_materialization_events() == []

    arrive(tmp_path, "b", [(1, 8), (2, 1)])
    third = tick(settings, instance)
    assert versions(instance, CHECKPOINT) == ["1", "2", "3", "4"]
    assert versions(instance, AVERAGES) == ["3", "4"]
    assert averages(settings) == [(1, 4), (1, 5), (1, 5)]
    asked = [row.requested_by for row in StateEngine(settings.root, spark).checkpoints(JOB)]
    assert asked == [f"dagster run {first.run_id}"] * 3 + [f"dagster run {third.run_id}"]
    # The session that was there before the runs is still there.
    assert spark.range(3).count() == 3


def test_metadata_is_that_of_the_checkpoint(
    spark: SparkSession, settings: Settings, instance: dg.DagsterInstance
) -> None:
    tick(settings, instance)
    metadata_of_batches = [shown(event) for event in events(instance, CHECKPOINT)]
    rows = StateEngine(settings.root, spark).checkpoints(JOB)
    assert [m["checkpoint_id"] for m in metadata_of_batches] == [1, 2, 3]
    assert [m["parent_checkpoint_id"] for m in metadata_of_batches] == [None, 1, 2]
    [run] = {row.requested_by.removeprefix("dagster run ") for row in rows}
    assert [m.get("parent_checkpoint") for m in metadata_of_batches] == [None, run, run]
    assert [m["rows_in"] for m in metadata_of_batches] == [2, 2, 1]
    assert [m["rows_out"] for m in metadata_of_batches] == [1, 1, 0]
    assert [m["changed_entries"] for m in metadata_of_batches] == [
        row.operators[0].changed_entries for row in rows
    ]
    assert [m["write_id"] for m in metadata_of_batches] == [row.write_id for row in rows]
    for metadata in metadata_of_batches:
        assert isinstance(metadata["bytes_written"], int)
        assert metadata["bytes_written"] > 0
        assert isinstance(metadata["seconds"], float)
        assert isinstance(metadata["events_per_second"], float)
        assert metadata["events_per_second"] > 0
        skew = metadata["key_group_skew"].splitlines()
        assert skew[0].startswith("| operator | key groups |")
        assert skew[2].startswith("| count_window_average | 1 |")
        assert metadata["steps"].count("\n") > 5
    assert "run_batches" not in metadata_of_batches[0]
    assert (
        metadata_of_batches[2]["run_batches"],
        metadata_of_batches[2]["run_rows_in"],
        metadata_of_batches[2]["caught_up"],
    ) == (3, 5, True)

    [sink] = map(shown, events(instance, AVERAGES))
    assert sink["rows_out"] == 2
    assert sink["checkpoints"] == [1, 2, 3]
    [state] = map(shown, events(instance, WINDOW))
    assert state["stored_type"] == "struct<`size`: bigint, `total`: bigint>"
    assert state["operator_rows_in"] == 5
    assert (state["entries"], state["entries_as_of"]) == (1, "checkpoint 3")


def test_a_run_may_be_asked_to_stop_and_one_asset_may_be_selected(
    spark: SparkSession, settings: Settings, instance: dg.DagsterInstance
) -> None:
    tick(settings, instance, max_batches=1)
    assert versions(instance, CHECKPOINT) == versions(instance, WINDOW) == ["1"]
    defs = statelake_definitions(settings=settings, options=JobOptions.everything())
    [assets] = [a for a in defs.assets or [] if isinstance(a, dg.AssetsDefinition) and a.op.name == NODE]
    done = dg.materialize(
        [assets],
        instance=instance,
        resources=defs.resources,
        selection=[WINDOW],
        run_config={"ops": {NODE: {"config": {"max_batches": 1}}}},
    )
    assert done.success
    # The micro-batch was whole, so all of its assets have the new version.
    for key in (CHECKPOINT, AVERAGES, WINDOW):
        assert versions(instance, key) == ["1", "2"], key


def test_what_was_committed_before_a_failure_is_in_the_event_log(
    spark: SparkSession, settings: Settings, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    arrive(tmp_path, "b", [(2, 1), (2, None)])  # type: ignore[list-item]
    failed = tick(settings, instance, raise_on_error=False)
    assert not failed.success
    [failure] = failed.get_step_failure_events()
    error = failure.step_failure_data.error
    assert error is not None
    assert UserFunctionError.__name__ in error.to_string()
    assert versions(instance, CHECKPOINT) == ["1", "2", "3"]
    assert versions(instance, AVERAGES) == []
    assert averages(settings) == [(1, 4), (1, 5)]


def test_what_a_crash_left_unpublished_is_shown_by_the_run_that_publishes_it(
    spark: SparkSession, settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: CheckpointCoordinator, attempt: object) -> None:
        raise RuntimeError("killed after the commit")

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointCoordinator, "publish", die)
        assert not tick(settings, instance, raise_on_error=False).success
    # The checkpoint is committed, and shown; its outputs are not there yet, and not shown.
    assert versions(instance, CHECKPOINT) == ["1"]
    assert versions(instance, AVERAGES) == []

    tick(settings, instance)
    assert averages(settings) == [(1, 4), (1, 5)]
    assert versions(instance, CHECKPOINT) == ["1", "2", "3"]
    [sink] = map(shown, events(instance, AVERAGES))
    assert sink["rows_out"] == 2
    assert sink["checkpoints"] == [1, 2, 3]
    assert shown(events(instance, CHECKPOINT)[-1])["published_for_earlier_runs"] == [1]


def test_a_clock_that_jumps_is_refused_until_the_configuration_of_a_run_accepts_it(
    spark: SparkSession, settings: Settings, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound of the job is a millisecond, so any two runs are a jump."""
    made = StatefulJob.__init__
    bound = {"max_clock_jump": timedelta(milliseconds=1)}
    monkeypatch.setattr(
        StatefulJob, "__init__", lambda job, *args, **given: made(job, *args, **(given | bound))
    )
    tick(settings, instance, max_batches=1, accept_clock=True)
    with pytest.raises(SetupError, match="in Dagster accept_clock: true in the configuration"):
        tick(settings, instance, max_batches=1)
    assert versions(instance, CHECKPOINT) == ["1"]
    tick(settings, instance, max_batches=1, accept_clock=True)
    assert versions(instance, CHECKPOINT) == ["1", "2"]
