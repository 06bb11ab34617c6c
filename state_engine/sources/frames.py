"""``StreamFrame``: the rows of one stream in one micro-batch, which know their order and event time.

Rows that Spark does not read, see ``sources.rows``, become a DataFrame only where somebody asks for one.

Order columns travel with the rows: what the user named, then hidden columns that make the order total. Users' DataFrame
code does not see the hidden ones (``row_by_row``). Code that makes new rows loses them, which is allowed where it names
an order; the content of the row then breaks ties, so that rows which tie are equal and their order cannot matter.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import repeat
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.core.types.column_names import RESERVED, check_not_reserved, check_there
from state_engine.core.types.ddl import ddl_text, quoted
from state_engine.core.types.row import RowKind
from state_engine.core.types.spark_types import spark_schema
from state_engine.sources.base import FILE_COLUMN, PLACES, ROW_COLUMN, SourceFrame
from state_engine.sources.output_type import OutputType
from state_engine.sources.row_by_row import visible, with_places
from state_engine.sources.rows import DriverRows, Given, Read, Rows, SparkRows, TaskRows, match, rows_of
from state_engine.sources.stream_columns import (
    ROW_KIND,
    Constant,
    Milliseconds,
    Rule,
    Taken,
    in_arrow,
    in_spark,
    ordered_together,
)
from state_engine.spark.frame_code import frame_code
from state_engine.spark.no_spark import has_spark
from state_engine.spark.spark_names import F, T

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HIDDEN = RESERVED
"""Prefix of all columns of ours."""
EVENT_TIME = HIDDEN + "event_ms"
SOURCE = HIDDEN + "source"
"""Where streams of several sources were united: name of the row's source."""
WATERMARK = HIDDEN + "watermark"
"""The watermark before a row: carried by the rows of an operator; of routed rows, by the row's place."""
RANK = HIDDEN + "rank"
"""Among rows of one watermark: 0 of what came from elements, above it of what timers put out."""
ARRIVAL = (HIDDEN + "file_of_arrival", HIDDEN + "row_of_arrival")
"""Where ``order_by`` may put a row behind newer ones: its place in its source; null for a row that it does not move."""
ORIGIN = HIDDEN + "origin"
"""What a row moves the watermark of; see ``microbatch.routing.origins``."""
TIME_REFUSAL = HIDDEN + "time_refusal"
"""Of a row whose event time a strategy could not give: why."""
CONTENT = HIDDEN + "content"
"""Hash of a row, which orders rows that tie where a transform lost their places."""
REFUSED = HIDDEN + "refused"
"""Of a row that could not be parsed, a line each: source, file, row and text as base64; where a source says them, its
error and the row for people as base64, too."""
_MAKES_NEW_ROWS = "makes new rows (mapInArrow, mapInPandas, an RDD, createDataFrame)"
PLACE_COLUMNS = (FILE_COLUMN, ROW_COLUMN)
"""They order the rows of a source; where these change, what an update replaces comes before what it puts in place."""


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
class TableCode:
    """Stands for DataFrame code where there is no Spark: takes and gives a table, with the hidden columns."""

    function: Callable[[pa.Table], pa.Table]
    of: str

    def applied(self, rows: pa.Table | None) -> pa.Table:
        assert rows is not None
        made = self.function(rows)
        if not isinstance(made, pa.Table):
            raise ConfigurationError(
                f"the replacement of {self.of} returned {type(made).__name__}, not a pyarrow.Table"
            )
        lost = [c for c in rows.column_names if c.startswith(HIDDEN) and c not in made.column_names]
        if lost:
            raise ConfigurationError(
                f"the replacement of {self.of} dropped the columns {lost}, which order the rows: keep all columns that "
                f"begin with {HIDDEN}"
            )
        return made.combine_chunks()


