"""Files of a micro-batch that certainly failed are deleted at once; they stay where the outcome is unknown."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from state_engine import DeltaSink, FileSink, FileSource, SqlSink, StatefulJob
from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.write_ids import write_id_in
from state_engine.core.errors import CommitFailedError, MissingFilesError, StaleParentError, UserFunctionError
from state_engine.job.graph import SinkNode
from state_engine.microbatch.attempt_outputs import AttemptSinks, OutputsOfJob
from state_engine.microbatch.coordinator import CheckpointCoordinator
from state_engine.microbatch.subtask.subtask_outputs import order_fields, read_exchange, write_sink_file
from state_engine.publishing.publication import Publication
from state_engine.storage.delta.log_tail import LogDurability
from state_engine.storage.layout import JobLayout
from state_engine.storage.stores.files import open_location
from tests.core.checkpoints.rows import checkpoint
from tests.faults.plane import Fault, InjectedFault, installed
from tests.faults.workloads import WORKLOADS, Picky, Site
from tests.support.tiny import OUTPUT, ROWS, Sum
from tests.support.tiny import Site as TinySite


def files_of_attempts(site: Site) -> set[Path]:
    """All data files; those that are staged are renamed when they are published."""
    return {p for p in site.directory.rglob("*") if p.is_file() and write_id_in(p.name)}


def left_behind(site: Site) -> set[str]:
    """Where data files of attempts that no checkpoint records lie, and empty directories of such attempts."""
    known = {row.write_id for row in site.rows()}
    places = set()
    for path in site.directory.rglob("*"):
        write_id = write_id_in(path.name)
        if "_delta_log" not in path.parts and write_id is not None and write_id not in known:
            at = path.relative_to(site.directory).as_posix()
            places.add(at[: at.index(path.name)].rstrip("/"))
    return places


def listed(site: Site) -> set[str]:
    """Attempts that no checkpoint records in the log of the changes."""
    from deltalake import DeltaTable

    known = {row.write_id for row in site.rows()}
    table = DeltaTable(str(site.directory / "root/sinks/operators/sums/changelog"))
    return {w for f in table.file_uris() if (w := write_id_in(Path(f).name)) not in known and w}


def test_what_a_failed_attempt_wrote_goes_at_once_and_stays_where_nobody_knows(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, WORKLOADS["sinks"], spark)
    site.run(max_batches=1)
    before = files_of_attempts(site)

    def raises(self: Any, value: Any, ctx: Any) -> Any:
        raise KeyError("nobody catches this in the second operator")

    # a function that fails: no log holds anything
    with monkeypatch.context() as patch:
        patch.setattr(Picky, "process_element", raises)
        job = site.job()
        job.on_error = "fail"
        with site.engine() as engine, pytest.raises(UserFunctionError):
            engine.run(job, clock=1_000_000)
    assert left_behind(site) == set()
    assert files_of_attempts(site) == before
    # before the row, when changes are in their log: they leave it
    with installed([Fault("before row appended")]), pytest.raises(InjectedFault):
        site.run()
    unknown = left_behind(site)
    assert unknown >= {
        "root/sinks/dead_letters", "root/sinks/operator_state", "root/sinks/operators/sums/changelog",
        "sinks/delta", "sinks/delta_too", "sinks/files", "sinks/csv",
    }, "a commit that broke off may have happened"  # fmt: skip
    assert len(listed(site)) == 1
    assert any(place.startswith("root/sinks/sinks/sql/") for place in unknown)
    # another runner was faster
    lost = Site(tmp_path, WORKLOADS["sinks"], spark)
    kept = files_of_attempts(site)
    with (
        installed([Fault("before commit", action="zombie")], meanwhile=lambda: site.run(max_batches=1)),
        pytest.raises(StaleParentError),
    ):
        lost.run()
    assert len(listed(site)) == 1, "what the other one left, and nothing of this attempt"
    assert kept <= files_of_attempts(site)
    committed = {row.write_id for row in site.rows()}
    mine = {p for p in files_of_attempts(site) - kept if write_id_in(p.name) not in committed}
    assert {p.parent.parent.name for p in mine} == {"changelog", "operator_state"}, "for those who read them"


def test_an_attempt_that_goes_on_without_a_bad_file_is_removed_when_it_fails(
    tmp_path: Path, spark: SparkSession
) -> None:
    site = TinySite(tmp_path, spark).put({"k": ["a"] * 4, "v": [1, 2, 3, 4]}, "good").put(ROWS, "torn")
    torn = site.feed / "torn.parquet"
    torn.write_bytes(bytes(b ^ 255 if 4 <= i < 60 else b for i, b in enumerate(torn.read_bytes())))

    def raises(value: Any) -> Any:
        raise KeyError("nobody catches this in the second operator")

    job = StatefulJob("tiny", parallelism=1, on_error="fail")
    source = job.source("events", FileSource(str(site.feed), on_bad_file="dead_letter"))
    sums = source.key_by("k").process(Sum(), uid="sums", output_type=OUTPUT)
    sums.map(raises, uid="second", output_type=OUTPUT).sink("out", DeltaSink(str(site.sink)))
    with site.engine() as engine, pytest.raises(UserFunctionError, match="second operator"):
        engine.run(job)
    assert {p for p in tmp_path.rglob("*") if p.is_file() and write_id_in(p.name)} == set()


def test_a_commit_that_fails_waits_for_those_beside_it(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, failed, ended = Site(tmp_path, WORKLOADS["sinks"], spark), Event(), []
    commit = CheckpointCoordinator.commit_operator_state

    def fails(self: Any, attempt: Any, uid: str) -> None:
        failed.set()
        raise CommitFailedError("the disk is full")

    def later(self: Any, attempt: Any) -> Any:
        assert failed.wait(timeout=60)
        time.sleep(0.2)
        done = commit(self, attempt)
        ended.append(done)
        return done

    monkeypatch.setattr(CheckpointCoordinator, "commit_changelog", fails)
    monkeypatch.setattr(CheckpointCoordinator, "commit_operator_state", later)
    with pytest.raises(CommitFailedError):
        site.run(max_batches=1)
    assert ended


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
