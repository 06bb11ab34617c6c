"""What the hidden columns of a stream's rows are made of: a rule a column, for Arrow and for Spark.

Which order, time and origin rows have is decided once, here and by the attributes of a ``StreamFrame``. The router
evaluates the rules over Arrow tables; a union of streams, which users' DataFrame code may read, over DataFrames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.types.beyond_python import FIRST_MS, LAST_MS
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.ddl import ddl_text, quoted
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
    """The column of a DataFrame."""
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