@dataclass(frozen=True)
class StreamFrame:
    """Rows with their order.

    Attributes:
        order_by: user columns that come first in the order.
        named: how many columns of the order, user's and hidden together, were named by the user.
        event_time: user column, or hidden column in milliseconds, of the event time; None without.
        source: name of the source that the rows come straight from; None after an operator or a union.
        sources: names of all sources that rows come straight from.
        labels: by source, names of its files by place.
        refused: by source, rows that could not be parsed: the one column REFUSED.
        timed_order: whether the order begins with the event time.
        origin: of all rows, see ``microbatch.routing.origins``; None where rows carry their own, or have none.
        lead: hidden columns that come before all others in the order, as long as the stream is not merged.
    """

    spark: SparkSession
    given: Rows
    order_by: tuple[str, ...]
    hidden_order: tuple[str, ...]
    named: int
    event_time: str | None
    source: str | None = None
    sources: tuple[str, ...] = ()
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    refused: tuple[tuple[str, Rows], ...] = ()
    timed_order: bool = False
    origin: str | None = None
    lead: tuple[str, ...] = ()
    changing: bool = False

    @property
    def schema(self) -> T.StructType:
        return self.given.struct

    @cached_property
    def rows(self) -> DataFrame:
        return self.given.as_frame(self.spark)

    @property
    def table(self) -> pa.Table | None:
        return self.given.table

    def with_rows(self, rows: Given, **changes: Any) -> StreamFrame:
        """The frame with other rows, and other values of attributes."""
        return replace(self, given=rows_of(rows, self.spark), **changes)

    @property
    def user_columns(self) -> list[str]:
        """Columns that functions and sinks see."""
        return [c for c in self.schema.names if not c.startswith(HIDDEN)]

    @property
    def user_schema(self) -> T.StructType:
        """The columns that functions and sinks see, with their types."""
        return T.StructType([f for f in self.schema.fields if not f.name.startswith(HIDDEN)])

    def transformed(self, step: DataFrameStep) -> StreamFrame:
        """The frame after DataFrame code of the user, or after what stands for it."""
        if isinstance(step.function, TableCode):
            return self._with(step.function.applied(self.table), step, self.hidden_order)
        from pyspark.sql import DataFrame

        from state_engine.spark.engine_session import own_frame  # PySpark is imported on first use

        code, hidden = f"transform({step.function!r})", [c for c in self.schema.names if c.startswith(HIDDEN)]
        given = visible(self.rows, hidden)
        with frame_code():
            made = step.function(given)
        if not isinstance(made, DataFrame):
            raise ConfigurationError(f"{code} returned {type(made).__name__}, not a DataFrame")
        made = own_frame(made, self.spark, what=code)
        check_not_reserved(made.columns, what=code)
        if step.output_type is not None:
            made = _as_declared(made, step.output_type, what=code)
        placed = with_places(made, given, hidden, what=code)
        if not placed.kept:
            return self._new_rows(placed.rows, step)
        rows, order = placed.rows, (*self.hidden_order, *placed.order)
        if placed.mixed:
            rows, order = _with_content(rows), (*(c for c in order if c != CONTENT), CONTENT)
        return self._with(rows, step, order)

    def _with(
        self, rows: DataFrame | pa.Table, step: DataFrameStep, hidden_order: tuple[str, ...]
    ) -> StreamFrame:
        if step.order_by is None:
            return self.with_rows(rows, hidden_order=hidden_order)
        return self._ordered_by(step.order_by, rows, hidden_order)

    def _new_rows(self, rows: DataFrame, step: DataFrameStep) -> StreamFrame:
        """The frame with new rows, of which nobody knows which rows they were."""
        if self.changing:
            raise ConfigurationError(
                f"transform({step.function!r}) {_MAKES_NEW_ROWS}, so that the kinds of the rows and their order are "
                "lost, without which an update looks like an insert. Use expressions of columns and UDFs there"
            )
        return self._ordered_by(self.order_by if step.order_by is None else step.order_by, rows, ())

    def _ordered_by(
        self, order_by: tuple[str, ...], rows: DataFrame | pa.Table, hidden_order: tuple[str, ...]
    ) -> StreamFrame:
        return self.with_rows(
            rows, order_by=order_by, hidden_order=hidden_order, named=len(order_by),
            timed_order=order_by[:1] == (self.event_time,), lead=(),
        )  # fmt: skip

    def require(self, columns: Sequence[str], *, what: str) -> None:
        """Refuse columns that are not there, naming those that are."""
        check_there([c for c in columns if c not in self.schema.names], self.user_columns, what=what)

    def ordered(self) -> StreamFrame:
        """With hidden columns that make its order total: a hash of the row where a transform lost the source's."""
        if self.hidden_order:
            return self
        if not self.order_by:  # sinks need no order: only operators come here
            raise ConfigurationError(
                f"a transform {_MAKES_NEW_ROWS}, which have no order. Name one: source(order_by=[...]) or "
                "transform(..., order_by=[...]), or use expressions of columns and UDFs there"
            )
        return self.with_rows(_with_content(self.rows), hidden_order=(CONTENT,))

    def arrow_type(self, name: str) -> pa.DataType:
        return self.given.arrow_type(name)

    @property
    def order(self) -> list[tuple[str, pa.DataType]]:
        """Names and types of the columns of the order, which ``ordered`` makes total."""
        return [(c, self.arrow_type(c)) for c in (*self.order_by, *self.hidden_order)]

    def event_ms(self, what: str) -> Rule:
        """Event time in milliseconds; null where there is none."""
        if self.event_time is None:
            return Constant(None, pa.int64())
        if self.event_time == EVENT_TIME:
            own = {EVENT_TIME} if self.source is not None else {EVENT_TIME, WATERMARK}
            if not own <= set(self.schema.names):
                raise ConfigurationError(
                    f"{what}: a transform {_MAKES_NEW_ROWS}, so that the event time of an operator's outputs, or of a "
                    "WatermarkStrategy, is lost. Use expressions of columns and UDFs there"
                )
            return Taken(EVENT_TIME)
        self.require((self.event_time,), what=f"event_time of {what}")
        kind = self.arrow_type(self.event_time)
        if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
            raise ConfigurationError(
                f"event_time column '{self.event_time}' must be a timestamp or a date, not {ddl_text(kind)}"
            )
        return Milliseconds(self.event_time, kind, within_python=True)

    @property
    def source_name(self) -> Rule:
        """Name of each row's source; null after an operator."""
        return self._own(SOURCE, pa.string(), self.source)

    @property
    def row_origin(self) -> Rule:
        """What each row moves the watermark of; null for nothing."""
        return self._own(ORIGIN, pa.string(), self.origin)

    @property
    def time_refusal(self) -> Rule:
        """Why a strategy could not give each row an event time; null where it could."""
        return self._own(TIME_REFUSAL, pa.string())

    @property
    def watermark(self) -> Rule:
        """The watermark before each row, where an operator put it out; else null."""
        return self._own(WATERMARK, pa.int64())

    @property
    def reordered(self) -> bool:
        """Whether the rows are in another order than they came in, and not in that of their times."""
        own = self.source is not None and self.hidden_order[:2] == PLACE_COLUMNS
        moved = own and self.named > 0 and not self.timed_order and self.event_time is not None
        return moved or ARRIVAL[0] in self.schema.names

    @property
    def arrival(self) -> dict[str, Rule]:
        if ARRIVAL[0] in self.schema.names:
            return {name: Taken(name) for name in ARRIVAL}
        if self.reordered:
            return dict(zip(ARRIVAL, map(Taken, PLACE_COLUMNS), strict=True))
        return {name: Constant(None, kind) for name, kind in zip(ARRIVAL, PLACES.types, strict=True)}

    @property
    def row_kind(self) -> Rule:
        """The kind of each row; that of inserts where the stream has no other."""
        return Taken(ROW_KIND) if self.changing else Constant(RowKind.INSERT.value, pa.int8())

    def _own(self, column: str, kind: pa.DataType, value: str | None = None) -> Rule:
        """A hidden column, or what stands for it where the rows do not have it."""
        return Taken(column) if column in self.schema.names else Constant(value, kind)


