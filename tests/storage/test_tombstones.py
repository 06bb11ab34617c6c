"""Which files left a table a short while ago, from its log."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from state_engine.storage.delta.log import DeltaLog


def commit(table: Path, version: int, at_ms: int, *actions: dict[str, object]) -> None:
    log = table / "_delta_log"
    log.mkdir(exist_ok=True)
    file = log / f"{version:020d}.json"
    file.write_text("".join(json.dumps(action) + "\n" for action in actions))
    os.utime(file, (at_ms / 1000, at_ms / 1000))


def removal(path: str, at_ms: int | None) -> dict[str, object]:
    stamp = {} if at_ms is None else {"deletionTimestamp": at_ms}
    return {"remove": {"path": path, **stamp}}


def test_removals_are_reported_until_they_are_old(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}"
    assert DeltaLog(uri).removed_since(0) == set(), "no table, no removals"
    commit(tmp_path, 0, 1_000_000, {"add": {"path": "a"}}, removal("write_id=1/a%20b", 999_990))
    commit(tmp_path, 1, 2_000_000, removal("c", 2_000_000), removal("d", 1_500_000), removal("e", None))
    (tmp_path / "_delta_log" / "_last_checkpoint").write_text("{}")
    assert DeltaLog(uri).removed_since(0) == {"write_id=1/a b", "c", "d", "e"}
    assert DeltaLog(uri).removed_since(1_000_001) == {"c", "d", "e"}
    assert DeltaLog(uri).removed_since(2_000_000) == {"c", "d", "e"}
    assert DeltaLog(uri).removed_since(2_000_001) == set()


def test_the_clock_of_who_removed_files_does_not_matter(tmp_path: Path) -> None:
    days = 2 * 24 * 3_600_000
    commit(tmp_path, 0, 10 * days, removal("behind", 9 * days), removal("ahead", 11 * days))
    assert DeltaLog(f"file://{tmp_path}").removed_since(10 * days) == {"behind", "ahead"}
    assert DeltaLog(f"file://{tmp_path}").removed_since(10 * days + 1) == set()


def test_commits_from_before_that_time_are_not_even_read(tmp_path: Path) -> None:
    commit(tmp_path, 0, 1_000_000)
    (tmp_path / "_delta_log" / f"{0:020d}.json").write_text("{ damaged")
    os.utime(tmp_path / "_delta_log" / f"{0:020d}.json", (1_000, 1_000))
    assert DeltaLog(f"file://{tmp_path}").removed_since(1_000_001) == set()


def test_removals_whose_commits_were_cleaned_up_are_in_the_log_checkpoint(tmp_path: Path) -> None:
    commit(tmp_path, 3, 2_000_000, removal("d", 2_000_000))
    removed = [
        {"path": "write_id=1/a%20b", "deletionTimestamp": 999_990},
        {"path": "c", "deletionTimestamp": None},
        None,
    ]
    kind = pa.struct([("path", pa.string()), ("deletionTimestamp", pa.int64())])
    table = pa.table({"remove": pa.array(removed, kind)})
    pq.write_table(table, tmp_path / "_delta_log" / f"{2:020d}.checkpoint.parquet")
    assert DeltaLog(f"file://{tmp_path}").removed_since(0) == {"write_id=1/a b", "d"}
    assert DeltaLog(f"file://{tmp_path}").removed_since(999_990) == {"d"}
