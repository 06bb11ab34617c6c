"""Reads keyed state as of a checkpoint into a DataFrame: its bases and the changelogs after them, folded by Spark.

The same fold as in the subtasks (``backends.delta.changelog``), in Catalyst: value: the last change of a key; map: the
last change of an entry after the key's last clear; list: what was appended after the last clear, in order. Files come
from the checkpoint rows by exact name, and their row counts must be what the rows recorded. Mirrors what Flink's State
Processor API reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from state_engine.backends.delta.changelog import op_of_entry
from state_engine.backends.delta.layout import JobLayout, changelog_schema, state_column
from state_engine.backends.files import open_location
from state_engine.core.checkpoint import CheckpointRow, StateSchema
from state_engine.core.ddl import parse_ddl
from state_engine.core.descriptors import SHAPES
from state_engine.core.errors import ConfigurationError, MissingFilesError
from state_engine.core.key_groups import KeyGroupRange
from state_engine.core.spark_types import spark_schema
from state_engine.core.state_table import APPEND, CLEAR, PUT
from state_engine.core.ttl import TtlTime, TtlVisibility
from state_engine.core.type_text import type_from_text
from state_engine.runtime.state_files import state_files
from state_engine.runtime.subtask_spec import StateFile

_ORDER = "_statelake_order"
_ROWS_OF_ONE_TASK = 100_000
"""Changes that one task folds as fast as several."""
Alive = Callable[[Column], Column]


def read_state(
    spark: SparkSession, layout: JobLayout, path: list[CheckpointRow], uid: str, state: str
) -> DataFrame:
    """One state at the end of a path: key columns, ``map_key`` for maps, and ``value``.

    Raises:
        ConfigurationError: there is no such operator or state; names those that are.
        MissingFilesError: a file is gone or was changed.
    """
    schema, key_schema = _find(path, uid, state)
    key_type, column_type = parse_ddl(key_schema).arrow, type_from_text(schema.type).storage
    columns = changelog_schema(key_type, {state: column_type})
    structure = StructType.fromJson(spark_schema(columns))
    files = state_files(layout, path, uid)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda f: _check(f.listed.uri, f.listed.rows), files))
    if not files:
        changes = spark.createDataFrame([], structure).withColumn(_ORDER, F.lit(0))
    else:
        changes = spark.read.schema(structure).parquet(*[f.listed.uri for f in files])
        # the fold would shuffle otherwise, which costs more than it saves
        if sum(f.listed.rows for f in files) <= _ROWS_OF_ONE_TASK:
            changes = changes.coalesce(1)
        changes = _in_order(changes, files, SHAPES[schema.kind])
    changes = changes.where(F.col("state") == state)
    folded = _FOLDS[SHAPES[schema.kind]](
        changes, F.col(state_column(state)), _alive(schema.ttl, path[-1] if path else None)
    )
    keys = [F.col(f"key.`{f.name}`").alias(f.name) for f in key_type]
    return folded.select(*keys, *[c for c in folded.columns if c in ("map_key", "value")])


def _find(path: list[CheckpointRow], uid: str, state: str) -> tuple[StateSchema, str]:
    last = path[-1] if path else None
    operator = last.operator(uid) if last else None
    if operator is None:
        known = [o.uid for o in last.operators] if last else []
        raise ConfigurationError(f"there is no state of an operator '{uid}'; operators with state: {known}")
    for schema in operator.states:
        if schema.name == state:
            return schema, operator.key_schema
    raise ConfigurationError(
        f"operator '{uid}' has no state '{state}'; its states: {[s.name for s in operator.states]}"
    )


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
        for found in own if file.listed.counts is None else file.listed.counts.ranges:
            inside = inside | group.between(found.start, found.end)
    return inside


def _check(uri: str, rows: int) -> None:
    at = open_location(uri)
    try:
        found = pq.read_metadata(at.path, filesystem=at.fs).num_rows
    except FileNotFoundError:
        found = None
    if found != rows:
        raise MissingFilesError(
            f"{uri} {'is gone' if found is None else f'has {found} rows'}, its checkpoint recorded {rows} rows: "
            "something else changed it. Restore an older checkpoint or a savepoint"
        )


def _alive(ttl: str, row: CheckpointRow | None) -> Alive:
    """Which items had not expired by the clock that the checkpoint recorded, given the column of their times."""
    config = json.loads(ttl) if ttl else {}
    event_time = config.get("time") == TtlTime.EventTime.name
    now = None if row is None else row.watermark_ms if event_time else row.clock_ms
    if now is None or not ttl or config["visibility"] != TtlVisibility.NeverReturnExpired.name:
        return lambda at: F.lit(True)
    oldest = max(now - config["ttl_ms"], -(2**63))
    return lambda at: at.isNull() | (F.unix_millis(at) > oldest)


def _fold_value(changes: DataFrame, column: Column, alive: Alive) -> DataFrame:
    packed = changes.select("key", F.struct(_ORDER, "op", "updated_at", column.alias("value")).alias("last"))
    last = packed.groupBy("key").agg(F.max_by("last", F.col(f"last.{_ORDER}")).alias("last"))
    kept = last.where((F.col("last.op") == PUT) & alive(F.col("last.updated_at")))
    return kept.select("key", F.col("last.value").alias("value"))


def _fold_map(changes: DataFrame, column: Column, alive: Alive) -> DataFrame:
    live = _after_clear(changes).where(F.col("op") != CLEAR)
    entry = live.select(
        "key",
        column["key"].alias("map_key"),
        F.struct(_ORDER, "op", "updated_at", column["value"].alias("value")).alias("last"),
    )
    last = entry.groupBy("key", "map_key").agg(F.max_by("last", F.col(f"last.{_ORDER}")).alias("last"))
    kept = last.where((F.col("last.op") == PUT) & alive(F.col("last.updated_at")))
    return kept.select("key", "map_key", F.col("last.value").alias("value"))


def _fold_list(changes: DataFrame, column: Column, alive: Alive) -> DataFrame:
    live = _after_clear(changes).where(F.col("op") == APPEND)
    parts = live.select("key", F.struct(F.col(_ORDER), column.alias("elements")).alias("part"))
    lists = parts.groupBy("key").agg(
        F.sort_array(F.collect_list(F.struct(F.col(f"part.{_ORDER}"), F.col("part.elements")))).alias("parts")
    )
    elements = F.flatten(F.transform("parts", lambda p: p["elements"]))
    kept = F.filter(elements, lambda e: alive(e["updated_at"]))
    values = lists.select("key", F.transform(kept, lambda e: e["value"]).alias("value"))
    return values.where(F.size("value") > 0)


def _after_clear(changes: DataFrame) -> DataFrame:
    """Rows of a key from its last clear on; in one attempt the clear comes first."""
    cleared = F.max(F.when(F.col("op") == CLEAR, F.col(_ORDER))).over(Window.partitionBy("key"))
    return changes.withColumn("_cleared", cleared).where(
        F.col("_cleared").isNull() | (F.col(_ORDER) >= F.col("_cleared"))
    )


_FOLDS = {"value": _fold_value, "map": _fold_map, "list": _fold_list}
