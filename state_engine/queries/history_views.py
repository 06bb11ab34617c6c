"""What checkpoints say, as tables for SQL: one row a checkpoint, a source of it, a sink of it; and operator state.

The rows of the ``checkpoints`` table are deep; these are flat, with times as timestamps and numbers summed. Flink shows
the like in its web interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.retention import shown_kind
from state_engine.core.checkpoints.state_files import operator_state_files
from state_engine.core.checkpoints.time_travel import LAST_MS, moment
from state_engine.core.types.spark_types import spark_schema
from state_engine.queries.state_reader import check_files
from state_engine.storage.files import join
from state_engine.storage.layout import OPERATOR_STATE_SCHEMA, JobLayout
from state_engine.storage.parquet_reading import SPARK_VERIFIES
from state_engine.storage.state.changelog import ListedFile

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = pa.timestamp("us", "UTC")

CHECKPOINTS = pa.schema(
    [
        ("id", pa.int64()),
        ("parent", pa.int64()),
        ("branch", pa.string()),
        ("kind", pa.string()),
        ("created_at", _TIME),
        ("clock", _TIME),
        ("watermark", _TIME),
        ("rows_in", pa.int64()),
        ("rows_refused", pa.int64()),
        ("rows_out", pa.int64()),
        ("changed_entries", pa.int64()),
        ("duration_ms", pa.int64()),
        ("requested_by", pa.string()),
        ("code_version", pa.string()),
        ("on_path", pa.bool_()),
        ("retired", pa.bool_()),
    ]
)
SOURCES = pa.schema(
    [
        ("checkpoint_id", pa.int64()),
        ("source", pa.string()),
        ("position_from", pa.string()),
        ("position_to", pa.string()),
        ("rows", pa.int64()),
        ("watermark", _TIME),
        ("on_path", pa.bool_()),
    ]
)
SINKS = pa.schema(
    [
        ("checkpoint_id", pa.int64()),
        ("sink", pa.string()),
        ("kind", pa.string()),
        ("path", pa.string()),
        ("rows_staged", pa.int64()),
        ("rows_withdrawn", pa.int64()),
        ("files_staged", pa.int64()),
        ("files_withdrawn", pa.int64()),
        ("bytes_staged", pa.int64()),
        ("on_path", pa.bool_()),
    ]
)
_PARTS = pa.schema(
    [
        ("operator", pa.string()),
        ("state", pa.string()),
        ("subtask", pa.int64()),
        ("write_id", pa.string()),
    ]
)


def checkpoints_table(history: History, path: Sequence[CheckpointRow]) -> pa.Table:
    """All checkpoints of all branches; ``on_path`` marks those on the given path."""
    on_path, expired = _ids(path), history.expired
    records = [
        (
            i,
            row.parent_id,
            row.branch,
            shown_kind(row),
            moment(row.created_at),
            instant(row.clock_ms),
            instant(row.watermark_ms),
            row.rows_in,
            row.rows_refused,
            sum(sink.rows for sink in row.sinks),
            sum(operator.changed_entries for operator in row.operators),
            sum(row.durations_ms.values()),
            row.requested_by,
            row.code_version,
            i in on_path,
            i in expired,
        )
        for i, row in sorted(history.items())
    ]
    return _table(records, CHECKPOINTS)


def sources_table(history: History, path: Sequence[CheckpointRow]) -> pa.Table:
    """What every checkpoint consumed of every source; positions are JSON."""
    on_path = _ids(path)
    records = [
        (i, s.name, s.position_from, s.position_to, s.rows, instant(s.watermark_ms), i in on_path)
        for i, row in sorted(history.items())
        for s in row.sources
    ]
    return _table(records, SOURCES)


def sinks_table(history: History, path: Sequence[CheckpointRow]) -> pa.Table:
    """What every checkpoint brought to every sink, and took from it."""
    on_path = _ids(path)
    records = [
        (
            i,
            s.name,
            s.kind,
            s.path,
            s.rows,
            sum(f.rows for f in s.withdrawn),
            len(s.files),
            len(s.withdrawn),
            sum(f.bytes for f in s.files),
            i in on_path,
        )
        for i, row in sorted(history.items())
        for s in row.sinks
    ]
    return _table(records, SINKS)


def operator_state_frame(
    session: SparkSession, layout: JobLayout, path: Sequence[CheckpointRow]
) -> DataFrame:
    """The elements of operator state at the end of a path; source positions are another view.

    Raises:
        MissingFilesError: a file is gone or was changed.
    """
    refs = path[-1].operator_state
    held = [
        (ref.operator, state.name, part.subtask, part.write_id)
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
    parts = F.broadcast(session.createDataFrame(_table(held, _PARTS)))
    return elements.join(parts, list(_PARTS.names)).select(*OPERATOR_STATE_SCHEMA.names)


def instant(at_ms: int | None) -> datetime | None:
    """A recorded time; the end of the year 9999 for a stream that has ended, None for one that has not begun."""
    if at_ms is None or at_ms < -62_135_596_800_000:
        return None
    return _EPOCH + timedelta(milliseconds=min(at_ms, LAST_MS))


def _ids(path: Sequence[CheckpointRow]) -> set[int]:
    return {row.checkpoint_id for row in path}


def _table(rows: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
