"""A few rows are read and routed by the driver: the very rows, columns and subtasks that Spark would give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
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
from state_engine.core.functions.broadcast_functions import BroadcastProcessFunction
from state_engine.core.functions.co_functions import CoProcessFunction
from state_engine.core.keys.canonical import canonical_key, encode_keys, key_hash
from state_engine.core.types.spark_types import spark_schema
from state_engine.job.graph import OperatorInput, OperatorNode
from state_engine.microbatch.routing.element_watermarks import watermarks_by_steps
from state_engine.microbatch.routing.few_routing import _canonical, _chained, route_few
from state_engine.microbatch.routing.origins import NO_ORIGINS, origins_of
from state_engine.microbatch.routing.routed import HASH, SUBTASK, RoutedInput
from state_engine.microbatch.routing.routing import Routed, Router
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN, SourceFrame
from state_engine.sources.few_rows import FEW_ROWS, few_rows
from state_engine.sources.file import FileSource
from state_engine.sources.frames import WATERMARK, StreamFrame, from_source, order_name
from tests.spark.key_samples import KINDS, arrow_column, random_keys

ROWS = 300
PARALLELISM, MAX_PARALLELISM = 3, 100
PLAIN = [k for k in KINDS if "struct" not in k and "decimal" not in k]
EARLY_MS = -(10**15)
RECENT = datetime(2024, 2, 29, 13, 59, 59, 999_999)


# -- reading -----------------------------------------------------------------------------------------------------------

NO_SPARK: Any = None


def recent(table: pa.Table) -> pa.Table:
    """With temporal columns after 1900, some before 1970."""
    for at, name in enumerate(table.schema.names):
        if pa.types.is_temporal(table.schema.field(name).type):
            days = [RECENT - timedelta(hours=7.3 * i * i) for i in range(table.num_rows)]
            kind = table.schema.field(name).type
            values: list[Any] = [d.date() if pa.types.is_date(kind) else d for d in days]
            table = table.set_column(at, name, pa.array(values, kind))
    return table


def plain_table(seed: int, rows: int = ROWS) -> pa.Table:
    columns = random_keys(seed=seed, rows=rows)
    filled = recent(pa.table({k: pa.array(columns[k], KINDS[k][0]) for k in PLAIN}))
    absent = pa.array([i % 7 == 3 for i in range(rows)])
    return pa.table({n: pc.if_else(absent, None, filled[n].combine_chunks()) for n in filled.schema.names})


def reversed_rows(table: pa.Table) -> pa.Table:
    """With times that go up."""
    return table.take(pa.array(range(len(table) - 1, -1, -1)))


def source_of(directory: Path, tables: Sequence[pa.Table], **options: Any) -> FileSource:
    for number, table in enumerate(tables):
        pq.write_table(table, directory / f"{number}.parquet")
    return FileSource(str(directory), **options)


def rows_of(table: pa.Table) -> list[str]:
    return sorted(repr(list(row.items())) for row in table.to_pylist())


def test_few_rows_of_files_are_those_that_spark_reads(tmp_path: Path, spark: SparkSession) -> None:
    tables = [plain_table(1, 40), plain_table(2, 50), plain_table(3, 60)]
    source = source_of(tmp_path, tables, schema=StructType.fromJson(spark_schema(tables[0].schema)),
                       max_rows_per_batch=70)  # fmt: skip
    before: list[Any] = []
    for expected in (70, 70, 10):  # cuts inside of files
        part = source.plan(spark, before)
        assert part is not None
        few = source.read(spark, part, keep_refused=False).rows
        assert isinstance(few, pa.Table)
        assert few.num_rows == expected
        schema = source._declared()
        assert schema is not None
        scanned = source._read_parquet(spark, part.detail.ranges, schema)
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        found = scanned.toArrow()
        assert few.schema.names == found.schema.names
        assert few.schema.types == found.schema.types
        assert rows_of(few) == rows_of(found)
        before += part.elements


CHANGES: dict[str, Callable[[pa.Table], pa.Table]] = {
    "a missing column": lambda t: t.drop_columns("v"),
    "another type": lambda t: t.set_column(1, "v", t["v"].cast(pa.int32())),
    "another case": lambda t: t.rename_columns(["k", "V", "at"]),
    "two columns that Spark takes for one": lambda t: t.append_column("V", t["v"]),
    "an old date": lambda t: t.set_column(2, "at", pa.array([date(1582, 10, 14)] * t.num_rows)),
    "too many rows": lambda t: pa.concat_tables([t] * (FEW_ROWS // 2 + 1)),
}


@pytest.mark.parametrize("change", [*CHANGES, "a damaged file", "reader options", "a nested type"])
def test_what_spark_might_see_otherwise_is_left_to_spark(
    tmp_path: Path, spark: SparkSession, change: str
) -> None:
    table = pa.table({"k": ["a", "b"], "v": [1, 2], "at": pa.array([date(2024, 1, 1)] * 2)})
    schema, options = "k string, v bigint, at date", {}
    source = source_of(tmp_path, [table], schema=schema)
    assert isinstance(read(source, spark).rows, pa.Table)

    if change == "reader options":
        options = {"mergeSchema": "false"}
    elif change == "a nested type":
        schema = "k string, v array<bigint>"
    elif change == "a damaged file":
        (tmp_path / "0.parquet").write_bytes(b"PAR1 nothing PAR1")
    else:
        pq.write_table(CHANGES[change](table), tmp_path / "0.parquet")
    assert isinstance(read(FileSource(str(tmp_path), schema=schema, options=options), spark).rows, DataFrame)


def read(source: FileSource, spark: SparkSession) -> SourceFrame:
    part = source.plan(spark, [])
    assert part is not None
    return source.read(spark, part, keep_refused=False)


def test_strings_may_be_large_in_the_file(tmp_path: Path, spark: SparkSession) -> None:
    table = pa.table({"k": pa.array(["a", None, "ü"], pa.large_string())})
    found = read(source_of(tmp_path, [table], schema="k string"), spark).rows
    assert isinstance(found, pa.Table)
    assert found["k"].to_pylist() == ["a", None, "ü"]
    assert found.schema.field("k").type == pa.string()


def test_a_file_of_more_bytes_is_not_read_by_the_driver(tmp_path: Path) -> None:
    table = pa.table({"v": pa.array(range(FEW_ROWS), pa.int64())})
    pq.write_table(table, tmp_path / "0.parquet", compression="none", use_dictionary=False)
    part = FileSource(str(tmp_path), schema="v bigint").plan(NO_SPARK, [])
    assert part is not None
    ranges = part.detail.ranges
    small = ranges[0]
    schema = StructType.fromJson(spark_schema(table.schema))
    found = few_rows(ranges, schema)
    assert found is not None
    assert found.num_rows == FEW_ROWS
    assert few_rows([small, small], schema) is None


# -- routing -----------------------------------------------------------------------------------------------------------


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


def both_ways(
    spark: SparkSession, tables: Sequence[pa.Table], wire: Wire, *, order_by: Sequence[tuple[str, ...]] = (),
    event_time: Sequence[str | None] = (),
) -> tuple[list[pa.Table], list[pa.Table]]:  # fmt: skip
    """The rows of every subtask, as the driver and as Spark routes them."""
    job = StatefulJob("routed", parallelism=PARALLELISM, max_parallelism=MAX_PARALLELISM)
    times = event_time or [None] * len(tables)
    streams = [
        job.source(f"s{i}", FileSource("/nowhere"), event_time=times[i], max_out_of_orderness=1_000 * i)
        for i in range(len(tables))
    ]
    wire(*streams)
    (operator,) = job.operators.values()
    origins = origins_of(operator, {"s0": EARLY_MS, "s1": EARLY_MS + 1})
    spark.conf.set("spark.sql.session.timeZone", "UTC")

    def routed(given: Callable[[pa.Table], Any]) -> Any:
        inputs = []
        for i, table in enumerate(tables):
            numbered = table.append_column(
                FILE_COLUMN, pa.array([r % 2 for r in range(len(table))], pa.int32())
            )
            numbered = numbered.append_column(ROW_COLUMN, pa.array(range(len(table)), pa.int64()))
            frame = from_source(
                spark, SourceFrame(given(numbered)), order_by=order_by[i] if order_by else (),
                event_time=times[i], source=f"s{i}", labels=("f", "g"),
            )  # fmt: skip
            inputs.append(RoutedInput(i, frame, scalar=False))
        router = Router(spark, max_parallelism=MAX_PARALLELISM)
        return router.route(
            inputs, operator, parallelism=PARALLELISM, origins=origins, collect=lambda rows: rows.collect()
        )

    few = routed(lambda t: t)
    assert isinstance(few.rows, list)
    by_spark = routed(lambda t: spark.createDataFrame(t, schema=StructType.fromJson(spark_schema(t.schema))))
    assert isinstance(by_spark.rows, DataFrame)
    assert few.layout == by_spark.layout
    table = by_spark.rows.toArrow()
    table = table.filter(pc.is_valid(table[HASH]))  # without markers
    parts = [table.filter(pc.equal(table[SUBTASK], n)) for n in range(PARALLELISM)]
    if few.layout.event_time:
        assert by_spark.steps is not None
        parts = [watermarked(part, by_spark) for part in parts]
    return few.rows, parts


def watermarked(part: pa.Table, routed: Routed) -> pa.Table:
    """With the watermarks that a subtask finds for rows that Spark routed."""
    layout = routed.layout
    assert routed.steps is not None
    found = watermarks_by_steps(
        part, layout.order, routed.steps, start_ms=EARLY_MS, broadcast=layout.broadcast
    )
    return part.append_column(WATERMARK, found)


def check(few: list[pa.Table], by_spark: list[pa.Table]) -> None:
    assert sum(map(len, few)) > 0
    assert sum(bool(len(t)) for t in few) > 1
    for mine, theirs in zip(few, by_spark, strict=True):
        assert sorted(mine.schema.names) == sorted(theirs.schema.names)
        assert mine.schema.types == [theirs.schema.field(n).type for n in mine.schema.names]
        assert rows_of(mine) == rows_of(theirs.select(mine.schema.names))


@pytest.mark.parametrize("kind", [k for k in KINDS if "struct" not in k])
def test_keys_of_every_type_are_hashed_as_core_does(kind: str) -> None:
    """Which is as Catalyst does, see test_key_columns."""
    declared, made = KINDS[kind][0], random_keys(seed=7, rows=ROWS)[kind]
    canonical = _canonical(pa.array(made, declared))
    assert canonical is not None
    expected = encode_keys([canonical_key(key) for key in made], declared)
    assert repr(canonical.to_pylist()) == repr(expected.to_pylist())
    assert canonical.type == expected.type
    assert _chained([canonical]).tolist() == [key_hash(key) for key in made]


@pytest.mark.parametrize(
    "keys", [["long"], ["part_string", "part_long"], ["double", "part_date", "decimal_5_2", "boolean"]],
    ids="+".join,
)  # fmt: skip
def test_rows_go_where_spark_sends_them(spark: SparkSession, keys: list[str]) -> None:
    found = random_keys(seed=7, rows=ROWS)
    table = pa.table({k: arrow_column(found[k], KINDS[k.removeprefix("part_")][0]) for k in keys})
    few, by_spark = both_ways(
        spark, [table], lambda s: s.key_by(*keys).process(Nothing(), uid="o", output_type=int)
    )
    check(few, by_spark)


def test_null_and_nan_keys_are_told_as_spark_tells_them(spark: SparkSession) -> None:
    nan = float("nan")
    table = pa.table(
        {"x": [1.0, None, nan, -0.0, 0.0] * 3, "y": pa.array([nan, 1, 2, None, 3] * 3, pa.float32())}
    )
    for keys in (["x"], ["x", "y"]):
        few, by_spark = both_ways(
            spark, [table], lambda s, keys=keys: s.key_by(*keys).process(Nothing(), uid="o", output_type=int)
        )
        for mine, theirs in zip(few, by_spark, strict=True):
            assert rows_of(mine) == rows_of(theirs.select(mine.schema.names))


def test_a_record_as_key_is_left_to_spark(spark: SparkSession) -> None:
    table = pa.table({"k": pa.array([{"a": 1}], pa.struct({"a": pa.int64()}))})
    with pytest.raises(AssertionError, match="isinstance"):
        both_ways(spark, [table], lambda s: s.key_by("k").process(Nothing(), uid="o", output_type=int))


def test_keys_that_a_function_makes(spark: SparkSession) -> None:
    def last_digit(row: Any) -> float | None:
        if row.v % 11 == 0:
            raise ValueError("eleven")
        return None if row.v % 13 == 0 else row.v % 10 / 2

    few, by_spark = both_ways(
        spark, [pa.table({"v": list(range(60))})],
        lambda s: s.key_by(last_digit, key_type=float).process(Nothing(), uid="o", output_type=int),
    )  # fmt: skip
    check(few, by_spark)


ORDERS = ["byte", "short", "int", "long", "boolean", "date", "timestamp", "timestamp_ntz", "string"]


@pytest.mark.parametrize("order", [(), tuple(ORDERS)], ids=len)
def test_rows_without_a_key_go_where_their_order_sends_them(
    spark: SparkSession, order: tuple[str, ...]
) -> None:
    few, by_spark = both_ways(
        spark, [plain_table(5)], lambda s: s.map(Nowhere(), output_type=int, uid="o"), order_by=[order]
    )
    check(few, by_spark)
    assert {order_name(i) for i in range(len(order) + 2)} <= set(few[0].schema.names)


@pytest.mark.parametrize("event_time", ["date", "timestamp_ntz"])
def test_event_time_and_two_streams(spark: SparkSession, event_time: str) -> None:
    one, two = reversed_rows(plain_table(11).select(["int", event_time])), plain_table(12).select(["long"])
    few, by_spark = both_ways(
        spark, [one, two],
        lambda a, b: a.key_by("int").connect(b.key_by("long")).process(NeitherOfTwo(), uid="o", output_type=int),
        event_time=[event_time, None],
    )  # fmt: skip
    check(few, by_spark)
    assert len({mark for part in few for mark in part[WATERMARK].to_pylist()}) > 2


def test_the_slower_of_two_sources_holds_the_watermark(spark: SparkSession) -> None:
    """Which the driver and the subtasks find in different ways."""
    one = reversed_rows(plain_table(11).select(["int", "timestamp"]))
    two = reversed_rows(plain_table(12).select(["long", "timestamp"]))
    wires: list[Wire] = [
        lambda a, b: (
            a.key_by("int").connect(b.key_by("long")).process(NeitherOfTwo(), uid="o", output_type=int)
        ),
        lambda a, b: a.connect(b.broadcast()).process(NotEvenBroadcast(), uid="o", output_type=int),
    ]
    for wire in wires:
        few, by_spark = both_ways(spark, [one, two], wire, event_time=["timestamp", "timestamp"])
        check(few, by_spark)
        assert len({mark for part in few for mark in part[WATERMARK].to_pylist()}) > 2


def test_two_streams_with_named_orders(spark: SparkSession) -> None:
    one, two = plain_table(11).select(["int", "date"]), plain_table(12).select(["long", "date"])
    few, by_spark = both_ways(
        spark, [one, two],
        lambda a, b: a.key_by("int").connect(b.key_by("long")).process(NeitherOfTwo(), uid="o", output_type=int),
        order_by=[("date",), ("date",)],
    )  # fmt: skip
    check(few, by_spark)


def test_broadcast_rows_go_everywhere(spark: SparkSession) -> None:
    rules = MapStateDescriptor("rules", str, int)
    few, by_spark = both_ways(
        spark, [plain_table(13).select(["string"]), plain_table(14, 9).select(["int"])],
        lambda a, b: a.connect(b.broadcast(rules)).process(NotEvenBroadcast(), uid="o", output_type=int),
    )  # fmt: skip
    check(few, by_spark)
    assert all(len(t) > 9 for t in few)


def test_an_order_that_only_spark_hashes_is_left_to_spark(spark: SparkSession) -> None:
    table = pa.table({"d": pa.array([Decimal("1.5")], pa.decimal128(5, 2))})
    with pytest.raises(AssertionError, match="isinstance"):
        both_ways(spark, [table], lambda s: s.map(Nowhere(), output_type=int, uid="o"), order_by=[("d",)])


def test_few_rows_beside_rows_that_spark_reads_are_left_to_spark() -> None:
    """A Parquet file and a Delta table, connected: all inputs are routed in one way."""
    nothing: Any = None
    hidden = (FILE_COLUMN, ROW_COLUMN)
    few = StreamFrame(nothing, pa.table({"k": [1], FILE_COLUMN: ["f"], ROW_COLUMN: [0]}), (), hidden, 0, None)
    keyed = OperatorInput(nothing, ("k",))
    operator = OperatorNode((keyed, keyed), nothing, "o", None)
    for frames in ([few, replace(few, given=nothing)], [replace(few, given=nothing), few]):
        inputs = [RoutedInput(place, frame, scalar=False) for place, frame in enumerate(frames)]
        assert (
            route_few(inputs, operator, nothing, parallelism=1, max_parallelism=1, origins=NO_ORIGINS) is None
        )


def test_a_table_is_a_dataframe_where_somebody_asks_for_one(spark: SparkSession) -> None:
    table = plain_table(21)
    frame = StreamFrame(spark, table, (), (), 0, None)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert rows_of(frame.rows.toArrow()) == rows_of(table)
