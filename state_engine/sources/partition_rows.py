"""Rows and their event time, for partitions: bounds by file, rows of an interval, rows of several slices as one.

Works on tables that the driver holds and on DataFrames alike. Values without a time zone, and dates, count as UTC.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.errors import ConfigurationError
from state_engine.core.types.ddl import quoted
from state_engine.core.types.type_parsing import to_type
from state_engine.sources.base import FILE_COLUMN, SourceFrame
from state_engine.sources.frames import from_source
from state_engine.sources.rows import Given, all_tables, either
from state_engine.sources.stream_columns import Milliseconds, in_arrow, in_spark
from state_engine.spark.read_failures import reading
from state_engine.spark.spark_names import F, T
from state_engine.spark.tasks import described

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

DAY_MS = 86_400_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class FileTimes:
    """Event times in one file.

    Attributes:
        min_ms, max_ms: smallest and largest; None where no row has one.
        refused: rows that could not be parsed.
    """

    min_ms: int | None = None
    max_ms: int | None = None
    refused: int = 0

    def overlap(self, from_ms: int, to_ms: int) -> bool:
        """Whether there may be a row in an interval, the end exclusive."""
        return (
            self.min_ms is not None
            and self.max_ms is not None
            and self.min_ms < to_ms
            and self.max_ms >= from_ms
        )

    def facts(self) -> tuple[int | None, int | None, int]:
        return self.min_ms, self.max_ms, self.refused


def file_times(
    spark: SparkSession,
    read: SourceFrame,
    column: str,
    *,
    job: str,
    source: str,
    files: int,
    late: tuple[int, int],
) -> tuple[list[FileTimes], int, int]:
    """Event times by file, the number of rows in the interval ``late``, and of rows that have no event time."""

    def in_table(rows: pa.Table) -> _Bounds:
        times_ms = _table_ms(rows, column)
        table = pa.table({"file": rows[FILE_COLUMN], "at": times_ms})
        bounds = [tuple(r.values()) for r in table.group_by("file").aggregate(
            [("at", "min"), ("at", "max")]).select(["file", "at_min", "at_max"]).to_pylist()]  # fmt: skip
        inside = pc.and_(pc.greater_equal(times_ms, late[0]), pc.less(times_ms, late[1]))
        return bounds, pc.sum(inside).as_py() or 0, times_ms.null_count

    def in_frame(rows: DataFrame) -> _Bounds:
        at = _frame_ms(rows, column)
        inside = (at >= F.lit(late[0])) & (at < F.lit(late[1]))
        one = rows.select(F.col(FILE_COLUMN).alias("file"), at.alias("at"), inside.alias("late"))
        grouped = one.groupBy("file").agg(
            F.min("at"), F.max("at"), F.count_if("late"), F.count_if(F.col("at").isNull())
        )
        collected = [tuple(r) for r in grouped.collect()]
        return [r[:3] for r in collected], sum(r[3] for r in collected), sum(r[4] for r in collected)

    with (
        described(spark, f"source {source}: event times of new rows"),
        reading(source, job=job, into="partitions"),
    ):
        bounds, inside, untimed = either(spark, read.rows, table=in_table, frame=in_frame)
        refused = {} if read.refused is None else _rows_by_file(spark, read.refused)
    by_file = {file: (least, most) for file, least, most in bounds}
    times = [FileTimes(*by_file.get(i, (None, None)), refused.get(i, 0)) for i in range(files)]
    return times, inside, untimed


_Bounds = tuple[list[tuple[Any, ...]], int, int]
"""File, least and largest time of each; rows in the interval; rows without a time."""


def _rows_by_file(spark: SparkSession, rows: Given) -> dict[int, int]:
    return either(
        spark,
        rows,
        table=lambda table: dict(Counter(table[FILE_COLUMN].to_pylist())),
        frame=lambda frame: dict(map(tuple, frame.groupBy(FILE_COLUMN).count().collect())),
    )


def between(spark: SparkSession, rows: Given, column: str, from_ms: int, to_ms: int) -> Given:
    """The rows of an interval of event time, the end exclusive."""

    def in_table(rows: pa.Table) -> Given:
        at = _table_ms(rows, column)
        return rows.filter(pc.and_(pc.greater_equal(at, from_ms), pc.less(at, to_ms)))

    def in_frame(rows: DataFrame) -> Given:
        # the plain column against plain values, so that files and row groups are passed over
        name, kind = _field(rows, column)
        at = F.col(quoted(name))
        return rows.where((at >= _literal(kind, from_ms)) & (at < _literal(kind, to_ms)))

    return either(spark, rows, table=in_table, frame=in_frame)


def joined(spark: SparkSession, parts: Sequence[tuple[Given, int]]) -> Given:
    """The rows of several slices as those of one; with each, the place of its first file."""
    if len(parts) == 1:
        return parts[0][0]
    if (tables := all_tables([rows for rows, _ in parts])) is not None:
        moved = []
        for table, (_, first) in zip(tables, parts, strict=True):
            place = pc.add(table[FILE_COLUMN], pa.scalar(first, pa.int32()))
            moved.append(table.set_column(table.schema.get_field_index(FILE_COLUMN), FILE_COLUMN, place))
        return pa.concat_tables(moved, promote_options="permissive").combine_chunks()
    frames = []
    for rows, first in parts:
        frame = as_frame(spark, rows)
        frames.append(frame.withColumn(FILE_COLUMN, (F.col(FILE_COLUMN) + first).cast("int")))
    # the columns are those of the newest slice: an older one may lack some
    union = frames[-1]
    for frame in frames[:-1]:
        union = union.unionByName(frame, allowMissingColumns=True)
    return union


def as_frame(spark: SparkSession, rows: Given) -> DataFrame:
    """As a DataFrame; values without a time zone stay so."""
    read = SourceFrame(rows)
    return from_source(spark, read, order_by=(), event_time=None, source="", labels=()).rows


def _table_ms(rows: pa.Table, column: str) -> pa.Array:
    name = next((n for n in rows.column_names if n.lower() == column.lower()), None)
    if name is None:
        raise _missing(column, rows.column_names)
    values = rows[name]
    if not (pa.types.is_timestamp(values.type) or pa.types.is_date(values.type)):
        raise _no_time(name, str(values.type))
    return in_arrow(Milliseconds(name, values.type), rows)


def _field(rows: DataFrame, column: str) -> tuple[str, T.DataType]:
    field = next((f for f in rows.schema.fields if f.name.lower() == column.lower()), None)
    if field is None:
        raise _missing(column, rows.columns)
    if not isinstance(field.dataType, T.DateType | T.TimestampType | T.TimestampNTZType):
        raise _no_time(field.name, field.dataType.simpleString())
    return field.name, field.dataType


def _frame_ms(rows: DataFrame, column: str) -> Column:
    name, kind = _field(rows, column)
    return in_spark(Milliseconds(name, to_type(kind, parameter=name).arrow))


def _literal(kind: T.DataType, at_ms: int) -> Column:
    if isinstance(kind, T.DateType):
        return F.expr(f"date_from_unix_date({-(-at_ms // DAY_MS)})")
    if isinstance(kind, T.TimestampType):
        return F.expr(f"timestamp_millis({at_ms}L)")
    text = (_EPOCH + timedelta(milliseconds=at_ms)).strftime("%Y-%m-%d %H:%M:%S.%f")
    return F.expr(f"TIMESTAMP_NTZ'{text}'")


def _missing(column: str, names: Sequence[str]) -> ConfigurationError:
    shown = [n for n in names if not n.startswith("_statelake")]
    return ConfigurationError(f"TimePartitions: there is no column '{column}' among {shown}")


def _no_time(column: str, kind: str) -> ConfigurationError:
    return ConfigurationError(f"TimePartitions: column '{column}' must be a timestamp or a date, not {kind}")
