"""Two runners of one job, zombies, and commits whose outcome is unknown: nothing is lost and nothing repeated."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import StateEngine, StatefulJob
from state_engine.core.errors import (
    CommitFailedError,
    CommitUnknownError,
    SinkIdentityError,
    StaleParentError,
)
from state_engine.microbatch.attempt import Committed, Staged
from state_engine.microbatch.coordinator import CheckpointCoordinator, RunOptions
from state_engine.storage.delta.kernel import DeltaKernel
from tests.support.small_job import CLOCK_MS, Results, build, results, write_feed


@dataclass(frozen=True)
class Site:
    """The root and the sinks of a test, and the expected results."""

    directory: Path
    feed: Path
    expected: Results
    spark: SparkSession

    @property
    def sinks(self) -> Path:
        return self.directory / "sinks"

    def engine(self) -> StateEngine:
        return StateEngine(self.directory / "root", self.spark)

    def job(self) -> StatefulJob:
        return build(self.feed, self.sinks)

    def finish(self) -> None:
        """Run to the end; the results must equal those of an undisturbed run."""
        engine = self.engine()
        engine.run(self.job(), clock=CLOCK_MS)
        assert [row.checkpoint_id for row in engine.checkpoints("small")] == [1, 2, 3]
        assert results(engine, self.sinks) == self.expected


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> tuple[Path, Results]:
    base = tmp_path_factory.mktemp("fencing")
    feed = write_feed(base / "feed")
    engine = StateEngine(base / "root", spark)
    engine.run(build(feed, base / "sinks"), clock=CLOCK_MS)
    return feed, results(engine, base / "sinks")


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession, expected: tuple[Path, Results]) -> Site:
    return Site(tmp_path, *expected, spark)


def coordinator_of(engine: StateEngine, job: StatefulJob) -> CheckpointCoordinator:
    return engine.context.coordinator(job, RunOptions(lambda: CLOCK_MS, {}, "test"))


def prepared(coordinator: CheckpointCoordinator) -> Staged:
    """An attempt that did all steps up to the commit."""
    path, _ = coordinator.publish_pending()
    attempt = coordinator.plan(path)
    assert attempt is not None
    return coordinator.stage(coordinator.commit_files(coordinator.execute(attempt)))


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_zombie_that_wakes_up_changes_nothing(site: Site, ahead: int) -> None:
    zombie, successor = site.engine(), site.engine()
    sleeping = coordinator_of(zombie, site.job())
    attempt = prepared(sleeping)

    successor.run(site.job(), clock=CLOCK_MS, max_batches=ahead)
    before = results(successor, site.sinks)

    with pytest.raises(StaleParentError, match="checkpoint 1 was committed by another runner"):
        sleeping.commit(attempt)
    assert results(successor, site.sinks) == before
    # the zombie's own engine may go on, from its successor's checkpoint
    zombie.run(site.job(), clock=CLOCK_MS, max_batches=1)
    site.finish()


def test_a_zombie_that_committed_and_slept_before_publishing_repeats_nothing(site: Site) -> None:
    zombie = site.engine()
    sleeping = coordinator_of(zombie, site.job())
    attempt = sleeping.commit(prepared(sleeping))

    assert site.engine().run(site.job(), clock=CLOCK_MS, max_batches=1).published_pending == [1]
    sleeping.publish(attempt)
    site.finish()


def test_looking_at_checkpoints_meanwhile_does_not_fool_the_fence(site: Site) -> None:
    """An attempt's id follows from the head that it read, not from what its engine has seen since."""
    engine = site.engine()
    coordinator = coordinator_of(engine, site.job())
    path, _ = coordinator.publish_pending()
    site.engine().run(site.job(), clock=CLOCK_MS, max_batches=1)
    engine.checkpoints("small")

    attempt = coordinator.plan(path)
    assert attempt is not None
    with pytest.raises(StaleParentError):
        coordinator.commit(coordinator.stage(coordinator.commit_files(coordinator.execute(attempt))))
    site.finish()


