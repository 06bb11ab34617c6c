"""What the hidden columns of a stream's rows are made of: a rule a column, for Arrow and for Spark; and kinds of rows.

Which order, time and origin rows have is decided once, here and by the attributes of a ``StreamFrame``. The router
evaluates the rules over Arrow tables; a union of streams, which users' DataFrame code may read, over DataFrames.

Only streams that change have the column ``ROW_KIND``. It stands beside the columns of the order, never among the
user's: on the way from sources to subtasks, in files between operators, in dead letters, and in files of sinks that
accept changes. Plays the part of the header byte of ``RowData``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.operator.element_kinds import rows_of_kinds, shown_changes
from state_engine.core.types.beyond_python import FIRST_MS, LAST_MS
from state_engine.core.types.columns import elements, one_chunk
from state_engine.core.types.ddl import ddl_text, quoted
from state_engine.core.types.every_type import StructType
from state_engine.core.types.row import RowKind
from state_engine.spark.spark_names import F

if TYPE_CHECKING:
    from pyspark.sql import Column

ROW_KIND = "_statelake_row_kind"
"""Hidden column (int8) of a stream that changes: ``RowKind.value`` of each row. An append-only stream has none."""

_DAY_MS = 86_400_000


@dataclass(frozen=True)
class Taken:
    """A column of the stream, as it is."""

    name: str


@dataclass(frozen=True)
class Constant:
    """The same value in all rows; None for null."""

    value: Any
    kind: pa.DataType


@dataclass(frozen=True)
class Milliseconds:
    """A date or timestamp as milliseconds since 1970, rounded down.

    Attributes:
        within_python: whether a time that Python cannot hold is null: its row is refused, and moves no watermark.
    """

    name: str
    kind: pa.DataType
    within_python: bool = False


Rule = Taken | Constant | Milliseconds


def ordered_together(
    orders: Sequence[Sequence[tuple[str, pa.DataType]]], named: int, places: Sequence[int]
) -> list[list[Rule]]:
    """Rules that put the rows of several streams into one order, for each of them.

    First what the users named, where all named as much; then the place of the stream; then what is left of each
    stream's own order, which is null for the others.

    Args:
        orders: columns of each stream's own order.
        named: how many of them all streams were given by name.

    Example:
        >>> number = pa.int64()
        >>> ordered_together([[("t", number), ("a", number)], [("u", number)]], 1, [0, 1])[1]
        [Taken(name='u'), Constant(value=1, kind=DataType(int32)), Constant(value=None, kind=DataType(int64))]
    """
    made = []
    for at, own in enumerate(orders):
        rules: list[Rule] = [Taken(name) for name, _ in own[:named]]
        rules.append(Constant(places[at], pa.int32()))
        for other, columns in enumerate(orders):
            rest = columns[named:]
            rules += [Taken(n) for n, _ in rest] if other == at else [Constant(None, k) for _, k in rest]
        made.append(rules)
    return made


def in_arrow(rule: Rule, rows: pa.Table) -> pa.Array:
    if isinstance(rule, Constant):
        return pa.repeat(pa.scalar(rule.value, rule.kind), rows.num_rows)
    column = one_chunk(rows[rule.name])
    if isinstance(rule, Taken):
        return column
    times_ms = _in_arrow_ms(rule, column)
    if not rule.within_python:
        return times_ms
    within = pc.and_(pc.greater_equal(times_ms, FIRST_MS), pc.less_equal(times_ms, LAST_MS))
    return pc.if_else(within, times_ms, pa.scalar(None, pa.int64()))


def _in_arrow_ms(rule: Milliseconds, column: pa.Array) -> pa.Array:
    if pa.types.is_date(rule.kind):
        return pc.multiply(column.cast(pa.int32()).cast(pa.int64()), _DAY_MS)
    micros = column.cast(pa.timestamp("us", rule.kind.tz)).cast(pa.int64())
    rounded_down = pc.fill_null(micros, 0).to_numpy() // 1000
    return pa.array(rounded_down, mask=pc.is_null(micros).to_numpy(zero_copy_only=False))


def in_spark(rule: Rule) -> Column:
    if isinstance(rule, Constant):
        return F.lit(rule.value).cast(ddl_text(rule.kind))
    column = F.col(quoted(rule.name))
    if isinstance(rule, Taken):
        return column
    times_ms = _in_spark_ms(rule, column)
    return F.when(times_ms.between(FIRST_MS, LAST_MS), times_ms) if rule.within_python else times_ms


def _in_spark_ms(rule: Milliseconds, column: Column) -> Column:
    if pa.types.is_date(rule.kind):
        return F.unix_date(column).cast("bigint") * _DAY_MS
    if rule.kind.tz is not None:
        return F.unix_millis(column)
    # no cast to timestamp: that would go through the session's time zone
    since = column - F.lit("1970-01-01 00:00:00").cast("timestamp_ntz")
    part = [F.extract(F.lit(unit), since) for unit in ("DAY", "HOUR", "MINUTE", "SECOND")]
    minutes = (part[0].cast("bigint") * 24 + part[1]) * 60 + part[2]
    return minutes * 60_000 + F.floor(part[3] * 1000).cast("bigint")


KIND_FIELD = pa.field(ROW_KIND, pa.int8())
"""The column."""
_KINDS = tuple(RowKind)


def kind_column(kinds: Iterable[RowKind]) -> pa.Array:
    """Kinds as the column.

    Example:
        >>> kind_column([RowKind.DELETE]).to_pylist()
        [3]
    """
    return pa.array([kind.value for kind in kinds], pa.int8())


def column_of_kinds(rows: pa.Table) -> pa.Array:
    """The column of rows; where they have none, all are inserts.

    Example:
        >>> column_of_kinds(pa.table({"id": [7]})).to_pylist()
        [0]
    """
    if ROW_KIND in rows.column_names:
        return rows[ROW_KIND]
    return pa.repeat(pa.scalar(RowKind.INSERT.value, pa.int8()), rows.num_rows)


def kinds_of(rows: pa.Table | pa.RecordBatch) -> list[RowKind]:
    """Kinds of rows that have the column; a null is an insert.

    Example:
        >>> kinds_of(pa.table({ROW_KIND: pa.array([3, None], pa.int8())}))
        [<RowKind.DELETE: 3>, <RowKind.INSERT: 0>]
    """
    return [_KINDS[value or 0] for value in rows[ROW_KIND].to_pylist()]


def with_kinds_of(rows: pa.Table | pa.RecordBatch, values: list[Any]) -> list[Any]:
    """Elements that were made of rows, as functions see them: a Row has its kind."""
    return rows_of_kinds(values, kinds_of(rows)) if ROW_KIND in rows.schema.names else values


def shown_elements(rows: pa.Table, *, scalar: bool, declared: StructType | None) -> list[Any]:
    """Rows of a sink's file as elements: where they have kinds, Rows of their kind or pairs of a kind and a value.

    Example:
        >>> rows = pa.table({"value": [7], ROW_KIND: pa.array([3], pa.int8())})
        >>> shown_elements(rows, scalar=True, declared=None)
        [ElementChange(kind=<RowKind.DELETE: 3>, value=7)]
    """
    names = [name for name in rows.column_names if name != ROW_KIND]
    values = elements(rows, names, scalar=scalar, declared=declared)
    return shown_changes(values, kinds_of(rows)) if ROW_KIND in rows.column_names else values
