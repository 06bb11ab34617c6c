"""Routing: every row to its subtask, one task a subtask. Only events are shuffled.

On keyed streams a row goes to the subtask that owns its key group, by Catalyst's xxhash64 of the canonical key; without
a key it goes where its place in the order sends it, so that a replay sends it there again; a broadcast row goes to all.
One marker row goes to every subtask: a statically empty plan runs no task at all, and a subtask without events still
has functions to open and snapshots to take. Plays the part of Flink's ``KeyGroupStreamPartitioner``,
``RebalancePartitioner`` and ``BroadcastPartitioner``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DoubleType, FloatType, StructType

from state_engine.core.errors import ConfigurationError, InvalidKeyError
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.types.ddl import quoted
from state_engine.core.types.type_parsing import to_type
from state_engine.job.graph import OperatorNode, SelectedKey
from state_engine.microbatch.routing.element_watermarks import STEPS_SCHEMA, joined_steps, step_finder
from state_engine.microbatch.routing.few_routing import route_few
from state_engine.microbatch.routing.origins import NO_ORIGINS, Origins
from state_engine.microbatch.routing.routed import (
    HASH,
    INPUT,
    KEY_REFUSAL,
    SUBTASK,
    InputLayout,
    RoutedInput,
    RoutedLayout,
    key_name,
    payload_name,
    places_in_order,
)
from state_engine.microbatch.routing.selected_key import with_selected_key
from state_engine.sources.frames import (
    EVENT_TIME,
    HIDDEN,
    ORIGIN,
    RANK,
    REFUSED,
    SOURCE,
    TIME_REFUSAL,
    WATERMARK,
    StreamFrame,
    merged_orders,
    order_name,
    origin_column,
    shared_names,
    source_column,
    time_refusal_column,
    watermark_column,
)
from state_engine.spark.key_columns import (
    canonical_column,
    canonical_type,
    is_identity,
    key_group_column,
    key_hash_column,
    key_refusal_column,
    subtask_column,
)

Collect = Callable[[DataFrame], Sequence[Any]]
"""Runs a DataFrame and gives its rows."""

_NOTHING_NEW = RoutedLayout(
    inputs=(),
    order=(order_name(0), order_name(1)),  # timers have a time and a key
    named=1,
    timed_order=True,
    positioned=False,
    keys=(),
    key_schema=None,
    event_time=True,
    key_refusals=False,
    refused=False,
    sources=False,
)
"""Of the input of an operator whose streams have nothing new."""


def nothing_new(parallelism: int, *, event_time: bool) -> Routed:
    """The input of an operator whose streams have nothing new."""
    layout = _NOTHING_NEW if event_time else replace(_NOTHING_NEW, event_time=False)
    columns = [HASH, *layout.order, *([EVENT_TIME] if event_time else []), SUBTASK]
    empty = pa.table({name: pa.array([], pa.int64()) for name in columns})
    return Routed([empty] * parallelism, layout)


@dataclass(frozen=True)
class Routed:
    """The input of an operator.

    Attributes:
        rows: shuffled, or where they are little a table a subtask.
        layout: what their columns are.
        steps: where the watermark moves, where the rows do not carry it themselves.
        newest_ms: newest event times by source, as far as they were looked for.
    """

    rows: DataFrame | list[pa.Table]
    layout: RoutedLayout
    steps: pa.Table | None = None
    newest_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Plan:
    """The routing of one operator's inputs as expressions; the same for every batch with the same columns."""

    columns: list[list[Column]]
    layout: RoutedLayout


@dataclass(frozen=True)
class _Key:
    """Key columns of one input and their types."""

    columns: list[tuple[Column, DataType]]
    names: tuple[str, ...]
    own: tuple[str, ...]
    selected: bool