def _with_content(rows: DataFrame) -> DataFrame:
    """With a hash of the row, which gives rows that tie an order unless they are equal."""
    names = [
        f.name
        for f in rows.schema.fields
        if not isinstance(f.dataType, T.MapType) and not f.name.startswith(HIDDEN)
    ]
    return rows.withColumn(CONTENT, F.xxhash64(*[F.col(quoted(name)) for name in names]))


def _as_declared(rows: DataFrame, kind: OutputType, *, what: str) -> DataFrame:
    """The declared columns, in their order. Raises ConfigurationError where others came."""
    given = {f.name: f.dataType for f in rows.schema.fields}
    names = kind.columns.names
    missing, extra = [n for n in names if n not in given], [n for n in given if n not in names]
    if missing or extra:
        raise ConfigurationError(
            f"{what}: its output_type has the columns {list(names)}, and it gives {list(given)}: missing {missing}, "
            f"not declared {extra}. Select the declared ones"
        )
    declared = T.StructType.fromJson(spark_schema(pa.schema(list(kind.columns.arrow))))
    for field in declared.fields:
        known, wanted = (kind.simpleString() for kind in (given[field.name], field.dataType))
        if known != wanted:  # texts, for whether something may be null does not matter
            raise ConfigurationError(
                f"{what}: the column '{field.name}' is {known}, and declared {wanted}: cast it there, or declare "
                "another type"
            )
    return rows.select(*[F.col(quoted(n)) for n in names])


