"""Reads what checkpoints staged for a sink, wherever its files are now: staged still, or published."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from state_engine.core.checkpoints.checkpoint import DataFile, StagedSink
from state_engine.core.checkpoints.sink_kind import SinkKind
from state_engine.core.errors import SinkError
from state_engine.sinks.base import WRITE_ID, verify_files
from state_engine.sinks.file_moves import base_name, published_files
from state_engine.sinks.staging import located
from state_engine.sources.parquet.parquet_files import parquet_schema
from state_engine.storage.layout import JobLayout
from state_engine.storage.stores.files import join, open_location
from state_engine.storage.stores.parquet_reading import SPARK_VERIFIES, read_parquet


class OutputReader:
    """Reads staged outputs of one job."""

    def __init__(self, spark: SparkSession, layout: JobLayout) -> None:
        self._spark, self._layout = spark, layout

    def read(self, sink: StagedSink, files: Sequence[DataFile]) -> DataFrame:
        """The rows of staged files, without the lineage column, which no two attempts share."""
        uri, current = self._current(sink, files)
        paths = [join(uri, f.path) for f in current]
        if paths[0].endswith(".csv"):
            schema = StructType.fromJson(json.loads(sink.schema))
            rows = self._spark.read.schema(schema).option("header", "true").csv(paths)
        else:
            reader = self._spark.read.options(**SPARK_VERIFIES)
            rows = reader.schema(parquet_schema(paths[0])).parquet(*paths)
        return rows.drop(WRITE_ID)

    def table(self, sink: StagedSink, files: Sequence[DataFile]) -> pa.Table:
        """The same rows as a table, without Spark. Raises SinkError for files that are not Parquet."""
        uri, current = self._current(sink, files)
        if current[0].path.endswith(".csv"):
            raise SinkError(f"sink '{sink.name}' has CSV files, whose values have no types")
        parts = [read_parquet(join(uri, f.path), of=f"sink '{sink.name}'") for f in current]
        rows = pa.concat_tables(parts)
        return rows.drop_columns([name for name in [WRITE_ID] if name in rows.column_names])

    def _current(self, sink: StagedSink, files: Sequence[DataFile]) -> tuple[str, list[DataFile]]:
        uri = self._directory(sink)
        current = _located(uri, files) if sink.kind == SinkKind.FILES else list(files)
        verify_files(uri, current, what=f"sink '{sink.name}'", footers=True)
        return uri, current

    def _directory(self, sink: StagedSink) -> str:
        return located(sink, self._layout).path


def _located(uri: str, files: Sequence[DataFile]) -> list[DataFile]:
    """Files of a ``FileSink`` with the path that they have now."""
    published = published_files(open_location(uri))
    return [
        replace(f, path=f"{published[name]}/{name}" if (name := base_name(f)) in published else f.path)
        for f in files
    ]
