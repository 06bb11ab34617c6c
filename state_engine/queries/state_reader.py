"""Reads keyed state as of a checkpoint into a DataFrame: its bases and the changelogs after them, folded by Spark.

The same fold as in the subtasks (``storage.state.changelog``), in Catalyst: value: the last change of a key; map: the
last change of an entry after the key's last clear; list: what was appended after the last clear, in order. Reducing,
aggregating and folding states are values: what is stored is their accumulator. Files come from the checkpoint rows by
exact name, and their row counts must be what the rows recorded. Mirrors what Flink's State Processor API reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.time_travel import (
    METADATA,
    DeclaredState,
    Expiry,
    declared_state,
    expiry_of,
)
from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.core.state.state_table import APPEND, CLEAR, PUT
from state_engine.core.types.spark_types import spark_schema
from state_engine.queries.stored_columns import renamed
from state_engine.storage.layout import JobLayout, changelog_schema, state_column
from state_engine.storage.parquet_reading import SPARK_VERIFIES
from state_engine.storage.state.changelog import check_files, op_of_entry
from state_engine.storage.state.located_files import StateFile, state_files

_ORDER = "_statelake_order"
_ROWS_OF_ONE_TASK = 100_000
"""Changes that one task folds as fast as several."""
Alive = Callable[[Column], Column]


def read_state(
    spark: SparkSession,
    layout: JobLayout,
    path: Sequence[CheckpointRow],
    uid: str,
    state: str,
    *,
    include_expired: bool = False,
    metadata: bool = False,
    shown: pa.DataType | None = None,
) -> DataFrame:
    """One state at the end of a path: key columns, ``map_key`` for maps, and ``value``.

    Args:
        include_expired: also what had expired by then and was not cleaned up yet.
        metadata: also ``updated_at`` and ``expires_at``, null without a time to live (of a list: of the element that
            lives longest), and ``key_group``.
        shown: type of the state's column, with other names of fields than those that were declared.

    Raises:
        ConfigurationError: there is no such operator or state; names those that are.
        MissingFilesError: a file is gone or was changed.
    """
    declared = declared_state(path, uid, state)
    expiry = expiry_of(declared, include_expired=include_expired)
    folded = folded_state(spark, declared, state_files(layout, path, uid), expiry, shown=shown)
    names = zip(declared.key_type, declared.key_names(metadata=metadata), strict=True)
    columns = [F.col(f"key.`{field.name}`").alias(name) for field, name in names]
    columns += [F.col(c) for c in folded.columns if c in ("map_key", "value")]
    return folded.select(*columns, *(_metadata(declared, expiry) if metadata else ()))


def folded_state(
    spark: SparkSession,
    declared: DeclaredState,
    files: Sequence[StateFile],
    expiry: Expiry,
    *,
    shown: pa.DataType | None = None,
) -> DataFrame:
    """What files hold of a state: ``key_hash``, ``key``, of maps ``map_key``, ``value``, ``updated_at``.

    Args:
        shown: see ``read_state``.
    """
    column = _column(declared, shown or declared.shown_type)
    return _FOLDS[declared.shape](_changes(spark, declared, files), column, _alive(expiry))


def _changes(spark: SparkSession, declared: DeclaredState, files: Sequence[StateFile]) -> DataFrame:
    """All rows of a state in its files, with their place in the fold."""
    schema = changelog_schema(declared.key_type, {declared.schema.column_name: declared.column_type})
    structure = StructType.fromJson(spark_schema(schema))
    check_files([f.listed for f in files])
    if not files:
        return spark.createDataFrame([], structure).withColumn(_ORDER, F.lit(0))
    changes = spark.read.options(**SPARK_VERIFIES).schema(structure).parquet(*[f.listed.uri for f in files])
    # the fold would shuffle otherwise, which costs more than it saves
    if sum(f.listed.rows for f in files) <= _ROWS_OF_ONE_TASK:
        changes = changes.coalesce(1)
    return _in_order(changes, files, declared.shape).where(F.col("state") == declared.schema.column_name)


def _column(declared: DeclaredState, shown: pa.DataType) -> Column:
    """The state's column, its fields called as they are to be shown."""
    return renamed(F.col(state_column(declared.schema.column_name)), declared.column_type, shown)


def _metadata(declared: DeclaredState, expiry: Expiry) -> list[Column]:
    """The columns beside key and value: times as stored, and the key group at the checkpoint's max parallelism."""
    never = F.lit(None).cast("timestamp")
    times = [never, never]
    if expiry.ttl_ms is not None:
        times = [F.col("updated_at"), never]
    if expiry.ttl_ms is not None and expiry.latest_ms is not None:
        last = F.unix_millis("_lasting")
        ends = F.timestamp_millis(last + F.lit(expiry.ttl_ms))
        times[1] = F.when(last <= expiry.latest_ms, ends).otherwise(never)
    group = F.pmod("key_hash", F.lit(declared.operator.max_parallelism))
    return [column.alias(name) for column, name in zip([*times, group], METADATA, strict=True)]