class Router:
    """Routes the inputs of a job's operators.

    Args:
        spark: session.
        max_parallelism: of the operators.
    """

    def __init__(self, spark: SparkSession, *, max_parallelism: int) -> None:
        self._spark, self._max_parallelism = spark, max_parallelism
        # building expressions takes hundreds of round trips to the JVM, so they are kept between batches
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        self._markers: dict[tuple[Any, ...], DataFrame] = {}

    def route(
        self,
        inputs: Sequence[RoutedInput],
        operator: OperatorNode,
        *,
        parallelism: int,
        origins: Origins = NO_ORIGINS,
        collect: Collect | None = None,
    ) -> Routed:
        """The input of an operator: shuffled, or where it is little a table a subtask.

        Args:
            inputs: those that have rows in this batch.
            origins: what moves the watermark.
            collect: runs a DataFrame, to find out where the watermark moves; None where nobody needs to know.

        Raises:
            ConfigurationError: a key or order column is missing, or a column has a type without a counterpart.
            InvalidKeyError: a key column has a type that cannot be a key.
        """
        given = inputs
        inputs = [self._with_key(one, operator) for one in inputs]
        frames = [one.frame for one in inputs]
        known = [
            (f.schema.json(), f.order_by, f.hidden_order, f.named, f.event_time, f.source) for f in frames
        ]
        refused = {source: rows for f in frames for source, rows in f.refused}
        places = tuple((one.place, one.scalar, one.keys) for one in inputs)
        at = (operator.uid, parallelism, places, tuple(known), bool(refused))
        if at not in self._plans:
            self._plans[at] = self._plan(inputs, operator, parallelism, bool(refused))
        plan = self._plans[at]
        few = route_few(
            inputs, operator, plan.layout, parallelism=parallelism, max_parallelism=self._max_parallelism,
            origins=origins,
        )  # fmt: skip
        layout = _as_declared(plan.layout, inputs)
        if few is not None:
            return Routed(few, layout)
        steps, newest = None, dict[str, int]()
        if collect is not None and plan.layout.event_time and not plan.layout.lead:
            steps, newest = watermark_steps(given, operator, plan.layout, origins, collect)
        parts = [f.rows.select(*columns) for f, columns in zip(frames, plan.columns, strict=True)]
        rows = reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), parts)
        if at not in self._markers:
            self._markers[at] = self._filled_markers(rows.schema, parallelism)
        rows = rows.unionByName(self._markers[at]) if len(parts) > 1 else rows.union(self._markers[at])
        for unparsable in refused.values():
            rows = rows.unionByName(_spread(unparsable, parallelism), allowMissingColumns=True)
        return Routed(rows.repartitionById(parallelism, F.col(SUBTASK)), layout, steps, newest)

    def _with_key(self, one: RoutedInput, operator: OperatorNode) -> RoutedInput:
        key = operator.inputs[one.place].key
        if isinstance(key, SelectedKey):
            frame, names = with_selected_key(one.frame, key, scalar=one.scalar, declared=one.fitting)
            return replace(one, frame=frame, keys=tuple(names))
        return replace(one, keys=key or ())

    def _plan(
        self, inputs: Sequence[RoutedInput], operator: OperatorNode, parallelism: int, refused: bool
    ) -> _Plan:
        what, several = f"operator '{operator.uid}'", len(operator.inputs) > 1
        frames = [one.frame for one in inputs]
        for frame in frames:
            frame.require(frame.order_by, what=f"order_by of the stream into {what}")
            _check_payload(frame, frame.user_columns, what)
        keys = [self._key(one, operator, what) for one in inputs]
        keyed = [k for k in keys if k is not None]
        places = places_in_order(inputs, operator)
        orders = merged_orders(frames, places) if len(frames) > 1 else [frames[0].order_columns()]
        timed = any(f.event_time is not None for f in frames)
        key_refusals = any(_may_be_refused(k) for k in keyed)
        lead = frames[0].lead if len(frames) == 1 and timed else ()
        sources = len(frames) > 1 or (frames[0].source is None and bool(frames[0].sources))

        columns: list[list[Column]] = []
        layouts = [InputLayout((), (), scalar=False, broadcast=i.broadcast) for i in operator.inputs]
        key_columns: tuple[str, ...] = ()
        for one, key, order in zip(inputs, keys, orders, strict=True):
            frame, names = one.frame, one.frame.user_columns
            payload = [payload_name(one.place, i) for i in range(len(names))] if several else names
            made = [F.col(quoted(c)) for c in names]
            if several:
                made = [c.alias(n) for c, n in zip(made, payload, strict=True)]
            made += [c.alias(order_name(i)) for i, c in enumerate(order)]
            if timed:
                made.append(frame.event_time_column(what).alias(EVENT_TIME))
                if lead or any(WATERMARK in f.schema.names for f in frames):
                    made.append(watermark_column(frame).alias(WATERMARK))
                made += [F.col(RANK)] if lead else []
            if any(TIME_REFUSAL in f.schema.names for f in frames):
                made.append(time_refusal_column(frame).alias(TIME_REFUSAL))
            if sources:
                made.append(source_column(frame).alias(SOURCE))
            if several:
                made.append(F.lit(one.place).alias(INPUT))
            if refused:
                made.append(F.lit(None).cast("string").alias(REFUSED))
            given = operator.inputs[one.place]
            if given.broadcast or given.everywhere:
                everywhere = F.explode(F.sequence(F.lit(0), F.lit(parallelism - 1)))
                made += [F.lit(0).cast("bigint").alias(HASH), everywhere.alias(SUBTASK)]
            else:
                routed, used = self._routing(key, order, parallelism, several=several, refusals=key_refusals)
                made, key_columns = [*made, *routed], used or key_columns
            columns.append(made)
            layouts[one.place] = InputLayout(
                tuple(payload), tuple(names), one.scalar, given.broadcast, given.everywhere
            )
        layout = RoutedLayout(
            inputs=tuple(layouts),
            order=tuple(order_name(i) for i in range(len(orders[0]))),
            named=shared_names(frames) if len(frames) > 1 else frames[0].named,
            timed_order=all(f.timed_order for f in frames) and shared_names(frames) > 0,
            positioned=len(frames) == 1 and frames[0].source is not None and bool(frames[0].hidden_order),
            keys=key_columns,
            key_schema=_key_schema(keyed, what) if keyed else None,
            event_time=timed,
            key_refusals=key_refusals,
            refused=refused,
            sources=sources,
            lead=lead,
        )
        return _Plan(columns, layout)

    def _key(self, one: RoutedInput, operator: OperatorNode, what: str) -> _Key | None:
        given = operator.inputs[one.place]
        if given.key is None:
            return None
        one.frame.require(one.keys, what=f"key_by of {what}")
        fields = {f.name: f.dataType for f in one.frame.schema.fields}
        columns = [(F.col(quoted(c)), fields[c]) for c in one.keys]
        for name, (_, kind) in zip(one.keys, columns, strict=True):
            try:
                canonical_type(kind, name)
            except InvalidKeyError as error:
                raise InvalidKeyError(f"{what}: {error}") from None
        return _Key(columns, given.key_columns, one.keys, isinstance(given.key, SelectedKey))

    def _routing(
        self, key: _Key | None, order: list[Column], parallelism: int, *, several: bool, refusals: bool
    ) -> tuple[list[Column], tuple[str, ...]]:
        """Columns that send a row to its subtask, and the names of the key's."""
        if key is None:
            spread = F.pmod(F.xxhash64(*order), F.lit(parallelism)).cast("int")
            return [F.lit(0).cast("bigint").alias(HASH), spread.alias(SUBTASK)], ()
        made, names = [], []
        for i, (column, kind) in enumerate(key.columns):
            if is_identity(kind) and not several:
                names.append(key.own[i])
                if key.selected:  # not one of the payload's columns
                    made.append(column)
            else:
                made.append(canonical_column(column, kind).alias(key_name(i)))
                names.append(key_name(i))
        if refusals:
            why = key_refusal_column(key.columns)
            made.append((F.coalesce(F.col(KEY_REFUSAL), why) if key.selected else why).alias(KEY_REFUSAL))
        key_hash = key_hash_column(key.columns)
        group = key_group_column(key_hash, self._max_parallelism)
        subtask = subtask_column(group, self._max_parallelism, parallelism)
        return [*made, key_hash.alias(HASH), subtask.alias(SUBTASK)], tuple(names)

    def _filled_markers(self, schema: StructType, parallelism: int) -> DataFrame:
        """One row a subtask, null but for the number of the subtask."""
        filled = [
            F.col("id").cast("int").alias(SUBTASK)
            if f.name == SUBTASK
            else F.lit(None).cast(f.dataType).alias(f.name)
            for f in schema.fields
        ]
        return self._spark.range(0, parallelism, 1, 1).select(*filled)


