"""Files of the table of checkpoints: a row is read only if it is the one that was committed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.checkpoints.checkpoint import ROW_TYPE, CheckpointRow
from state_engine.core.errors import DamagedFileError
from state_engine.storage.checkpoint_files import (
    checkpoints_in,
    plain_rows,
    read_checkpoints,
    read_rows,
    with_digests,
    write_rows,
)
from state_engine.storage.layout import CHECKPOINTS_SCHEMA
from state_engine.storage.row_digest import is_intact
from state_engine.storage.stores.files import write_parquet
from tests.core.checkpoints.histories import History, histories
from tests.core.checkpoints.rows import changes, checkpoint, operator

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
    """Another value of the same type."""
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
