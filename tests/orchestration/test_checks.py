"""The checks of a job's invariants: they pass on what the engine wrote, and name what was done to it since."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from orchestration.lib.naming import checkpoint_key
from state_engine.core.invariants import Violation
from state_engine.runtime import job_tables
from state_engine.runtime.coordinator import CheckpointCoordinator
from state_engine.runtime.job_audit import RULES
from tests.orchestration.ground import JOB, QUIET, Ground, failure_of

pytestmark = pytest.mark.spark


@pytest.fixture
def ground(tmp_path: Path, spark: SparkSession) -> Iterator[Ground]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Ground(tmp_path, instance)


def check(ground: Ground) -> dict[str, tuple[bool, str]]:
    """Whether each check passed, and what it said."""
    job = ground.defs.resolve_job_def(f"{JOB}__check")
    done = job.execute_in_process(instance=ground.instance, run_config=QUIET, raise_on_error=False)
    found = {e.check_name: (e.passed, e.description or "") for e in done.get_asset_check_evaluations()}
    assert set(found) == {*RULES, "moves_on"}
    return found


def failed(ground: Ground) -> dict[str, str]:
    return {name: told for name, (passed, told) in check(ground).items() if not passed}


def change(file: Path, column: str, by: Callable[[pa.ChunkedArray], pa.ChunkedArray]) -> None:
    table = pq.ParquetFile(file).read()
    at = table.schema.get_field_index(column)
    pq.write_table(table.set_column(at, table.schema.field(at), by(table[column])), file)


def checkpoint(ground: Ground, number: int) -> Path:
    [file] = (ground.table / "checkpoints").glob(f"checkpoint-{number:012d}-*.parquet")
    return file


def test_checks_pass_on_what_the_engine_wrote_and_name_what_was_changed_since(ground: Ground) -> None:
    assert failed(ground) == {}  # a job that never ran breaks no promise
    ground.run()
    assert failed(ground) == {}
    assert check(ground)["files_are_there"][1] == "4 files looked at, as of checkpoint 3"

    [changes] = (ground.table / "operators").rglob("changelog/*/*.parquet")
    whole = changes.read_bytes()
    change(changes, "key_group", lambda groups: pc.add(groups, 1))
    assert "1 of 1 rows are in another key group" in failed(ground)["keys_are_in_their_groups"]
    changes.unlink()
    assert "is gone" in failed(ground)["files_are_there"]
    changes.write_bytes(whole)

    third = checkpoint(ground, 3).read_bytes()
    change(checkpoint(ground, 3), "parent_id", lambda ids: pc.subtract(ids, 1))
    found = failed(ground)
    assert found["one_commit_per_parent"] == "checkpoints [2, 3] all continue 1"
    assert found["positions_are_contiguous"].startswith("checkpoint 3: source 'pairs' starts at")
    checkpoint(ground, 3).write_bytes(third)
    assert failed(ground) == {}


@pytest.mark.long
def test_a_checkpoint_that_was_not_published_is_named(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: CheckpointCoordinator, attempt: object) -> None:
        raise RuntimeError("killed after the commit")

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointCoordinator, "publish", die)
        ground.run(raise_on_error=False)
    assert "sink 'averages'" in failed(ground)["outputs_are_published"]
    ground.run()
    assert failed(ground) == {}


def test_a_commit_that_would_break_an_invariant_is_stopped_and_shown(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [Violation("source positions are contiguous", "a hole"), Violation("counts add up", "2 are 3")]
    with monkeypatch.context() as patched:
        patched.setattr(job_tables, "violations", lambda row, parent, rows: broken)
        done = ground.run(raise_on_error=False)
    assert "InvariantError" in failure_of(done)
    assert not list((ground.table / "checkpoints").glob("checkpoint-*.parquet"))
    names = ["positions_are_contiguous", "rows_fit_their_parents"]
    keys = [dg.AssetCheckKey(checkpoint_key(JOB), name) for name in names]
    latest = ground.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    for key in keys:
        assert latest[key].status.value == "FAILED"
        event = latest[key].event
        assert event is not None
        assert "counts add up: 2 are 3" in event.user_message
    ground.run()
    assert failed(ground) == {}, "nothing of it is in the tables"


def test_a_row_that_cannot_follow_its_parent_is_named(ground: Ground) -> None:
    ground.run()
    change(checkpoint(ground, 2), "clock_ms", lambda old: pa.chunked_array([[1]], pa.int64()))
    assert "checkpoint 2: clock never goes back: clock 1 is below" in failed(ground)["rows_fit_their_parents"]


@pytest.mark.long
def test_checks_block_and_are_no_part_of_the_micro_batch(ground: Ground) -> None:
    keys = {dg.AssetCheckKey(checkpoint_key(JOB), rule) for rule in RULES}
    assert set(ground.defs.resolve_job_def(JOB).graph.node_dict) == {f"{JOB}_micro_batches"}
    found = [c for c in ground.defs.asset_checks or [] if isinstance(c, dg.AssetChecksDefinition)]
    [checks] = [c for c in found if c.node_def.name == f"{JOB}_invariants"]
    assert {spec.key for spec in checks.check_specs} == keys
    assert all(spec.blocking for spec in checks.check_specs)
