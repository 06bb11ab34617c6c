"""Savepoints on the real engine: they can be moved, are verified, outlive their root, and fit only their job."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import DeltaSink, FileSource, StateEngine, StatefulJob
from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.errors import ConfigurationError, MissingFilesError, StateMigrationError
from tests.support.tiny import OUTPUT, SavedSite, Site, Sum

pytestmark = pytest.mark.spark

TOTALS = {"a": 3, "b": 20, "c": 100}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> SavedSite:
    site = Site(tmp_path_factory.mktemp("site"), spark)
    for i in range(3):
        site.put({"k": ["a", "b", "c"][: i + 1], "v": [1, 10, 100][: i + 1]}, f"{i}")
        site.engine().run(site.job())
        if i == 1:
            site.engine().compact("tiny")
    assert site.state() == TOTALS
    return SavedSite(site)


@pytest.fixture
def site(saved: SavedSite) -> Site:
    """After three micro-batches, the second of which is in a base."""
    return saved.anew()


def moved(site: Site, name: str = "other", uid: str = "sums", **options: Any) -> StatefulJob:
    """The same job under another name, with a sink of its own."""
    job = StatefulJob(name, **{"parallelism": 3, "max_parallelism": 128} | options)
    rows = job.source("events", FileSource(str(site.feed)))
    summed = rows.key_by("k").process(Sum(), uid=uid, output_type=OUTPUT)
    summed.sink("out", DeltaSink(str(site.directory / f"sink-{name}")))
    return job


@pytest.mark.spark_tasks
def test_a_moved_savepoint_goes_on_elsewhere_without_its_root(
    site: Site, tmp_path: Path, spark: SparkSession
) -> None:
    savepoint = site.engine().savepoints("tiny").create("before_move", tmp_path / "sp")
    assert (
        savepoint.checkpoint_id,
        site.engine().savepoints("tiny").list()["before_move"].checkpoint_id,
    ) == (
        4,
        4,
    )
    shutil.move(tmp_path / "sp", tmp_path / "carried")
    shutil.rmtree(site.directory / "root")
    site.put({"k": ["a", "d"], "v": [1, 7]}, "more")

    engine = StateEngine(tmp_path / "new root", spark)
    assert engine.savepoints("tiny").verify(tmp_path / "carried").files == savepoint.files
    planned = engine.restore(moved(site), savepoint=tmp_path / "carried", dry_run=True)
    assert (planned.kind, planned.checkpoint_id, planned.committed_id) == ("import", 4, None)
    done = engine.restore(moved(site), savepoint=tmp_path / "carried")
    assert done.committed_id == 1
    state = {r["k"]: r["value"] for r in engine.read_state("other", "sums", "total").collect()}
    assert state == TOTALS

    report = engine.run(moved(site))  # only the file that came since is read
    assert report.rows_in == 2
    state = {r["k"]: r["value"] for r in engine.read_state("other", "sums", "total").collect()}
    assert state == TOTALS | {"a": 4, "d": 7}


def test_a_savepoint_of_this_job_is_its_checkpoint_and_retention_keeps_it(site: Site) -> None:
    site.engine().savepoints("tiny").create("early", checkpoint_id=1)
    site.put({"k": ["a"], "v": [1]}, "more")
    site.engine().run(site.job())
    expired = site.engine().expire_checkpoints("tiny", RetentionPolicy(keep_last=1))
    assert 1 not in expired
    assert 2 in expired
    site.engine().restore("tiny", savepoint="early")
    assert site.state() == {"a": 1}
    assert len(site.outputs()) == 1

    files = site.engine().savepoints("tiny").delete("early", dry_run=True)
    assert files
    assert all(Path(file.removeprefix("file:")).is_file() for file in files)
    assert site.engine().savepoints("tiny").verify("early").checkpoint_id == 1
    assert site.engine().savepoints("tiny").delete("early") == files
    assert not any(Path(file.removeprefix("file:")).exists() for file in files)
    assert not (site.directory / "root" / "tiny" / "savepoints" / "early").exists()
    assert site.engine().savepoints("tiny").list() == {}


def test_one_flipped_byte_is_detected(site: Site, tmp_path: Path) -> None:
    site.engine().savepoints("tiny").create("safe", tmp_path / "sp")
    file = next((tmp_path / "sp" / "operators").rglob("*.parquet"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(MissingFilesError, match=r"savepoint 'safe' of job 'tiny' is damaged: .*other"):
        site.engine().savepoints("tiny").verify(tmp_path / "sp")
    with pytest.raises(MissingFilesError, match="is damaged"):
        site.engine().restore(moved(site), savepoint=tmp_path / "sp")


def test_what_does_not_fit_is_refused(site: Site, tmp_path: Path) -> None:
    site.engine().savepoints("tiny").create("safe", tmp_path / "sp")
    engine = site.engine()
    with pytest.raises(StateMigrationError, match=r"holds state of \['sums'\], which the job does not have"):
        engine.restore(moved(site, uid="renamed"), savepoint=tmp_path / "sp")
    engine.restore(moved(site, uid="renamed"), savepoint=tmp_path / "sp", allow_non_restored_state=True)
    with pytest.raises(ConfigurationError, match="savepoint 'safe' already exists"):
        engine.savepoints("tiny").create("safe", tmp_path / "again")


def test_a_savepoint_that_fails_leaves_nothing(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from state_engine.operations import savepoints

    with monkeypatch.context() as patch:
        patch.setattr(savepoints, "write_text", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            site.engine().savepoints("tiny").create("safe", tmp_path / "sp")
    assert site.engine().savepoints("tiny").list() == {}
    assert not (tmp_path / "sp").exists()
    assert (
        site.engine().savepoints("tiny").create("safe", tmp_path / "sp").checkpoint_id == 6
    )  # pinned, unpinned
