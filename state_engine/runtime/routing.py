"""Routing: every row to the subtask that owns its key group, one task a subtask. Only events are shuffled.

Adds the key hash (Catalyst's xxhash64 of the canonical key), shuffles by subtask, and sends one marker row to every
subtask: a statically empty plan runs no task at all, and a subtask without events still has functions to open and
snapshots to take. Plays the part of Flink's ``KeyGroupStreamPartitioner``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType, StructType

from state_engine.core.errors import ConfigurationError
from state_engine.core.key_schema import KeySchema
from state_engine.core.type_parsing import to_type
from state_engine.runtime.frames import EVENT_TIME, HIDDEN, StreamFrame, quoted
from state_engine.runtime.job import OperatorNode
from state_engine.runtime.key_columns import (
    canonical_column,
    is_identity,
    key_group_column,
    key_hash_column,
    key_refusal_column,
    subtask_column,
)

HASH = HIDDEN + "hash"
SUBTASK = HIDDEN + "subtask"
KEY_REFUSAL = HIDDEN + "key_refusal"
REFUSED = HIDDEN + "refused"


def order_name(position: int) -> str:
    """Name of an order column on its way to a subtask."""
    return f"{HIDDEN}o{position}"


def key_name(position: int) -> str:
    """Name of a canonical key column that differs from the user's."""
    return f"{HIDDEN}k{position}"


@dataclass(frozen=True)
class RoutedLayout:
    """Columns of a routed row, by name.

    Attributes:
        payload: what functions see, in order.
        order: the total order.
        positioned: whether the order ends with file and row of a source, and not with a hash of the row.
        keys: canonical key columns.
        key_schema: names and declared types of the key.
        event_time: whether there is an event-time column.
        key_refusals: whether a column tells rows whose key cannot be one.
        refused: whether a column holds rows that could not be parsed.
        scalar: whether functions see the one payload column bare.
    """

    payload: tuple[str, ...]
    order: tuple[str, ...]
    positioned: bool
    keys: tuple[str, ...]
    key_schema: KeySchema
    event_time: bool
    key_refusals: bool
    refused: bool
    scalar: bool


@dataclass(frozen=True)
class _Plan:
    """The routing of one operator's input as expressions; the same for every batch with the same columns."""

    columns: list[Column]
    subtask: Column
    layout: RoutedLayout
    markers: DataFrame


class Router:
    """Routes the inputs of a job's operators.

    Args:
        spark: session.
        parallelism, max_parallelism: of the operators.
    """

    def __init__(self, spark: SparkSession, *, parallelism: int, max_parallelism: int) -> None:
        self._spark, self._parallelism, self._max_parallelism = spark, parallelism, max_parallelism
        # building expressions takes hundreds of round trips to the JVM, so they are kept between batches
        self._plans: dict[tuple[Any, ...], _Plan] = {}

    def route(
        self, frame: StreamFrame, operator: OperatorNode, *, scalar: bool
    ) -> tuple[DataFrame, RoutedLayout]:
        """The shuffled input of an operator, and what its columns are.

        Raises:
            ConfigurationError: a key or order column is missing, or a column has a type without a counterpart.
            InvalidKeyError: a key column has a type that cannot be a key.
        """
        stream = (frame.rows.schema.json(), frame.order_by, frame.hidden_order, frame.event_time)
        key = (operator.uid, operator.key_columns, scalar, *stream, frame.refused is not None)
        if key not in self._plans:
            self._plans[key] = self._plan(frame, operator, scalar)
        plan = self._plans[key]
        rows = frame.rows.select(*plan.columns).union(plan.markers)
        if frame.refused is not None:
            rows = rows.unionByName(self._refused(frame.refused), allowMissingColumns=True)
        return rows.repartitionById(self._parallelism, plan.subtask), plan.layout

    def _plan(self, frame: StreamFrame, operator: OperatorNode, scalar: bool) -> _Plan:
        what = f"operator '{operator.uid}'"
        frame.require(operator.key_columns, what=f"key_by of {what}")
        frame.require(frame.order_by, what=f"order_by of the stream into {what}")
        payload = frame.user_columns
        _check_payload(frame, payload, what)
        fields = {f.name: f.dataType for f in frame.rows.schema.fields}
        keys = [(F.col(quoted(c)), fields[c]) for c in operator.key_columns]
        order = frame.order_columns()

        columns: list[Column] = [F.col(quoted(c)) for c in payload]
        columns += [c.alias(order_name(i)) for i, c in enumerate(order)]
        if frame.event_time is not None:
            columns.append(frame.event_time_column(operator.uid).alias(EVENT_TIME))
        key_columns = []
        for i, (column, kind) in enumerate(keys):
            if is_identity(kind):
                key_columns.append(operator.key_columns[i])
            else:
                columns.append(canonical_column(column, kind).alias(key_name(i)))
                key_columns.append(key_name(i))
        key_refusals = any(isinstance(k, DoubleType | FloatType | StructType) for _, k in keys)
        if key_refusals:
            columns.append(key_refusal_column(keys).alias(KEY_REFUSAL))
        if frame.refused is not None:
            columns.append(F.lit(None).cast("string").alias(REFUSED))
        key_hash = key_hash_column(keys)
        group = key_group_column(key_hash, self._max_parallelism)
        columns.append(key_hash.alias(HASH))
        columns.append(subtask_column(group, self._max_parallelism, self._parallelism).alias(SUBTASK))
        key_types = tuple(to_type(k, parameter=f"key of {what}").arrow for _, k in keys)
        layout = RoutedLayout(
            payload=tuple(payload),
            order=tuple(order_name(i) for i in range(len(order))),
            positioned=bool(frame.hidden_order),
            keys=tuple(key_columns),
            key_schema=KeySchema(operator.key_columns, key_types),
            event_time=frame.event_time is not None,
            key_refusals=key_refusals,
            refused=frame.refused is not None,
            scalar=scalar,
        )
        markers = self._markers(frame.rows.select(*columns).schema)
        return _Plan(columns, F.col(SUBTASK), layout, markers)

    def _markers(self, schema: StructType) -> DataFrame:
        """One row a subtask, null but for the number of the subtask."""
        filled = [
            F.col("id").cast("int").alias(SUBTASK)
            if f.name == SUBTASK
            else F.lit(None).cast(f.dataType).alias(f.name)
            for f in schema.fields
        ]
        return self._spark.range(0, self._parallelism, 1, 1).select(*filled)

    def _refused(self, refused: DataFrame) -> DataFrame:
        """Rows that could not be parsed, spread over the subtasks, as text behind file and row."""
        text, file, row = refused.schema.names
        position = F.concat_ws(",", F.col(file), F.col(row))
        spread = F.pmod(F.xxhash64(F.col(text)), F.lit(self._parallelism)).cast("int")
        return refused.select(
            spread.alias(SUBTASK), F.concat(position, F.lit("\n"), F.col(text)).alias(REFUSED)
        )


def _check_payload(frame: StreamFrame, payload: list[str], what: str) -> None:
    if len(set(payload)) != len(payload):
        raise ConfigurationError(
            f"{what}: two columns of its input have the same name: {payload}; rename one"
        )
    for field in frame.rows.schema.fields:
        if not field.name.startswith(HIDDEN):
            try:
                to_type(field.dataType, parameter=f"column '{field.name}'")
            except ConfigurationError as error:
                raise ConfigurationError(f"{what}: {error}; cast or drop the column in a transform") from None
