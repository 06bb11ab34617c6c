"""Event time ends with a time partition: what is due by its end fires with it, and no row of a later one is late."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    StateEngine,
    StatefulJob,
    TimePartitions,
)

pytestmark = pytest.mark.spark

FIRST = datetime(2013, 1, 1, tzinfo=UTC)
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
BEGIN_MS = int(FIRST.timestamp() * 1000)
DAYS = ["2013-01-01", "2013-01-02", "2013-01-03"]


class Sessions(KeyedProcessFunction):
    """Puts out whether each row is late, and each timer; a row sets one at the hour that it names."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        ctx.timer_service().register_event_time_timer(BEGIN_MS + value.until * HOUR_MS)
        late = (ctx.timestamp() or 0) <= ctx.timer_service().current_watermark()
        yield value.k, "late" if late else "row", (ctx.timestamp() or 0) - BEGIN_MS

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield ctx.get_current_key(), "timer", timestamp - BEGIN_MS


class Site:
    """A job in days, with a feed, a root and a sink."""

    def __init__(self, directory: Path, spark: SparkSession, *, late: str = "warn") -> None:
        self.directory, self.late = directory, late
        self.engine = StateEngine(str(directory / "root"), spark)
        (directory / "feed").mkdir()

    def put(self, name: str, *rows: tuple[str, float, int]) -> None:
        """A file of rows: key, hour of the event, hour of the timer."""
        at = [FIRST + timedelta(hours=hour) for _, hour, _ in rows]
        table = {"k": [k for k, _, _ in rows], "at": pa.array(at, pa.timestamp("us", tz="UTC"))}
        until = pa.array([until for _, _, until in rows], pa.int64())
        pq.write_table(pa.table({**table, "until": until}), self.directory / "feed" / f"{name}.parquet")

    def job(self) -> StatefulJob:
        days = TimePartitions("at", start=DAYS[0], end="2013-01-10", late=self.late)
        job = StatefulJob("days", parallelism=2, partitions=days)
        source = FileSource(str(self.directory / "feed"))
        rows = job.source("rows", source, order_by=["at"], event_time="at")
        out = rows.key_by("k").process(
            Sessions(), uid="sessions", output_type="k string, what string, at bigint"
        )
        out.sink("out", DeltaSink(str(self.directory / "out")))
        return job

    def run(self, day: str) -> list[tuple[str, str, float]]:
        """Run a partition; what it put out, with times in hours."""
        before = self.shown()
        self.engine.run(self.job(), partition=day)
        after = self.shown()
        for one in before:
            after.remove(one)
        return after

    def shown(self) -> list[tuple[str, str, float]]:
        if not (self.directory / "out").exists():
            return []
        rows = DeltaTable(str(self.directory / "out")).to_pyarrow_table().to_pylist()
        return sorted((r["k"], r["what"], r["at"] / HOUR_MS) for r in rows)

    @property
    def watermark(self) -> int | None:
        return self.engine.checkpoints(self.job())[-1].sources[0].watermark_ms


def test_what_is_due_fires_with_its_own_day(tmp_path: Path, spark: SparkSession) -> None:
    """A timer before the end fires with its day although no row comes; one at the end itself with the next day."""
    site = Site(tmp_path, spark)
    site.put("a", ("a", 1, 20), ("b", 2, 24), ("c", 3, 47), ("d", 24, 30))
    assert site.run(DAYS[0]) == [("a", "row", 1), ("a", "timer", 20), ("b", "row", 2), ("c", "row", 3)]
    assert site.watermark == BEGIN_MS + DAY_MS - 1
    assert site.run(DAYS[1]) == [("b", "timer", 24), ("c", "timer", 47), ("d", "row", 24), ("d", "timer", 30)]
    assert site.run(DAYS[2]) == []  # a day without any row ends all the same
    assert site.watermark == BEGIN_MS + 3 * DAY_MS - 1


def test_rows_that_come_with_the_next_partition_are_late_there(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark, late="next")
    site.put("a", ("a", 1, 100))
    site.run(DAYS[0])
    site.put("b", ("b", 23.9, 100), ("c", 24, 100))
    assert site.run(DAYS[1]) == [("b", "late", 23.9), ("c", "row", 24)]


def test_a_backfill_gives_the_same(tmp_path: Path, spark: SparkSession) -> None:
    """Days that are run again end as they ended before: the same timers in the same partitions."""
    site = Site(tmp_path, spark)
    site.put("a", ("a", 1, 20), ("b", 2, 24), ("c", 30, 40))
    for day in DAYS:
        site.run(day)
    before = site.shown()
    micro_batches = [r for r in site.engine.checkpoints(site.job()) if r.kind.is_micro_batch]
    site.engine.backfill(site.job(), DAYS[0], DAYS[1])
    assert site.shown() == before
    again = [r for r in site.engine.checkpoints(site.job()) if r.kind.is_micro_batch and r.branch != "main"]
    assert [r.sources[0].floor_ms for r in again] == [r.sources[0].floor_ms for r in micro_batches]
    assert [[(o.uid, o.next_timers_ms) for o in r.operators] for r in again] == [
        [(o.uid, o.next_timers_ms) for o in r.operators] for r in micro_batches
    ]
