"""A compaction writes the key groups that changed or hold what expired; the others keep their base.

Entries that expired are in no file after a compaction, an expiry of checkpoints and two collections: every file below
the job's directory is looked through, logs included. Time is handed over; for VACUUM, the files are made older.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import (
    CompactionPolicy,
    CompactionReport,
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    StateTtlConfig,
    ValueStateDescriptor,
)
from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorCheckpoint
from state_engine.core.checkpoints.retention import RetentionPolicy
from state_engine.core.checkpoints.state_files import position_files
from state_engine.core.keys.key_groups import assign_to_key_group
from state_engine.engine import context
from state_engine.operations import maintenance
from state_engine.operations.maintenance import Maintenance
from state_engine.storage.checkpoint_log import CheckpointLog
from tests.core.checkpoints.rows import tree
from tests.support.tiny import ROWS, Site

GROUPS, HOUR_MS = 8, 3_600_000
KEYS = [f"k{i}" for i in range(40)]


class Latest(KeyedProcessFunction):
    """Per key: the sum without expiry, and the elements of the last hour."""

    def open(self, runtime_context: RuntimeContext) -> None:
        recent = ListStateDescriptor("recent", int)
        recent.enable_time_to_live(StateTtlConfig.new_builder(timedelta(hours=1)).build())
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int))
        self.recent = runtime_context.get_list_state(recent)

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.total.update((self.total.value() or 0) + value.v)
        if value.v:
            self.recent.add(value.v)
        yield value.k, self.total.value(), len(list(self.recent.get()))


class LatestSite:
    """The job in a directory of its own, fed one file a run."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.directory, self.fed = directory, 0
        self.engine = StateEngine(directory / "root", spark)
        (directory / "feed").mkdir()

    def job(self, compaction: CompactionPolicy | None = None) -> StatefulJob:
        job = StatefulJob("latest", parallelism=2, max_parallelism=GROUPS, compaction=compaction)
        stream = job.source("events", FileSource(str(self.directory / "feed")))
        latest = stream.key_by("k").process(
            Latest(), uid="latest", output_type="k string, total bigint, n bigint"
        )
        latest.sink("out", DeltaSink(str(self.directory / "out")))
        return job

    def run(self, keys: list[str], *, clock_ms: int, v: int = 1) -> None:
        self.fed += 1
        table = pa.table({"k": keys, "v": pa.array([v] * len(keys), pa.int64())})
        pq.write_table(table, self.directory / "feed" / f"{self.fed:03}.parquet")
        assert len(self.engine.run(self.job(), clock=clock_ms).batches) == 1

    @property
    def head(self) -> CheckpointRow:
        return self.engine.checkpoints("latest")[-1]

    @property
    def operator(self) -> OperatorCheckpoint:
        latest = self.head.operator("latest")
        assert latest is not None
        return latest

    def bases(self) -> dict[int, str]:
        """The base of each key group."""
        return {
            g: b.base_id for b in self.operator.bases for g in range(b.key_group_start, b.key_group_end + 1)
        }

    def state(self, name: str) -> dict[str, Any]:
        return {r["k"]: r["value"] for r in self.engine.read_state("latest", "latest", name).collect()}


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> LatestSite:
    return LatestSite(tmp_path, spark)


@pytest.mark.spark_tasks
def test_only_key_groups_that_changed_are_written(site: LatestSite) -> None:
    site.run(KEYS, clock_ms=0)
    first = site.engine.compact("latest")
    assert first.key_groups == {"latest": GROUPS}
    site.run(KEYS[:2], clock_ms=1)
    changed = {assign_to_key_group(k, GROUPS) for k in KEYS[:2]}
    before = {name: site.state(name) for name in ("total", "recent")}

    second = site.engine.compact("latest")
    assert second.key_groups == {"latest": len(changed)}
    assert {g for g, base_id in site.bases().items() if base_id == site.head.write_id} == changed
    assert {b.checkpoint_id for b in site.operator.bases} == {second.checkpoint_id}
    assert {name: site.state(name) for name in ("total", "recent")} == before

    # nothing is left to fold, and readers and the collector see the bases that were kept
    assert site.engine.compact("latest").committed_id is None
    assert site.engine.compact("latest", full=True).key_groups == {"latest": GROUPS}
    site.run(KEYS, clock_ms=2)
    assert site.state("total") == {k: 3 if k in KEYS[:2] else 2 for k in KEYS}