def from_source(spark: SparkSession, read: SourceFrame, *, order_by: tuple[str, ...], event_time: str | None,
                source: str, labels: tuple[str, ...], changing: bool = False,
                ) -> StreamFrame:  # fmt: skip
    own = list(read.rows.schema.names)
    for name in (*PLACE_COLUMNS, ROW_KIND):
        if name in own:
            own.remove(name)
    check_not_reserved(own, what=f"source '{source}'")
    if changing and ROW_KIND not in read.rows.schema.names:
        raise SourceError(
            f"source '{source}': it says that it changes, and its rows have no column {ROW_KIND} with their kinds: add "
            "it to what read and parse give"
        )
    changing = ROW_KIND in read.rows.schema.names
    unparsable = () if read.refused is None else ((source, _packed(read.refused, source)),)
    return StreamFrame(
        spark=spark,
        given=rows_of(read.rows, spark),
        order_by=order_by,
        hidden_order=(*PLACE_COLUMNS, ROW_KIND) if changing else PLACE_COLUMNS,
        named=len(order_by),
        event_time=event_time,
        source=source,
        sources=(source,),
        labels=((source, labels),),
        refused=unparsable,
        timed_order=bool(order_by) and order_by[0] == event_time,
        origin=None if event_time is None else source,
        changing=changing,
    )


def _packed(refused: DataFrame | pa.Table, source: str) -> Rows:
    text, file, row, *reasons = refused.schema.names

    def in_arrow_column(rows: pa.Table) -> Rows:
        parts = [rows[text].cast(pa.binary()), *[rows[name].cast(pa.binary()) for name in reasons]]
        encoded = [["" if v is None else b64encode(v).decode() for v in part.to_pylist()] for part in parts]
        places = [map(str, rows[name].to_pylist()) for name in (file, row)]
        texts = ["\n".join(line) for line in zip(repeat(source), *places, *encoded)]
        return DriverRows(pa.table({REFUSED: pa.array(texts, pa.string())}), here=True)

    def in_spark_column(rows: DataFrame) -> Rows:
        # it may be no UTF-8; Spark breaks its base64 into lines
        encodings = [
            F.translate(F.coalesce(F.base64(F.col(name).cast("binary")), F.lit("")), "\r\n", "")
            for name in (text, *reasons)
        ]
        lines = F.concat_ws("\n", F.lit(source), F.col(file), F.col(row), *encodings)
        return SparkRows(rows.select(lines.alias(REFUSED)))

    return match(refused, table=in_arrow_column, frame=in_spark_column)


