"""Reads what checkpoints staged for a sink, wherever its files are now: staged still, or published."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from state_engine.backends.delta.layout import DEAD_LETTERS_SCHEMA
from state_engine.backends.files import join, open_location
from state_engine.core.checkpoint import DataFile, StagedSink
from state_engine.core.sink_moves import DEAD_LETTERS
from state_engine.core.spark_types import spark_schema
from state_engine.runtime.sinks.base import WRITE_ID, verify_files
from state_engine.runtime.sinks.file_moves import base_name, published_files


def read_outputs(
    spark: SparkSession, sink: StagedSink, files: Sequence[DataFile], *, dead_letters: str
) -> DataFrame:
    """The rows of staged files, without the lineage column, which no two attempts share.

    Args:
        sink: as the attempt recorded it that staged the files.
        files: some of those that were staged for it.
        dead_letters: the job's table of dead letters, wherever the root is now.

    Raises:
        MissingFilesError: a file is gone or has another size.
    """
    if sink.kind == DEAD_LETTERS:
        schema, uri = StructType.fromJson(spark_schema(DEAD_LETTERS_SCHEMA)), dead_letters
    else:
        schema, uri = StructType.fromJson(json.loads(sink.schema)), sink.path
    located = _located(uri, files) if sink.kind == "files" else list(files)
    verify_files(uri, located, what=f"sink '{sink.name}'")
    is_csv = bool(files) and files[0].path.endswith(".csv")
    reader = spark.read.schema(schema).option("header", str(is_csv).lower())
    rows = reader.format("csv" if is_csv else "parquet").load([join(uri, f.path) for f in located])
    return rows.drop(WRITE_ID)


def _located(uri: str, files: Sequence[DataFile]) -> list[DataFile]:
    """Files of a ``FileSink`` with the path that they have now."""
    published = published_files(open_location(uri))
    return [
        DataFile(
            f"{published[name]}/{name}" if (name := base_name(f)) in published else f.path, f.bytes, f.rows, 0
        )
        for f in files
    ]
