"""Files of a directory, read by a job without operators: what came of their rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from state_engine import FileSink, FileSource, StatefulJob
from state_engine.engine.engine import StateEngine


@dataclass(frozen=True)
class Reading:
    """What came of the files of a directory.

    Attributes:
        rows: that came out.
        letters: refused text or path of a file, with the error.
    """

    rows: list[dict[str, Any]]
    letters: list[tuple[str | None, str]]


def read(
    spark: SparkSession, directory: Path, schema: str, *, on_bad_file: Any = "dead_letter", kind: Any = FileSource,
    **source: Any,
) -> Reading:  # fmt: skip
    """All new files below ``in`` of a directory, in one job; rows and letters of all calls for one directory.

    Args:
        kind: of source, a class like ``FileSource``.
        source: of ``FileSource``.
    """
    job = StatefulJob("reads", on_error="dead_letter")
    files = kind(str(directory / "in"), schema=schema, on_bad_file=on_bad_file, **source)
    job.source("files", files).sink("out", FileSink(str(directory / "out")))
    with StateEngine(directory / "root", spark) as engine:
        engine.run(job)
        letters = [(letter.row, letter.error) for letter in engine.list_dead_letters(job)]
    tables = [pq.ParquetFile(file).read() for file in (directory / "out").glob("checkpoint_id=*/*.parquet")]
    return Reading([row for table in tables for row in table.to_pylist()], letters)
