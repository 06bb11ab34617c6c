"""Rows go to the subtasks that own their keys, with the same columns whether the driver or Spark's tasks route them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from state_engine import (
    DataStream,
    KeyedProcessFunction,
    MapFunction,
    MapStateDescriptor,
    StatefulJob,
)
from state_engine.core.errors import ConfigurationError, InvalidKeyError
from state_engine.core.functions.broadcast_functions import BroadcastProcessFunction
from state_engine.core.functions.co_functions import CoProcessFunction
from state_engine.core.keys.canonical import key_hash
from state_engine.core.keys.hashing import hash_bytes, hash_long
from state_engine.core.keys.key_arrays import hash_columns, key_groups_of
from state_engine.core.keys.key_groups import key_group_of_hash, subtask_for_key_group
from state_engine.core.types.columns import to_bytes
from state_engine.core.types.spark_types import spark_schema
from state_engine.microbatch.routing.arrow_router import OwnInput, OwnRows
from state_engine.microbatch.routing.blocks import BLOCK, unpacked
from state_engine.microbatch.routing.element_watermarks import watermarks_by_steps
from state_engine.microbatch.routing.origins import EventTimes, origins_of
from state_engine.microbatch.routing.routed import (
    HASH,
    INPUT,
    SUBTASK,
    RoutedInput,
    RoutedLayout,
    key_name,
    payload_name,
)
from state_engine.microbatch.routing.routed_columns import Edge, EdgeKey, planned
from state_engine.microbatch.routing.routing import Routed, Router, nothing_new
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN, SourceFrame
from state_engine.sources.file import FileSource
from state_engine.sources.frames import EVENT_TIME, REFUSED, WATERMARK, from_source, order_name
from state_engine.sources.rows import Read, TaskRows
from state_engine.sources.stream_columns import Constant, Taken
from state_engine.spark.tasks import DriverTables, FramePartitions, OwnReads
from tests.support.key_samples import KINDS, arrow_column, plain_table, random_keys

ROWS = 300
PARALLELISM, MAX_PARALLELISM = 3, 100
EARLY_MS = -(10**15)
NO_SPARK: Any = None


class Nothing(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None: ...


class Nowhere(MapFunction):
    def map(self, value: Any) -> Any:
        return value


class NeitherOfTwo(CoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> None: ...

    def process_element2(self, value: Any, ctx: Any) -> None: ...


class NotEvenBroadcast(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None: ...

    def process_broadcast_element(self, value: Any, ctx: Any) -> None: ...


Wire = Callable[..., DataStream]
Give = Callable[[pa.Table], Any]


def reversed_rows(table: pa.Table) -> pa.Table:
    """With times that go up."""
    return table.take(pa.array(range(len(table) - 1, -1, -1)))


def rows_of(table: pa.Table) -> list[str]:
    return sorted(repr(list(row.items())) for row in table.to_pylist())


def routed(
    tables: Sequence[pa.Table], wire: Wire, *, order_by: Sequence[tuple[str, ...]] = (),
    event_time: Sequence[str | None] = (), spark: SparkSession = NO_SPARK, gives: Sequence[Give] = (),
    refused: DataFrame | None = None,
) -> Routed:  # fmt: skip
    """The input of the one operator that reads streams of these tables; the driver has them, unless they are given."""
    job = StatefulJob("routed", parallelism=PARALLELISM, max_parallelism=MAX_PARALLELISM)
    times = event_time or [None] * len(tables)
    streams = [
        job.source(f"s{i}", FileSource("/nowhere"), event_time=times[i], max_out_of_orderness=1_000 * i)
        for i in range(len(tables))
    ]
    wire(*streams)
    (operator,) = job.operators.values()
    inputs = []
    for i, table in enumerate(tables):
        places = pa.array([r % 2 for r in range(len(table))], pa.int32())
        numbered = table.append_column(FILE_COLUMN, places).append_column(
            ROW_COLUMN, pa.array(range(len(table)))
        )
        rows = gives[i](numbered) if gives else numbered
        frame = from_source(
            spark, SourceFrame(rows, refused), order_by=order_by[i] if order_by else (), event_time=times[i],
            source=f"s{i}", labels=("f", "g"),
        )  # fmt: skip
        inputs.append(RoutedInput(i, frame, scalar=False))
    origins = origins_of(operator, EventTimes({"s0": EARLY_MS, "s1": EARLY_MS + 1}))
    return Router(spark, max_parallelism=MAX_PARALLELISM).route(
        inputs, operator, parallelism=PARALLELISM, origins=origins, collect=lambda rows: rows.collect()
    )


def here(tables: Sequence[pa.Table], wire: Wire, **options: Any) -> list[pa.Table]:
    """The rows of every subtask, routed by the driver; each holds only its own."""
    rows = routed(tables, wire, **options).rows
    assert isinstance(rows, DriverTables)
    for number, part in enumerate(rows.tables):
        assert set(part[SUBTASK].to_pylist()) <= {number}
    return list(rows.tables)


def out_of_blocks(rows: Any) -> list[pa.Table]:
    """The rows of every subtask out of the blocks that tasks made."""
    assert isinstance(rows, FramePartitions)
    blocks: dict[int, list[bytes]] = {}
    for row in rows.rows.collect():
        blocks.setdefault(row[SUBTASK], []).append(bytes(row[BLOCK]))
    parts = []
    for number in range(PARALLELISM):
        part = unpacked(blocks[number])
        assert part is not None  # there is always a block without rows
        parts.append(part)
    return parts


def in_tasks(routed: Routed) -> list[pa.Table]:
    """The rows of every subtask, as its task has them, with the watermarks that it finds for them."""
    if isinstance(routed.rows, OwnReads):
        parts = list(map(routed.rows.read, range(PARALLELISM)))
    else:
        parts = out_of_blocks(routed.rows)
    if not routed.layout.event_time:
        return parts
    assert routed.steps is not None
    broadcast, order = routed.layout.broadcast, routed.layout.order
    marks = [
        watermarks_by_steps(p, order, routed.steps, start_ms=EARLY_MS, broadcast=broadcast) for p in parts
    ]
    return [part.append_column(WATERMARK, mark) for part, mark in zip(parts, marks, strict=True)]


def by_key(*keys: str) -> Wire:
    return lambda s: s.key_by(*keys).process(Nothing(), uid="o", output_type=int)


def two_keyed(one: str, two: str) -> Wire:
    return lambda a, b: a.key_by(one).connect(b.key_by(two)).process(NeitherOfTwo(), uid="o", output_type=int)


def without_key(stream: DataStream) -> DataStream:
    return stream.map(Nowhere(), output_type=int, uid="o")


def owner(key: Any) -> int:
    return subtask_for_key_group(
        MAX_PARALLELISM, PARALLELISM, key_group_of_hash(key_hash(key), MAX_PARALLELISM)
    )


# -- by the driver, without Spark -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [["long"], ["struct"], ["part_string", "part_long"],
                                   ["double", "part_date", "decimal_5_2", "boolean"]], ids="+".join)  # fmt: skip
def test_a_row_goes_to_the_subtask_that_owns_its_key(kinds: list[str]) -> None:
    columns = random_keys(seed=7, rows=ROWS)
    table = pa.table({k: arrow_column(columns[k], KINDS[k.removeprefix("part_")][0]) for k in kinds})
    keys = columns[kinds[0]] if len(kinds) == 1 else list(zip(*[columns[k] for k in kinds], strict=True))
    parts = here([table], by_key(*kinds))
    assert sum(map(len, parts)) == ROWS
    for number, part in enumerate(parts):
        own = [
            keys[row]
            for row in part[ROW_COLUMN if ROW_COLUMN in part.column_names else order_name(1)].to_pylist()
        ]
        assert [owner(key) for key in own] == [number] * len(own)
        assert part[HASH].to_pylist() == [key_hash(key) for key in own]


@pytest.mark.parametrize("order", [(), ("string", "boolean", "timestamp", "decimal_5_2", "double")], ids=len)
def test_a_row_without_a_key_goes_where_its_order_sends_it(order: tuple[str, ...]) -> None:
    columns = random_keys(seed=5, rows=ROWS)
    table = pa.table({k: arrow_column(columns[k], KINDS[k][0]) for k in order or ("long",)})
    parts = here([table], without_key, order_by=[order])
    assert {order_name(i) for i in range(len(order) + 2)} <= set(parts[0].column_names)
    assert sum(bool(len(part)) for part in parts) > 1
    for number, part in enumerate(parts):
        for row in part[order_name(len(order) + 1)].to_pylist() if not order else []:
            assert hash_long(row, hash_bytes(struct.pack("<i", row % 2))) % PARALLELISM == number


def test_broadcast_rows_go_everywhere() -> None:
    rules = MapStateDescriptor("rules", str, int)
    parts = here(
        [plain_table(13).select(["string"]), plain_table(14, 9).select(["int"])],
        lambda a, b: a.connect(b.broadcast(rules)).process(NotEvenBroadcast(), uid="o", output_type=int),
    )
    assert [len(part.filter(pc.equal(part[INPUT], 1))) for part in parts] == [9] * PARALLELISM
    assert sum(len(part.filter(pc.equal(part[INPUT], 0))) for part in parts) == ROWS


def test_the_columns_of_two_streams_with_one_key_and_a_named_order() -> None:
    one = pa.table({"k": pa.array([1, 2], pa.int32()), "d": pa.array([0, 1], pa.date32())})
    two = pa.table({"n": [1], "d": pa.array([2], pa.date32())})
    result = routed([one, two], two_keyed("k", "n"), order_by=[("d",), ("d",)], event_time=["d", None])
    layout = result.layout
    assert [one.columns for one in layout.inputs] == [
        (payload_name(0, 0), payload_name(0, 1)), (payload_name(1, 0), payload_name(1, 1)),
    ]  # fmt: skip
    assert [one.names for one in layout.inputs] == [("k", "d"), ("n", "d")]
    # the shared name, the stream, then file and row of either
    assert (layout.order, layout.named) == (tuple(map(order_name, range(6))), 1)
    assert layout.keys == (key_name(0),)
    assert (layout.event_time, layout.sources, layout.timed_order, layout.positioned) == (
        True,
        True,
        False,
        False,
    )
    assert str(layout.key_schema) == "struct<`k`: bigint>"
    assert isinstance(result.rows, DriverTables)
    rows = pa.concat_tables(result.rows.tables).to_pylist()
    (of_two,) = [row for row in rows if row[INPUT] == 1]
    assert [of_two[order_name(i)] for i in range(1, 6)] == [1, None, None, 0, 0]
    assert (of_two[key_name(0)], of_two[EVENT_TIME], of_two[payload_name(0, 0)]) == (1, None, None)
    assert {row[EVENT_TIME] for row in rows if row[INPUT] == 0} == {0, 86_400_000}


def ordered_broadcast(a: DataStream, b: DataStream) -> DataStream:
    both = a.connect(b.broadcast(MapStateDescriptor("rules", str, int)), ordered=True)
    return both.process(NotEvenBroadcast(), uid="o", output_type=int)


@pytest.mark.parametrize(
    ("orders", "first"),
    [
        ([("d", "k"), ("d",)], pa.date32()),
        ([("d", "k"), ()], pa.int64()),
        ([(), ()], pa.int64()),
    ],
    ids=["by the columns", "one by its files", "both by their files"],
)
def test_ordered_broadcast_rows_stand_in_the_order_of_event_time(
    orders: list[tuple[str, ...]], first: pa.DataType
) -> None:
    one = pa.table({"k": pa.array([7, 8], pa.int32()), "d": pa.array([1, 2], pa.date32())})
    two = pa.table({"n": [1], "d": pa.array([2], pa.date32())})
    result = routed([one, two], ordered_broadcast, order_by=orders, event_time=["d", "d"])
    layout = result.layout
    assert (layout.named, layout.timed_order, layout.lead, layout.broadcast) == (1, True, (), None)
    assert layout.ordered_broadcast == 1
    assert isinstance(result.rows, DriverTables)
    parts = list(result.rows.tables)
    assert parts[0].schema.field(order_name(0)).type == first
    assert [len(part.filter(pc.equal(part[INPUT], 1))) for part in parts] == [1] * PARALLELISM
    rows = pa.concat_tables(parts).to_pylist()
    by_order = sorted(rows, key=lambda row: (row[order_name(0)], row[order_name(1)]))
    assert [row[INPUT] for row in by_order] == [0, *[1] * PARALLELISM, 0]
    assert [row[order_name(1)] for row in by_order] == [0, *[-1] * PARALLELISM, 0]


def test_rows_of_one_stream_alone_have_the_order_that_they_have_beside_the_other() -> None:
    """With as many columns that the user named, and without a place."""
    one = pa.table({"k": pa.array([7, 8], pa.int32()), "d": pa.array([1, 2], pa.date32())})
    for order, columns in ((("d", "k"), 4), ((), 3)):
        layout = routed_alone(one, order)
        assert (layout.named, layout.timed_order, layout.positioned) == (1, True, True)
        assert len(layout.order) == columns


def routed_alone(table: pa.Table, order: tuple[str, ...]) -> RoutedLayout:
    """The layout where the first stream alone has rows."""
    job = StatefulJob("routed")
    streams = [
        job.source(name, FileSource("/nowhere"), event_time="d", order_by=order) for name in ("a", "b")
    ]
    ordered_broadcast(*streams)
    places = [pa.array([0] * len(table), pa.int32()), pa.array(range(len(table)))]
    for name, column in zip((FILE_COLUMN, ROW_COLUMN), places, strict=True):
        table = table.append_column(name, column)
    frame = from_source(
        NO_SPARK, SourceFrame(table, None), order_by=order, event_time="d", source="a", labels=("f",)
    )
    edges, layout = planned([RoutedInput(0, frame, scalar=False)], job.operators["o"])
    assert edges[0].order == layout.order
    return layout


def test_keys_of_different_types_and_types_without_order_are_refused() -> None:
    number, text = pa.table({"k": [1]}), pa.table({"k": ["a"]})
    with pytest.raises(ConfigurationError, match="are of different types, so they cannot share state"):
        routed([number, text], two_keyed("k", "k"))
    with pytest.raises(InvalidKeyError, match="operator 'o': The column 'k' has the type array<bigint>"):
        routed([pa.table({"k": [[1]]})], by_key("k"))
    with pytest.raises(ConfigurationError, match="key_by of operator 'o': there is no column 'x'; the"):
        routed([number], by_key("x"))


def test_blocks_of_a_subtask_become_one_table_with_all_columns() -> None:
    empty = pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.string())})
    rows = unpacked(
        [to_bytes(empty), to_bytes(pa.table({"a": [1]})), to_bytes(pa.table({"a": [2], "c": [True]}))]
    )
    assert rows is not None
    assert rows.to_pydict() == {"a": [1, 2], "c": [None, True], "b": [None, None]}
    alone = unpacked([to_bytes(empty)])
    assert alone is not None
    assert alone.schema == empty.schema
    assert unpacked([]) is None


# -- by Spark's tasks ------------------------------------------------------------------------------------------------


def slices(table: pa.Table, task: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """What one of two tasks reads."""
    yield from table.slice(task * 100, 100 if task == 0 else None).select(list(columns)).to_batches(70)


def check(
    spark: SparkSession, tables: Sequence[pa.Table], wire: Wire, *, selects: bool = False, **options: Any
) -> list[pa.Table]:
    """The driver, tasks that Spark gives rows, those that read them, and subtasks that do route the very same."""
    spark.conf.set("spark.sql.session.timeZone", "UTC")

    def as_frame(table: pa.Table) -> DataFrame:
        return spark.createDataFrame(table, schema=StructType.fromJson(spark_schema(table.schema)))

    def as_read(table: pa.Table) -> TaskRows:
        return TaskRows(table.schema, 2, partial(slices, table))

    def as_near(table: pa.Table) -> TaskRows:
        return replace(as_read(table), near=True)

    few = here(tables, wire, **options)
    # one input may well be a table: where one is not, tasks route all
    for gives in (
        [as_frame, *[plain for _ in tables[1:]]],
        [as_read for _ in tables],
        [as_near for _ in tables],
    ):
        by_tasks = routed(tables, wire, spark=spark, gives=gives, **options)
        assert isinstance(by_tasks.rows, OwnReads) == (gives[0] is as_near and not selects)
        assert by_tasks.layout == routed(tables, wire, **options).layout
        for mine, theirs in zip(few, in_tasks(by_tasks), strict=True):
            assert sorted(mine.column_names) == sorted(theirs.column_names)
            assert mine.schema.types == [theirs.schema.field(n).type for n in mine.column_names]
            assert rows_of(mine) == rows_of(theirs.select(mine.column_names))
    return few


def plain(table: pa.Table) -> pa.Table:
    return table


def test_tasks_make_keys_by_a_function(spark: SparkSession) -> None:
    def last_digit(row: Any) -> float | None:
        if row.v % 11 == 0:
            raise ValueError("eleven")
        return None if row.v % 13 == 0 else row.v % 10 / 2

    table = plain_table(5).append_column("v", pa.array(range(ROWS)))
    check(
        spark,
        [table],
        lambda s: s.key_by(last_digit, key_type=float).process(Nothing(), uid="o", output_type=int),
        selects=True,
    )


def test_tasks_route_rows_without_a_key(spark: SparkSession) -> None:
    order = (
        "byte",
        "short",
        "int",
        "long",
        "boolean",
        "date",
        "timestamp",
        "timestamp_ntz",
        "string",
        "double",
    )
    check(spark, [plain_table(5)], without_key, order_by=[order])


@pytest.mark.parametrize("event_time", ["date", "timestamp_ntz", "timestamp"])
def test_the_slower_of_two_sources_holds_the_watermark(spark: SparkSession, event_time: str) -> None:
    """Which the driver and the subtasks find in different ways."""
    one = reversed_rows(plain_table(11).select(["int", event_time]))
    two = reversed_rows(plain_table(12).select(["long", event_time]))
    times = [event_time, None if event_time == "date" else event_time]
    few = check(spark, [one, two], two_keyed("int", "long"), event_time=times)
    assert len({mark for part in few for mark in part[WATERMARK].to_pylist()}) > 2


@pytest.mark.parametrize("rules_time", ["date", "timestamp"])
def test_tasks_put_ordered_broadcast_rows_into_the_same_order(spark: SparkSession, rules_time: str) -> None:
    one = plain_table(11).select(["int", "timestamp"])
    two = plain_table(12, 9).select(["long", rules_time])
    few = check(spark, [one, two], ordered_broadcast, event_time=["timestamp", rules_time])
    assert len({mark for part in few for mark in part[WATERMARK].to_pylist()}) > 2


def test_tasks_spread_broadcast_rows_and_those_that_cannot_be_parsed(spark: SparkSession) -> None:
    tables = [plain_table(11).select(["int"]), plain_table(12, 9).select(["long"])]

    def wire(a: DataStream, b: DataStream) -> DataStream:
        return a.connect(b.broadcast()).process(NotEvenBroadcast(), uid="o", output_type=int)

    check(spark, tables, wire)
    bad = spark.createDataFrame([("{" * n, 0, n) for n in range(20)], "text string, file int, row bigint")
    parts = in_tasks(routed(tables, wire, spark=spark, refused=bad))
    lines = [line for part in parts for line in part[REFUSED].drop_null().to_pylist()]
    assert len(lines) == 40  # of either source
    assert all(part[HASH].null_count == len(part[REFUSED].drop_null()) > 0 for part in parts)


GROUPS, FILES, ROWS_OF_A_FILE = 12, 5, 40


def file(number: int) -> pa.Table:
    """The rows of a file; only the first one has no number."""
    numbers = pa.repeat(pa.scalar(number or None, pa.int32()), ROWS_OF_A_FILE)
    places = np.arange(ROWS_OF_A_FILE)
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


@pytest.mark.parametrize("at_once", [7, ROWS_OF_A_FILE, 2**16])
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
    if (
        at_once > ROWS_OF_A_FILE
    ):  # several files of a task are routed together, and what they hold is sorted later
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
