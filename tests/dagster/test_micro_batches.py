"""Runs through real Dagster and the real engine: events, data versions, metadata, ticks without anything new."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import StatefulJob
from state_engine.core.errors import SetupError, UserFunctionError
from state_engine.dagster.naming import checkpoint_key, sink_key, state_key
from state_engine.microbatch.coordinator import CheckpointCoordinator
from state_engine.registry import load_jobs
from tests.dagster.sites import JOB, Site

pytestmark = pytest.mark.spark

NODE = f"{JOB}_micro_batches"
CHECKPOINT = checkpoint_key(JOB)
AVERAGES = sink_key(JOB, "averages")
WINDOW = state_key(JOB, JOB, "window")


def averages(site: Site) -> list[tuple[int, int]]:
    table = DeltaTable(str(site.directory / "sinks" / JOB)).to_pyarrow_table()
    return sorted(zip(*table.to_pydict().values(), strict=True))


def metadata_of(event: dg.AssetMaterialization) -> dict[str, Any]:
    return {name: value.value for name, value in event.metadata.items()}


def test_what_was_run_outside_of_dagster_is_shown_by_the_next_run(spark: SparkSession, site: Site) -> None:
    def outside() -> None:
        [registered] = load_jobs(site.settings)
        with site.engine(spark) as engine:
            engine.run(registered.job, requested_by="statelake run")

    outside()
    site.run()  # finds nothing new
    assert site.versions(CHECKPOINT) == ["1", "2", "3"]
    assert site.versions(AVERAGES) == ["3"]
    assert site.shown(CHECKPOINT)["requested_by"] == "statelake run"
    assert site.shown(AVERAGES)["rows_out"] == 2
    assert site.run().get_asset_materialization_events() == []

    site.arrive("b", [(1, 8)])
    outside()
    site.arrive("c", [(2, 1)])
    site.run()
    assert site.versions(CHECKPOINT) == ["1", "2", "3", "4", "5"]
    assert site.versions(AVERAGES) == ["3", "5"]


def test_what_a_run_that_died_had_committed_is_shown_by_the_next_run(spark: SparkSession, site: Site) -> None:
    defs = site.defs
    dead, alive = (site.instance.create_run_for_job(defs.resolve_job_def(JOB)) for _ in range(2))
    site.instance.report_run_failed(dead)
    [registered] = load_jobs(site.settings)
    with site.engine(spark) as engine:
        for run in (alive, dead):
            engine.run(registered.job, max_batches=1, requested_by=f"dagster run {run.run_id}")
    site.run()
    assert site.versions(CHECKPOINT) == ["2", "3"]  # the first one is left to its run
    site.arrive("b", [(1, 8)])
    site.run()
    assert site.versions(CHECKPOINT) == ["2", "3", "4"]


def test_every_micro_batch_is_one_version_and_an_empty_tick_is_none(spark: SparkSession, site: Site) -> None:
    first = site.run()
    assert averages(site) == [(1, 4), (1, 5)]
    # One event a checkpoint, all of the same run; what follows from it has the last one's version.
    assert site.versions(CHECKPOINT) == ["1", "2", "3"]
    assert site.versions(AVERAGES) == site.versions(WINDOW) == ["3"]

    quiet = site.run()
    assert quiet.success
    assert quiet.get_asset_materialization_events() == []

    site.arrive("b", [(1, 8), (2, 1)])
    third = site.run()
    assert site.versions(CHECKPOINT) == ["1", "2", "3", "4"]
    assert site.versions(AVERAGES) == ["3", "4"]
    assert averages(site) == [(1, 4), (1, 5), (1, 5)]
    asked = [row.requested_by for row in site.engine(spark).checkpoints(JOB)]
    assert asked == [f"dagster run {first.run_id}"] * 3 + [f"dagster run {third.run_id}"]
    # The session that was there before the runs is still there.
    assert spark.range(3).count() == 3


def test_metadata_is_that_of_the_checkpoint(spark: SparkSession, site: Site) -> None:
    site.run()
    metadata_of_batches = [metadata_of(event) for event in site.events(CHECKPOINT)]
    rows = site.engine(spark).checkpoints(JOB)
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

    [sink] = map(metadata_of, site.events(AVERAGES))
    assert sink["rows_out"] == 2
    assert sink["checkpoints"] == [1, 2, 3]
    [state] = map(metadata_of, site.events(WINDOW))
    assert state["stored_type"] == "struct<`size`: bigint, `total`: bigint>"
    assert state["operator_rows_in"] == 5
    assert (state["entries"], state["entries_as_of"]) == (1, "checkpoint 3")


def test_a_run_may_be_asked_to_stop_and_one_asset_may_be_selected(spark: SparkSession, site: Site) -> None:
    site.run(max_batches=1)
    assert site.versions(CHECKPOINT) == site.versions(WINDOW) == ["1"]
    defs = site.defs
    [assets] = [a for a in defs.assets or [] if isinstance(a, dg.AssetsDefinition) and a.op.name == NODE]
    done = dg.materialize(
        [assets],
        instance=site.instance,
        resources=defs.resources,
        selection=[WINDOW],
        run_config={"ops": {NODE: {"config": {"max_batches": 1}}}},
    )
    assert done.success
    # The micro-batch was whole, so all of its assets have the new version.
    for key in (CHECKPOINT, AVERAGES, WINDOW):
        assert site.versions(key) == ["1", "2"], key


def test_what_was_committed_before_a_failure_is_in_the_event_log(spark: SparkSession, site: Site) -> None:
    site.arrive("b", [(2, 1), (2, None)])  # type: ignore[list-item]
    failed = site.run(raise_on_error=False)
    assert not failed.success
    [failure] = failed.get_step_failure_events()
    error = failure.step_failure_data.error
    assert error is not None
    assert UserFunctionError.__name__ in error.to_string()
    assert site.versions(CHECKPOINT) == ["1", "2", "3"]
    assert site.versions(AVERAGES) == []
    assert averages(site) == [(1, 4), (1, 5)]


def test_what_a_crash_left_unpublished_is_shown_by_the_run_that_publishes_it(
    spark: SparkSession, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: CheckpointCoordinator, attempt: object) -> None:
        raise RuntimeError("killed after the commit")

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointCoordinator, "publish", die)
        assert not site.run(raise_on_error=False).success
    # The checkpoint is committed, and shown; its outputs are not there yet, and not shown.
    assert site.versions(CHECKPOINT) == ["1"]
    assert site.versions(AVERAGES) == []

    site.run()
    assert averages(site) == [(1, 4), (1, 5)]
    assert site.versions(CHECKPOINT) == ["1", "2", "3"]
    [sink] = map(metadata_of, site.events(AVERAGES))
    assert sink["rows_out"] == 2
    assert sink["checkpoints"] == [1, 2, 3]
    assert site.shown(CHECKPOINT)["published_for_earlier_runs"] == [1]


def test_a_clock_that_jumps_is_refused_until_the_configuration_of_a_run_accepts_it(
    spark: SparkSession, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound of the job is a millisecond, so any two runs are a jump."""
    made = StatefulJob.__init__
    bound = {"max_clock_jump": timedelta(milliseconds=1)}
    monkeypatch.setattr(
        StatefulJob, "__init__", lambda job, *args, **given: made(job, *args, **(given | bound))
    )
    site.run(max_batches=1, accept_clock=True)
    with pytest.raises(SetupError, match="in Dagster accept_clock: true in the configuration"):
        site.run(max_batches=1)
    assert site.versions(CHECKPOINT) == ["1"]
    site.run(max_batches=1, accept_clock=True)
    assert site.versions(CHECKPOINT) == ["1", "2"]
