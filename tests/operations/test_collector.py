"""Collection: what nobody needs goes, in two steps and after its age; what anybody may need stays, on real tables.

Time is given to the collector: what was just written is days old when it is asked to collect in some days.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.checkpoints.write_ids import MAX_ATTEMPT_AGE_MS, owner_in, owner_mark
from state_engine.core.errors import CommitFailedError
from state_engine.job import job_tables
from state_engine.microbatch.coordinator import CheckpointCoordinator
from state_engine.operations.file_collector import VacuumReport
from state_engine.publishing.publication import Publication
from state_engine.storage.delta.kernel import DeltaKernel
from state_engine.storage.stores import store_clock
from state_engine.storage.stores.store_clock import StoreClock
from tests.operations.collected_site import HOUR_MS, CollectedSite, Crash, crashed

pytestmark = [pytest.mark.spark, pytest.mark.long]

KEEP_ONE = RetentionPolicy(keep_last=1)


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> CollectedSite:
    """After three micro-batches."""
    site = CollectedSite(tmp_path, spark)
    for i in range(3):
        site.run(i)
    return site


STATE = ("root/tiny/operators/sums/changelog", "root/tiny/operators/sums/base", "root/tiny/operator_state")


def steps(report: VacuumReport) -> set[tuple[str, str]]:
    return {(f.why, f.step) for f in report.files}


def test_files_of_expired_checkpoints_go_in_two_collections(site: CollectedSite) -> None:
    site.engine().compact("tiny")
    site.run(3)
    site.engine().expire_checkpoints("tiny", KEEP_ONE)
    before, states, outputs = site.files(), site.restorable(), site.outputs()
    assert not site.collect(hours=23).files, "nothing is that old yet"

    first = site.collect(hours=25)
    assert steps(first) == {("expired checkpoint", "remove")}
    assert {f.table for f in first.files} == {"operators/sums/changelog"}
    assert site.files() == before, "readers of the table may still have them open"
    removed = {f"root/tiny/operators/sums/changelog/{f.path}" for f in first.files}
    assert removed < before
    assert all(
        f.bytes == (site.directory / at).stat().st_size
        for f, at in zip(first.files, sorted(removed), strict=True)
    )
    changelog = site.spark.read.format("delta").load(f"{site.directory}/root/tiny/operators/sums/changelog")
    assert changelog.select("write_id").distinct().count() == 1
    assert not site.collect(hours=23).files, "removed an hour before that"

    second = site.collect(hours=25)
    assert steps(second) == {("removed earlier", "delete")}
    assert before - site.files() == removed
    assert second.bytes_deleted == sum(f.bytes for f in first.files)
    assert not site.collect(hours=25).files
    assert not any(path.is_dir() and not list(path.iterdir()) for path in site.directory.rglob("write_id=*"))
    assert (site.restorable(), site.outputs()) == (states, outputs)
    site.run(4)
    assert site.state() == {"a": 208, "b": 255, "c": 102}


def test_nothing_goes_that_savepoints_open_paths_or_unpublished_rows_need(
    site: CollectedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.engine().savepoints("tiny").create("kept", checkpoint_id=2)
    site.engine().compact("tiny")
    with monkeypatch.context() as patch:
        patch.setattr(Publication, "publish", lambda *_, **__: (_ for _ in ()).throw(Crash()))
        with pytest.raises(Crash):
            site.run(3)
    site.engine().expire_checkpoints("tiny", KEEP_ONE)
    states = site.restorable()
    assert 2 in states
    assert 1 not in states
    staged = {f for f in site.files("files_of_tiny") if "_staged-" in f}
    assert staged
    for _ in range(2):
        site.collect(hours=49)
    assert site.restorable() == states
    assert staged <= site.files("files_of_tiny"), "not published yet"
    site.engine().publish_pending(site.both())
    assert len(site.outputs()) == 12
    site.engine().restore("tiny", checkpoint_id=2)
    assert site.restorable()[2] == states[2]
    assert len(site.outputs()) == 6
    site.engine().savepoints("tiny").delete("kept")
    site.engine().expire_checkpoints("tiny", KEEP_ONE)
    assert site.collect(hours=49).removed


def test_withdrawn_outputs_come_back_after_a_collection_and_go_when_expired(site: CollectedSite) -> None:
    outputs, states = site.outputs(), site.restorable()
    site.engine().restore("tiny", checkpoint_id=1)
    for _ in range(2):
        assert not site.collect(hours=49).files
    site.engine().restore("tiny", checkpoint_id=3)
    assert site.outputs() == outputs
    assert site.restorable().items() >= states.items()
    assert not [path for path in site.files("files_of_tiny") if "_staged-" in path]

    site.engine().restore("tiny", checkpoint_id=1)
    site.run(3)
    site.engine().expire_checkpoints("tiny", KEEP_ONE)
    shown = site.outputs()
    assert not site.collect(hours=23).files
    gone = site.collect(hours=25).deleted
    assert {(f.table.rsplit("/", 1)[-1], f.why) for f in gone} == {
        ("sink", "expired checkpoint"),
        ("files_of_tiny", "expired checkpoint"),
    }
    assert site.outputs() == shown
    assert not [f for f in site.files("files_of_tiny") if "_staged-" in f]
    assert not list(site.directory.glob("files_of_tiny/_staged-*"))


def test_orphans_of_a_crashed_attempt_go_after_their_age(
    site: CollectedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, outputs = site.files(), site.outputs()
    write_id = crashed(site, monkeypatch)
    orphans = site.files() - before
    assert {path.split(write_id)[0].split("/part-")[0].removesuffix("/write_id=") for path in orphans} == {
        *STATE[::2], "sink", "files_of_tiny/_staged-",
    }  # fmt: skip
    (site.directory / "root" / "tiny" / "exchange" / write_id).mkdir(parents=True)
    left = site.directory / "root" / "tiny" / "exchange" / write_id / f"sums-part-00000-{write_id}-1.parquet"
    row = site.directory / "root" / "tiny" / "checkpoints" / f"checkpoint-000000000004-{write_id}.parquet"
    foreign = [
        site.sink / f"part-00000-{write_id}-{owner_mark('another')}-1.parquet",
        site.sink / f"part-00000-{write_id}-1.parquet",
        site.sink / "part-00000-0d9f1a2c-aaaa-4bbb-8ccc-0123456789ab-c000.snappy.parquet",
        site.directory / "root" / "tiny" / "operator_state" / "part-00000-by-hand.parquet",
    ]
    for path in [left, row, *foreign]:
        path.write_bytes(b"x" * 100)
    assert not site.collect(hours=23.9).files

    dry = site.collect(hours=24.1, dry_run=True)
    assert left.exists()
    assert orphans <= site.files()
    done = site.collect(hours=24.1)
    assert done.files == dry.files
    assert {f.why for f in done.files} == {f"orphan of attempt {write_id}"}
    assert {f.table.rsplit("/", 1)[-1] for f in done.deleted} == {
        "sink", "files_of_tiny", "checkpoints", "exchange",
    }  # fmt: skip
    assert {f.table for f in done.removed} == {"operators/sums/changelog", "operator_state"}
    assert not left.parent.exists()
    assert not row.exists()
    assert not list(site.directory.glob("files_of_tiny/_staged-*"))
    site.collect(hours=24.1)
    assert not orphans & site.files()
    assert before <= site.files()
    assert all(path.exists() for path in foreign)
    assert site.outputs() == outputs
    assert site.engine().checkpoints("tiny")[-1].kind == "retention", "the fence"
    assert len(site.engine().run(site.both()).batches) == 1  # the input of the crashed attempt


def test_sinks_without_any_checkpoint_are_reached_through_the_job(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = CollectedSite(tmp_path, spark)
    site.put({"k": ["a"], "v": [1]})
    site.engine().run(site.job(max_parallelism=8))
    crashed(site, monkeypatch)
    assert "files_of_tiny" not in {
        f.table.rsplit("/", 1)[-1] for f in site.collect(hours=25, job="tiny").files
    }
    assert "files_of_tiny" in {f.table.rsplit("/", 1)[-1] for f in site.collect(hours=25).files}


def test_a_shared_sink_keeps_the_files_of_the_other_job(
    site: CollectedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.engine().run(site.both("other"))
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointCoordinator, "commit", lambda *_: (_ for _ in ()).throw(Crash()))
        site.put({"k": ["z"], "v": [1]}, "9000")
        with pytest.raises(Crash):
            site.engine().run(site.both("other"))
    theirs = {owner_in(p.rsplit("/", 1)[-1]) for p in site.files("sink")}
    assert len(theirs) == 2
    before = site.files("sink")
    assert not site.collect(hours=25).files
    assert site.files("sink") == before
    assert site.collect(hours=25, job=site.both("other")).files
    assert len(site.files("sink")) < len(before)


def test_the_age_counts_from_when_a_file_was_needed_last(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = CollectedSite(tmp_path, spark)
    for i in range(2):
        site.run(i)
    site.engine().restore("tiny", checkpoint_id=1)

    class Later(StoreClock):
        """The collection runs thirty hours after the files were written."""

        def now_ms(self) -> int:
            return super().now_ms() + 30 * HOUR_MS

    with monkeypatch.context() as patch:
        patch.setattr(job_tables, "StoreClock", Later)
        site.engine().expire_checkpoints("tiny", KEEP_ONE)
    assert not site.collect(hours=53, dry_run=True).files
    printed = {f.table.rsplit("/", 1)[-1] for f in site.collect(hours=55, dry_run=True).files}
    assert printed == {"changelog", "operator_state", "sink", "files_of_tiny"}


def test_files_that_somebody_else_took_out_meanwhile_are_no_error(
    site: CollectedSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.engine().compact("tiny")
    site.run(3)
    site.engine().expire_checkpoints("tiny", KEEP_ONE)
    fetched = DeltaKernel.change

    def second(self: DeltaKernel, uri: str, **asked: Any) -> int:
        monkeypatch.setattr(DeltaKernel, "change", fetched)
        fetched(self, uri, add=[], remove=asked["remove"][:2])
        return fetched(self, uri, **asked)

    monkeypatch.setattr(DeltaKernel, "change", second)
    assert len(site.collect(hours=25).removed) > 2
    assert not site.collect(hours=25, dry_run=True).removed


def test_an_old_attempt_refuses_to_commit(site: CollectedSite, monkeypatch: pytest.MonkeyPatch) -> None:
    class Earlier(StoreClock):
        """Files of a process that did not run since."""

        def now_ms(self) -> int:
            return super().now_ms() - MAX_ATTEMPT_AGE_MS - 60_000

    with monkeypatch.context() as patch:
        patch.setattr(job_tables, "StoreClock", Earlier)
        with pytest.raises(CommitFailedError, match=r"checkpoint 4 \(attempt .*\) began 12\.0 hours"):
            site.run(3)
    assert len(site.engine().checkpoints("tiny")) == 3
    site.run(3)
    assert len(site.engine().checkpoints("tiny")) == 4


@pytest.mark.parametrize("hours", [25, 0])
def test_an_attempt_that_slept_just_before_its_commit_changes_nothing(
    site: CollectedSite, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """It was young enough when it looked at its age; then its files went, and so did its id."""
    append, written_ms = DeltaKernel.append, store_clock.written_ms
    asleep, passed_ms = False, 0

    def sleeps(self: DeltaKernel, uri: str, *args: Any, **options: Any) -> int:
        nonlocal asleep, passed_ms
        if uri.endswith("/checkpoints") and not asleep:
            asleep = True
            assert site.collect(hours=25).files
            passed_ms = hours * HOUR_MS
        return append(self, uri, *args, **options)

    def later(info: Any) -> int:
        return written_ms(info) + passed_ms * info.base_name.startswith("checkpoint-")

    monkeypatch.setattr(DeltaKernel, "append", sleeps)
    monkeypatch.setattr(store_clock, "written_ms", later)
    outputs = site.outputs()
    with pytest.raises(CommitFailedError, match="so old that a collection took it for an orphan"):
        site.run(3)
    monkeypatch.undo()
    assert site.outputs() == outputs
    assert [r.kind for r in site.engine().checkpoints("tiny")[3:]] == ["retention"]


@pytest.mark.parametrize("behind_days", [2, -2])
def test_a_runner_whose_clock_is_wrong_loses_nothing_and_a_collector_deletes_no_more(
    site: CollectedSite, monkeypatch: pytest.MonkeyPatch, behind_days: int
) -> None:
    """Both went by the local clock: files of a runner two days behind looked old to every collector."""
    real, append = time.time_ns, DeltaKernel.append
    collected: list[Any] = []

    def meanwhile(self: DeltaKernel, uri: str, *args: Any, **options: Any) -> int:
        if uri.endswith("/checkpoints") and not collected:
            with monkeypatch.context() as patch:  # a collector whose clock is right, or wrong the other way
                patch.setattr(time, "time_ns", lambda: real() + behind_days * 24 * HOUR_MS * 1_000_000)
                collected.append(site.engine().vacuum(site.both()).files)
        return append(self, uri, *args, **options)

    monkeypatch.setattr(DeltaKernel, "append", meanwhile)
    monkeypatch.setattr(time, "time_ns", lambda: real() - behind_days * 24 * HOUR_MS * 1_000_000)
    site.run(3)
    assert collected == [[]]
    assert [r.kind for r in site.engine().checkpoints("tiny")] == ["checkpoint"] * 4
    assert len(site.outputs()) == 12


@pytest.mark.long
def test_vacuum_takes_only_what_is_in_no_log_and_old(site: CollectedSite) -> None:
    changelog = site.directory / "root" / "tiny" / "operators" / "sums" / "changelog"
    old, young = changelog / "by-hand-1.parquet", changelog / "by-hand-2.parquet"
    for path in (old, young):
        path.write_bytes(b"x")
    before, states = site.files(), site.restorable()
    week_ago = time.time() - 8 * 24 * 3600
    for path in [old, *changelog.rglob("part-*.parquet")]:
        os.utime(path, (week_ago, week_ago))
    printed = site.collect(hours=0, delta_vacuum=True, dry_run=True)
    assert {uri.split("/root/tiny/")[1] for uri in printed.vacuumed} == {
        "checkpoints", "operator_state", "operators/sums/changelog",
    }  # fmt: skip
    assert site.files() == before
    assert site.collect(hours=0, delta_vacuum=True).vacuumed == printed.vacuumed
    assert before - site.files() == {str(old.relative_to(site.directory))}
    assert site.restorable() == states
