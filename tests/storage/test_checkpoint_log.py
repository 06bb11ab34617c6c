"""Rows of checkpoints: files of many rows replace many files, and a row is read only as it was committed."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.checkpoints.checkpoint import ROW_TYPE, CheckpointRow
from state_engine.core.checkpoints.updates import AddCheckpoint, NewestIs
from state_engine.core.checkpoints.write_ids import write_id_at
from state_engine.core.errors import CommitFailedError, DamagedFileError, StaleParentError
from state_engine.storage.checkpoint_files import (
    checkpoints_in,
    plain_rows,
    read_checkpoints,
    read_rows,
    with_digests,
    write_rows,
)
from state_engine.storage.checkpoint_log import CheckpointLog
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.layout import CHECKPOINTS_SCHEMA, JobLayout
from state_engine.storage.row_digest import is_intact
from state_engine.storage.stores.files import write_parquet
from tests.core.checkpoints.histories import History, histories
from tests.core.checkpoints.rows import changes, checkpoint, operator

TOGETHER = 4


def append(log: CheckpointLog, row: CheckpointRow) -> None:
    log.commit([AddCheckpoint(row)], NewestIs(row.checkpoint_id - 1))


class Table:
    """A table of checkpoints, and logs on it as other processes would have them."""

    def __init__(self, directory: Path, kernel: DeltaKernel) -> None:
        self.kernel, self.layout = kernel, JobLayout(f"file://{directory}", "job")
        self.directory = directory / "job" / "checkpoints"
        self.log().create()

    def log(self) -> CheckpointLog:
        return CheckpointLog(self.kernel, self.layout, "root", merged_files=TOGETHER)

    def grow(self, log: CheckpointLog, first: int, last: int) -> None:
        log.load()
        for i in range(first, last + 1):
            part = operator(changes(0, (0, 63), rows=i), changes(1, (64, 127)))
            append(log, checkpoint(i, i - 1 or None, operators=[part], metrics={"n": float(i)}))

    def files(self) -> list[str]:
        return sorted(uri.rsplit("/", 1)[-1][:14] for uri in DeltaTable(str(self.directory)).file_uris())


@pytest.fixture
def table(tmp_path: Path, kernel: DeltaKernel) -> Table:
    return Table(tmp_path, kernel)


def test_rows_are_the_same_in_fewer_files(table: Table) -> None:
    mine, beside = table.log(), table.log()
    table.grow(mine, 1, 3)
    assert mine.merge() == 0
    beside.load()
    rows = 3
    for merged in (4, 4, 4, 4 + 4):  # the fourth time, four merged files are merged, too
        table.grow(mine, rows + 1, rows + TOGETHER)
        rows += TOGETHER
        assert mine.merge() >= merged
        assert mine.load() == beside.load() == table.log().load()
        assert sorted(mine.history) == list(range(1, rows + 1))
    assert table.files() == ["checkpoints-2-"]
    assert mine.merge() == 0
    table.grow(beside, rows + 1, rows + 1)
    assert mine.load() == table.log().load()
    assert len(table.files()) == 2


def test_of_two_that_merge_one_does_and_rows_that_come_meanwhile_stay(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, rival = table.log(), table.log()
    table.grow(mine, 1, TOGETHER)
    rival.load()
    change = DeltaKernel.change

    def overtaken(self: DeltaKernel, uri: str, **options: Any) -> int:
        monkeypatch.setattr(DeltaKernel, "change", change)
        assert rival.merge() == TOGETHER
        table.grow(rival, TOGETHER + 1, TOGETHER + 1)
        return change(self, uri, **options)

    monkeypatch.setattr(DeltaKernel, "change", overtaken)
    assert mine.merge() == 0
    assert mine.load() == rival.load() == table.log().load()
    assert sorted(mine.load()) == [1, 2, 3, 4, 5]
    assert table.files() == ["checkpoint-000", "checkpoints-1-"]


def began(hours_ago: float) -> str:
    return write_id_at(time.time_ns() // 1_000_000 - int(hours_ago * 3_600_000), uuid4().int)


def test_late_and_overtaken_rows_have_their_files_looked_at_and_old_ones_are_refused(table: Table) -> None:
    seen: list[int] = []
    log = CheckpointLog(table.kernel, table.layout, "root", verify=lambda row: seen.append(row.checkpoint_id))
    append(log, checkpoint(1, write_id=began(0.9)))
    assert seen == []
    append(log, checkpoint(2, 1, write_id=began(1.1)))
    assert seen == [2], "late"

    table.grow(table.log(), 3, 3)
    mine = began(0)
    with pytest.raises(StaleParentError):
        append(log, checkpoint(3, 2, write_id=mine))
    append(log, checkpoint(4, 3, write_id=mine))
    assert seen == [2, 4], "overtaken"
    append(log, checkpoint(5, 4, write_id=began(0)))
    assert seen == [2, 4]

    with pytest.raises(CommitFailedError, match=r"began 12\.1 hours ago"):
        append(log, checkpoint(6, 5, write_id=began(12.1)))

    def gone(_: object) -> None:
        raise CommitFailedError("its files are gone")

    late = CheckpointLog(table.kernel, table.layout, "root", verify=gone)
    late.load()
    with pytest.raises(CommitFailedError, match="its files are gone"):
        append(late, checkpoint(6, 5, write_id=began(2)))
    assert sorted(table.log().load()) == [1, 2, 3, 4, 5]


def test_a_merge_that_breaks_off_loses_nothing(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = table.log()
    table.grow(mine, 1, TOGETHER)

    def fails(*_: Any, **__: Any) -> int:
        raise CommitFailedError("the storage does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaKernel, "change", fails)
        with pytest.raises(CommitFailedError):
            mine.merge()
    assert sorted(table.log().load()) == [1, 2, 3, 4]
    assert mine.merge() == TOGETHER
    assert mine.load() == table.log().load()


ROWS = [
    checkpoint(i, i - 1 or None, operators=[operator(changes(0, (0, 63)))], metrics={"n": i / 3, "m": 1.0})
    for i in (1, 2, 3)
]


def table_of(rows: list[CheckpointRow]) -> pa.Table:
    batch = pa.RecordBatch.from_struct_array(ROW_TYPE.to_arrow(rows, storage=True))
    return with_digests(pa.Table.from_batches([batch], CHECKPOINTS_SCHEMA))


def test_rows_come_back_from_a_file_that_its_name_vouches_for(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/checkpoints"
    file = write_rows(table_of(ROWS), uri, "checkpoint-000000000001-w", write=write_parquet)
    assert file.path == f"checkpoint-000000000001-w.{file.footer:08x}.parquet"
    checkpoints = checkpoints_in(read_rows(uri, file.path), where=uri)
    assert [replace(row, digest="") for row in checkpoints] == ROWS
    assert all(len(row.digest) == 64 for row in checkpoints)

    path = tmp_path / "checkpoints" / file.path
    content = bytearray(path.read_bytes())
    content[-20] ^= 4
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"rows of checkpoints: .*its footer is not the one"):
        read_rows(uri, file.path)


def test_files_that_others_wrote_are_read_beside_ours(tmp_path: Path) -> None:
    """``OPTIMIZE`` keeps no Arrow schema, and its time stamps have another unit."""
    uri = f"file://{tmp_path}/checkpoints"
    ours = [
        write_rows(table_of([row]), uri, f"ours-{row.checkpoint_id}", write=write_parquet) for row in ROWS[1:]
    ]
    pq.write_table(
        table_of(ROWS[:1]),
        tmp_path / "checkpoints" / "part-0.parquet",
        store_schema=False,
        use_deprecated_int96_timestamps=True,
    )
    rows = read_checkpoints(uri, ["part-0.parquet", *(file.path for file in ours)])
    assert [replace(row, digest="") for row in rows] == ROWS
    assert read_checkpoints(uri, []) == []


@settings(max_examples=20)
@given(histories())
def test_any_row_keeps_its_digest_through_a_file_and_other_orders_of_columns(history: History) -> None:
    table = table_of(list(history.rows.values()))
    assert all(map(is_intact, plain_rows(table.select(sorted(table.column_names, reverse=True)))))
    loaded = [replace(row, digest="") for row in checkpoints_in(table, where="here")]
    assert loaded == list(history.rows.values())


@settings(max_examples=50)
@given(st.data())
def test_a_row_with_any_other_value_is_refused(data: st.DataObject) -> None:
    rows = plain_rows(table_of(ROWS))
    row = rows[data.draw(st.integers(0, 2))]
    name = data.draw(st.sampled_from([n for n in row if n != "digest"]))
    none_of_a_map = (
        not row[name] and name == "kept_states" and pa.types.is_map(CHECKPOINTS_SCHEMA.field(name).type)
    )
    row[name] = {"uid": ["state"]} if none_of_a_map else other(row[name])
    damaged = pa.Table.from_pylist(rows, schema=CHECKPOINTS_SCHEMA)
    with pytest.raises(DamagedFileError, match=r"the row of checkpoint .* of job '.*': here is damaged: its"):
        checkpoints_in(damaged, where="here")


def other(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case str():
            return value + "x"
        case int() | float():
            return value + 1
        case None:
            return 5
        case [first, *rest] if isinstance(first, dict):
            return [first | {"uid": "other"}, *rest] if "uid" in first else rest
        case dict():
            return {"other": 3}
        case list():
            return None
    return value.replace(year=2020)


def test_a_row_without_its_digest_is_refused() -> None:
    rows = [row | {"digest": ""} for row in plain_rows(table_of(ROWS))]
    with pytest.raises(DamagedFileError, match="its digest is not that of its content"):
        checkpoints_in(pa.Table.from_pylist(rows, schema=CHECKPOINTS_SCHEMA), where="here")
