"""Who writes to the sink of another root, or of a job that was re-created, is refused, and nothing is skipped silently.

On the real engine, with Spark jobs done in this process.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession

from state_engine import StateEngine, StatefulJob
from state_engine.core.checkpoints.checkpoint import StagedSink
from state_engine.core.errors import SinkError, SinkIdentityError
from state_engine.sinks.delta import DeltaPublisher
from tests.protocol.model_job import JOB, build, fold
from tests.protocol.passing_time import Clock
from tests.protocol.points import marked
from tests.protocol.verdict import delta_rows, file_rows

NUMBERS = 4
CLOCK_MS = 1_000_000
SINKS = pytest.mark.parametrize("files", [False, True], ids=["delta", "delta and files"])


class Site:
    """A root and its sinks."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.directory, self.spark = directory, spark
        self.root = directory / "root"

    def run(
        self, root: Path, *, files: bool = False, at_once: int = 1, max_batches: int | None = None
    ) -> list[int]:
        """Ids of the checkpoints that a run of the job on some root commits."""
        job: StatefulJob = build(self.directory, numbers=NUMBERS, at_once=at_once, parallelism=2, files=files)
        with StateEngine(root, self.spark) as engine:
            report = engine.run(job, clock=CLOCK_MS, max_batches=max_batches)
        return [batch.checkpoint_id for batch in report.batches]

    def refused(self, root: Path, **options: Any) -> int:
        """How many checkpoints a job on some root has, after it was refused."""
        with pytest.raises(SinkIdentityError, match=r"writes to the same table|another root writes here"):
            self.run(root, **options)
        with StateEngine(root, self.spark) as engine:
            return len(engine.checkpoints(JOB))

    def shows(self) -> Counter[tuple[Any, ...]]:
        """Rows of the Delta sink."""
        return delta_rows(self.directory / "out")

    def shows_all_once(self, *, files: bool) -> bool:
        """Whether the sinks show what one uninterrupted run would have put there."""
        expected = Counter(fold(range(1, NUMBERS + 1))[1])
        return self.shows() == expected and (not files or file_rows(self.directory / "out_files") == expected)


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Iterator[Site]:
    with marked(Clock()):
        yield Site(tmp_path, spark)


@SINKS
def test_a_re_created_job_is_refused_as_often_as_it_tries(site: Site, files: bool) -> None:
    """Its ids begin at 1 again; what the sinks hold under these ids is the old job's."""
    site.run(site.root, files=files)
    shutil.rmtree(site.root / JOB)
    tried = [site.refused(site.root, files=files, at_once=2) for _ in range(3)]
    assert site.shows_all_once(files=files)
    assert tried == [1, 1, 1]  # a row that can never be published stops the job: none comes after it


@SINKS
def test_a_job_re_created_when_it_had_one_checkpoint_is_refused(site: Site, files: bool) -> None:
    """The new job's first id is the newest that the sinks have seen: a published one, by its number alone."""
    site.run(site.root, files=files, max_batches=1)
    before = site.shows()
    shutil.rmtree(site.root / JOB)
    for _ in range(2):
        site.refused(site.root, files=files, at_once=2)
        assert site.shows() == before


@pytest.mark.parametrize(("ahead", "files"), [(1, True), (2, False)])
def test_a_copy_of_a_root_is_refused_as_often_as_it_tries(site: Site, ahead: int, files: bool) -> None:
    site.run(site.root, files=files, max_batches=1)
    copy = site.directory / "copy"
    shutil.copytree(site.root, copy)
    site.run(site.root, files=files, max_batches=ahead)
    for _ in range(3):
        assert site.refused(copy, files=files) == 2
    site.run(site.root, files=files)  # the original goes on, and lacks nothing
    assert site.shows_all_once(files=files)


def test_a_copy_that_was_faster_has_its_original_refused(site: Site) -> None:
    site.run(site.root, max_batches=1)
    copy = site.directory / "copy"
    shutil.copytree(site.root, copy)
    site.run(copy, max_batches=1)
    for _ in range(2):
        assert site.refused(site.root) == 2
    site.run(copy)
    assert site.shows_all_once(files=False)


def test_a_second_root_with_an_id_of_its_own_is_refused_before_it_writes(site: Site) -> None:
    """None of its rows is recognised as one of the first root's; they would all be published twice."""
    site.run(site.root, max_batches=2)
    second = site.directory / "second"
    for _ in range(2):
        with pytest.raises(SinkIdentityError, match=r"the same job of another root.*shared=True"):
            site.run(second)
    with StateEngine(second, site.spark) as engine:
        assert engine.checkpoints(JOB) == []
    site.run(site.root)
    assert site.shows_all_once(files=False)


@pytest.mark.long
def test_two_roots_that_began_at_once_are_reported_before_their_next_batch(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither has published when the other one checks; the second one to go on is refused."""
    second, publish, began = site.directory / "second", DeltaPublisher.publish, list[str]()

    def published(self: DeltaPublisher, staged: StagedSink, app: str, checkpoint_id: int) -> None:
        began.append(app)
        if len(began) == 1:
            site.run(second, max_batches=1)
        publish(self, staged, app, checkpoint_id)

    monkeypatch.setattr(DeltaPublisher, "publish", published)
    with pytest.raises(SinkIdentityError, match="the same job of another root"):
        site.run(site.root, max_batches=2)


def test_a_second_root_is_refused_by_a_directory_of_files(site: Site) -> None:
    site.run(site.root, files=True, max_batches=2)
    with pytest.raises(SinkIdentityError):
        site.run(site.directory / "second", files=True)


def test_a_row_that_can_never_be_published_is_left_by_restoring_its_parent(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the two ways out that the errors name."""
    site.run(site.root, max_batches=1)
    with monkeypatch.context() as patch:
        patch.setattr(DeltaPublisher, "publish", lambda *_: (_ for _ in ()).throw(OSError("gone")))
        with pytest.raises(OSError, match="gone"):
            site.run(site.root, max_batches=1)
    DeltaTable(str(site.directory / "out")).alter.add_columns(Field("more", PrimitiveType("long")))
    with pytest.raises(SinkError, match="has the columns"):
        site.run(site.root)
    with StateEngine(site.root, site.spark) as engine:
        assert engine.restore(JOB, checkpoint_id=1).committed_id == 3
    assert sum(site.shows().values()) == 1
