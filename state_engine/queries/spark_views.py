"""Views that Spark computes as of a checkpoint: the elements of operator state, and the load of key groups."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import StructType

from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorCheckpoint
from state_engine.core.checkpoints.state_files import operator_state_files
from state_engine.core.types.spark_types import spark_schema
from state_engine.queries.history_views import KEY_GROUPS
from state_engine.queries.state_reader import read_state
from state_engine.storage.layout import OPERATOR_STATE_SCHEMA, JobLayout
from state_engine.storage.state.listed_files import ListedFile, check_files
from state_engine.storage.state.located_files import state_files
from state_engine.storage.stores.files import join
from state_engine.storage.stores.parquet_reading import SPARK_VERIFIES

_PARTS = pa.schema(
    [
        ("operator", pa.string()),
        ("state", pa.string()),
        ("subtask", pa.int64()),
        ("write_id", pa.string()),
    ]
)


def operator_state_frame(
    session: SparkSession, layout: JobLayout, path: Sequence[CheckpointRow]
) -> DataFrame:
    """The elements of operator state at the end of a path; source positions are another view."""
    refs = path[-1].operator_state
    held = [
        dict(zip(_PARTS.names, (ref.operator, state.name, part.subtask, part.write_id), strict=True))
        for ref in refs
        for state in ref.states
        for part in state.parts
        if part.elements
    ]
    files = {file.path: file for ref in refs for file in operator_state_files(path, ref)}
    listed = [
        ListedFile.recorded(join(layout.operator_state, f.path), f, of="operator state")
        for f in files.values()
    ]
    check_files(listed)
    schema = StructType.fromJson(spark_schema(OPERATOR_STATE_SCHEMA))
    if not listed:
        return session.createDataFrame([], schema)
    written = F.regexp_extract(F.col("_metadata.file_name"), r"-([0-9a-f]{32})-", 1)
    rows = session.read.options(**SPARK_VERIFIES).schema(schema).parquet(*(f.uri for f in listed))
    elements = rows.withColumn("write_id", written)
    # a file may also hold lists that a later attempt wrote anew
    parts = F.broadcast(session.createDataFrame(pa.Table.from_pylist(held, schema=_PARTS)))
    return elements.join(parts, list(_PARTS.names)).select(*OPERATOR_STATE_SCHEMA.names)


def key_group_load(session: SparkSession, layout: JobLayout, path: Sequence[CheckpointRow]) -> DataFrame:
    """One row a key group of each operator with keyed state, empty ones included.

    Entries are the keys of value and list states, the entries of maps, and timers, by what a reader sees. Bytes are
    those of the files that hold the state, each divided among its key groups by rows: changes that compaction will drop
    count, too, so it is an estimate from above. Flink shows sizes per subtask; a key group is the part that moves.
    ``subtask`` is the one that the key group is on at the parallelism of the checkpoint; ``skew`` is the entries over
    the mean of the operator's key groups, null where it has no entry.
    """
    operators = [o for o in path[-1].operators if o.states]
    if not operators:
        return session.createDataFrame(KEY_GROUPS.empty_table())
    return reduce(DataFrame.unionAll, [_of_operator(session, layout, path, o) for o in operators])


def _of_operator(
    session: SparkSession, layout: JobLayout, path: Sequence[CheckpointRow], operator: OperatorCheckpoint
) -> DataFrame:
    groups = session.range(0, operator.max_parallelism, 1, 1).withColumnRenamed("id", "key_group")
    states = [
        read_state(session, layout, path, operator.uid, s.name, metadata=True).select("key_group")
        for s in operator.states
    ]
    entries = reduce(DataFrame.unionAll, states).groupBy("key_group").agg(F.count("*").alias("entries"))
    all_groups = groups.join(entries, "key_group", "left").join(
        _stored(session, layout, path, operator), "key_group", "left"
    )
    counted, of_all = F.coalesce("entries", F.lit(0).cast("bigint")), Window.partitionBy(F.lit(0))
    subtask = F.floor(F.col("key_group") * operator.parallelism / operator.max_parallelism)
    mean = F.avg(counted).over(of_all)
    return all_groups.select(
        F.lit(operator.uid).alias("operator"),
        "key_group",
        subtask.cast("bigint").alias("subtask"),
        counted.alias("entries"),
        F.coalesce(F.round("bytes").cast("bigint"), F.lit(0).cast("bigint")).alias("bytes"),
        F.when(mean > 0, counted / mean).alias("skew"),
    )


def _stored(
    session: SparkSession, layout: JobLayout, path: Sequence[CheckpointRow], operator: OperatorCheckpoint
) -> DataFrame:
    """Bytes by key group; of the files, only the hashes are read."""
    files = [f.listed for f in state_files(layout, path, operator.uid)]
    if not files:
        schema = T.StructType().add("key_group", "bigint").add("bytes", "double")
        return session.createDataFrame([], schema)
    check_files(files)
    hashes = session.read.options(**SPARK_VERIFIES).schema("key_hash bigint").parquet(*(f.uri for f in files))
    rows = hashes.groupBy(
        F.col("_metadata.file_path").alias("file"),
        F.col("_metadata.file_size").alias("size"),
        F.pmod("key_hash", F.lit(operator.max_parallelism)).cast("bigint").alias("key_group"),
    ).agg(F.count("*").alias("rows"))
    share = F.col("rows") / F.sum("rows").over(Window.partitionBy("file"))
    shares = rows.select("key_group", (F.col("size") * share).alias("bytes"))
    return shares.groupBy("key_group").agg(F.sum("bytes").alias("bytes"))
