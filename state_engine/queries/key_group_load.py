"""How evenly the keyed state of operators lies on key groups: the view ``key_groups``.

Entries are the keys of value and list states, the entries of maps, and timers, by what a reader sees. Bytes are those
of the files that hold the state, each divided among its key groups by rows: changes that compaction will drop count,
too, so it is an estimate from above. Flink shows state sizes per subtask; a key group is the part that moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorCheckpoint
from state_engine.queries.history_views import KEY_GROUPS
from state_engine.queries.state_reader import read_state
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.listed_files import check_files
from state_engine.storage.state.located_files import state_files
from state_engine.storage.stores.parquet_reading import SPARK_VERIFIES


def key_group_load(session: SparkSession, layout: JobLayout, path: Sequence[CheckpointRow]) -> DataFrame:
    """One row a key group of each operator with keyed state, empty ones included.

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