def watermark_steps(
    inputs: Sequence[RoutedInput],
    operator: OperatorNode,
    layout: RoutedLayout,
    origins: Origins,
    collect: Collect,
) -> tuple[pa.Table | None, dict[str, int]]:
    """Where in the order of these rows the watermark moves, and the newest event times by source; one Spark job."""
    frames, what = [one.frame for one in inputs], f"operator '{operator.uid}'"
    places = places_in_order(inputs, operator)
    orders = merged_orders(frames, places) if len(frames) > 1 else [frames[0].order_columns()]
    parts = []
    for one, order in zip(inputs, orders, strict=True):
        columns = [c.alias(order_name(i)) for i, c in enumerate(order)]
        columns.append(one.frame.event_time_column(what).alias(EVENT_TIME))
        columns.append(watermark_column(one.frame).alias(WATERMARK))
        columns.append(origin_column(one.frame).alias(ORIGIN))
        columns.append(source_column(one.frame).alias(SOURCE))
        columns.append(F.lit(one.place).alias(INPUT))
        parts.append(one.frame.rows.select(*columns))
    rows = reduce(lambda above, below: above.union(below), parts)
    find = step_finder(layout.order, origins, broadcast=layout.broadcast)
    packed = collect(rows.mapInArrow(find, STEPS_SCHEMA))
    newest: dict[str, int] = {}
    for row in packed:
        for source, at in json.loads(row["newest"]).items():
            newest[source] = max(at, newest.get(source, at))
    steps = joined_steps([bytes(row["steps"]) for row in packed], layout.order, origins)
    return steps, newest


