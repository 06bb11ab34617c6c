"""The log of a Delta table read without Java, compared with what delta-rs says of the same table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from state_engine.core.errors import RootError
from state_engine.storage.delta.log_reader import read_log


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
    found, expected = read_log(f"file://{table}"), DeltaTable(str(table))
    assert found is not None
    assert found.version == expected.version()
    prefix = str(table) + "/"
    assert {prefix + path for path in found.files} == {
        str(uri).removeprefix("file://") for uri in expected.file_uris()
    }
    assert found.transactions == {"writer": expected.transaction_version("writer")}
    assert found.table_id == str(expected.metadata().id)
    assert found.properties == {"delta.logRetentionDuration": "interval 30 days"}


def test_where_there_is_no_table_there_is_no_log(tmp_path: Path) -> None:
    assert read_log(f"file://{tmp_path}/none") is None


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
        read_log(f"file://{tmp_path}/t")
