"""``AttemptSinks`` of an attempt over real sinks of files and of SQLite: staged in a row, published, or abandoned."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from state_engine import FileSink, SqlSink
from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.checkpoints.history import History
from state_engine.core.errors import CommitFailedError, MissingFilesError
from state_engine.job.graph import SinkNode
from state_engine.microbatch.attempt_outputs import AttemptSinks, OutputsOfJob
from state_engine.microbatch.subtask.output_files import order_fields, read_exchange, write_sink_file
from state_engine.publishing.publication import Publication
from state_engine.storage.delta.log_tail import LogDurability
from state_engine.storage.layout import JobLayout
from state_engine.storage.stores.files import open_location
from tests.core.checkpoints.rows import checkpoint

SCHEMA = pa.schema([("id", pa.int64())])
FIRST, SECOND = "first", "second"


@pytest.fixture
def of_job(tmp_path: Path) -> OutputsOfJob:
    kernel: Any = SimpleNamespace(disk=LogDurability("os"), outlasting=lambda uri: None, write_new=None)
    layout = JobLayout(f"file://{tmp_path}/root", "job")
    tables: Any = SimpleNamespace(layout=layout, log=SimpleNamespace(app="0123/job", history=History()))
    return OutputsOfJob(kernel, Publication(kernel, tables), layout)


def written(of_job: OutputsOfJob, write_id: str, directory: Path) -> AttemptSinks:
    """An attempt whose tasks wrote a row for each of two sinks, and a dead letter."""
    outputs = of_job.of(write_id)
    stream: Any = None
    for name, sink in {
        "files": FileSink(str(directory / "files")),
        "sql": SqlSink(f"sqlite:///{directory}/out.db", "out"),
    }.items():
        target = outputs.prepare(SinkNode(name, stream, sink), SCHEMA)
        rows = pa.table({"id": [1]}, schema=SCHEMA)
        outputs.add(name, [write_sink_file(rows, target, target.file_name(write_id, 0, 0), 0)])
    letters = open_location(f"{of_job.layout.dead_letters}/write_id={write_id}/part.parquet")
    letters.above().make_directory()
    letters.write_whole(b"")
    return outputs


def files_of(write_id: str, directory: Path) -> list[str]:
    return [str(p) for p in directory.rglob("*") if p.is_file() and write_id in str(p.relative_to(directory))]


def test_what_is_staged_is_listed_in_the_row_and_published(of_job: OutputsOfJob, tmp_path: Path) -> None:
    outputs = written(of_job, FIRST, tmp_path)
    row = outputs.stage(checkpoint(1), History())
    assert [(sink.name, sink.rows) for sink in row.sinks] == [("files", 1), ("sql", 1)]
    assert outputs.publish(row) == 0, "neither is a Delta table"
    assert [sink.name for _, sink in of_job.publication.unpublished([row])] == []


def test_a_file_that_is_gone_stops_the_attempt(of_job: OutputsOfJob, tmp_path: Path) -> None:
    outputs = written(of_job, FIRST, tmp_path)
    next((tmp_path / "files").rglob("*.parquet")).unlink()
    with pytest.raises(MissingFilesError, match="sink 'files'"):
        outputs.stage(checkpoint(1), History())


def test_an_attempt_that_is_given_up_leaves_what_others_wrote(of_job: OutputsOfJob, tmp_path: Path) -> None:
    kept, given_up = written(of_job, FIRST, tmp_path), written(of_job, SECOND, tmp_path)
    before = files_of(FIRST, tmp_path)
    assert len(before) == len(files_of(SECOND, tmp_path)) == 3
    given_up.give_up()
    given_up.give_up()
    assert (files_of(FIRST, tmp_path), files_of(SECOND, tmp_path)) == (before, [])
    assert len(kept.stage(checkpoint(1), History()).sinks) == 2


def test_a_file_between_operators_that_was_collected(tmp_path: Path) -> None:
    """A runner that stood still for a day finds its attempt's files gone, as the first thing that it does."""
    gone = DataFile(f"file://{tmp_path}/exchange/out.parquet", 100, 3, 0)
    for reading in (
        lambda: read_exchange([gone, gone]),
        lambda: order_fields([[gone, gone]], ["_statelake_order_0"]),
    ):
        with pytest.raises(CommitFailedError, match=r"out.parquet, which one operator hands .* is gone.*run"):
            reading()