def _in_order(changes: DataFrame, files: Sequence[StateFile], shape: str) -> DataFrame:
    """Rows with their place in the fold; entries of bases get an ``op``, and what bases hold already is left out."""
    order_of = {f.listed.uri.rsplit("-", 2)[1]: f.order for f in files if not f.is_base}
    order = F.lit(0)
    if order_of:
        write_id = F.regexp_extract(F.col("_metadata.file_name"), r"-([0-9a-f]{32})-", 1)
        order = F.create_map(*[F.lit(x) for pair in order_of.items() for x in pair])[write_id]
    changes = changes.withColumn(_ORDER, order)
    partly = {f.order for f in files if f.listed.counts is not None}
    if any(f.is_base for f in files):
        is_entry = F.col("op").isNull()
        changes = changes.withColumn(_ORDER, F.when(is_entry, 0).otherwise(F.col(_ORDER)))
        changes = changes.withColumn("op", F.coalesce("op", F.lit(op_of_entry(shape))))
    for at in partly:
        changes = changes.where((F.col(_ORDER) != at) | _counts([f for f in files if f.order == at]))
    return changes


def _counts(files: Sequence[StateFile]) -> Column:
    """Whether a row of one checkpoint is in a key group for which the checkpoint's files count."""
    (max_parallelism,) = {c.max_parallelism for f in files if (c := f.listed.counts) is not None}
    group, inside = F.pmod(F.col("key_hash"), F.lit(max_parallelism)), F.lit(False)
    for file in files:
        own = (KeyGroupRange(file.key_group_min, file.key_group_max),)
        for groups in own if file.listed.counts is None else file.listed.counts.ranges:
            inside = inside | group.between(groups.start, groups.end)
    return inside


def _alive(expiry: Expiry) -> Alive:
    """Which items are shown, given the column of their times."""
    hidden_ms = expiry.hidden_ms
    if hidden_ms is None:
        return lambda at: F.lit(True)
    return lambda at: at.isNull() | (F.unix_millis(at) > hidden_ms)


# Each fold gives key_hash, key, [map_key,] value, updated_at, and _lasting: the time from which the last item lives on.


def _fold_value(changes: DataFrame, column: Column, alive: Alive) -> DataFrame:
    value = F.struct(_ORDER, "op", "updated_at", column.alias("value"))
    packed = changes.select("key_hash", "key", value.alias("last"))
    last = packed.groupBy("key_hash", "key").agg(F.max_by("last", F.col(f"last.{_ORDER}")).alias("last"))
    return _living(last, alive).select("key_hash", "key", *_last_columns())


def _fold_map(changes: DataFrame, column: Column, alive: Alive) -> DataFrame:
    live = _after_clear(changes).where(F.col("op") != CLEAR)
    entry = live.select(
        "key_hash",
        "key",
        column["key"].alias("map_key"),
        F.struct(_ORDER, "op", "updated_at", column["value"].alias("value")).alias("last"),
    )
    last = entry.groupBy("key_hash", "key", "map_key").agg(
        F.max_by("last", F.col(f"last.{_ORDER}")).alias("last")
    )
    return _living(last, alive).select("key_hash", "key", "map_key", *_last_columns())


def _living(last: DataFrame, alive: Alive) -> DataFrame:
    return last.where((F.col("last.op") == PUT) & alive(F.col("last.updated_at")))


def _last_columns() -> list[Column]:
    at = F.col("last.updated_at")
    return [F.col("last.value").alias("value"), at.alias("updated_at"), at.alias("_lasting")]


def _fold_list(changes: DataFrame, column: Column, alive: Alive) -> DataFrame:
    live = _after_clear(changes).where(F.col("op") == APPEND)
    parts = live.select("key_hash", "key", F.struct(F.col(_ORDER), column.alias("elements")).alias("part"))
    # by a comparison of their places: elements may be maps, which have no order
    lists = parts.groupBy("key_hash", "key").agg(
        F.array_sort(F.collect_list("part"), lambda a, b: a[_ORDER] - b[_ORDER]).alias("parts")
    )
    kept = F.filter(
        F.flatten(F.transform("parts", lambda p: p["elements"])), lambda e: alive(e["updated_at"])
    )
    times = F.transform("kept", lambda e: e["updated_at"])
    newest = F.array_max(times)
    values = lists.select("key_hash", "key", kept.alias("kept")).where(F.size("kept") > 0)
    return values.select(
        "key_hash",
        "key",
        F.transform("kept", lambda e: e["value"]).alias("value"),
        newest.alias("updated_at"),
        # an element without a time stays for ever
        F.when(~F.exists(times, lambda t: t.isNull()), newest).alias("_lasting"),
    )


def _after_clear(changes: DataFrame) -> DataFrame:
    """Rows of a key from its last clear on; in one attempt the clear comes first."""
    cleared = F.max(F.when(F.col("op") == CLEAR, F.col(_ORDER))).over(Window.partitionBy("key"))
    return changes.withColumn("_cleared", cleared).where(
        F.col("_cleared").isNull() | (F.col(_ORDER) >= F.col("_cleared"))
    )


_FOLDS = {"value": _fold_value, "map": _fold_map, "list": _fold_list}
