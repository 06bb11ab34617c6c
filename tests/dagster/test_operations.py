"""Operations through real Dagster and the real engine: plain clicks, configuration, refusals."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jobs import count_window_average
from state_engine import StateEngine, StatefulJob
from state_engine.core.checkpoints.compaction_policy import CompactionPolicy
from state_engine.core.errors import MissingFilesError
from state_engine.dagster.naming import checkpoint_key, operation_key
from state_engine.microbatch.coordinator import CheckpointCoordinator
from state_engine.state_processor.operator_drop import OperatorDropReport, drop_operators
from tests.dagster.sites import JOB, Site, failure_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]
CHECKPOINT = checkpoint_key(JOB)


def kinds(site: Site, spark: SparkSession) -> list[str]:
    return [row.kind for row in StateEngine(site.settings.root, spark).checkpoints(JOB)]


@pytest.mark.long
def test_a_plain_click_on_every_operation_of_a_job_that_never_ran_does_nothing(
    site: Site, spark: SparkSession
) -> None:
    for suffix in ("__compact", "__recover", "__rescale", "__expire"):
        done = site.run(suffix)
        assert done.success, suffix
        assert done.get_asset_materialization_events() == [], suffix
    assert kinds(site, spark) == []


def test_plain_clicks_change_nothing_where_all_is_well_and_keep_their_versions(
    site: Site, spark: SparkSession
) -> None:
    site.run()
    for _ in range(2):
        for suffix in ("__compact", "__recover", "__rescale", "__expire"):
            site.run(suffix)
    assert kinds(site, spark) == ["checkpoint"] * 3
    assert site.versions(CHECKPOINT) == ["1", "2", "3"]
    assert site.versions(operation_key(JOB, "head")) == ["3", "3"]
    assert site.versions(operation_key(JOB, "layout")) == ["1", "1"]
    assert site.versions(operation_key(JOB, "retention")) == ["0", "0"]
    base = site.shown(operation_key(JOB, "base"))
    assert base["changelog_files"] == 1  # the first two batches left nothing in the state
    assert "dropped" not in base  # not worth it, so not tried
    assert site.shown(operation_key(JOB, "head"))["verified_files"] == 4


def test_force_compacts_and_a_second_click_finds_it_done(site: Site, spark: SparkSession) -> None:
    site.run()
    done = site.run("__compact", force=True)
    assert kinds(site, spark)[3:] == ["compaction"]
    assert site.versions(operation_key(JOB, "base")) == ["4"]
    # The row that the operation appended is a version of the checkpoint, and names the run.
    assert site.versions(CHECKPOINT) == ["1", "2", "3", "4"]
    assert site.shown(CHECKPOINT)["requested_by"] == f"dagster run {done.run_id}"
    assert site.shown(CHECKPOINT)["kind"] == "compaction"
    shown = site.shown(operation_key(JOB, "base"))
    assert (shown["changelog_files"], shown["base_rows"], shown["new_entries"]) == (0, 1, 1)
    site.run("__compact", force=True)
    assert site.versions(operation_key(JOB, "base")) == ["4", "4"]
    assert kinds(site, spark)[3:] == ["compaction"]


@pytest.mark.long
def test_a_restore_needs_dry_run_to_be_switched_off(site: Site, spark: SparkSession) -> None:
    site.run()
    site.run("__recover", checkpoint_id=1)
    shown = site.shown(operation_key(JOB, "head"))
    assert (shown["dry_run"], shown["abandoned"], shown["checkpoint_id"]) == (True, [2, 3], 3)
    assert kinds(site, spark) == ["checkpoint"] * 3
    site.run("__recover", checkpoint_id=1, dry_run=False)
    assert kinds(site, spark)[3:] == ["restore"]
    assert site.versions(operation_key(JOB, "head")) == ["3", "4"]
    assert site.versions(CHECKPOINT)[-1] == "4"
    site.run()
    assert site.versions(CHECKPOINT)[-2:] == ["5", "6"]


@pytest.mark.long
def test_head_publishes_what_a_crash_left_and_refuses_a_head_that_is_not_whole(
    site: Site, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: CheckpointCoordinator, attempt: object) -> None:
        raise RuntimeError("killed after the commit")

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointCoordinator, "publish", die)
        site.run(raise_on_error=False)
    site.run("__recover")
    assert site.shown(operation_key(JOB, "head"))["published_pending"] == [1]
    site.run()
    [file] = sorted((site.table / "operators").rglob("changelog/*/*.parquet"))
    file.write_bytes(b"")
    refused = site.run("__recover", raise_on_error=False)
    assert MissingFilesError.__name__ in failure_of(refused)
    assert "has 0 bytes" in failure_of(refused)
    assert site.versions(operation_key(JOB, "head")) == ["1"]


@pytest.mark.long
def test_layout_follows_the_declaration_or_what_it_is_reported(site: Site, spark: SparkSession) -> None:
    site.run()
    site.run("__rescale", parallelism=3)
    assert kinds(site, spark)[3:] == ["rescale"]
    shown = site.shown(operation_key(JOB, "layout"))
    assert (shown["subtasks"], shown["overruled"]) == (3, {JOB: 3})
    assert site.versions(operation_key(JOB, "layout")) == ["4"]
    site.run("__rescale")  # back to what the job declares
    assert site.versions(operation_key(JOB, "layout")) == ["4", "5"]
    assert site.shown(operation_key(JOB, "layout"))["subtasks"] == 1
    site.run("__rescale", operators={JOB: 2}, max_parallelism=64)
    head = StateEngine(site.settings.root, spark).checkpoints(JOB)[-1]
    assert (head.operators[0].parallelism, head.operators[0].max_parallelism) == (2, 64)


@pytest.mark.long
def test_layout_lets_operators_leave(
    site: Site, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.run()

    def without_code(*args: Any, dry_run: bool, **_: Any) -> OperatorDropReport:
        return drop_operators(*args, in_code=(), dry_run=dry_run)  # as if the code had it no longer

    monkeypatch.setattr("state_engine.engine.state_processor.drop_operators", without_code)
    site.run("__rescale", drop_operators=[JOB])  # a dry run by default
    assert kinds(site, spark) == ["checkpoint"] * 3
    assert site.shown(operation_key(JOB, "layout"))["subtasks"] == 1
    site.run("__rescale", drop_operators=[JOB], dry_run=False)
    assert kinds(site, spark)[3:] == ["transform"]
    assert site.shown(operation_key(JOB, "layout"))["subtasks"] == 0
    assert site.shown(CHECKPOINT)["kind"] == "transform"


@pytest.mark.long
def test_a_savepoint_is_a_partition_made_once_and_then_verified(site: Site, spark: SparkSession) -> None:
    site.run()
    key = operation_key(JOB, "savepoints")
    site.run("__savepoint", partition="before_upgrade", checkpoint_id=2)
    assert site.versions(key) == ["2"]
    assert StateEngine(site.settings.root, spark).savepoints(JOB).list()["before_upgrade"].checkpoint_id == 2
    assert site.versions(CHECKPOINT) == ["1", "2", "3", "4"]  # the row that pins it
    site.run("__savepoint", partition="before_upgrade")
    assert site.shown(key)["verified"] is True
    refused = site.run("__savepoint", partition="before_upgrade", checkpoint_id=3, raise_on_error=False)
    assert "is there already, of checkpoint 2" in failure_of(refused)
    refused = site.run("__savepoint", partition="No Name", raise_on_error=False)
    assert "No Name" in failure_of(refused)
    assert site.instance.get_materialized_partitions(key) == {"before_upgrade"}


@pytest.mark.long
def test_retention_keeps_a_week_by_default(site: Site, spark: SparkSession) -> None:
    site.run()
    site.run("__expire", keep_last=1, keep_hours=0)  # only shown
    assert site.shown(operation_key(JOB, "retention"))["expired"] == [1, 2]
    assert kinds(site, spark) == ["checkpoint"] * 3
    site.run("__expire", keep_last=1, keep_hours=0, dry_run=False)
    shown = site.shown(operation_key(JOB, "retention"))
    assert (shown["expired_so_far"], shown["restorable"], shown["files_deleted"]) == (2, 2, 0)
    assert site.versions(operation_key(JOB, "retention")) == ["0", "4"]


@pytest.mark.parametrize(
    ("suffix", "config", "message"),
    [
        ("__recover", {"checkpoint_id": 1, "savepoint": "x"}, "either checkpoint_id or savepoint"),
        ("__recover", {"dry_run": False}, "name it by checkpoint_id or savepoint"),
        ("__recover", {"checkpoint_id": 0}, "greater than or equal to 1"),
        ("__recover", {"outputs": "burn"}, "withdraw"),
        ("__rescale", {"parallelism": 0}, "greater than or equal to 1"),
        ("__rescale", {"parallelism": 2, "operators": {"a": 1}}, "either parallelism"),
        ("__rescale", {"operators": {"a": 0}}, "a number from 1 to"),
        ("__expire", {"keep_last": 0}, "greater than or equal to 1"),
        ("__expire", {"orphan_age_hours": 1.0}, "greater than or equal to 24"),
    ],
    ids=str,
)
def test_nonsense_is_refused_before_anything_happens(
    site: Site, suffix: str, config: dict[str, Any], message: str
) -> None:
    refused = site.run(suffix, raise_on_error=False, **config)
    assert not refused.success
    assert message in failure_of(refused)
    assert not (site.directory / "state").exists()


@pytest.mark.long
def test_compactions_of_a_run_are_versions_in_their_order(
    site: Site, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    always = CompactionPolicy(max_ratio=0, min_entries=0)
    monkeypatch.setattr(count_window_average, "StatefulJob", partial(StatefulJob, compaction=always))
    site.arrive("a", [(key, 1) for key in range(5)])
    site.run()
    assert kinds(site, spark) == ["checkpoint", "compaction"] * 3
    assert site.versions(CHECKPOINT) == ["1", "2", "3", "4", "5", "6"]
    assert site.versions(operation_key(JOB, "base")) == []
    site.run("__compact")
    assert site.versions(operation_key(JOB, "base")) == ["6"]  # and nothing to do