def united(frames: Sequence[StreamFrame]) -> StreamFrame:
    """One frame of several with the same columns, merged by their order."""
    columns = frames[0].user_columns
    for other in frames[1:]:
        if sorted(other.user_columns) != sorted(columns):
            raise ConfigurationError(
                f"union: the streams have different columns: {columns} and {other.user_columns}; select the same ones"
            )
    for frame in frames:
        frame.require(frame.order_by, what="order_by of the union")
    frames = [frame.ordered() for frame in frames]
    orders = merged_orders(frames, range(len(frames)))
    timed = any(f.event_time is not None for f in frames)
    refusing = any(TIME_REFUSAL in f.schema.names for f in frames)
    changing, reordered = any(f.changing for f in frames), any(f.reordered for f in frames)
    made = []
    for frame, order in zip(frames, orders, strict=True):
        rules: dict[str, Rule] = {name: Taken(name) for name in columns}
        rules |= {order_name(i): rule for i, rule in enumerate(order)}
        if timed:
            rules[EVENT_TIME] = frame.event_ms("union")
            rules |= {WATERMARK: frame.watermark, ORIGIN: frame.row_origin}
        if reordered:
            rules |= frame.arrival
        rules[SOURCE] = frame.source_name
        if changing:
            rules[ROW_KIND] = frame.row_kind
        if refusing:
            rules[TIME_REFUSAL] = frame.time_refusal
        made.append(rules)
    named = shared_names(frames)
    return StreamFrame(
        spark=frames[0].spark,
        given=_united_rows(frames, made),
        order_by=(),
        hidden_order=tuple(order_name(i) for i in range(len(orders[0]))),
        named=named,
        event_time=EVENT_TIME if timed else None,
        sources=tuple(s for f in frames for s in f.sources),
        labels=tuple(one for f in frames for one in f.labels),
        refused=tuple(one for f in frames for one in f.refused),
        timed_order=named > 0 and all(f.timed_order for f in frames),
        changing=changing,
    )


def _united_rows(frames: Sequence[StreamFrame], rules: Sequence[dict[str, Rule]]) -> Rows:
    """The rows of all frames: as they all are, where each column has one type; else a DataFrame."""
    tables = [frame.table for frame in frames]
    kinds = [[frame.arrow_type(name) for name in frames[0].user_columns] for frame in frames]
    if all(table is not None for table in tables):
        if all(other == kinds[0] for other in kinds):
            parts = [
                pa.table({name: in_arrow(rule, table) for name, rule in one.items()})
                for one, table in zip(rules, tables, strict=True)
            ]
            return rows_of(pa.concat_tables(parts).combine_chunks(), frames[0].spark)
        if not has_spark(frames[0].spark):
            raise ConfigurationError(
                f"union: the columns {frames[0].user_columns} have other types in one stream than in another, which "
                "only Spark brings together: declare the same types"
            )
    by_tasks = [rows for frame in frames if (rows := frame.given.task_rows) is not None]
    if len(by_tasks) == len(frames) and all(other == kinds[0] for other in kinds):
        return _united_in_tasks(by_tasks, rules, partial(_united_in_spark, frames, rules))
    return SparkRows(_united_in_spark(frames, rules))


def _united_in_spark(frames: Sequence[StreamFrame], rules: Sequence[dict[str, Rule]]) -> DataFrame:
    selected = [
        frame.rows.select(*[in_spark(rule).alias(name) for name, rule in one.items()])
        for frame, one in zip(frames, rules, strict=True)
    ]
    return reduce(lambda above, below: above.union(below), selected)


