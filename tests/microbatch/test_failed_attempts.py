"""Files of a micro-batch that certainly failed are deleted at once; they stay where the outcome is unknown."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import DeltaSink, FileSource, StatefulJob
from state_engine.core.checkpoints.write_ids import write_id_in
from state_engine.core.errors import CommitFailedError, StaleParentError, UserFunctionError
from state_engine.microbatch.coordinator import CheckpointCoordinator
from tests.faults.plane import Fault, InjectedFault, installed
from tests.faults.workloads import WORKLOADS, Picky, Site
from tests.support.tiny import OUTPUT, ROWS, Sum
from tests.support.tiny import Site as TinySite

pytestmark = pytest.mark.spark


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
