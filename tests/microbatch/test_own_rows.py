"""``OwnRows``: what a subtask reads itself is in total order, whoever would have read which part of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from state_engine.core.keys.key_arrays import hash_columns, key_groups_of
from state_engine.core.keys.key_groups import subtask_for_key_group
from state_engine.microbatch.routing.own_rows import OwnInput, OwnRows
from state_engine.microbatch.routing.routed import HASH, SUBTASK
from state_engine.microbatch.routing.routed_columns import Edge, EdgeKey
from state_engine.microbatch.routing.routing import nothing_new
from state_engine.sources.rows import Read
from state_engine.sources.stream_columns import Constant, Taken

GROUPS, FILES, ROWS = 12, 5, 40


def file(number: int) -> pa.Table:
    """The rows of a file; only the first one has no number."""
    numbers = pa.repeat(pa.scalar(number or None, pa.int32()), ROWS)
    places = np.arange(ROWS)
    return pa.table({"file": numbers, "row": pa.array(places), "k": pa.array((places * 7 + number) % 50)})


def read(task: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Two tasks read a file each in turn, as they do where files are of one size."""
    for number in range(task, FILES, 2):
        yield from file(number).select(list(columns)).to_batches()


def own_rows_of(
    read: Read, tasks: int, order: dict[str, pa.DataType], *, parallelism: int, at_once: int
) -> OwnRows:
    """Rows with these order columns and a key."""
    key = EdgeKey(("k",), ("k",), refusals=False, selected=False)
    taken = {name: Taken(name) for name in order}
    edge = Edge(tuple(taken.items()), tuple(taken), Constant(None, pa.string()), key, everywhere=False)
    layout = replace(nothing_new(1, event_time=False).layout, order=tuple(order))
    empty = pa.schema([*order.items(), ("k", pa.int64()), (HASH, pa.int64())]).empty_table()
    return OwnRows([OwnInput(read, tasks, edge)], empty, layout, parallelism, GROUPS, at_once)


@pytest.mark.parametrize("at_once", [7, ROWS, 2**16])
@pytest.mark.parametrize("subtask", [0, 1])
def test_each_subtask_reads_its_rows_in_order(
    at_once: int, subtask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = own_rows_of(read, 2, {"file": pa.int32(), "row": pa.int64()}, parallelism=2, at_once=at_once).of(
        subtask
    )

    every = pa.concat_tables(map(file, range(FILES)))
    groups = key_groups_of(hash_columns([every["k"].combine_chunks()]), GROUPS).tolist()
    own = [subtask_for_key_group(GROUPS, 2, group) == subtask for group in groups]
    expected = every.filter(pa.array(own))
    if at_once > ROWS:  # several files of a task are routed together, and what they hold is sorted later
        assert sorted(rows["row"].to_pylist()) == sorted(expected["row"].to_pylist())
    else:
        assert rows.select(expected.column_names).to_pylist() == expected.to_pylist()
    assert set(rows[SUBTASK].to_pylist()) == {subtask}
    assert {column.num_chunks for column in rows.columns} == {1}


NO_TEXT = pa.array([b"\xff", b"a", b"b"]).view(pa.string())
AFTER_9999 = pa.array([2**58, 1, 2]).cast(pa.timestamp("us", "UTC"))


@pytest.mark.parametrize("places", [NO_TEXT, AFTER_9999], ids=["not UTF-8", "after the year 9999"])
def test_places_that_python_has_no_object_for_are_put_into_order(
    places: pa.Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table({"at": places, "k": pa.array([1, 1, 1])})

    def one_by_one(task: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        yield from rows.slice(task, 1).select(list(columns)).to_batches()

    read_rows = own_rows_of(one_by_one, 3, {"at": places.type}, parallelism=1, at_once=1).of(0)
    assert read_rows["at"].combine_chunks().equals(places.take(pa.array([1, 2, 0])))
