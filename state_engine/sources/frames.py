"""``StreamFrame``: the rows of one stream in one micro-batch, which know their order and event time.

Rows are a DataFrame, or where they are few and the driver has them a table, which becomes a DataFrame only where
somebody asks for one.

Order columns travel with the rows: what the user named, then hidden columns that make the order total. A DataFrame
step that drops the hidden ones is allowed where an order is named; ties are then broken by the content of the row, so
that rows which tie are equal and their order cannot matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from state_engine.core.errors import ConfigurationError
from state_engine.core.types.ddl import quoted
from state_engine.core.types.spark_types import spark_schema
from state_engine.sources.base import FILE_COLUMN, ROW_COLUMN, SourceFrame
from state_engine.sources.few_rows import FEW_ROWS
from state_engine.sources.output_type import OutputType
from state_engine.spark.spark_names import F, T

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HIDDEN = "_statelake_"
"""Prefix of all columns of ours."""
EVENT_TIME = HIDDEN + "event_ms"
SOURCE = HIDDEN + "source"
"""Where streams of several sources were united: name of the row's source."""
_FEW_BYTES = 2**23
"""In memory: what the driver sends to tasks goes through one socket."""
WATERMARK = HIDDEN + "watermark"
"""The watermark before a row: carried by the rows of an operator; of routed rows, by the row's place."""
RANK = HIDDEN + "rank"
"""Among rows of one watermark: 0 of what came from elements, above it of what timers put out."""
ORIGIN = HIDDEN + "origin"
"""What a row moves the watermark of; see ``microbatch.routing.origins``."""
TIME_REFUSAL = HIDDEN + "time_refusal"
"""Of a row whose event time a strategy could not give: why."""
REFUSED = HIDDEN + "refused"
"""Of a row that could not be parsed: source, file, row and text as base64, a line each."""


def order_name(position: int) -> str:
    """Name of an order column on its way to a subtask."""
    return f"{HIDDEN}o{position}"


class DataFrameStep(Protocol):
    """DataFrame code between two streams, see ``job.graph.TransformNode``."""

    @property
    def function(self) -> Callable[[DataFrame], DataFrame]:
        """The code."""

    @property
    def order_by(self) -> tuple[str, ...] | None:
        """An order, where the code loses the old one."""

    @property
    def output_type(self) -> OutputType | None:
        """Of what the code gives; None where only Spark knows."""


