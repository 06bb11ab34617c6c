"""In a catch-up the next micro-batch is executed while this one is committed and published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import CheckpointListener, StateEngine
from state_engine.core.checkpoints.write_ids import write_id_in
from state_engine.core.errors import CommitFailedError, UserFunctionError
from state_engine.microbatch.coordinator import CheckpointCoordinator
from state_engine.microbatch.reports import BatchReport
from tests.support.tiny import OUTPUT, ROWS, Site, Sum

pytestmark = pytest.mark.spark

PATIENCE_S = 60
FILES = 4
TOTALS = {"a": FILES * 4, "b": FILES * 2, "c": FILES * 4}


def site_of(directory: Path, spark: SparkSession) -> Site:
    """Several files of the same rows, a micro-batch each."""
    site = Site(directory, spark)
    for number in range(FILES):
        site.put(ROWS, f"{number}")
    return site


def job_of(site: Site, function: Any = None) -> Any:
    return site.job(function, batch_rows=4)


def check_all(site: Site, checkpoints: int = FILES) -> None:
    """Every file was taken in once, and nothing of another attempt is left."""
    assert site.state() == TOTALS
    assert len(site.outputs()) == FILES * 4
    assert max(total for key, _, total in site.outputs() if key == "a") == TOTALS["a"]
    rows = site.engine().checkpoints("tiny")
    assert sum(row.rows_in for row in rows) == FILES * 4
    assert len([row for row in rows if row.kind.is_micro_batch]) == checkpoints
    assert left_behind(site) == set()


def left_behind(site: Site) -> set[str]:
    """Attempts of which data files lie somewhere, and no checkpoint."""
    known = {row.write_id for row in site.engine().checkpoints("tiny")}
    files = (p for p in site.directory.rglob("*") if p.is_file() and "_delta_log" not in p.parts)
    return {w for p in files if (w := write_id_in(p.name))} - known


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps of all micro-batches, as they begin and end."""
    steps: list[str] = []

    def around(name: str) -> None:
        real = getattr(CheckpointCoordinator, name)

        def call(self: CheckpointCoordinator, *given: Any) -> Any:
            steps.append(name)
            value = real(self, *given)
            steps.append(f"{name} done")
            return value

        monkeypatch.setattr(CheckpointCoordinator, name, call)

    for name in ("execute", "commit", "publish"):
        around(name)
    return steps


def replaced(patch: pytest.MonkeyPatch, name: str, by: Callable[..., Any]) -> Callable[..., Any]:
    real: Callable[..., Any] = getattr(CheckpointCoordinator, name)
    patch.setattr(CheckpointCoordinator, name, by)
    return real


