"""``StreamFrame``: the rows of one stream in one micro-batch, as a DataFrame that knows its order and event time.

Order columns travel with the rows: what the user named, then hidden columns that make the order total. A DataFrame
step that drops the hidden ones is allowed where an order is named; ties are then broken by the content of the row, so
that rows which tie are equal and their order cannot matter.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, MapType, TimestampNTZType, TimestampType

from state_engine.core.errors import ConfigurationError
from state_engine.runtime.job import TransformNode
from state_engine.runtime.sources.base import FILE_COLUMN, ROW_COLUMN

HIDDEN = "_statelake_"
"""Prefix of all columns of ours."""
EVENT_TIME = HIDDEN + "event_ms"


@dataclass(frozen=True)
class StreamFrame:
    """Rows with their order.

    Attributes:
        rows: user columns and hidden columns.
        order_by: user columns that come first in the order.
        hidden_order: hidden columns that make it total.
        event_time: user column, or hidden column in milliseconds, of the event time; None without.
        source: name of the source that the rows come straight from; None after an operator.
        labels: names of the source's files by place.
        refused: rows that could not be parsed, see ``SourceFrame``.
    """

    rows: DataFrame
    order_by: tuple[str, ...]
    hidden_order: tuple[str, ...]
    event_time: str | None
    source: str | None
    labels: tuple[str, ...] = ()
    refused: DataFrame | None = field(default=None)

    @property
    def user_columns(self) -> list[str]:
        """Columns that functions and sinks see."""
        return [c for c in self.rows.schema.names if not c.startswith(HIDDEN)]

    def transformed(self, step: TransformNode) -> StreamFrame:
        """The frame after DataFrame code of the user."""
        rows = step.function(self.rows)
        if not isinstance(rows, DataFrame):
            raise ConfigurationError(
                f"transform({step.function!r}) returned {type(rows).__name__}, not a DataFrame"
            )
        kept = all(c in rows.schema.names for c in self.hidden_order)
        order_by = self.order_by if step.order_by is None else step.order_by
        return replace(self, rows=rows, order_by=order_by, hidden_order=self.hidden_order if kept else ())

    def require(self, columns: tuple[str, ...], *, what: str) -> None:
        """Refuse columns that are not there, naming those that are."""
        missing = [c for c in columns if c not in self.rows.schema.names]
        if missing:
            raise ConfigurationError(
                f"{what}: there is no column {', '.join(repr(c) for c in missing)}; the stream has {self.user_columns}"
            )

    def order_columns(self) -> list[Column]:
        """The total order as columns, hidden ones made where a transform lost them."""
        named = [F.col(quoted(c)) for c in self.order_by]
        if self.hidden_order:
            return named + [F.col(c) for c in self.hidden_order]
        if not named:  # sinks need no order: only keyed operators come here
            raise ConfigurationError(
                "a transform dropped the columns that give the rows their order. Name an order: "
                "source(order_by=[...]) or transform(..., order_by=[...]), or keep all columns (withColumn, drop)"
            )
        fields = [f for f in self.rows.schema.fields if not isinstance(f.dataType, MapType)]
        return [*named, F.xxhash64(*[F.col(quoted(f.name)) for f in fields])]

    def event_time_column(self, operator: str) -> Column:
        """Event time in milliseconds; null where there is none."""
        if self.event_time is None:
            return F.lit(None).cast("bigint")
        if self.event_time == EVENT_TIME:
            return F.col(EVENT_TIME)
        self.require((self.event_time,), what=f"event_time of operator '{operator}'")
        return _milliseconds(self.event_time, self.rows.schema[self.event_time].dataType)


def from_source(rows: DataFrame, *, order_by: tuple[str, ...], event_time: str | None, source: str,
                labels: tuple[str, ...], refused: DataFrame | None) -> StreamFrame:  # fmt: skip
    """The frame of a source's slice."""
    return StreamFrame(rows, order_by, (FILE_COLUMN, ROW_COLUMN), event_time, source, labels, refused)


def quoted(column: str) -> str:
    """A column name that Spark takes literally, dots included."""
    return "`" + column.replace("`", "``") + "`"


def _milliseconds(name: str, kind: DataType) -> Column:
    column = F.col(quoted(name))
    if isinstance(kind, DateType):
        return F.unix_date(column).cast("bigint") * 86_400_000
    if isinstance(kind, TimestampType):
        return F.unix_millis(column)
    if isinstance(kind, TimestampNTZType):
        # no cast to timestamp: that would go through the session's time zone
        since = column - F.lit("1970-01-01 00:00:00").cast("timestamp_ntz")
        part = [F.extract(F.lit(unit), since) for unit in ("DAY", "HOUR", "MINUTE", "SECOND")]
        minutes = (part[0].cast("bigint") * 24 + part[1]) * 60 + part[2]
        return minutes * 60_000 + F.floor(part[3] * 1000).cast("bigint")
    raise ConfigurationError(
        f"event_time column '{name}' must be a timestamp or a date, not {kind.simpleString()}"
    )
