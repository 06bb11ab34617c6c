"""The one write path for state without input: what a task makes of a producer's rows, without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.errors import InvalidKeyError, ValueTypeError
from state_engine.core.state.descriptors import ValueStateDescriptor
from state_engine.core.state.evolution import recorded_schema
from state_engine.core.state.state_table import CLEAR, PUT
from state_engine.core.types.types_namespace import Types
from state_engine.spark.tasks import TaskAttempt
from state_engine.state_processor import entry_writer
from state_engine.state_processor.entry_writer import Counts, check_given
from state_engine.storage.state.base import BaseSpec
from state_engine.storage.state.changelog_write import in_file_order

GROUPS = 8
TOTAL = recorded_schema(ValueStateDescriptor("total", Types.INT()))
KEY = pa.struct([("k", pa.int64())])


def spec(directory: Path) -> BaseSpec:
    return BaseSpec(KEY, (TOTAL,), GROUPS, uri=f"file://{directory}", base_id="w" * 32)


def rows(count: int, **columns: Any) -> pa.Table:
    """Puts of one key after the other, the key its own hash, sorted by key group as Spark sends them."""
    hashes = np.arange(count)
    table = pa.table(
        {
            "key": pa.array([{"k": int(k)} for k in hashes], KEY),
            "key_hash": pa.array(hashes),
            "state": ["total"] * count,
            "op": [PUT] * count,
            "updated_at": pa.nulls(count, pa.timestamp("us", "UTC")),
            "why": pa.nulls(count, pa.string()),
            "v_total": pa.array(hashes * 10),
            "key_group": pa.array(np.mod(hashes, GROUPS)),
        }
    )
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, [values])
    return table.take(pa.array(np.argsort(table["key_group"].to_numpy(), kind="stable")))


def counted(seen: list[set[int]], table: pa.Table) -> Counts:
    """A producer's check that records which key groups it gets in one call."""
    check_given((TOTAL,), table)
    seen.append(set(table["key_group"].to_pylist()))
    return Counter({("total", "added"): table.num_rows})


def write(
    directory: Path, table: pa.Table, *, is_base: bool, at_once: int = 3, held: int = 200_000
) -> tuple[list[DataFile], list[set[int]]]:
    seen: list[set[int]] = []
    batches: Iterator[pa.RecordBatch] = iter(table.to_batches(max_chunksize=at_once))
    report = entry_writer._write(
        spec(directory), partial(counted, seen), is_base, False, batches, TaskAttempt(2, 5), at_once=held
    )
    assert report["counts"] == [["total", "added", table.num_rows]]
    return report["files"], seen


@pytest.mark.parametrize("is_base", [True, False])
def test_producers_see_whole_key_groups(tmp_path: Path, is_base: bool) -> None:
    files, seen = write(tmp_path, rows(40), is_base=is_base, held=4)
    assert len(seen) > 1
    assert sorted(g for groups in seen for g in groups) == list(range(GROUPS))
    assert len({f.path for f in files}) == len(files) == (GROUPS if is_base else len(seen))
    assert sum(f.rows for f in files) == 40


def test_changes_are_in_the_order_of_a_changelog(tmp_path: Path) -> None:
    later = rows(16, op=pa.array([CLEAR if k % 2 else PUT for k in range(16)]))
    again = pa.concat_tables([rows(16), later])  # a put of a key comes in front of its clear
    mixed = again.take(pa.array(np.argsort(again["key_group"].to_numpy(), kind="stable")))
    (file,), _ = write(tmp_path, mixed, is_base=False, at_once=100)
    stored = pq.read_table(tmp_path / file.path, partitioning=None)
    assert stored == in_file_order(stored)
    first = [i for i, op in enumerate(stored["op"].to_pylist()) if op == CLEAR]
    assert all(i == 0 or stored["key"][i - 1] != stored["key"][i] for i in first)
    assert (file.key_group_min, file.key_group_max) == (0, GROUPS - 1)
    assert (file.key_hash_min, file.key_hash_max) == (0, 15)
    assert (file.rows, file.subtask) == (32, 2)


def test_entries_that_stay_are_counted_and_not_written(tmp_path: Path) -> None:
    some = rows(8, op=pa.array([None, PUT] * 4, pa.string()))
    (file,), _ = write(tmp_path, some, is_base=False)
    assert file.rows == 4
    assert write(tmp_path, rows(8, op=pa.nulls(8, pa.string())), is_base=False)[0] == []


@pytest.mark.parametrize("is_base", [True, False])
def test_what_is_refused_is_named(tmp_path: Path, is_base: bool) -> None:
    why = ["the key 'k' is null" if k == 3 else None for k in range(8)]
    with pytest.raises(InvalidKeyError, match=r"state 'total': the key 'k' is null, for the key {'k': 3}"):
        write(tmp_path, rows(8, why=pa.array(why)), is_base=is_base)
    with pytest.raises(ValueTypeError, match=r"state 'total': 'value' is null, for the key {'k': 0}"):
        write(tmp_path, rows(8, why=pa.array(["'value' is null"] * 8)), is_base=is_base)
    wide = pc.multiply(pa.array(range(8)), 2**40)
    with pytest.raises(ValueTypeError, match="state 'total': a value is not of the declared type"):
        write(tmp_path, rows(8, v_total=wide), is_base=is_base)
    assert not list(tmp_path.rglob("*.parquet"))