@dataclass(frozen=True)
class StreamFrame:
    """Rows with their order.

    Attributes:
        spark: session.
        given: user columns and hidden columns.
        order_by: user columns that come first in the order.
        hidden_order: hidden columns that make it total.
        named: how many columns of the order, user's and hidden together, were named by the user.
        event_time: user column, or hidden column in milliseconds, of the event time; None without.
        source: name of the source that the rows come straight from; None after an operator or a union.
        sources: names of all sources that rows come straight from.
        labels: by source, names of its files by place.
        refused: by source, rows that could not be parsed: the one column REFUSED.
        timed_order: whether the order begins with the event time.
        origin: of all rows, see ``microbatch.routing.origins``; None where rows carry their own, or have none.
        lead: hidden columns that come before all others in the order, as long as the stream is not merged.
        small: whether it is known to be so little that compiling expressions for it costs more than it saves.
    """

    spark: SparkSession
    given: DataFrame | pa.Table
    order_by: tuple[str, ...]
    hidden_order: tuple[str, ...]
    named: int
    event_time: str | None
    source: str | None = None
    sources: tuple[str, ...] = ()
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    refused: tuple[tuple[str, DataFrame], ...] = ()
    timed_order: bool = False
    small: bool = False
    origin: str | None = None
    lead: tuple[str, ...] = ()

    @cached_property
    def schema(self) -> T.StructType:
        """Of user columns and hidden columns."""
        if isinstance(self.given, pa.Table):
            return T.StructType.fromJson(spark_schema(self.given.schema))
        return self.given.schema

    @cached_property
    def rows(self) -> DataFrame:
        """As a DataFrame."""
        if isinstance(self.given, pa.Table):
            return self.spark.createDataFrame(self.given, schema=self.schema)
        return self.given

    @property
    def table(self) -> pa.Table | None:
        """As a table, where the driver has them and they are few."""
        given = self.given
        few = isinstance(given, pa.Table) and given.num_rows <= FEW_ROWS and given.nbytes <= _FEW_BYTES
        return given if few else None

    @property
    def user_columns(self) -> list[str]:
        """Columns that functions and sinks see."""
        return [c for c in self.schema.names if not c.startswith(HIDDEN)]

    @property
    def user_schema(self) -> T.StructType:
        """The columns that functions and sinks see, with their types."""
        return T.StructType([f for f in self.schema.fields if not f.name.startswith(HIDDEN)])

    def transformed(self, step: DataFrameStep) -> StreamFrame:
        """The frame after DataFrame code of the user."""
        from pyspark.sql import DataFrame

        rows = step.function(self.rows)
        if not isinstance(rows, DataFrame):
            raise ConfigurationError(
                f"transform({step.function!r}) returned {type(rows).__name__}, not a DataFrame"
            )
        if step.output_type is not None:
            rows = _as_declared(rows, step.output_type, what=f"transform({step.function!r})")
        kept = all(c in rows.schema.names for c in self.hidden_order)
        order_by = self.order_by if step.order_by is None else step.order_by
        named = len(order_by) if step.order_by is not None or not kept else self.named
        timed = (
            order_by[:1] == (self.event_time,) if step.order_by is not None or not kept else self.timed_order
        )
        hidden = self.hidden_order if kept else ()
        led = kept and step.order_by is None and all(c in rows.schema.names for c in self.lead)
        return replace(
            self, given=rows, order_by=order_by, hidden_order=hidden, named=named, timed_order=timed,
            lead=self.lead if led else (),
        )  # fmt: skip

    def require(self, columns: Sequence[str], *, what: str) -> None:
        """Refuse columns that are not there, naming those that are."""
        missing = [c for c in columns if c not in self.schema.names]
        if missing:
            raise ConfigurationError(
                f"{what}: there is no column {', '.join(repr(c) for c in missing)}; the stream has {self.user_columns}"
            )

    def order_columns(self) -> list[Column]:
        """The total order as columns, hidden ones made where a transform lost them."""
        named = [F.col(quoted(c)) for c in self.order_by]
        if self.hidden_order:
            return named + [F.col(c) for c in self.hidden_order]
        if not named:  # sinks need no order: only operators come here
            raise ConfigurationError(
                "a transform dropped the columns that give the rows their order. Name an order: "
                "source(order_by=[...]) or transform(..., order_by=[...]), or keep all columns (withColumn, drop)"
            )
        fields = [f for f in self.schema.fields if not isinstance(f.dataType, T.MapType)]
        return [*named, F.xxhash64(*[F.col(quoted(f.name)) for f in fields])]

    def order_types(self) -> list[T.DataType]:
        """Types of the order columns."""
        types = {f.name: f.dataType for f in self.schema.fields}
        hidden = [types[c] for c in self.hidden_order] or [T.LongType()]  # the hash of the row
        return [types[c] for c in self.order_by] + hidden

    def event_time_column(self, what: str) -> Column:
        """Event time in milliseconds; null where there is none."""
        if self.event_time is None:
            return F.lit(None).cast("bigint")
        if self.event_time == EVENT_TIME:
            own = {EVENT_TIME} if self.source is not None else {EVENT_TIME, WATERMARK}
            if not own <= set(self.schema.names):
                raise ConfigurationError(
                    f"{what}: a transform dropped the hidden columns that hold the event time of what an operator put "
                    "out, or a WatermarkStrategy gave. Keep all columns there (withColumn, drop, selectExpr('*', ...))"
                )
            return F.col(EVENT_TIME)
        self.require((self.event_time,), what=f"event_time of {what}")
        return _milliseconds(self.event_time, self.schema[self.event_time].dataType)


def _as_declared(rows: DataFrame, kind: OutputType, *, what: str) -> DataFrame:
    """The declared columns, in their order, and the hidden ones. Raises ConfigurationError where others came."""
    given = {f.name: f.dataType for f in rows.schema.fields if not f.name.startswith(HIDDEN)}
    names = kind.columns.names
    missing, extra = [n for n in names if n not in given], [n for n in given if n not in names]
    if missing or extra:
        raise ConfigurationError(
            f"{what}: its output_type has the columns {list(names)}, and it gives {list(given)}: missing {missing}, "
            f"not declared {extra}. Select the declared ones, and keep the hidden ones (withColumn, drop)"
        )
    declared = T.StructType.fromJson(spark_schema(pa.schema(list(kind.columns.arrow))))
    for field in declared.fields:
        known, wanted = (kind.simpleString() for kind in (given[field.name], field.dataType))
        if known != wanted:  # texts, for whether something may be null does not matter
            raise ConfigurationError(
                f"{what}: the column '{field.name}' is {known}, and declared {wanted}: cast it there, or declare "
                "another type"
            )
    hidden = [c for c in rows.columns if c.startswith(HIDDEN)]
    return rows.select(*[F.col(quoted(n)) for n in names], *[F.col(c) for c in hidden])


def from_source(spark: SparkSession, read: SourceFrame, *, order_by: tuple[str, ...], event_time: str | None,
                source: str, labels: tuple[str, ...], small: bool = False) -> StreamFrame:  # fmt: skip
    """The frame of a source's slice."""
    unparsable: tuple[tuple[str, DataFrame], ...] = ()
    if read.refused is not None:
        text, file, row = read.refused.schema.names
        packed = F.base64(F.col(text).cast("binary"))  # it may be no UTF-8
        lines = F.concat_ws("\n", F.lit(source), F.col(file), F.col(row), packed)
        unparsable = ((source, read.refused.select(lines.alias(REFUSED))),)
    return StreamFrame(
        spark=spark,
        given=read.rows,
        order_by=order_by,
        hidden_order=(FILE_COLUMN, ROW_COLUMN),
        named=len(order_by),
        event_time=event_time,
        source=source,
        sources=(source,),
        labels=((source, labels),),
        refused=unparsable,
        timed_order=bool(order_by) and order_by[0] == event_time,
        small=small,
        origin=None if event_time is None else source,
    )


