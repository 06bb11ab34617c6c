"""Dead letters are withdrawn and published again like outputs, each in the partition of its attempt."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine.core.checkpoints.checkpoint import DataFile, StagedSink
from state_engine.core.checkpoints.row_outputs import DEAD_LETTERS
from state_engine.core.errors import SinkError
from state_engine.job.job_tables import JobTables
from state_engine.publishing.publishers import DeadLetterPublisher
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.layout import DEAD_LETTERS_SCHEMA, JobLayout, file_name, partition_path
from state_engine.storage.stores.files import join, write_parquet

APP = "0123/job/dead_letters"


def letter(uri: str, write_id: str) -> DataFile:
    """A file with one refused row."""
    row = {f.name: [write_id if pa.types.is_string(f.type) else None] for f in DEAD_LETTERS_SCHEMA}
    path = partition_path(write_id, file_name(write_id, 0, 0))
    file = write_parquet(pa.table(row, schema=DEAD_LETTERS_SCHEMA), join(uri, path))
    return DataFile(path=path, bytes=file.bytes, rows=1, subtask=0)


def test_letters_are_withdrawn_and_come_again(spark: SparkSession, tmp_path: Path) -> None:
    kernel, layout = DeltaKernel(spark), JobLayout(f"file://{tmp_path}", "job")
    publisher = DeadLetterPublisher(kernel, JobTables(spark, kernel, layout, "0123"))
    uri = layout.dead_letters
    one, two, three = (letter(uri, w) for w in ("w1", "w2", "w3"))

    def row(files: list[DataFile], withdrawn: list[DataFile]) -> StagedSink:
        return StagedSink(DEAD_LETTERS, DEAD_LETTERS, uri, "w", "", files, withdrawn)

    def visible() -> list[tuple[str, str]]:
        rows = DeltaTable(uri.removeprefix("file://")).to_pyarrow_table().to_pylist()
        return sorted((r["error"], r["write_id"]) for r in rows)

    for checkpoint_id, files in enumerate(([one], [two], [three]), start=1):
        publisher.publish(row(files, []), APP, checkpoint_id)
    for _ in range(2):
        publisher.publish(row([], [two, three]), APP, 4)
        assert visible() == [("w1", "w1")]
    publisher.check_withdrawable(row([two, three], [one]))
    publisher.publish(row([two, three], [one]), APP, 5)
    assert visible() == [("w2", "w2"), ("w3", "w3")]
    with pytest.raises(SinkError, match="1 of their files were rewritten or removed"):
        publisher.check_withdrawable(row([], [one]))
    with pytest.raises(SinkError, match="1 of their files were rewritten or removed"):
        publisher.publish(row([], [one]), APP, 6)
    kernel.close()
