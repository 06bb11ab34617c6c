"""The log of a Delta table read without Java: compared with what delta-rs says of the same table, and by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from state_engine.core.errors import DamagedFileError, RootError
from state_engine.storage.delta import log
from state_engine.storage.delta.log import DeltaLog
from state_engine.storage.delta.log_cleanup import clean_log


def add(table: Path, number: int, **options: object) -> None:
    transaction = CommitProperties(app_transactions=[Transaction("writer", number)])
    rows = pa.table({"k": [number], "part": ["a b" if number % 2 else "é%"]})
    write_deltalake(
        str(table),
        rows,
        mode="append",
        partition_by=["part"],
        commit_properties=transaction,
        configuration={"delta.logRetentionDuration": "interval 30 days"} if number == 0 else None,
    )


def same(table: Path) -> None:
    snapshot, expected = DeltaLog(f"file://{table}").newest(), DeltaTable(str(table))
    assert snapshot is not None
    assert snapshot.version == expected.version()
    prefix = str(table) + "/"
    assert {prefix + path for path in snapshot.files} == {
        str(uri).removeprefix("file://") for uri in expected.file_uris()
    }
    assert snapshot.transactions == {"writer": expected.transaction_version("writer")}
    assert snapshot.table_id == str(expected.metadata().id)
    assert snapshot.properties == {"delta.logRetentionDuration": "interval 30 days"}


def test_where_there_is_no_table_there_is_no_log(tmp_path: Path) -> None:
    assert DeltaLog(f"file://{tmp_path}/none").newest() is None


def test_a_log_with_removals_is_read_with_and_without_a_log_checkpoint(tmp_path: Path) -> None:
    for number in range(4):
        add(tmp_path / "t", number)
    same(tmp_path / "t")
    DeltaTable(str(tmp_path / "t")).delete("k = 2")
    same(tmp_path / "t")
    DeltaTable(str(tmp_path / "t")).create_checkpoint()
    for version in range(3):  # log clean-up
        (tmp_path / "t" / "_delta_log" / f"{version:020d}.json").unlink()
    same(tmp_path / "t")
    add(tmp_path / "t", 9)
    DeltaTable(str(tmp_path / "t")).delete("k = 0")
    same(tmp_path / "t")


def test_a_gap_in_the_log_is_an_error(tmp_path: Path) -> None:
    for number in range(3):
        add(tmp_path / "t", number)
    (tmp_path / "t" / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(RootError, match="version 1 is not in the table's log"):
        DeltaLog(f"file://{tmp_path}/t").newest()


def entry(table: Path, version: int, *actions: dict[str, Any]) -> Path:
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    file = log / f"{version:020d}.json"
    file.write_text("".join(json.dumps(action) + "\n" for action in actions))
    return file


def written(app: str, version: int, name: str, *, gone: str | None = None) -> list[dict[str, Any]]:
    removes = [] if gone is None else [{"remove": {"path": gone, "deletionTimestamp": 1}}]
    add = {"path": name, "size": 7}
    return [
        {"commitInfo": {"operation": "WRITE"}},
        {"txn": {"appId": app, "version": version}},
        {"add": add},
        *removes,
    ]


def test_every_question_is_answered_without_an_entry_that_is_cut(tmp_path: Path) -> None:
    entry(tmp_path, 0, *written("a", 1, "one%20file"))
    entry(tmp_path, 1, *written("a", 2, "two", gone="one%20file"))
    cut = entry(tmp_path, 2, *written("b", 1, "three", gone="two"))
    log = DeltaLog(tmp_path.as_uri())
    newest = log.newest()
    assert newest is not None
    assert (newest.version, set(newest.files), dict(newest.transactions)) == (2, {"three"}, {"a": 2, "b": 1})
    assert (log.writers(), log.removed_since(0)) == ({"a", "b"}, {"one file", "two"})
    assert log.transaction("b", 1) == log.commit(2)

    cut.write_bytes(cut.read_bytes()[:-9])
    log = DeltaLog(tmp_path.as_uri())
    newest = log.newest()
    assert newest is not None
    assert (newest.version, set(newest.files), dict(newest.transactions)) == (1, {"two"}, {"a": 2})
    assert (log.writers(), log.removed_since(0)) == ({"a"}, {"one file"})
    assert log.transaction("b", 1) is None
    with pytest.raises(DamagedFileError, match="is empty or cut"):
        log.commit(2)


def test_files_are_listed_by_entries_that_are_few_and_all_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        add(tmp_path, number)
    DeltaTable(str(tmp_path)).delete("k = 1")

    def files(version: int) -> list[str] | None:
        actions = DeltaLog(tmp_path.as_uri()).files_at(version)
        return None if actions is None else [unquote(action["path"]) for action in actions]

    for version in range(4):
        expected = DeltaTable(str(tmp_path), version=version).file_uris()
        assert sorted(f"{tmp_path}/{path}" for path in files(version) or ()) == sorted(
            uri.removeprefix("file://") for uri in expected
        )
    assert files(4) is None
    for bound, least in (("_FEW_ENTRIES", 3), ("_FEW_BYTES", 200)):
        with monkeypatch.context() as patch:
            patch.setattr(log, bound, least)
            assert files(3) is None
    (tmp_path / "_delta_log" / f"{1:020d}.json").unlink()
    assert files(0) is not None
    assert files(3) is None


def test_a_file_is_removed_however_the_one_who_removes_it_writes_its_path(tmp_path: Path) -> None:
    adds = [
        {"add": {"path": path, "size": 1}}
        for path in ("part=%C3%A9%25/a.parquet", "part=a%20b/b.parquet", "c.parquet")
    ]
    entry(tmp_path, 0, *adds)
    entry(
        tmp_path, 1, {"remove": {"path": "part=é%25/a.parquet"}}, {"remove": {"path": "part=a b/b.parquet"}}
    )
    left = DeltaLog(tmp_path.as_uri()).files_at(1)
    assert left == [{"path": "c.parquet", "size": 1}]
    (tmp_path / "_delta_log" / f"{1:020d}.json").write_text('{"remove":{"pa')
    assert DeltaLog(tmp_path.as_uri()).files_at(1) is None


def test_an_entry_that_is_cut_in_the_middle_of_a_log_is_an_error(tmp_path: Path) -> None:
    cut = entry(tmp_path, 0, *written("a", 1, "one"))
    entry(tmp_path, 1, *written("a", 2, "two"))
    cut.write_bytes(cut.read_bytes()[:-9])
    log = DeltaLog(tmp_path.as_uri())
    for ask in (log.newest, log.writers, lambda: log.removed_since(0), lambda: log.transaction("a", 1)):
        with pytest.raises(DamagedFileError, match="is empty or cut"):
            ask()
    assert log.transaction("a", 2) == log.commit(1)


def test_what_an_entry_says(tmp_path: Path) -> None:
    note = {"commitInfo": {"operation": "MERGE", "userMetadata": "w1"}}
    add = {"add": {"path": "k=1/a%20b", "size": 5, "dataChange": False}}
    entry(tmp_path, 0, note, add, {"remove": {"path": "c", "dataChange": False}})
    commit = DeltaLog(tmp_path.as_uri()).commit(0)
    assert (commit.added, commit.removed, commit.sizes) == ({"k=1/a b"}, {"c"}, {"k=1/a b": 5})
    assert (commit.operation, commit.note, commit.changes_data) == ("MERGE", "w1", False)
    assert DeltaLog((tmp_path / "none").as_uri()).transaction("a", 1) is None
    assert DeltaLog((tmp_path / "none").as_uri()).writers() == set()


def test_writers_are_known_from_log_checkpoints_of_any_kind(tmp_path: Path) -> None:
    entry(tmp_path, 3, *written("new", 1, "x"))
    log = tmp_path / "_delta_log"
    transactions = pa.array(
        [{"appId": "old", "version": 4}, None], pa.struct([("appId", pa.string()), ("version", pa.int64())])
    )
    pq.write_table(pa.table({"txn": transactions}), log / f"{1:020d}.checkpoint.parquet")
    assert DeltaLog(tmp_path.as_uri()).writers() == {"old", "new"}
    name = f"{2:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (log / name).write_text(json.dumps({"txn": {"appId": "newer", "version": 1}}) + "\n")
    assert DeltaLog(tmp_path.as_uri()).writers() == {"newer", "new"}


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


def log_with(table: Path, at_s: int, *names: str) -> Path:
    log = table / "_delta_log"
    log.mkdir(exist_ok=True)
    for name in names:
        (log / name).touch()
        os.utime(log / name, (at_s, at_s))
    return log


def commits(versions: range, kind: str = "json") -> list[str]:
    return [f"{v:020d}.{kind}" for v in versions]


def checkpoint(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def test_only_what_an_old_log_checkpoint_stands_for_goes(tmp_path: Path) -> None:
    log_with(tmp_path, 100, *commits(range(11)), checkpoint(10))
    log_with(tmp_path, 200, *commits(range(11, 21)), checkpoint(20))
    log = log_with(
        tmp_path, 300, *commits(range(21, 33)), checkpoint(30), "_last_checkpoint", "x.json", "7.json"
    )
    assert clean_log(f"file://{tmp_path}", keep_ms=200_000) == 0
    assert clean_log(f"file://{tmp_path}", keep_ms=100_000) == 10, "10 can be read, as the versions after it"
    assert clean_log(f"file://{tmp_path}", keep_ms=0) == 11
    kept = [*commits(range(20, 33)), checkpoint(20), checkpoint(30), "_last_checkpoint", "x.json", "7.json"]
    assert sorted(f.name for f in log.iterdir()) == sorted(kept)
    assert clean_log(f"file://{tmp_path}", keep_ms=0) == 0


def test_checksums_before_the_newest_log_checkpoint_go(tmp_path: Path) -> None:
    names = [*commits(range(23), "crc"), *commits(range(23)), checkpoint(10), checkpoint(20)]
    log = log_with(tmp_path, 100, *names)
    assert clean_log(f"file://{tmp_path}", keep_ms=1) == 20
    assert sorted(f.name for f in log.glob("*.crc")) == commits(range(20, 23), "crc")
    assert len(list(log.iterdir())) == 23 + 3 + 2, "all else stays"


def test_a_log_checkpoint_that_is_not_whole_does_not_count(tmp_path: Path) -> None:
    part = f"{10:020d}.checkpoint.{1:010d}.{2:010d}.parquet"
    log = log_with(tmp_path, 100, *commits(range(12)), *commits(range(12), "crc"), part)
    log_with(tmp_path, 200, "_last_checkpoint")
    assert clean_log(f"file://{tmp_path}", keep_ms=0) == 0
    log_with(tmp_path, 100, f"{10:020d}.checkpoint.{2:010d}.{2:010d}.parquet")
    assert clean_log(f"file://{tmp_path}", keep_ms=0) == 20
    assert len(list(log.iterdir())) == 2 + 2 + 2 + 1


def test_without_a_table_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert clean_log(f"file://{tmp_path}/none", keep_ms=1) == 0
