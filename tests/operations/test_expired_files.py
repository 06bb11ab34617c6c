"""Entries that expired are in no file of the job after a compaction, an expiry of checkpoints and two collections.

Every file below the job's directory is looked through, logs included: whatever a reader of Delta or of plain Parquet
could ever find. Time is handed over; for VACUUM, which asks the file system, the files are made older.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
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
from state_engine.core.checkpoints.retention import RetentionPolicy

HOUR_MS, GROUPS = 3_600_000, 4
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


class Site:
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
        job = StatefulJob("hourly", parallelism=2, max_parallelism=GROUPS, compaction=compaction)
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
    site = Site(tmp_path, spark)
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
    site, policy = Site(tmp_path, spark), CompactionPolicy()
    site.run(GONE, hours=1)
    site.engine.compact("hourly")
    assert not site.run(KEPT[:1], hours=1, compaction=policy)
    [done] = site.run(KEPT, hours=3, compaction=policy)
    assert done.committed_id is not None
    assert not site.run(KEPT, hours=3, compaction=policy), "it is done"
    read = site.engine.read_state("hourly", "hourly", "last", include_expired=True).collect()
    assert sorted(r["k"] for r in read) == sorted(KEPT)