def _as_declared(layout: RoutedLayout, inputs: Sequence[RoutedInput]) -> RoutedLayout:
    """With the types that the streams declare; they are not part of the plan, which outlives a job's definition."""
    given = list(layout.inputs)
    for one in inputs:
        given[one.place] = replace(given[one.place], declared=one.fitting)
    return replace(layout, inputs=tuple(given))


def _spread(refused: DataFrame, parallelism: int) -> DataFrame:
    """Rows that could not be parsed, spread over the subtasks."""
    spread = F.pmod(F.xxhash64(F.col(REFUSED)), F.lit(parallelism)).cast("int")
    return refused.select(spread.alias(SUBTASK), F.col(REFUSED))


def _key_schema(keys: Sequence[_Key], what: str) -> KeySchema:
    """The schema of the stored key: the first input's, if those of the others agree."""
    schemas = []
    for key in keys:
        types = tuple(to_type(k, parameter=f"key of {what}").arrow for _, k in key.columns)
        schemas.append(KeySchema(keys[0].names, types) if len(key.names) == len(keys[0].names) else None)
    first = schemas[0]
    assert first is not None
    for key, other in zip(keys[1:], schemas[1:], strict=True):
        if other is None or other.storage != first.storage:
            raise ConfigurationError(
                f"{what}: its two streams are keyed by {keys[0].names} and {key.names}, which are of different types, "
                "so they cannot share state; cast one in a transform"
            )
    return first


def _may_be_refused(key: _Key) -> bool:
    return key.selected or any(isinstance(k, DoubleType | FloatType | StructType) for _, k in key.columns)


def _check_payload(frame: StreamFrame, payload: list[str], what: str) -> None:
    if len(set(payload)) != len(payload):
        raise ConfigurationError(
            f"{what}: two columns of its input have the same name: {payload}; rename one"
        )
    for one in frame.schema.fields:
        if not one.name.startswith(HIDDEN):
            try:
                to_type(one.dataType, parameter=f"column '{one.name}'")
            except ConfigurationError as error:
                raise ConfigurationError(f"{what}: {error}; cast or drop the column in a transform") from None
