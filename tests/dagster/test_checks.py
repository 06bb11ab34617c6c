"""The checks of a job's invariants pass on the rows that the engine wrote, and name later changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from state_engine.core.checkpoints.invariants import Violation
from state_engine.dagster.naming import checkpoint_key
from state_engine.microbatch.coordinator import CheckpointCoordinator
from state_engine.monitoring.job_audit import RULES
from state_engine.storage import checkpoint_log
from state_engine.storage.checkpoint_files import plain_rows, with_digests
from state_engine.storage.stores.files import write_parquet
from tests.dagster.sites import JOB, QUIET, Site, failure_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


def check(site: Site) -> dict[str, tuple[bool, str]]:
    """By check: whether it passed, and its description."""
    job = site.defs.resolve_job_def(f"{JOB}__check")
    done = job.execute_in_process(instance=site.instance, run_config=QUIET, raise_on_error=False)
    evaluations = {e.check_name: (e.passed, e.description or "") for e in done.get_asset_check_evaluations()}
    assert set(evaluations) == {*RULES, "moves_on", "dead_letters", "plan"}
    return evaluations


def failed(site: Site) -> dict[str, str]:
    return {name: shown for name, (passed, shown) in check(site).items() if not passed}


def change_row(site: Site, number: int, by: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
    """Change a committed row, as a defect of the engine would have written it; returns the undo."""
    uri = str(site.table / "checkpoints")
    before = DeltaTable(uri).to_pyarrow_table()
    rows = plain_rows(before)
    by(next(row for row in rows if row["checkpoint_id"] == number))
    changed = with_digests(pa.Table.from_pylist(rows, schema=before.schema))
    write_deltalake(uri, changed, mode="overwrite")
    return lambda: write_deltalake(uri, before, mode="overwrite")


def test_the_check_of_the_deployed_code_warns_of_a_replay(site: Site) -> None:
    site.run()
    assert check(site)["plan"] == (True, f"{JOB}: same, compared with checkpoint 3 (5 same)")

    def by_other_code(row: dict[str, Any]) -> None:
        row["declared"] = re.sub(r'"code": "[0-9a-f]+"', '"code": "0"', row["declared"])

    change_row(site, 3, by_other_code)
    assert re.match(rf"{JOB}: replay, compared with checkpoint 3 \(", failed(site)["plan"])


def test_checks_pass_on_what_the_engine_wrote_and_name_what_was_changed_since(site: Site) -> None:
    assert failed(site) == {}  # a job that never ran breaks no promise
    site.run()
    assert failed(site) == {}
    assert check(site)["files_are_there"][1] == "4 files looked at, as of checkpoint 3"

    [changes] = (site.table / "operators").rglob("changelog/*/*.parquet")
    whole = changes.read_bytes()
    table = pq.ParquetFile(changes).read()
    groups = table.schema.get_field_index("key_group")
    table = table.set_column(groups, table.schema.field(groups), pc.add(table["key_group"], 1))
    written = write_parquet(table, f"file://{changes}")
    assert "is damaged" in failed(site)["keys_are_in_their_groups"]

    def as_written(row: dict[str, Any]) -> None:
        for operator in row["operators"]:
            for file in operator["changelog"]:
                if changes.name in file["path"]:
                    file |= {"bytes": written.bytes, "footer": written.footer}

    puts_back = [change_row(site, number, as_written) for number in (1, 2, 3)]
    assert "1 of 1 row is in another key group" in failed(site)["keys_are_in_their_groups"]
    puts_back[0]()
    changes.unlink()
    assert "is gone" in failed(site)["files_are_there"]
    changes.write_bytes(whole)

    put_back = change_row(site, 3, lambda row: row.update(parent_id=row["parent_id"] - 1))
    failures = failed(site)
    assert failures["one_commit_per_parent"] == "checkpoints [2, 3] all continue 1"
    assert failures["positions_are_contiguous"].startswith("checkpoint 3: source 'pairs' starts at")
    put_back()
    assert failed(site) == {}


@pytest.mark.long
def test_a_checkpoint_that_was_not_published_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(self: CheckpointCoordinator, attempt: object) -> None:
        raise RuntimeError("killed after the commit")

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointCoordinator, "publish", die)
        site.run(raise_on_error=False)
    assert "sink 'averages'" in failed(site)["outputs_are_published"]
    site.run()
    assert failed(site) == {}


def test_a_commit_that_would_break_an_invariant_is_stopped_and_shown(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [Violation("source positions are contiguous", "a hole"), Violation("counts add up", "2 are 3")]
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_log, "violations", lambda row, parent, rows: broken)
        done = site.run(raise_on_error=False)
    assert "InvariantError" in failure_of(done)
    assert not list((site.table / "checkpoints").glob("checkpoint-*.parquet"))
    names = ["positions_are_contiguous", "rows_fit_their_parents"]
    keys = [dg.AssetCheckKey(checkpoint_key(JOB), name) for name in names]
    latest = site.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    for key in keys:
        assert latest[key].status.value == "FAILED"
        event = latest[key].event
        assert event is not None
        assert "counts add up: 2 are 3" in event.user_message
    site.run()
    assert failed(site) == {}, "nothing of it is in the tables"


def test_a_row_that_cannot_follow_its_parent_is_named(site: Site) -> None:
    site.run()
    change_row(site, 2, lambda row: row.update(clock_ms=1))
    assert "checkpoint 2: clock never goes back: clock 1 is below" in failed(site)["rows_fit_their_parents"]


@pytest.mark.long
def test_checks_block_and_are_no_part_of_the_micro_batch(site: Site) -> None:
    keys = {dg.AssetCheckKey(checkpoint_key(JOB), rule) for rule in RULES}
    assert set(site.defs.resolve_job_def(JOB).graph.node_dict) == {f"{JOB}_micro_batches"}
    asset_checks = [c for c in site.defs.asset_checks or [] if isinstance(c, dg.AssetChecksDefinition)]
    [checks] = [c for c in asset_checks if c.node_def.name == f"{JOB}_invariants"]
    assert {spec.key for spec in checks.check_specs} == keys
    assert all(spec.blocking for spec in checks.check_specs)
