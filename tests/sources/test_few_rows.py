"""A few rows of Parquet files are read by the driver: the very rows that Spark would give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from state_engine.core.types.spark_types import spark_schema
from state_engine.sources.base import SourceFrame
from state_engine.sources.file import FileSource
from state_engine.sources.parquet.parquet_rows import few_rows
from state_engine.sources.rows import TaskRows
from state_engine.spark.placement import USUAL
from tests.support.key_samples import plain_table
from tests.support.limits import SetLimits

NO_SPARK: Any = None


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
        scanned_table = scanned.toArrow()
        assert few.schema.names == scanned_table.schema.names
        assert few.schema.types == scanned_table.schema.types
        assert rows_of(few) == rows_of(scanned_table)
        before += part.elements


CHANGES: dict[str, Callable[[pa.Table], pa.Table]] = {
    "a missing column": lambda t: t.drop_columns("v"),
    "another type": lambda t: t.set_column(1, "v", t["v"].cast(pa.int32())),
    "another case": lambda t: t.rename_columns(["k", "V", "at"]),
    "an old date": lambda t: t.set_column(2, "at", pa.array([date(1582, 10, 14)] * t.num_rows)),
}


@pytest.mark.parametrize("kind", [pa.Table, TaskRows], ids=["few", "many"])
@pytest.mark.parametrize("change", [*CHANGES, "reader options", "a nested type"])
def test_what_spark_might_see_otherwise_is_left_to_spark(
    tmp_path: Path, spark: SparkSession, limits: SetLimits, change: str, kind: type
) -> None:
    if kind is TaskRows:
        limits(stored_bytes=0)
    table = pa.table({"k": ["a", "b"], "v": [1, 2], "at": pa.array([date(2024, 1, 1)] * 2)})
    schema, options = "k string, v bigint, at date", {}
    source = source_of(tmp_path, [table], schema=schema)
    assert isinstance(read(source, spark).rows, kind)

    if change == "reader options":
        options = {"mergeSchema": "false"}
    elif change == "a nested type":
        schema = "k string, v array<bigint>"
        pq.write_table(table.set_column(1, "v", pa.array([[1], [2]])), tmp_path / "0.parquet")
    else:
        pq.write_table(CHANGES[change](table), tmp_path / "0.parquet")
    assert isinstance(read(FileSource(str(tmp_path), schema=schema, options=options), spark).rows, DataFrame)


def read(source: FileSource, spark: SparkSession) -> SourceFrame:
    part = source.plan(spark, [])
    assert part is not None
    return source.read(spark, part, keep_refused=False)


def test_a_time_that_microseconds_do_not_reach_is_left_to_spark(tmp_path: Path, spark: SparkSession) -> None:
    times = pa.array([2**62, 0], pa.int64()).cast(pa.timestamp("ms", "UTC"))
    rows = read(source_of(tmp_path, [pa.table({"at": times})], schema="at timestamp"), spark).rows
    assert not isinstance(rows, pa.Table)


def test_a_file_of_more_bytes_is_not_read_by_the_driver(tmp_path: Path) -> None:
    table = pa.table({"v": pa.array(range(USUAL.rows), pa.int64())})
    pq.write_table(table, tmp_path / "0.parquet", compression="none", use_dictionary=False)
    part = FileSource(str(tmp_path), schema="v bigint").plan(NO_SPARK, [])
    assert part is not None
    ranges = part.detail.ranges
    small = ranges[0]
    schema = StructType.fromJson(spark_schema(table.schema))
    rows = few_rows(ranges, schema, USUAL)
    assert rows is not None
    assert rows.num_rows == USUAL.rows
    assert few_rows([small, small], schema, USUAL) is None