def united(frames: Sequence[StreamFrame]) -> StreamFrame:
    """One frame of several with the same columns, merged by their order.

    Raises:
        ConfigurationError: the columns differ.
    """
    columns = frames[0].user_columns
    for other in frames[1:]:
        if sorted(other.user_columns) != sorted(columns):
            raise ConfigurationError(
                f"union: the streams have different columns: {columns} and {other.user_columns}; select the same ones"
            )
    for frame in frames:
        frame.require(frame.order_by, what="order_by of the union")
    orders = merged_orders(frames)
    timed = any(f.event_time is not None for f in frames)
    parts = []
    for frame, order in zip(frames, orders, strict=True):
        hidden = [c.alias(order_name(i)) for i, c in enumerate(order)]
        if timed:
            hidden.append(frame.event_time_column("union").alias(EVENT_TIME))
            hidden += [watermark_column(frame).alias(WATERMARK), origin_column(frame).alias(ORIGIN)]
        hidden.append(source_column(frame).alias(SOURCE))
        if any(TIME_REFUSAL in f.schema.names for f in frames):
            hidden.append(time_refusal_column(frame).alias(TIME_REFUSAL))
        parts.append(frame.rows.select(*[F.col(quoted(c)) for c in columns], *hidden))
    named = shared_names(frames)
    return StreamFrame(
        spark=frames[0].spark,
        given=reduce(lambda above, below: above.union(below), parts),
        order_by=(),
        hidden_order=tuple(order_name(i) for i in range(len(orders[0]))),
        named=named,
        event_time=EVENT_TIME if timed else None,
        sources=tuple(s for f in frames for s in f.sources),
        labels=tuple(one for f in frames for one in f.labels),
        refused=tuple(one for f in frames for one in f.refused),
        timed_order=named > 0 and all(f.timed_order for f in frames),
        small=all(f.small for f in frames),
    )


def merged_orders(frames: Sequence[StreamFrame], places: Sequence[int] | None = None) -> list[list[Column]]:
    """Columns that put the rows of several streams into one order, for each of them.

    First what the users named, where all named as much; then the place of the stream; then what is left of each
    stream's own order.

    Args:
        places: of the streams; by default as they come.
    """
    named, own = shared_names(frames), [f.order_columns() for f in frames]
    types = [f.order_types() for f in frames]
    orders = []
    for at, columns in enumerate(own):
        order = [*columns[:named], F.lit(at if places is None else places[at])]
        for other, kinds in enumerate(types):
            rest = columns[named:] if other == at else [F.lit(None).cast(kind) for kind in kinds[named:]]
            order += rest
        orders.append(order)
    return orders


def shared_names(frames: Sequence[StreamFrame]) -> int:
    """How many order columns all streams were given by name, of the same types."""
    fewest = min(f.named for f in frames)
    if any(f.named != fewest for f in frames):
        return 0
    types = [f.order_types()[:fewest] for f in frames]
    return fewest if all(t == types[0] for t in types) else 0


def source_column(frame: StreamFrame) -> Column:
    """Name of each row's source; null after an operator."""
    if SOURCE in frame.schema.names:
        return F.col(SOURCE)
    return F.lit(frame.source).cast("string")


def origin_column(frame: StreamFrame) -> Column:
    """What each row moves the watermark of; null for nothing."""
    if ORIGIN in frame.schema.names:
        return F.col(ORIGIN)
    return F.lit(frame.origin).cast("string")


def time_refusal_column(frame: StreamFrame) -> Column:
    """Why a strategy could not give each row an event time; null where it could."""
    if TIME_REFUSAL in frame.schema.names:
        return F.col(TIME_REFUSAL)
    return F.lit(None).cast("string")


def watermark_column(frame: StreamFrame) -> Column:
    """The watermark before each row, where an operator put it out; else null."""
    if WATERMARK in frame.schema.names:
        return F.col(WATERMARK)
    return F.lit(None).cast("bigint")


def _milliseconds(name: str, kind: T.DataType) -> Column:
    column = F.col(quoted(name))
    if isinstance(kind, T.DateType):
        return F.unix_date(column).cast("bigint") * 86_400_000
    if isinstance(kind, T.TimestampType):
        return F.unix_millis(column)
    if isinstance(kind, T.TimestampNTZType):
        # no cast to timestamp: that would go through the session's time zone
        since = column - F.lit("1970-01-01 00:00:00").cast("timestamp_ntz")
        part = [F.extract(F.lit(unit), since) for unit in ("DAY", "HOUR", "MINUTE", "SECOND")]
        minutes = (part[0].cast("bigint") * 24 + part[1]) * 60 + part[2]
        return minutes * 60_000 + F.floor(part[3] * 1000).cast("bigint")
    raise ConfigurationError(
        f"event_time column '{name}' must be a timestamp or a date, not {kind.simpleString()}"
    )
