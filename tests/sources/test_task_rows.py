"""Rows of Parquet files that tasks, or of few the driver, read with Arrow: those that Spark would give, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from state_engine import DataStream, DeltaSink, DeltaSource, StatefulJob
from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.errors import BadFileError
from state_engine.core.types.spark_types import spark_schema
from state_engine.microbatch.subtask.subtask_outputs import exchange_rows
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN, Source, SourceFrame
from state_engine.sources.file import FileSource
from state_engine.sources.file_ranges import OPENING_BYTES, FileRange, Piece, in_tasks
from state_engine.sources.frames import StreamFrame, from_source, united
from state_engine.sources.parquet import parquet_rows
from state_engine.sources.parquet.parquet_rows import few_rows, row_groups
from state_engine.sources.rows import TaskRows
from state_engine.spark.placement import USUAL
from tests.sources.runs import Numbered, SourceRun, write_ids
from tests.support.key_samples import plain_table
from tests.support.limits import SetLimits

NO_SPARK: Any = None


@pytest.fixture(autouse=True)
def many(limits: SetLimits) -> None:
    """No file is small enough for the driver."""
    limits(stored_bytes=0)


def in_turn(rows: TaskRows, columns: Sequence[str]) -> pa.Table:
    kinds = pa.schema([rows.schema.field(name) for name in columns])
    return pa.Table.from_batches([b for task in range(rows.tasks) for b in rows.read(task, columns)], kinds)


def rows_of(table: pa.Table) -> list[str]:
    return sorted(repr(list(row.items())) for row in table.to_pylist())


def read(source: FileSource, spark: SparkSession, before: list[Any]) -> TaskRows:
    part = source.plan(spark, before)
    assert part is not None
    before += part.elements
    rows = source.read(spark, part, keep_refused=False).rows
    assert isinstance(rows, TaskRows)
    return rows


@pytest.mark.parametrize("reader", [pa.Table, TaskRows], ids=["driver", "tasks"])
def test_drivers_and_tasks_read_the_rows_that_spark_reads(
    tmp_path: Path, spark: SparkSession, limits: SetLimits, reader: Any
) -> None:
    """Of files cut inside, with row groups and batches that the cuts do not fit."""
    limits(stored_bytes=0 if reader is TaskRows else USUAL.stored_bytes, read_at_once=7, least_task_bytes=1)
    tables = [plain_table(1, 40), plain_table(2, 50), plain_table(3, 60)]
    for number, table in enumerate(tables):
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=9 + number)
    schema = StructType.fromJson(spark_schema(tables[0].schema))
    source, before = FileSource(str(tmp_path), schema=schema, max_rows_per_batch=70), list[Any]()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    for expected in (70, 70, 10):
        part = source.plan(spark, before)
        assert part is not None
        before += part.elements
        rows = source.read(spark, part, keep_refused=False).rows
        assert isinstance(rows, reader)
        theirs = source._read_parquet(spark, part.detail.ranges, schema).toArrow()
        mine = in_turn(rows, rows.schema.names) if isinstance(rows, TaskRows) else rows
        assert mine.num_rows == expected
        assert mine.schema.names == theirs.schema.names
        assert mine.schema.types == theirs.schema.types
        assert rows_of(mine) == rows_of(theirs)
        if isinstance(rows, TaskRows):
            some = [ROW_COLUMN, tables[0].column_names[3]]
            assert rows_of(in_turn(rows, some)) == rows_of(theirs.select(some))


CHANGES: dict[str, Callable[[pa.Table], pa.Table]] = {
    "a missing column": lambda t: t.drop_columns("v"),
    "another type": lambda t: t.set_column(1, "v", t["v"].cast(pa.int32())),
    "another case": lambda t: t.rename_columns(["k", "V", "at"]),
    "an old date": lambda t: t.set_column(2, "at", pa.array([date(1582, 10, 14)] * t.num_rows)),
    "a nested type": lambda t: t.set_column(1, "v", pa.array([[1]] * t.num_rows)),
    "reader options": lambda t: t,
}


@pytest.mark.parametrize("reader", [pa.Table, TaskRows], ids=["driver", "tasks"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_spark_might_see_otherwise_is_left_to_spark(
    tmp_path: Path, spark: SparkSession, limits: SetLimits, change: str, reader: type
) -> None:
    if reader is pa.Table:
        limits()

    def rows_of_file(table: pa.Table, schema: str, **options: Any) -> Any:
        pq.write_table(table, tmp_path / "0.parquet")
        source = FileSource(str(tmp_path), schema=schema, **options)
        part = source.plan(spark, [])
        assert part is not None
        return source.read(spark, part, keep_refused=False).rows

    table, schema = (
        pa.table({"k": ["a", "b"], "v": [1, 2], "at": [date(2024, 1, 1)] * 2}),
        "k string, v bigint, at date",
    )
    assert isinstance(rows_of_file(table, schema), reader)
    options = {"options": {"mergeSchema": "false"}} if change == "reader options" else {}
    declared = "k string, v array<bigint>" if change == "a nested type" else schema
    assert isinstance(rows_of_file(CHANGES[change](table), declared, **options), DataFrame)


def test_a_time_that_microseconds_do_not_reach_is_not_read_by_the_driver(
    tmp_path: Path, spark: SparkSession, limits: SetLimits
) -> None:
    limits()
    times = pa.array([2**62, 0], pa.int64()).cast(pa.timestamp("ms", "UTC"))
    pq.write_table(pa.table({"at": times}), tmp_path / "0.parquet")
    assert read(FileSource(str(tmp_path), schema="at timestamp"), spark, []).tasks


def test_a_file_of_more_bytes_is_not_read_by_the_driver(tmp_path: Path) -> None:
    table = pa.table({"v": pa.array(range(USUAL.rows), pa.int64())})
    pq.write_table(table, tmp_path / "0.parquet", compression="none", use_dictionary=False)
    part = FileSource(str(tmp_path), schema="v bigint").plan(NO_SPARK, [])
    assert part is not None
    [small], schema = part.detail.ranges, StructType.fromJson(spark_schema(table.schema))
    rows = few_rows([small], schema, USUAL)
    assert rows is not None
    assert rows.num_rows == USUAL.rows
    assert few_rows([small, small], schema, USUAL) is None


@given(st.lists(st.integers(1, 2**30), max_size=30), st.integers(1, 8))
def test_every_piece_goes_to_one_task(sizes: list[int], cores: int) -> None:
    pieces = [Piece(n // 3, f"f{n // 3}", n % 3, None, size) for n, size in enumerate(sizes)]
    tasks = dealt(pieces, cores)
    assert sorted((p.place, p.start) for task in tasks for p in task) == [(p.place, p.start) for p in pieces]
    assert all(tasks)
    for task in tasks:
        assert all((a.place, a.start) < (b.place, b.start) for a, b in pairwise(task))
    if sizes:
        costs = [size + OPENING_BYTES for size in sizes]
        of_tasks = [sum(p.bytes + OPENING_BYTES for p in task) for task in tasks]
        fullest, largest = max(of_tasks), max(costs)
        assert fullest <= max(largest, 2 * sum(costs) / len(tasks))
        assert fullest <= largest or fullest <= 2 * max(2**22, min(2**27, sum(costs) // cores + 1))


def test_many_small_files_are_spread_over_tasks() -> None:
    pieces = [Piece(n, f"f{n}", 0, None, 200) for n in range(2_000)]
    assert [len(task) for task in dealt(pieces, 4)] == [500] * 4


def dealt(pieces: list[Piece], cores: int) -> list[list[Piece]]:
    total = sum(piece.cost for piece in pieces)
    return in_tasks(pieces, -(-total // USUAL.bytes_of_a_task(total, cores)))


def test_rows_of_small_files_come_in_few_batches(tmp_path: Path, spark: SparkSession) -> None:
    """In the order of the files; to route a batch costs more than to route a row."""
    for number in range(300):
        pq.write_table(pa.table({"id": [number]}), tmp_path / f"{number:03d}.parquet")
    rows = read(FileSource(str(tmp_path), schema="id bigint"), spark, [])
    batches = [list(rows.read(task, ["id", FILE_COLUMN])) for task in range(rows.tasks)]
    assert [len(of_task) for of_task in batches] == [1] * rows.tasks
    table = pa.Table.from_batches([b for of_task in batches for b in of_task])
    assert sorted(table["id"].to_pylist()) == list(range(300))
    assert table["id"].to_pylist() == table[FILE_COLUMN].to_pylist()


def test_tasks_are_given_no_row_groups_that_a_cut_leaves_out(tmp_path: Path, spark: SparkSession) -> None:
    for name in "ab":
        pq.write_table(pa.table({"id": range(10)}), tmp_path / f"{name}.parquet", row_group_size=2)
    source, before, read_groups = (
        FileSource(str(tmp_path), schema="id bigint", max_rows_per_batch=7),
        list[Any](),
        [],
    )
    for _ in range(3):
        tasks, _ = read(source, spark, before).read.args  # type: ignore[attr-defined]
        read_groups.append([(piece.place, piece.number) for task in tasks for piece in task])
    assert read_groups == [
        [(0, 0), (0, 1), (0, 2), (0, 3)],
        [(0, 3), (0, 4), (1, 0), (1, 1)],
        [(0, 2), (0, 3), (0, 4)],
    ]


def test_times_are_judged_by_the_footer(tmp_path: Path) -> None:
    def judged(times: list[Any], kind: pa.DataType, **options: Any) -> bool:
        path = tmp_path / "t.parquet"
        pq.write_table(pa.table({"at": pa.array(times, kind)}), path, row_group_size=2, **options)
        with pq.ParquetFile(path) as file:
            return row_groups(file, file.schema_arrow) is not None

    new, old = date(1900, 1, 1), date(1899, 12, 31)
    assert judged([new, new, None, None, new], pa.date32())
    assert not judged([new, new, new, old], pa.date32())
    assert not judged([datetime(1899, 12, 31)], pa.timestamp("us"))
    assert not judged([datetime(1899, 12, 31)], pa.timestamp("us", "UTC"))
    assert judged([datetime(1900, 1, 1)], pa.timestamp("us", "UTC"))
    assert not judged([new], pa.date32(), write_statistics=False)


def test_only_files_on_a_disk_are_near(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a few subtasks reads them all; to read objects of a store again costs requests and time."""
    pq.write_table(pa.table({"k": [1]}), tmp_path / "0.parquet")
    assert read(FileSource(str(tmp_path)), spark, []).near
    monkeypatch.setattr(parquet_rows, "_row_groups", lambda *_: [])
    kind = StructType.fromJson(spark_schema(pa.schema([("k", pa.int64())])))
    disk, store = (FileRange(f"{at}/0.parquet", 0, 0, 0, 1) for at in ("file:///a", "s3a://b"))
    for ranges, near in (([disk], True), ([store], False), ([disk, store], False)):
        rows = parquet_rows.task_rows(ranges, kind, cores=2, scan=scan)
        assert rows is not None
        assert rows.near == near