def test_of_two_runners_at_once_exactly_one_commits(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both prepare checkpoint 1 and meet at the commit; then both run on until all is consumed."""
    site.engine().publish_pending(site.job())  # makes the root
    meeting, real = threading.Barrier(2, timeout=120), CheckpointCoordinator.commit
    met: set[str] = set()

    def commit(self: CheckpointCoordinator, attempt: Staged) -> Committed:
        name = threading.current_thread().name
        if name not in met:
            met.add(name)
            meeting.wait()
        return real(self, attempt)

    monkeypatch.setattr(CheckpointCoordinator, "commit", commit)
    lost: list[str] = []
    committed: list[int] = []
    broken: list[BaseException] = []

    def run() -> None:
        try:
            while True:
                try:
                    with site.engine() as engine:
                        report = engine.run(
                            site.job(),
                            clock=CLOCK_MS,
                            on_progress=lambda b: committed.append(b.checkpoint_id),
                        )
                    if report.caught_up:
                        return
                except StaleParentError as error:
                    lost.append(str(error))
        except BaseException as error:
            broken.append(error)

    threads = [threading.Thread(target=run, name=f"runner-{i}") for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(250)

    assert broken == []
    assert lost  # at least at the meeting
    assert sorted(committed) == [1, 2, 3]
    site.finish()


Commit = Callable[..., int]


def unclear(table: str, *, really: bool, patch: pytest.MonkeyPatch) -> None:
    """The outcome of the next commit to a table is unknown, whether it happened or not."""
    real: Commit = DeltaKernel.change
    left = [table]

    def change(self: DeltaKernel, uri: str, *args: Any, **options: Any) -> int:
        if uri.endswith(table) and left:
            left.pop()
            if really:
                real(self, uri, *args, **options)
            raise CommitUnknownError(f"nobody knows about {table}")
        return real(self, uri, *args, **options)

    patch.setattr(DeltaKernel, "change", change)


@pytest.mark.parametrize("table", ["/checkpoints", "sinks/totals"])
def test_a_commit_that_did_happen_is_found_and_the_run_goes_on(
    site: Site, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unclear(table, really=True, patch=monkeypatch)
    engine = site.engine()
    report = engine.run(site.job(), clock=CLOCK_MS)
    assert [b.checkpoint_id for b in report.batches] == [1, 2, 3]
    site.finish()


def test_a_checkpoint_that_was_not_committed_is_reported_and_the_next_run_does_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    unclear("/checkpoints", really=False, patch=monkeypatch)
    engine = site.engine()
    with pytest.raises(CommitFailedError, match="checkpoint 1 was not committed"):
        engine.run(site.job(), clock=CLOCK_MS)
    assert engine.checkpoints("small") == []
    site.finish()


def test_outputs_that_were_not_published_are_reported_and_published_by_the_next_run(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    unclear("sinks/totals", really=False, patch=monkeypatch)
    with pytest.raises(CommitUnknownError, match="nobody knows about"):
        site.engine().run(site.job(), clock=CLOCK_MS)
    assert site.engine().publish_pending(site.job()) == [1]
    site.finish()


@pytest.mark.parametrize("table", ["totals/changelog", "operator_state"])
@pytest.mark.parametrize("really", [True, False])
def test_an_unclear_commit_before_the_commit_point_is_just_an_attempt_that_failed(
    site: Site, table: str, really: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    unclear(table, really=really, patch=monkeypatch)
    engine = site.engine()
    with pytest.raises(CommitUnknownError):
        engine.run(site.job(), clock=CLOCK_MS)
    assert engine.checkpoints("small") == []
    site.finish()


def test_a_copied_root_cannot_publish_over_its_original(site: Site, tmp_path: Path) -> None:
    """Both have the same ids; the sink distinguishes them by the files of the transaction."""
    engine = site.engine()
    engine.run(site.job(), clock=CLOCK_MS, max_batches=1)
    shutil.copytree(tmp_path / "root", tmp_path / "copy")
    engine.run(site.job(), clock=CLOCK_MS, max_batches=1)
    published = results(engine, site.sinks)

    copy = StateEngine(tmp_path / "copy", site.spark)
    with pytest.raises(SinkIdentityError, match="already holds other rows of checkpoint 2"):
        copy.run(site.job(), clock=CLOCK_MS)
    assert results(engine, site.sinks) == published
    site.finish()