@pytest.mark.long
def test_key_groups_in_which_something_expired_are_written_without_any_change(site: LatestSite) -> None:
    site.run(KEYS, clock_ms=0)
    site.engine.compact("latest")
    assert site.engine.compact("latest").committed_id is None
    site.run(KEYS[:1], clock_ms=2 * HOUR_MS, v=0)  # touches one key; all elements have expired by now
    assert site.engine.compact("latest").key_groups == {"latest": GROUPS}
    files = [f"{site.directory}/root/latest/operators/latest/base/{f.path}" for f in site.operator.base_files]
    assert {s for f in files for s in pq.ParquetFile(f).read()["state"].to_pylist()} == {"total"}
    assert site.state("total") == dict.fromkeys(KEYS, 1)


@pytest.mark.long
def test_state_is_the_same_after_any_sequence_of_compactions(
    site: LatestSite, tmp_path: Path, spark: SparkSession
) -> None:
    """Compared with a job that never compacts; earlier checkpoints read as before."""
    (tmp_path / "plain").mkdir()
    plain = LatestSite(tmp_path / "plain", spark)
    remembered = {}
    for number in range(9):
        keys = KEYS[number : number + 5] if number else KEYS
        for one in (site, plain):
            one.run(keys, clock_ms=number * HOUR_MS // 3)
        remembered[site.head.checkpoint_id] = site.state("total")
        if number % 2:
            site.engine.compact("latest", full=number == 5)
        for name in ("total", "recent"):
            assert site.state(name) == plain.state(name)
    for checkpoint_id, total in remembered.items():
        rows = site.engine.read_state("latest", "latest", "total", checkpoint_id=checkpoint_id).collect()
        assert {r["k"]: r["value"] for r in rows} == total


def test_a_run_compacts_by_the_jobs_policy(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark).put({"k": ["a", "b"] * 6, "v": list(range(12))})
    job = site.job(batch_rows=2)
    job.compaction = CompactionPolicy(max_files=3)
    report = site.engine().run(job)
    assert len(report.batches) == 6
    assert [(c.checkpoint_id, c.committed_id) for c in report.compactions] == [(3, 4), (7, 8)]
    assert site.state() == {"a": 30, "b": 36}


@pytest.mark.long
def test_a_compaction_that_fails_fails_no_run(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path, spark).put(ROWS)
    job = site.job(batch_rows=1)
    job.compaction = CompactionPolicy(max_files=2)

    def fails(*_: Any, **__: Any) -> Any:
        raise OSError("the disk is full")

    monkeypatch.setattr(maintenance.Maintenance, "compact", fails)
    report = site.engine().run(job)
    assert (len(report.batches), report.caught_up, report.compactions) == (4, True, [])
    assert "job 'tiny': maintenance after a micro-batch failed; it is tried again" in caplog.text
    assert "the disk is full" in caplog.text


@pytest.mark.long
def test_positions_of_sources_are_stated_whole_and_nothing_is_read_twice(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "Maintenance", partial(Maintenance, position_files=3))
    site = Site(tmp_path, spark)

    def feed(first: int, last: int) -> StatefulJob:
        for number in range(first, last + 1):
            site.put({"k": ["a"], "v": [number]}, f"{number:02}")
        job = site.job(batch_rows=1)
        job.compaction = CompactionPolicy(max_files=4)
        return job

    site.engine().run(feed(1, 5))
    rows = site.engine().checkpoints("tiny")
    (whole,) = [row for row in rows if row.kind == "compaction"]
    appended = [file.rows for row in rows if row.checkpoint_id < 5 for file in row.operator_state_files]
    assert [file.rows for file in whole.operator_state_files] == [sum(appended)]
    site.engine().run(feed(6, 7))
    path = tree({row.checkpoint_id: row for row in site.engine().checkpoints("tiny")}).path(8)
    assert len(position_files(path)) == 4  # the whole, and three micro-batches
    assert [v for _, v, _ in sorted(site.outputs())] == [1, 2, 3, 4, 5, 6, 7]
    # a micro-batch that was planned before a compaction goes on top of it
    overtaken: list[int] = []
    real = CheckpointLog._append

    def append(self: CheckpointLog, row: CheckpointRow, **options: Any) -> None:
        if row.kind == "checkpoint" and not overtaken:
            overtaken.append(row.checkpoint_id)
            assert site.engine().compact("tiny").committed_id == row.checkpoint_id
        real(self, row, **options)

    monkeypatch.setattr(CheckpointLog, "_append", append)
    site.engine().run(feed(8, 9))
    assert overtaken == [9]
    assert site.state() == {"a": sum(range(1, 10))}
    assert len(site.outputs()) == 9
    report = site.engine().replay(site.job(batch_rows=1), from_checkpoint=3)
    assert len(report.batches) == 6
    assert site.engine().compare("tiny", report.branch).is_equal


@pytest.mark.long
def test_a_job_without_state_states_its_positions_whole_by_itself(
    tmp_path: Path, spark: SparkSession
) -> None:
    numbers = StatefulJob("numbers", compaction=CompactionPolicy(max_files=8))
    stream = numbers.from_collection(list(range(20)), int, max_rows_per_batch=1)
    stream.sink("out", DeltaSink(str(tmp_path / "out")))
    report = StateEngine(tmp_path / "root", spark).run(numbers)
    assert (len(report.batches), len(report.compactions)) == (20, 1)


HOUR_MS, FEW_GROUPS = 3_600_000, 4
GONE = [f"gone{i}" for i in range(12)]
KEPT = [f"kept{i}" for i in range(12)]


class Hourly(KeyedProcessFunction):
    """Keeps the elements of the last hour in all shapes, by both clocks; no key has other state."""

    def open(self, runtime_context: RuntimeContext) -> None:
        hour = StateTtlConfig.new_builder(timedelta(hours=1))
        self.last = runtime_context.get_state(lives(ValueStateDescriptor("last", str), hour))
        self.recent = runtime_context.get_list_state(lives(ListStateDescriptor("recent", str), hour))
        self.by = runtime_context.get_map_state(lives(MapStateDescriptor("by", str, int), hour))
        by_event = StateTtlConfig.new_builder(timedelta(hours=1)).use_event_time()
        self.seen = runtime_context.get_state(lives(ValueStateDescriptor("seen", str), by_event))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self.last.update(f"last of {value.k}")
        self.recent.add(f"element {value.n} of {value.k}")
        self.by.put(f"entry {value.n} of {value.k}", value.n)
        self.seen.update(f"seen {value.k}")
        return []


def lives(descriptor: Any, ttl: Any) -> Any:
    descriptor.enable_time_to_live(ttl.build())
    return descriptor


class HourlySite:
    """The job, and all files below its directory."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.directory, self.engine, self.fed = directory, StateEngine(directory / "root", spark), 0
        (directory / "feed").mkdir()

    def run(
        self, keys: list[str], *, hours: int, compaction: CompactionPolicy | None = None
    ) -> list[CompactionReport]:
        self.fed += 1
        at = datetime.fromtimestamp(hours * 3600 + self.fed, UTC)
        columns = {"k": keys, "n": [self.fed] * len(keys), "at": [at] * len(keys)}
        pq.write_table(pa.table(columns), self.directory / "feed" / f"{self.fed}.parquet")
        job = StatefulJob("hourly", parallelism=2, max_parallelism=FEW_GROUPS, compaction=compaction)
        stream = job.source("events", FileSource(str(self.directory / "feed")), event_time="at")
        stream.key_by("k").process(Hourly(), uid="hourly", output_type="k string").sink(
            "out", DeltaSink(str(self.directory / "out"))
        )
        report = self.engine.run(job, clock=hours * HOUR_MS)
        assert len(report.batches) == 1
        return list(report.compactions)

    def holding(self, word: str) -> dict[str, set[str]]:
        """Tables of the job that have a word in any of their files, logs and hidden files included; the files."""
        root, files = self.directory / "root" / "hourly", dict[str, set[str]]()
        for file in (f for f in root.rglob("*") if f.is_file()):
            if file.suffix == ".parquet":
                text = str(pq.ParquetFile(file).read().to_pylist()).encode()
            else:
                text = file.read_bytes()
            if word.encode() in text:
                table = str(file.relative_to(root)).split("/write_id=")[0].split("/base_id=")[0]
                files.setdefault(table, set()).add(file.name)
        return files

    def collect(self, *, days: float, vacuum: bool = False) -> None:
        now_ms = int((time.time() + days * 24 * 3600) * 1000)
        self.engine.vacuum("hourly", clock=now_ms, delta_vacuum=vacuum)


CHANGELOG, BASE = "operators/hourly/changelog", "operators/hourly/base"


@pytest.mark.long
def test_what_has_expired_is_in_no_file(tmp_path: Path, spark: SparkSession) -> None:
    site = HourlySite(tmp_path, spark)
    site.run(GONE, hours=1)
    site.engine.compact("hourly")  # an older base that holds them, too
    site.run([*GONE[:6], *KEPT[:6]], hours=1)
    site.run(KEPT, hours=3)
    assert set(site.holding("gone")) == {CHANGELOG, BASE}

    base = set(site.holding("kept").get(BASE, ()))
    site.engine.compact("hourly")
    compacted = site.holding("kept")[BASE] - base
    assert compacted
    assert not compacted & site.holding("gone")[BASE]
    site.run(KEPT[:1], hours=3)  # a checkpoint that needs nothing from before the compaction
    assert site.engine.expire_checkpoints("hourly", RetentionPolicy(keep_last=1))
    site.collect(days=1.1)
    assert set(site.holding("gone")) == {CHANGELOG, BASE}, "readers may still have them open"
    site.collect(days=2.2)
    week_ago = time.time() - 8 * 24 * 3600
    for file in (tmp_path / "root" / "hourly").rglob("*.parquet"):
        os.utime(file, (week_ago, week_ago))
    site.collect(days=2.3, vacuum=True)

    assert site.holding("gone") == {}
    assert set(site.holding("kept")) == {CHANGELOG, BASE}
    for name in ("last", "recent", "seen"):
        read = site.engine.read_state("hourly", "hourly", name).collect()
        assert sorted(r["k"] for r in read) == sorted(KEPT), name
    site.run(KEPT, hours=3)


def test_a_run_compacts_by_itself_what_has_expired(tmp_path: Path, spark: SparkSession) -> None:
    site, policy = HourlySite(tmp_path, spark), CompactionPolicy()
    site.run(GONE, hours=1)
    site.engine.compact("hourly")
    assert not site.run(KEPT[:1], hours=1, compaction=policy)
    [done] = site.run(KEPT, hours=3, compaction=policy)
    assert done.committed_id is not None
    assert not site.run(KEPT, hours=3, compaction=policy), "it is done"
    read = site.engine.read_state("hourly", "hourly", "last", include_expired=True).collect()
    assert sorted(r["k"] for r in read) == sorted(KEPT)
