"""Reads keyed state as of a checkpoint into a DataFrame: its bases and the changelogs after them, folded by Spark.

The fold is ``fold_sql``. Files come from the checkpoint rows by exact name, and their row counts must be what the rows
recorded. Mirrors what Flink's State Processor API reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.time_travel import (
    DeclaredState,
    Expiry,
    declared_state,
    expiry_of,
)
from state_engine.core.types.spark_types import spark_schema
from state_engine.queries.fold_sql import ORDER, state_sql
from state_engine.storage.layout import JobLayout, changelog_schema
from state_engine.storage.state.listed_files import check_files
from state_engine.storage.state.located_files import StateFile, state_files
from state_engine.storage.stores.parquet_reading import SPARK_VERIFIES

_ROWS_OF_ONE_TASK = 100_000
"""Changes that one task folds as fast as several."""
_SOURCE = "{changes}"


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
    """
    declared = declared_state(path, uid, state)
    expiry, files = expiry_of(declared, include_expired=include_expired), state_files(layout, path, uid)
    return state_frame(spark, declared, files, expiry, metadata=metadata, shown=shown)


def state_frame(
    spark: SparkSession,
    declared: DeclaredState,
    files: Sequence[StateFile],
    expiry: Expiry,
    *,
    metadata: bool = False,
    shown: pa.DataType | None = None,
) -> DataFrame:
    text = state_sql(declared, files, expiry, source=_SOURCE, metadata=metadata, shown=shown)
    return _answer(spark, text, _changes(spark, declared, files))


def _answer(spark: SparkSession, text: str, changes: DataFrame) -> DataFrame:
    """Of a query whose ``_SOURCE`` are some changes; names in it may have braces."""
    escaped = text.replace("{", "{{").replace("}", "}}").replace("{" + _SOURCE + "}", _SOURCE)
    return spark.sql(escaped, changes=changes)


def _changes(spark: SparkSession, declared: DeclaredState, files: Sequence[StateFile]) -> DataFrame:
    schema = changelog_schema(declared.key_type, {declared.schema.column_name: declared.column_type})
    structure = StructType.fromJson(spark_schema(schema))
    check_files([f.listed for f in files])
    if not files:
        return spark.createDataFrame([], structure).withColumn(ORDER, F.lit(0))
    changes = spark.read.options(**SPARK_VERIFIES).schema(structure).parquet(*[f.listed.uri for f in files])
    # the fold would shuffle otherwise, which costs more than it saves
    if sum(f.listed.rows for f in files) <= _ROWS_OF_ONE_TASK:
        changes = changes.coalesce(1)
    return _in_order(changes, files)


def _in_order(changes: DataFrame, files: Sequence[StateFile]) -> DataFrame:
    order_of = {f.listed.uri.rsplit("-", 2)[1]: f.order for f in files if not f.is_base}
    if not order_of:
        return changes.withColumn(ORDER, F.lit(0))
    write_id = F.regexp_extract(F.col("_metadata.file_name"), r"-([0-9a-f]{32})-", 1)
    return changes.withColumn(
        ORDER, F.create_map(*[F.lit(x) for pair in order_of.items() for x in pair])[write_id]
    )
