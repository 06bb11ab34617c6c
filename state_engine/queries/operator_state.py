"""The elements of operator state as a DataFrame, as of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.state_files import operator_state_files
from state_engine.core.types.spark_types import spark_schema
from state_engine.storage.layout import OPERATOR_STATE_SCHEMA, JobLayout
from state_engine.storage.state.listed_files import ListedFile, check_files
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
