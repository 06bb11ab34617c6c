"""A job in memory gives what it gives on Spark: outputs, state and watermarks, of this repository's own jobs."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from jobs import count_window_average, flights
from state_engine import DeltaSink, FileSource, StateEngine, StatefulJob
from state_engine.testing import MemoryRun, run_in_memory
from tests.porting import test_programs_of_flink as programs
from tests.porting import test_taxi_in_time as taxi_in_time
from tests.support.pipelines import MemoryPipeline, Pipeline

pytestmark = pytest.mark.spark
NEW_YEAR = datetime(2013, 1, 1, tzinfo=UTC)
ROWS = 120


def feed() -> pa.Table:
    """Flights as the feed of `jobs.flights` has them, some of them cancelled, some late."""
    rng = random.Random(5)
    rows: list[dict[str, Any]] = []
    for number in range(ROWS):
        left, delay = (
            rng.random() > 0.1,
            rng.randrange(0, 30),
        )  # in the order in which they left, so cuts do not matter
        rows.append(
            {
                "time_hour": NEW_YEAR + timedelta(hours=number),
                "minute": rng.randrange(30),
                "dep_time": 100 if left else None,
                "dep_delay": delay if left else None,
                "arr_delay": delay + rng.randrange(-20, 20) if left and rng.random() > 0.05 else None,
                "carrier": rng.choice("AB"),
                "flight": number,
                "tailnum": rng.choice(["N1", "N2", "N3", "N4"]),
                "origin": rng.choice(["JFK", "LGA"]),
                "dest": rng.choice(["BOS", "MIA"]),
            }
        )
    small = {"minute", "dep_time", "dep_delay", "arr_delay", "flight"}
    kinds = {"time_hour": pa.timestamp("us", "UTC"), **dict.fromkeys(small, pa.int32())}
    return pa.Table.from_pylist(rows, pa.schema([(name, kinds.get(name, pa.string())) for name in rows[0]]))


def clean_table(rows: pa.Table) -> pa.Table:
    """What stands for `flights.clean`."""
    rows = rows.filter(pc.is_valid(rows["dep_time"]))
    minutes = pc.add(rows["minute"], pc.fill_null(rows["dep_delay"], 0)).cast(pa.int64())
    spans = pc.multiply(minutes, 60_000_000).cast(pa.duration("us"))
    departed_at = pc.add(rows["time_hour"], spans)
    return rows.append_column("departed_at", departed_at).drop_columns(["time_hour", "minute", "dep_time"])


def by_batch(
    job: StatefulJob, run: MemoryRun, source: str, rows: list[Any], cut: int
) -> dict[str, list[Any]]:
    """The rows of all sinks, after micro-batches of so many rows."""
    for at in range(0, len(rows), cut):
        run.process({source: rows[at : at + cut]})
    return {name: sorted(map(tuple, run.sink(name))) for name in job.sinks}


def of_table(path: Path) -> list[Any]:
    return sorted(tuple(r.values()) for r in DeltaTable(str(path)).to_pyarrow_table().to_pylist())


def test_flights(tmp_path: Path, spark: SparkSession) -> None:
    given = feed()
    (tmp_path / "feed").mkdir()
    pq.write_table(given, tmp_path / "feed" / "0.parquet")
    job = flights.build(tmp_path / "feed", tmp_path, max_rows_per_batch=60)
    with StateEngine(tmp_path / "root", spark) as engine:
        engine.run(job)
        totals = engine.read_state(job, "route_ranking", "totals").collect()
        watermarks = [row.watermark_ms for row in engine.checkpoints(job)]
    expected = {name: of_table(tmp_path / name) for name in job.sinks}
    assert len(expected["route_ranking"]) > 90
    for cut, parallelism in ((60, 1), (37, 3), (ROWS, 2)):
        again = flights.build("/nowhere", "/nowhere", parallelism=parallelism)
        with run_in_memory(again, transforms={flights.clean: clean_table}) as run:
            outputs = by_batch(again, run, "flights", given.to_pylist(), cut)
            for name, rows in expected.items():
                assert outputs[name] == rows, (name, cut)
            state = run.state("route_ranking", "totals")
            assert {(r.origin, r.dest): tuple(r.value) for r in totals} == {
                k: tuple(v) for k, v in state.items()
            }
            if cut == 60:
                assert [row.watermark_ms for row in run.checkpoints()] == watermarks


def test_averages_of_windows(tmp_path: Path, spark: SparkSession) -> None:
    pairs = [(n % 3, n * n % 7) for n in range(20)]
    (tmp_path / "feed").mkdir()
    table = pa.table({"key": [k for k, _ in pairs], "value": [v for _, v in pairs]})
    pq.write_table(table, tmp_path / "feed" / "0.parquet")

    def job_of(directory: Path) -> StatefulJob:
        source = FileSource(str(directory / "feed"), schema="key bigint, value bigint")
        return count_window_average.build(source, DeltaSink(str(directory / "averages")))

    with StateEngine(tmp_path / "root", spark) as engine:
        engine.run(job_of(tmp_path))
        window = engine.read_state("count_window_average", "count_window_average", "window").collect()
    expected = of_table(tmp_path / "averages")
    for cut in (1, 7, 20):
        job = job_of(Path("/nowhere"))
        with run_in_memory(job) as run:
            assert by_batch(job, run, "pairs", pairs, cut) == {"averages": expected}
            state = run.state("count_window_average", "window")
            assert {row.key: tuple(row.value) for row in window} == state


@pytest.mark.parametrize(
    "build", [programs.build(3), taxi_in_time.build(3)], ids=["programs of Flink", "taxi rides"]
)
def test_every_checkpoint_says_the_same(tmp_path: Path, spark: SparkSession, build: Any) -> None:
    """What was read and written by each operator, watermarks, timers, positions: row by row."""
    pipeline = Pipeline(tmp_path, spark, build, parallelism=2)
    pipeline.run(clock=0, drain=True)
    with MemoryPipeline.of(build, parallelism=2) as in_memory:
        in_memory.run(clock=0, drain=True)
        rows = zip(pipeline.checkpoints(), in_memory.checkpoints(), strict=True)
        for there, here in rows:
            for of in ("checkpoint_id", "kind", "clock_ms", "watermark_ms", "rows_in", "metrics", "drained"):
                assert getattr(there, of) == getattr(here, of), of
            assert there.sources == here.sources
            for one, other in zip(there.operators, here.operators, strict=True):
                assert one.uid == other.uid
                assert (one.states, one.key_schema, one.key_type) == (
                    other.states,
                    other.key_schema,
                    other.key_type,
                )
                assert (one.changed_entries, one.next_timers_ms) == (
                    other.changed_entries,
                    other.next_timers_ms,
                )
            assert {s.name: s.rows for s in there.sinks} == {s.name: s.rows for s in here.sinks}
        assert in_memory.outputs() == pipeline.outputs()
