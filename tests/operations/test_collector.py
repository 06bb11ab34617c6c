"""Collection: what nobody needs goes, in two steps and after its age; what anybody may need stays, on real tables.

Time is given to the collector: what was just written is days old when it is asked to collect in some days.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.checkpoints.write_ids import MAX_ATTEMPT_AGE_MS, owner_in, owner_mark
from state_engine.core.errors import CommitFailedError, ConfigurationError
from state_engine.job import job_tables
from state_engine.microbatch.coordinator import CheckpointCoordinator
from state_engine.operations.collector import VacuumReport
from state_engine.publication.publication import Publication
from state_engine.storage import store_clock
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.store_clock import StoreClock
from tests.operations.collecting_ground import HOUR_MS, Crash, Ground, crashed

pytestmark = [pytest.mark.spark, pytest.mark.long]

KEEP_ONE = RetentionPolicy(keep_last=1)


@pytest.fixture
def ground(tmp_path: Path, spark: SparkSession) -> Ground:
    """After three micro-batches."""
    ground = Ground(tmp_path, spark)
    for i in range(3):
        ground.run(i)
    return ground


STATE = ("root/tiny/operators/sums/changelog", "root/tiny/operators/sums/base", "root/tiny/operator_state")


def steps(report: VacuumReport) -> set[tuple[str, str]]:
    return {(f.why, f.step) for f in report.files}


def test_files_of_expired_checkpoints_go_in_two_collections(ground: Ground) -> None:
    ground.engine().compact("tiny")
    ground.run(3)
    ground.engine().expire_checkpoints("tiny", KEEP_ONE)
    before, states, outputs = ground.files(), ground.restorable(), ground.outputs()
    assert not ground.collect(hours=23).files, "nothing is that old yet"

    first = ground.collect(hours=25)
    assert steps(first) == {("expired checkpoint", "remove")}
    assert {f.table for f in first.files} == {"operators/sums/changelog"}
    assert ground.files() == before, "readers of the table may still have them open"
    removed = {f"root/tiny/operators/sums/changelog/{f.path}" for f in first.files}
    assert removed < before
    assert all(
        f.bytes == (ground.directory / at).stat().st_size
        for f, at in zip(first.files, sorted(removed), strict=True)
    )
    changelog = ground.spark.read.format("delta").load(
        f"{ground.directory}/root/tiny/operators/sums/changelog"
    )
    assert changelog.select("write_id").distinct().count() == 1
    assert not ground.collect(hours=23).files, "removed an hour before that"

    second = ground.collect(hours=25)
    assert steps(second) == {("removed earlier", "delete")}
    assert before - ground.files() == removed
    assert second.bytes_deleted == sum(f.bytes for f in first.files)
    assert not ground.collect(hours=25).files
    assert not any(
        path.is_dir() and not list(path.iterdir()) for path in ground.directory.rglob("write_id=*")
    )
    assert (ground.restorable(), ground.outputs()) == (states, outputs)
    ground.run(4)
    assert ground.state() == {"a": 208, "b": 255, "c": 102}


def test_nothing_goes_that_savepoints_open_paths_or_unpublished_rows_need(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.engine().savepoints("tiny").create("kept", checkpoint_id=2)
    ground.engine().compact("tiny")
    with monkeypatch.context() as patch:
        patch.setattr(Publication, "publish", lambda *_: (_ for _ in ()).throw(Crash()))
        with pytest.raises(Crash):
            ground.run(3)
    ground.engine().expire_checkpoints("tiny", KEEP_ONE)
    states = ground.restorable()
    assert 2 in states
    assert 1 not in states
    staged = {f for f in ground.files("files_of_tiny") if "_staged-" in f}
    assert staged
    for _ in range(2):
        ground.collect(hours=49)
    assert ground.restorable() == states
    assert staged <= ground.files("files_of_tiny"), "not published yet"
    ground.engine().publish_pending(ground.both())
    assert len(ground.outputs()) == 12
    ground.engine().restore("tiny", checkpoint_id=2)
    assert ground.restorable()[2] == states[2]
    assert len(ground.outputs()) == 6
    ground.engine().savepoints("tiny").delete("kept")
    ground.engine().expire_checkpoints("tiny", KEEP_ONE)
    assert ground.collect(hours=49).removed


def test_withdrawn_outputs_come_back_after_a_collection_and_go_when_expired(ground: Ground) -> None:
    outputs, states = ground.outputs(), ground.restorable()
    ground.engine().restore("tiny", checkpoint_id=1)
    for _ in range(2):
        assert not ground.collect(hours=49).files
    ground.engine().restore("tiny", checkpoint_id=3)
    assert ground.outputs() == outputs
    assert ground.restorable().items() >= states.items()
    assert not [path for path in ground.files("files_of_tiny") if "_staged-" in path]

    ground.engine().restore("tiny", checkpoint_id=1)
    ground.run(3)
    ground.engine().expire_checkpoints("tiny", KEEP_ONE)
    shown = ground.outputs()
    assert not ground.collect(hours=23).files
    gone = ground.collect(hours=25).deleted
    assert {(f.table.rsplit("/", 1)[-1], f.why) for f in gone} == {
        ("sink", "expired checkpoint"),
        ("files_of_tiny", "expired checkpoint"),
    }
    assert ground.outputs() == shown
    assert not [f for f in ground.files("files_of_tiny") if "_staged-" in f]
    assert not list(ground.directory.glob("files_of_tiny/_staged-*"))


def test_orphans_of_a_crashed_attempt_go_after_their_age(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, outputs = ground.files(), ground.outputs()
    write_id = crashed(ground, monkeypatch)
    orphans = ground.files() - before
    assert {path.split(write_id)[0].split("/part-")[0].removesuffix("/write_id=") for path in orphans} == {
        *STATE[::2], "sink", "files_of_tiny/_staged-",
    }  # fmt: skip
    (ground.directory / "root" / "tiny" / "exchange" / write_id).mkdir(parents=True)
    left = (
        ground.directory / "root" / "tiny" / "exchange" / write_id / f"sums-part-00000-{write_id}-1.parquet"
    )
    row = ground.directory / "root" / "tiny" / "checkpoints" / f"checkpoint-000000000004-{write_id}.parquet"
    foreign = [
        ground.sink / f"part-00000-{write_id}-{owner_mark('another')}-1.parquet",
        ground.sink / f"part-00000-{write_id}-1.parquet",
        ground.sink / "part-00000-0d9f1a2c-aaaa-4bbb-8ccc-0123456789ab-c000.snappy.parquet",
        ground.directory / "root" / "tiny" / "operator_state" / "part-00000-by-hand.parquet",
    ]
    for path in [left, row, *foreign]:
        path.write_bytes(b"x" * 100)
    assert not ground.collect(hours=23.9).files

    dry = ground.collect(hours=24.1, dry_run=True)
    assert left.exists()
    assert orphans <= ground.files()
    done = ground.collect(hours=24.1)
    assert done.files == dry.files
    assert {f.why for f in done.files} == {f"orphan of attempt {write_id}"}
    assert {f.table.rsplit("/", 1)[-1] for f in done.deleted} == {
        "sink", "files_of_tiny", "checkpoints", "exchange",
    }  # fmt: skip
    assert {f.table for f in done.removed} == {"operators/sums/changelog", "operator_state"}
    assert not left.parent.exists()
    assert not row.exists()
    assert not list(ground.directory.glob("files_of_tiny/_staged-*"))
    ground.collect(hours=24.1)
    assert not orphans & ground.files()
    assert before <= ground.files()
    assert all(path.exists() for path in foreign)
    assert ground.outputs() == outputs
    assert ground.engine().checkpoints("tiny")[-1].kind == "retention", "the fence"
    assert len(ground.engine().run(ground.both()).batches) == 1  # the input of the crashed attempt


def test_sinks_without_any_checkpoint_are_reached_through_the_job(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = Ground(tmp_path, spark)
    ground.put({"k": ["a"], "v": [1]})
    ground.engine().run(ground.job(max_parallelism=8))
    crashed(ground, monkeypatch)
    assert "files_of_tiny" not in {
        f.table.rsplit("/", 1)[-1] for f in ground.collect(hours=25, job="tiny").files
    }
    assert "files_of_tiny" in {f.table.rsplit("/", 1)[-1] for f in ground.collect(hours=25).files}


def test_a_shared_sink_keeps_the_files_of_the_other_job(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.engine().run(ground.both("other"))
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointCoordinator, "commit", lambda *_: (_ for _ in ()).throw(Crash()))
        ground.put({"k": ["z"], "v": [1]}, "9000")
        with pytest.raises(Crash):
            ground.engine().run(ground.both("other"))
    theirs = {owner_in(p.rsplit("/", 1)[-1]) for p in ground.files("sink")}
    assert len(theirs) == 2
    before = ground.files("sink")
    assert not ground.collect(hours=25).files
    assert ground.files("sink") == before
    assert ground.collect(hours=25, job=ground.both("other")).files
    assert len(ground.files("sink")) < len(before)


def test_a_crash_in_the_middle_is_finished_by_the_next_collection(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.engine().compact("tiny")
    ground.run(3)
    ground.engine().restore("tiny", checkpoint_id=2)
    ground.run(4)
    crashed(ground, monkeypatch)
    ground.engine().compact("tiny")
    ground.engine().expire_checkpoints("tiny", KEEP_ONE)
    states, outputs = ground.restorable(), ground.outputs()
    planned = ground.collect(hours=25, dry_run=True)
    assert len({f.table for f in planned.removed}) > 1
    assert len(planned.deleted) > 1
    done = []

    def dies(one: Any) -> None:
        done.append(one)
        if len(done) in (1, len(planned.removed) + 1):
            raise Crash

    change = DeltaKernel.change
    with monkeypatch.context() as patch:
        patch.setattr(
            DeltaKernel,
            "change",
            lambda self, *a, **o: (change(self, *a, **o), (_ for _ in ()).throw(Crash())),
        )
        with pytest.raises(Crash):
            ground.collect(hours=25)
    with pytest.raises(Crash):
        ground.collect(hours=25, on_progress=dies)
    for _ in range(2):
        ground.collect(hours=49)
    assert not ground.collect(hours=49, dry_run=True).files
    named = {f.path for f in planned.files}
    assert not {p for p in ground.files() for name in named if p.endswith(name)}
    assert ground.restorable().items() >= states.items(), "and rows of fences"
    assert ground.outputs() == outputs


def test_the_age_counts_from_when_a_file_was_needed_last(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground = Ground(tmp_path, spark)
    for i in range(2):
        ground.run(i)
    ground.engine().restore("tiny", checkpoint_id=1)

    class Later(StoreClock):
        """Thirty hours after the files were written."""

        def now_ms(self) -> int:
            return super().now_ms() + 30 * HOUR_MS

    with monkeypatch.context() as patch:
        patch.setattr(job_tables, "StoreClock", Later)
        ground.engine().expire_checkpoints("tiny", KEEP_ONE)
    assert not ground.collect(hours=53, dry_run=True).files
    told = {f.table.rsplit("/", 1)[-1] for f in ground.collect(hours=55, dry_run=True).files}
    assert told == {"changelog", "operator_state", "sink", "files_of_tiny"}


def test_files_that_somebody_else_took_out_meanwhile_are_no_error(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.engine().compact("tiny")
    ground.run(3)
    ground.engine().expire_checkpoints("tiny", KEEP_ONE)
    fetched = DeltaKernel.change

    def second(self: DeltaKernel, uri: str, **asked: Any) -> int:
        monkeypatch.setattr(DeltaKernel, "change", fetched)
        fetched(self, uri, add=[], remove=asked["remove"][:2])
        return fetched(self, uri, **asked)

    monkeypatch.setattr(DeltaKernel, "change", second)
    assert len(ground.collect(hours=25).removed) > 2
    assert not ground.collect(hours=25, dry_run=True).removed


def test_an_old_attempt_refuses_to_commit(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    class Earlier(StoreClock):
        """Of a process that stood still since."""

        def now_ms(self) -> int:
            return super().now_ms() - MAX_ATTEMPT_AGE_MS - 60_000

    with monkeypatch.context() as patch:
        patch.setattr(job_tables, "StoreClock", Earlier)
        with pytest.raises(
            CommitFailedError, match=r"checkpoint 4 \(attempt .*\) began 12\.0 hours ago.*run again"
        ):
            ground.run(3)
    assert len(ground.engine().checkpoints("tiny")) == 3
    ground.run(3)
    assert len(ground.engine().checkpoints("tiny")) == 4


@pytest.mark.parametrize(
    ("hours", "why"), [(25, r"began 25\.0 hours ago"), (0, "its files are not what it wrote any more")]
)
def test_an_attempt_that_slept_just_before_its_commit_changes_nothing(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, hours: int, why: str
) -> None:
    """It was young enough when it looked at its age; then its files went, and so did its id."""
    append, written_ms = DeltaKernel.append, store_clock.written_ms
    asleep, passed_ms = False, 0

    def sleeps(self: DeltaKernel, uri: str, *args: Any, **options: Any) -> int:
        nonlocal asleep, passed_ms
        if uri.endswith("/checkpoints") and not asleep:
            asleep = True
            assert ground.collect(hours=25).files
            passed_ms = hours * HOUR_MS
        return append(self, uri, *args, **options)

    def later(info: Any) -> int:
        return written_ms(info) + passed_ms * info.base_name.startswith("checkpoint-")

    monkeypatch.setattr(DeltaKernel, "append", sleeps)
    monkeypatch.setattr(store_clock, "written_ms", later)
    outputs = ground.outputs()
    with pytest.raises(CommitFailedError, match=why):
        ground.run(3)
    monkeypatch.undo()
    assert ground.outputs() == outputs
    assert [r.kind for r in ground.engine().checkpoints("tiny")[3:]] == ["retention"]


@pytest.mark.parametrize("behind_days", [2, -2])
def test_a_runner_whose_clock_is_wrong_loses_nothing_and_a_collector_deletes_no_more(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, behind_days: int
) -> None:
    """Both went by the local clock: files of a runner two days behind looked old to every collector."""
    real, append = time.time_ns, DeltaKernel.append
    collected: list[Any] = []

    def meanwhile(self: DeltaKernel, uri: str, *args: Any, **options: Any) -> int:
        if uri.endswith("/checkpoints") and not collected:
            with monkeypatch.context() as patch:  # a collector whose clock is right, or wrong the other way
                patch.setattr(time, "time_ns", lambda: real() + behind_days * 24 * HOUR_MS * 1_000_000)
                collected.append(ground.engine().vacuum(ground.both()).files)
        return append(self, uri, *args, **options)

    monkeypatch.setattr(DeltaKernel, "append", meanwhile)
    monkeypatch.setattr(time, "time_ns", lambda: real() - behind_days * 24 * HOUR_MS * 1_000_000)
    ground.run(3)
    assert collected == [[]]
    assert [r.kind for r in ground.engine().checkpoints("tiny")] == ["checkpoint"] * 4
    assert len(ground.outputs()) == 12


def test_a_short_age_and_a_job_that_never_ran_are_refused(ground: Ground) -> None:
    with pytest.raises(ConfigurationError, match="orphan_age must be at least 1 day, 0:00:00, not 1:00:00"):
        ground.collect(hours=25, orphan_age=timedelta(hours=1))
    with pytest.raises(ConfigurationError, match="job 'other' has no checkpoint"):
        ground.collect(hours=25, job="other")


@pytest.mark.long
def test_vacuum_takes_only_what_is_in_no_log_and_old(ground: Ground) -> None:
    changelog = ground.directory / "root" / "tiny" / "operators" / "sums" / "changelog"
    old, young = changelog / "by-hand-1.parquet", changelog / "by-hand-2.parquet"
    for path in (old, young):
        path.write_bytes(b"x")
    before, states = ground.files(), ground.restorable()
    week_ago = time.time() - 8 * 24 * 3600
    for path in [old, *changelog.rglob("part-*.parquet")]:
        os.utime(path, (week_ago, week_ago))
    told = ground.collect(hours=0, vacuum=True, dry_run=True)
    assert {uri.split("/root/tiny/")[1] for uri in told.vacuumed} == {
        "checkpoints", "operator_state", "operators/sums/changelog",
    }  # fmt: skip
    assert ground.files() == before
    assert ground.collect(hours=0, vacuum=True).vacuumed == told.vacuumed
    assert before - ground.files() == {str(old.relative_to(ground.directory))}
    assert ground.restorable() == states
