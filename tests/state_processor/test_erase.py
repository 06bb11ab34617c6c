"""A key that is to be forgotten: out of the state at once, out of every file when all ages have passed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from state_engine import (
    DeltaSink,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.core.errors import ConfigurationError
from tests.support.tiny import Site

HOUR_MS = 3_600_000
PERSON = "N123"


class Everything(KeyedProcessFunction):
    """One state of each shape and a timer; refuses negative numbers."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int))
        self.recent = runtime_context.get_list_state(ListStateDescriptor("recent", int))
        self.counts = runtime_context.get_map_state(MapStateDescriptor("counts", int, int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        if value.v < 0:
            raise ValueError("negative")
        self.total.update((self.total.value() or 0) + value.v)
        self.recent.add(value.v)
        self.counts.put(value.v, 1)
        ctx.timer_service().register_processing_time_timer(10**12)
        yield value.k, value.v, self.total.value()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        raise AssertionError("no clock goes so far")


def build(site: Site) -> StatefulJob:
    job = site.job(Everything(), uid="people", on_error="dead_letter")
    stream = job.stream(job.operators["people"])
    stream.key_by("k", "v").process(Everything2(), uid="pairs", output_type="n bigint").sink(
        "pairs", DeltaSink(str(site.directory / "pairs"))
    )
    return job


class Everything2(KeyedProcessFunction):
    """Counts by person and number: keyed by more than the person."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.n = runtime_context.get_state(ValueStateDescriptor("n", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.n.update((self.n.value() or 0) + 1)
        yield (self.n.value(),)


def holding(directory: Path, text: str) -> list[str]:
    """Parquet files with a text in any of their values."""
    files = sorted(directory.rglob("*.parquet"))
    assert files
    return [
        str(f.relative_to(directory))
        for f in files
        if text in json.dumps(pq.ParquetFile(f).read().to_pylist(), default=str)
    ]


@pytest.mark.long
def test_a_purged_key_is_in_no_file_when_all_ages_have_passed(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark)
    engine, job = site.engine(), build(site)
    for n, keys in enumerate([[PERSON, "b", "c"], [PERSON, "b", "d"], ["c", "d", "e"]]):
        site.put({"k": keys, "v": [n, n + 1, -1 if n == 1 else n]}, str(n))
        engine.run(job, clock=n)
        if n == 0:
            engine.compact(job)
    site.put({"k": [PERSON], "v": [-5]}, "3")
    engine.run(job, clock=5)
    root, now_ms = tmp_path / "root", int(time.time() * 1000)
    assert holding(root, PERSON)

    planned = engine.state_processor(job).erase_keys({"k": PERSON}, dry_run=True)
    entries = {s.state: s.deleted for s in planned.transform.states if s.operator == "people"}
    assert entries == {"total": 1, "recent": 1, "counts": 2, "_timers": 1}
    kinds = [t.kind for t in planned.traces]
    assert set(kinds) == {"checkpoint", "dead_letters", "sink"}
    assert planned.not_looked_at == [f"sink pairs (has no columns ['k']: file://{tmp_path}/pairs)"]
    assert len(engine.checkpoints(job)) == 5

    done = engine.state_processor(job).erase_keys({"k": PERSON})
    assert done.transform.committed_id == 6
    assert PERSON not in {
        r["k"] for s in ("total", "recent", "counts") for r in engine.read_state(job, "people", s).collect()
    }
    assert {r["k"] for r in engine.read_state(job, "people", "total").collect()} == {"b", "c", "d", "e"}

    pairs = [{"k": PERSON, "v": n} for n in (0, 1)]
    purged = engine.state_processor(job).erase_keys(pairs, purge=True, clock=now_ms)
    assert {s.operator: s.deleted for s in purged.transform.states} == {"pairs": 2}
    purged = engine.state_processor(job).erase_keys({"k": PERSON}, purge=True, sinks=True, clock=now_ms)
    assert purged.transform.changes == 0
    assert {t.kind for t in purged.traces} == {"waiting"}
    assert all(row[0] != PERSON for row in site.outputs())
    engine.state_processor(job).erase_keys({"k": PERSON}, purge=True, clock=now_ms + 25 * HOUR_MS)
    last = engine.state_processor(job).erase_keys({"k": PERSON}, purge=True, clock=now_ms + 50 * HOUR_MS)
    assert last.traces == []
    assert holding(root, PERSON) == []

    site.put({"k": ["b", PERSON], "v": [7, 1]}, "9")
    engine.run(job, clock=9)
    totals = {r["k"]: r["value"] for r in engine.read_state(job, "people", "total").collect()}
    assert (totals["b"], totals[PERSON]) == (1 + 2 + 7, 1)


@pytest.mark.long
def test_branches_and_savepoints_are_reported_and_left_alone(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark).put({"k": ["a", "b"], "v": [1, 2]})
    engine, job = site.engine(), site.job()
    engine.run(job)
    engine.savepoints(job).create("before")
    site.put({"k": ["a"], "v": [1]}, "1")
    engine.run(job)
    engine.replay(job, from_checkpoint=1, branch="again")

    report = engine.state_processor(job).erase_keys({"k": "a"}, purge=True)
    remedies = {(t.kind, t.name): t.remedy for t in report.traces}
    assert remedies["branch", "again"] == "statelake branch drop tiny again"
    assert remedies["savepoint", "before"] == "statelake savepoint delete tiny before"
    assert "savepoint delete" in remedies["checkpoint", "1"]
    assert {s.name for s in [*engine.savepoints(job).list().values()]} == {"before"}
    engine.savepoints(job).delete("before")
    report = engine.state_processor(job).erase_keys({"k": "a"}, purge=True, drop_branches=["again"])
    assert {t.kind for t in report.traces} == {"waiting", "sink"}
    with pytest.raises(ConfigurationError, match=r"no open branches \['again'\]"):
        engine.state_processor(job).erase_keys({"k": "a"}, purge=True, drop_branches=["again"])


def test_what_is_no_key_of_the_job_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark).put({"k": ["a"], "v": [1]})
    engine, job = site.engine(), site.job()
    engine.run(job)
    cases: list[tuple[Any, dict[str, Any], str]] = [
        ({"k": "a"}, {"operator": "other"}, "other is not keyed by"),
        ([], {}, "dicts of the same columns"),
    ]
    for keys, options, message in cases:
        with pytest.raises(ConfigurationError, match=message):
            engine.state_processor(job).erase_keys(keys, **options)
    assert len(engine.checkpoints(job)) == 1
    report = engine.state_processor(job).erase_keys({"k": "nobody"})
    assert (report.transform.changes, report.traces) == (0, [])