def test_outputs_for_the_next_operator_are_near_where_they_are_on_a_disk() -> None:
    pair = [DataFile("file:///a", 1, 1, 0), DataFile("file:///order-a", 1, 1, 0)]
    far = [DataFile("s3a://b/a", 1, 1, 0), DataFile("s3a://b/order-a", 1, 1, 0)]
    schema = pa.schema([("k", pa.int64())])
    assert [exchange_rows(pairs, schema).near for pairs in ([pair], [far], [pair, far])] == [
        True,
        False,
        False,
    ]


def test_a_union_of_what_tasks_read_is_that_of_tables() -> None:
    """Of streams whose orders and event times differ, with each column asked for alone, too."""

    def frame(rows: pa.Table | TaskRows, source: str, event_time: str | None) -> StreamFrame:
        read = SourceFrame(rows)
        return from_source(
            NO_SPARK, read, order_by=(), event_time=event_time, source=source, labels=(source,)
        )

    def part(table: pa.Table, task: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for rows in table.slice(2 * task, 2).to_batches():
            yield pa.record_batch({name: rows[name] for name in columns})  # has no rows without columns

    at = pa.array([datetime(2024, 1, 1, second=n) for n in range(5)], pa.timestamp("us", "UTC"))
    one = pa.table({"at": at, "k": range(5), **places(5)})
    two = pa.table({"k": range(5, 8), "at": at[:3], **places(3)})
    timed = [(one, "one", "at"), (two, "two", None)]
    of_tables = united([frame(*given) for given in timed])
    frames = [frame(TaskRows(t.schema, 3, partial(part, t)), name, at) for t, name, at in timed]
    of_tasks = united(frames)
    rows, table = of_tasks.given, of_tables.table
    assert isinstance(rows, TaskRows)
    assert table is not None
    assert rows.tasks == 6
    assert not rows.near
    near = united(
        [replace(f, given=replace(g, near=True)) for f in frames if isinstance(g := f.given, TaskRows)]
    )
    assert isinstance(near.given, TaskRows)
    assert near.given.near
    assert replace(of_tasks, given=of_tables.given) == of_tables
    assert rows.schema == table.schema
    assert in_turn(rows, rows.schema.names).combine_chunks().equals(table)
    for name in rows.schema.names:
        assert in_turn(rows, [name])[name].combine_chunks().equals(table[name].combine_chunks())


def places(count: int) -> dict[str, pa.Array]:
    return {FILE_COLUMN: pa.array([0] * count, pa.int32()), ROW_COLUMN: pa.array(range(count), pa.int64())}


class Untouched(SourceRun):
    """Without DataFrame code between source and operator."""

    def use(self, source: Source, **options: Any) -> None:
        self.job = StatefulJob("numbered", **options)
        out = self.keyed(self.job.source("input", source)).process(
            Numbered(), uid="count", output_type="n bigint, fields string"
        )
        out.sink("numbered", DeltaSink(str(self.sink)))

    def keyed(self, rows: DataStream) -> DataStream:
        return rows.key_by(one_key, key_type=int)


class EachItself(Untouched):
    """Each subtask reads the rows itself, for no function makes their key."""

    def keyed(self, rows: DataStream) -> DataStream:
        return rows.key_by("one")


def scan(*_: Any) -> DataFrame:
    raise AssertionError("Spark scans files")


def one_key(row: Any) -> int:
    return 1


def test_an_operator_reads_files_without_a_scan_of_spark(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileSource, "_read_parquet", scan)
    for place, name in enumerate("ab"):
        write_ids(tmp_path / f"{name}.parquet", 10 * place, 5)
    source = FileSource(str(tmp_path), pattern="?.parquet", schema="id bigint", max_rows_per_batch=7)
    run = Untouched(spark, tmp_path, source)
    assert [batch.rows_in for batch in run.run()] == [7, 3]
    assert run.ids() == [*range(5), *range(10, 15)]


@pytest.mark.parametrize("kind", [Untouched, EachItself])
def test_a_file_whose_pages_are_damaged_is_named_and_set_aside(
    tmp_path: Path, spark: SparkSession, kind: type[SourceRun]
) -> None:
    feed = tmp_path / "feed"
    feed.mkdir()
    for name in "abc":
        write_ids(feed / f"{name}.parquet", ord(name), 2, one=[1, 1])
    content = bytearray((feed / "b.parquet").read_bytes())
    content[10:18] = b"\xff" * 8
    (feed / "b.parquet").write_bytes(content)
    run = kind(spark, tmp_path, FileSource(str(feed)))
    with pytest.raises(BadFileError, match=r"source 'input', .*b\.parquet") as bad:
        run.run()
    assert bad.value.uri == f"file://{feed}/b.parquet"
    assert run.heads() == 0
    run.use(FileSource(str(feed), on_bad_file="dead_letter"))
    (batch,) = run.run()
    assert (batch.rows_in, batch.rows_refused) == (4, 1)
    assert run.ids() == [97, 98, 99, 100]


DELTA: dict[str, tuple[str, bool]] = {
    "plain": ("", True),
    "comments": ("ALTER TABLE {t} ALTER COLUMN id COMMENT 'of a row'", True),
    "a deletion vector": ("DELETE FROM {t} WHERE id = 3", False),
    "two columns that changed names": (
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name'); "
        "ALTER TABLE {t} RENAME COLUMN v TO w; ALTER TABLE {t} RENAME COLUMN id TO v; "
        "ALTER TABLE {t} RENAME COLUMN w TO id",
        False,
    ),
    "partitions": (
        "REPLACE TABLE {t} USING delta PARTITIONED BY (v) AS SELECT id, id % 2 AS v FROM range(9)",
        False,
    ),
    "an added column": ("ALTER TABLE {t} ADD COLUMN w string", False),
}


@pytest.mark.parametrize("what", DELTA)
def test_tasks_read_files_of_delta_tables_that_hold_the_rows_as_they_are(
    tmp_path: Path, spark: SparkSession, what: str
) -> None:
    change, direct = DELTA[what]
    name = f"delta.`{tmp_path / 'table'}`"
    spark.sql(
        f"CREATE TABLE {name} USING delta TBLPROPERTIES ('delta.enableDeletionVectors' = 'true') "
        "AS SELECT id, id * 2 AS v FROM range(9)"
    )
    for statement in filter(None, change.split("; ")):
        spark.sql(statement.format(t=name))
    source = DeltaSource(str(tmp_path / "table"))
    part = source.plan(spark, [])
    assert part is not None
    rows = source.read(spark, part, keep_refused=False).rows
    assert isinstance(rows, TaskRows) == direct
    mine = in_turn(rows, rows.schema.names) if isinstance(rows, TaskRows) else rows.toArrow()
    scanned = part.detail.log.rows(part.detail.files, part.detail.version).toArrow()
    assert mine.schema.types == scanned.schema.types
    assert rows_of(mine) == rows_of(scanned)
    assert len(mine) == (8 if what == "a deletion vector" else 9)
