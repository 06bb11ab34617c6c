"""Operations through real Dagster and the real engine: plain clicks, configuration, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import SparkSession

from jobs import count_window_average
from state_engine import StateEngine, StatefulJob
from state_engine.core.checkpoints.compaction_policy import CompactionPolicy
from state_engine.core.errors import MissingFilesError
from state_engine.dagster.naming import checkpoint_key, operation_key
from state_engine.microbatch.coordinator import CheckpointCoordinator
from tests.dagster.ground import JOB, Ground, failure_of

pytestmark = pytest.mark.spark
CHECKPOINT = checkpoint_key(JOB)


@pytest.fixture
def ground(tmp_path: Path, spark: SparkSession) -> Iterator[Ground]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Ground(tmp_path, instance)


def kinds(ground: Ground, spark: SparkSession) -> list[str]:
    return [row.kind for row in StateEngine(ground.settings.root, spark).checkpoints(JOB)]


@pytest.mark.long
def test_a_plain_click_on_every_operation_of_a_job_that_never_ran_does_nothing(
    ground: Ground, spark: SparkSession
) -> None:
    for suffix in ("__compact", "__recover", "__rescale", "__expire"):
        done = ground.run(suffix)
        assert done.success, suffix
        assert done.get_asset_materialization_events() == [], suffix
    assert kinds(ground, spark) == []


def test_plain_clicks_change_nothing_where_all_is_well_and_keep_their_versions(
    ground: Ground, spark: SparkSession
) -> None:
    ground.run()
    for _ in range(2):
        for suffix in ("__compact", "__recover", "__rescale", "__expire"):
            ground.run(suffix)
    assert kinds(ground, spark) == ["checkpoint"] * 3
    assert ground.versions(CHECKPOINT) == ["1", "2", "3"]
    assert ground.versions(operation_key(JOB, "head")) == ["3", "3"]
    assert ground.versions(operation_key(JOB, "layout")) == ["1", "1"]
    assert ground.versions(operation_key(JOB, "retention")) == ["0", "0"]
    base = ground.shown(operation_key(JOB, "base"))
    assert base["changelog_files"] == 1  # the first two batches left nothing in the state
    assert "dropped" not in base  # not worth it, so not tried
    assert ground.shown(operation_key(JOB, "head"))["verified_files"] == 4


def test_force_compacts_and_a_second_click_finds_it_done(ground: Ground, spark: SparkSession) -> None:
    ground.run()
    done = ground.run("__compact", force=True)
    assert kinds(ground, spark)[3:] == ["compaction"]
    assert ground.versions(operation_key(JOB, "base")) == ["4"]
    # The row that the operation appended is a version of the checkpoint, and names the run.
    assert ground.versions(CHECKPOINT) == ["1", "2", "3", "4"]
    assert ground.shown(CHECKPOINT)["requested_by"] == f"dagster run {done.run_id}"
    assert ground.shown(CHECKPOINT)["kind"] == "compaction"
    shown = ground.shown(operation_key(JOB, "base"))
    assert (shown["changelog_files"], shown["base_rows"], shown["new_entries"]) == (0, 1, 1)
    ground.run("__compact", force=True)
    assert ground.versions(operation_key(JOB, "base")) == ["4", "4"]
    assert kinds(ground, spark)[3:] == ["compaction"]


@pytest.mark.long
def test_head_goes_back_only_when_told_twice(ground: Ground, spark: SparkSession) -> None:
    ground.run()
    ground.run("__recover", checkpoint_id=1)
    shown = ground.shown(operation_key(JOB, "head"))
    assert (shown["dry_run"], shown["abandoned"], shown["checkpoint_id"]) == (True, [2, 3], 3)
    assert kinds(ground, spark) == ["checkpoint"] * 3
    ground.run("__recover", checkpoint_id=1, dry_run=False)
    assert kinds(ground, spark)[3:] == ["restore"]
    assert ground.versions(operation_key(JOB, "head")) == ["3", "4"]
    assert ground.versions(CHECKPOINT)[-1] == "4"
    ground.run()
    assert ground.versions(CHECKPOINT)[-2:] == ["5", "6"]


@pytest.mark.long
def test_head_publishes_what_a_crash_left_and_refuses_a_head_that_is_not_whole(
    ground: Ground, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: CheckpointCoordinator, attempt: object) -> None:
        raise RuntimeError("killed after the commit")

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointCoordinator, "publish", die)
        ground.run(raise_on_error=False)
    ground.run("__recover")
    assert ground.shown(operation_key(JOB, "head"))["settled"] == [1]
    ground.run()
    [file] = sorted((ground.table / "operators").rglob("changelog/*/*.parquet"))
    file.write_bytes(b"")
    refused = ground.run("__recover", raise_on_error=False)
    assert MissingFilesError.__name__ in failure_of(refused)
    assert "has 0 bytes" in failure_of(refused)
    assert ground.versions(operation_key(JOB, "head")) == ["1"]


@pytest.mark.long
def test_layout_follows_the_declaration_or_what_it_is_told(ground: Ground, spark: SparkSession) -> None:
    ground.run()
    ground.run("__rescale", parallelism=3)
    assert kinds(ground, spark)[3:] == ["rescale"]
    shown = ground.shown(operation_key(JOB, "layout"))
    assert (shown["subtasks"], shown["overruled"]) == (3, {JOB: 3})
    assert ground.versions(operation_key(JOB, "layout")) == ["4"]
    ground.run("__rescale")  # back to what the job declares
    assert ground.versions(operation_key(JOB, "layout")) == ["4", "5"]
    assert ground.shown(operation_key(JOB, "layout"))["subtasks"] == 1
    ground.run("__rescale", operators={JOB: 2}, max_parallelism=64)
    head = StateEngine(ground.settings.root, spark).checkpoints(JOB)[-1]
    assert (head.operators[0].parallelism, head.operators[0].max_parallelism) == (2, 64)


@pytest.mark.long
def test_a_savepoint_is_a_partition_made_once_and_then_verified(ground: Ground, spark: SparkSession) -> None:
    ground.run()
    key = operation_key(JOB, "savepoints")
    ground.run("__savepoint", partition="before_upgrade", checkpoint_id=2)
    assert ground.versions(key) == ["2"]
    assert (
        StateEngine(ground.settings.root, spark).savepoints(JOB).list()["before_upgrade"].checkpoint_id == 2
    )
    assert ground.versions(CHECKPOINT) == ["1", "2", "3", "4"]  # the row that pins it
    ground.run("__savepoint", partition="before_upgrade")
    assert ground.shown(key)["verified"] is True
    refused = ground.run("__savepoint", partition="before_upgrade", checkpoint_id=3, raise_on_error=False)
    assert "is there already, of checkpoint 2" in failure_of(refused)
    refused = ground.run("__savepoint", partition="No Name", raise_on_error=False)
    assert "No Name" in failure_of(refused)
    assert ground.instance.get_materialized_partitions(key) == {"before_upgrade"}


@pytest.mark.long
def test_retention_keeps_a_week_unless_told_otherwise(ground: Ground, spark: SparkSession) -> None:
    ground.run()
    ground.run("__expire", keep_last=1, keep_hours=0, dry_run=True)
    assert ground.shown(operation_key(JOB, "retention"))["expired"] == [1, 2]
    assert kinds(ground, spark) == ["checkpoint"] * 3
    ground.run("__expire", keep_last=1, keep_hours=0)
    shown = ground.shown(operation_key(JOB, "retention"))
    assert (shown["expired_so_far"], shown["restorable"], shown["files_deleted"]) == (2, 2, 0)
    assert ground.versions(operation_key(JOB, "retention")) == ["0", "4"]


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
    ground: Ground, suffix: str, config: dict[str, Any], message: str
) -> None:
    refused = ground.run(suffix, raise_on_error=False, **config)
    assert not refused.success
    assert message in failure_of(refused)
    assert not (ground.directory / "state").exists()


@pytest.mark.long
def test_compactions_of_a_run_are_versions_in_their_order(
    ground: Ground, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    always = CompactionPolicy(max_ratio=0, min_entries=0)
    monkeypatch.setattr(count_window_average, "StatefulJob", partial(StatefulJob, compaction=always))
    ground.arrive("a", [(key, 1) for key in range(5)])
    ground.run()
    assert kinds(ground, spark) == ["checkpoint", "compaction"] * 3
    assert ground.versions(CHECKPOINT) == ["1", "2", "3", "4", "5", "6"]
    assert ground.versions(operation_key(JOB, "base")) == []
    ground.run("__compact")
    assert ground.versions(operation_key(JOB, "base")) == ["6"]  # and nothing to do