@pytest.mark.parametrize("slow", ["commit", "publish"])
def test_the_next_one_is_executed_while_this_one_is_committed_and_published(
    slow: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, executed = site_of(tmp_path, spark), Event()
    batches: list[int] = []

    def execute(self: CheckpointCoordinator, planned: Any) -> Any:
        value = real_execute(self, planned)
        batches.append(planned.batch.checkpoint_id)
        if len(batches) == 2:
            executed.set()
        return value

    def waits(self: CheckpointCoordinator, attempt: Any) -> Any:
        assert executed.wait(PATIENCE_S), "the second micro-batch waits for the first"
        return real(self, attempt)

    real_execute = replaced(monkeypatch, "execute", execute)
    real = replaced(monkeypatch, slow, waits)
    report = site.engine().run(job_of(site))
    assert batches == [1, 2, 3, 4]
    assert [b.checkpoint_id for b in report.batches] == batches
    assert report.caught_up
    check_all(site)


def test_a_row_is_committed_after_the_one_before_was_published(
    tmp_path: Path, spark: SparkSession, recorded: list[str]
) -> None:
    site = site_of(tmp_path, spark)
    report = site.engine().run(job_of(site))
    settled = [step for step in recorded if not step.startswith("execute")]
    assert settled == ["commit", "commit done", "publish", "publish done"] * FILES
    assert recorded.count("execute") == FILES
    assert all(set(b.steps_s) == set(report.batches[0].steps_s) for b in report.batches)
    assert [b.delta_commits for b in report.batches] == [report.batches[0].delta_commits] * FILES
    check_all(site)


def test_what_was_executed_ahead_goes_where_the_commit_before_it_fails(
    tmp_path: Path, spark: SparkSession
) -> None:
    site, executed = site_of(tmp_path, spark), Event()
    ahead: list[str] = []

    def execute(self: CheckpointCoordinator, planned: Any) -> Any:
        value = real(self, planned)
        if planned.batch.parent is not None:
            ahead.append(planned.batch.write_id)
            executed.set()
        return value

    def fails(self: CheckpointCoordinator, attempt: Any) -> Any:
        assert executed.wait(PATIENCE_S)
        raise CommitFailedError("out of luck")

    with pytest.MonkeyPatch.context() as patch:
        real = replaced(patch, "execute", execute)
        replaced(patch, "commit", fails)
        with pytest.raises(CommitFailedError, match="out of luck"):
            site.engine().run(job_of(site))
    assert site.nothing_happened()
    assert len(ahead) == 1
    assert not left_behind(site) & set(ahead)
    site.engine().run(job_of(site))
    assert site.state() == TOTALS
    assert len(site.outputs()) == FILES * 4


def picky(value: Any, total: int) -> Any:
    if total > 8:
        raise ValueError("too much")
    return [("a", value.v, total)]


def test_an_error_of_the_next_one_comes_after_this_one_is_published(
    tmp_path: Path, spark: SparkSession, recorded: list[str]
) -> None:
    site, seen = site_of(tmp_path, spark), list[BatchReport]()
    with pytest.raises(UserFunctionError, match="too much"):
        site.engine().run(job_of(site, Sum(picky)), on_progress=seen.append)
    assert [b.checkpoint_id for b in seen] == [1, 2]
    assert recorded.count("publish done") == 2
    assert recorded.count("execute") == 3  # what failed ahead is not tried again
    assert len(site.outputs()) == 8
    assert left_behind(site) == set()
    site.engine().run(job_of(site))
    assert site.state() == TOTALS


@pytest.mark.parametrize("ends", [KeyError, KeyboardInterrupt])
def test_a_run_that_ends_in_between_leaves_nothing(
    ends: type[BaseException], tmp_path: Path, spark: SparkSession
) -> None:
    site = site_of(tmp_path, spark)

    def stop(report: BatchReport) -> None:
        raise ends("that will do")

    with pytest.raises(ends):
        site.engine().run(job_of(site), on_progress=stop)
    assert len(site.engine().checkpoints("tiny")) == 1
    assert left_behind(site) == set()
    site.engine().run(job_of(site))
    check_all(site)


def test_files_between_operators_go_with_what_was_executed_ahead(tmp_path: Path, spark: SparkSession) -> None:
    site = site_of(tmp_path, spark)
    job = site.job(
        batch_rows=4, through=lambda rows: rows.key_by("k").process(Sum(), uid="first", output_type=OUTPUT)
    )

    def stop(report: BatchReport) -> None:
        assert len(list(exchange.iterdir())) == 1, "of the micro-batch that was executed ahead"
        raise KeyError("that will do")

    exchange = tmp_path / "root" / "tiny" / "exchange"
    with pytest.raises(KeyError):
        site.engine().run(job, on_progress=stop)
    assert list(exchange.iterdir()) == []


def test_a_commit_goes_on_to_its_end_where_somebody_interrupts_the_next_one(
    tmp_path: Path, spark: SparkSession
) -> None:
    site, interrupted = site_of(tmp_path, spark), Event()

    def execute(self: CheckpointCoordinator, planned: Any) -> Any:
        if planned.batch.parent is not None:
            interrupted.set()
            raise KeyboardInterrupt
        return real_execute(self, planned)

    def commit(self: CheckpointCoordinator, attempt: Any) -> Any:
        assert interrupted.wait(PATIENCE_S)
        return real_commit(self, attempt)

    with pytest.MonkeyPatch.context() as patch:
        real_execute = replaced(patch, "execute", execute)
        real_commit = replaced(patch, "commit", commit)
        with pytest.raises(KeyboardInterrupt):
            site.engine().run(job_of(site))
    assert [row.rows_in for row in site.engine().checkpoints("tiny")] == [4]
    assert len(site.outputs()) == 4
    site.engine().run(job_of(site))
    check_all(site)


def test_a_compaction_in_between_leaves_what_was_executed_ahead_as_it_is(
    tmp_path: Path, spark: SparkSession, recorded: list[str]
) -> None:
    site = site_of(tmp_path, spark)
    engine = site.engine()

    def compact(report: BatchReport) -> None:
        with StateEngine(site.directory / "root", spark) as another:
            another.compact("tiny", full=True)

    engine.run(job_of(site), on_progress=compact)
    assert recorded.count("execute") == FILES
    kinds = [str(row.kind) for row in engine.checkpoints("tiny")]
    assert kinds == ["checkpoint", "compaction"] * FILES
    assert site.state() == TOTALS
    assert len(site.outputs()) == FILES * 4


def test_a_restore_in_between_drops_what_was_executed_ahead(
    tmp_path: Path, spark: SparkSession, recorded: list[str]
) -> None:
    site, restored = site_of(tmp_path, spark), Event()

    def restore(report: BatchReport) -> None:
        if report.checkpoint_id == 2 and not restored.is_set():
            restored.set()
            with StateEngine(site.directory / "root", spark) as another:
                another.restore(job_of(site), checkpoint_id=1)

    site.engine().run(job_of(site), on_progress=restore)
    assert recorded.count("execute") == FILES + 2  # the one that was taken back, and the one ahead of it
    assert site.state() == TOTALS
    assert len(site.outputs()) == FILES * 4
    assert left_behind(site) == set()


def test_no_more_is_executed_than_was_asked_for(
    tmp_path: Path, spark: SparkSession, recorded: list[str]
) -> None:
    site = site_of(tmp_path, spark)
    site.engine().run(job_of(site), max_batches=2)
    assert recorded.count("execute") == 2
    site.engine().run(job_of(site))
    check_all(site)
    assert recorded.count("execute") == FILES


class Notified(Sum, CheckpointListener):
    """Gets a notification of each checkpoint that is complete."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        pass


def test_a_function_is_notified_of_checkpoints_that_are_complete(
    tmp_path: Path, spark: SparkSession, recorded: list[str]
) -> None:
    site = site_of(tmp_path, spark)
    site.engine().run(job_of(site, Notified()))
    begun = [step for step in recorded if step in ("execute", "publish done")]
    assert begun == ["execute", "publish done"] * FILES