def _united_in_tasks(
    parts: Sequence[TaskRows], rules: Sequence[dict[str, Rule]], scan: Callable[[], DataFrame]
) -> TaskRows:
    columns = {name: in_arrow(rule, parts[0].schema.empty_table()) for name, rule in rules[0].items()}
    tasks = [
        (part.read, task, one) for part, one in zip(parts, rules, strict=True) for task in range(part.tasks)
    ]
    near = all(part.near for part in parts)
    return TaskRows(pa.table(columns).schema, len(tasks), partial(_read_united, tasks), scan, near)


def _read_united(
    tasks: Sequence[tuple[Read, int, dict[str, Rule]]], task: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    read, number, rules = tasks[task]
    wanted = {name: rules[name] for name in columns}
    taken = [
        [rule.name for rule in some if not isinstance(rule, Constant)]
        for some in (wanted.values(), rules.values())
    ]
    needed = taken[0] or taken[1][:1]  # a column says how many rows there are
    for batch in read(number, tuple(dict.fromkeys(needed))):
        rows = pa.Table.from_batches([batch])
        yield from pa.table({name: in_arrow(rule, rows) for name, rule in wanted.items()}).to_batches()


def merged_orders(frames: Sequence[StreamFrame], places: Sequence[int]) -> list[list[Rule]]:
    """Rules that put the rows of several streams into one order; the own order of a single one."""
    orders = [frame.order for frame in frames]
    if len(frames) == 1:
        return [[Taken(name) for name, _ in orders[0]]]
    return ordered_together(orders, shared_names(frames), places)


def orders_by_event_time(
    frames: Sequence[StreamFrame], places: Sequence[int], *, what: str
) -> list[list[Rule]]:
    """Rules that put the rows of several streams into the order of their event times, for each of them.

    First the event time: the column that each stream's order begins with, where all have one of the same type; else
    in milliseconds. Then the place of the stream; then its own order. A single stream has no place.
    """
    for frame in frames:
        if frame.named and not frame.timed_order:
            raise ConfigurationError(_ordered_otherwise(frame, what))
    firsts = [frame.order[0][1] if frame.timed_order else None for frame in frames]
    alike = firsts[0] is not None and all(kind == firsts[0] for kind in firsts)
    orders = [frame.order if alike else [(EVENT_TIME, pa.int64()), *frame.order] for frame in frames]
    made = ordered_together(orders, 1, places)
    for frame, rules in zip(frames, made, strict=True):
        if not alike:
            rules[0] = _instant(frame, what)
        if len(frames) == 1:
            del rules[1]
    return made


def _instant(frame: StreamFrame, what: str) -> Rule:
    """Where event time puts each row, in milliseconds: where the order begins with it, that also places timers."""
    if not frame.timed_order:
        return frame.event_ms(what)
    name, kind = frame.order[0]
    return Taken(name) if pa.types.is_integer(kind) else Milliseconds(name, kind)


def _ordered_otherwise(frame: StreamFrame, what: str) -> str:
    named = f"order_by={list(frame.order_by[: frame.named])}" if frame.order_by else "their order_by"
    of = f"of source '{frame.source}'" if frame.source is not None else f"that {what} reads"
    return (
        f"{what}: connect(…, ordered=True) puts both streams into the order of their event times, and the rows {of} "
        f"have another one ({named}): begin order_by with the event_time column, or leave order_by out; or connect "
        "without ordered=True"
    )


def shared_names(frames: Sequence[StreamFrame]) -> int:
    """How many order columns all streams were given by name, of the same types."""
    fewest = min(f.named for f in frames)
    if any(f.named != fewest for f in frames):
        return 0
    types = [[kind for _, kind in f.order[:fewest]] for f in frames]
    return fewest if all(t == types[0] for t in types) else 0
