"""Every Python example of the guides is run: here, or by the test that is named."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import state_engine
from state_engine import (
    DataStream,
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.testing import CollectSink, KeyedHarness
from tests.support.guides import DOCS, GUIDES, blocks_of, code_blocks, run_examples

EXAMPLES = {
    "aggregates": 5, "backfills": 2, "bad_input": 2, "broadcast": 3, "catalogs": 3, "change_feeds": 5,
    "changing_inputs": 4, "clusters": 2, "columns": 3, "dagster": 6, "debugging": 2, "duplicates_and_top_lists": 4,
    "event_time": 4, "evolution": 2, "features": 4, "flights": 1, "gates": 2, "history_tables": 5, "joins": 5,
    "kafka": 5, "late_rows": 1, "monitoring": 1, "object_stores": 2, "operations": 1, "patterns": 3, "planning": 1,
    "published_sql": 1, "published_tables": 2,
    "queries": 7,
    "reading_files": 1, "replays": 1, "sinks": 6, "state_processor": 6, "testing": 6, "windows": 4,
}  # fmt: skip
"""How many examples in Python each guide has; one more must be run by its test before it is counted here."""
WITHOUT = {
    "benchmarks": "figures, and commands that take minutes to hours; tests/benchmarks tries each of them small",
    "nexmark": "a table; tests/benchmarks/test_nexmark.py runs its queries",
    "which_operator": "a table; tests/examples/test_operators.py runs the examples that it names",
}
"""Guides without an example in Python, and why."""
ELSEWHERE = {
    "bad_input": "microbatch/test_bad_input.py",
    "catalogs": "queries/test_queries_guide.py",
    "change_feeds": "sources/test_reading_files_guide.py",
    "clusters": "spark/test_clusters_guide.py",
    "dagster": "dagster/test_guide.py",
    "debugging": "replay/test_key_debug.py",
    "kafka": "kafka/test_kafka_records.py",
    "monitoring": "telemetry/test_monitoring_guide.py",
    "planning": "code_changes/test_plan_command.py",
    "published_tables": "state_tables/test_readers.py",
    "queries": "queries/test_queries_guide.py",
    "reading_files": "sources/test_reading_files_guide.py",
    "state_processor": "state_processor/test_state_processor_guide.py",
}
"""Guides, and the tests that run their examples."""
AS_THEY_ARE = {
    "aggregates": 5, "broadcast": 3, "changing_inputs": 4, "columns": 3, "duplicates_and_top_lists": 4,
    "event_time": 4, "features": 4, "gates": 2, "history_tables": 5, "joins": 5, "late_rows": 1, "object_stores": 2,
    "patterns": 3, "testing": 5, "windows": 4,
}  # fmt: skip
"""How many examples of a guide run as they stand there, without a job around them."""
HERE = {*AS_THEY_ARE, "backfills", "evolution", "flights", "operations", "published_sql", "replays", "sinks"}
FLIGHT = "tailnum string, delay bigint, departed_at timestamp"


class Delays(KeyedProcessFunction):
    def __init__(self, factor: int = 1) -> None:
        self.factor = factor

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int, default=0))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.total.update(self.total.value() + self.factor * value.delay)
        yield value.tailnum, self.total.value()


class Site:
    """A directory with a feed of flights; jobs upon it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "feed").mkdir()

    def arrive(self, day: int) -> None:
        flight = {"tailnum": "N1", "delay": day, "departed_at": datetime(2013, 1, day, 12, tzinfo=UTC)}
        schema = pa.schema(
            [("tailnum", pa.string()), ("delay", pa.int64()), ("departed_at", pa.timestamp("us", "UTC"))]
        )
        pq.write_table(pa.Table.from_pylist([flight], schema), self.directory / "feed" / f"{day}.parquet")

    def job(self, name: str = "plane_delays", *, factor: int = 1, **options: Any) -> StatefulJob:
        job = StatefulJob(name, **options)
        flights = job.source(
            "flights", FileSource(str(self.directory / "feed"), schema=FLIGHT, max_files_per_batch=1)
        )
        delays = flights.key_by("tailnum").process(
            Delays(factor), uid="planes", output_type="tailnum string, delay bigint"
        )
        delays.sink("delays", DeltaSink(str(self.directory / "delays")))
        return job


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_every_guide_with_examples_is_run_by_a_test() -> None:
    numbers = {p.stem: sum(b.language == "python" for b in blocks_of(p)) for p in GUIDES.glob("*.md")}
    assert {guide: number for guide, number in numbers.items() if number} == EXAMPLES
    assert {guide for guide, number in numbers.items() if not number} == {*WITHOUT}
    assert {*ELSEWHERE, *HERE} == {*EXAMPLES}
    for guide, test in ELSEWHERE.items():
        assert f'"{guide}.md"' in (DOCS.parent / "tests" / test).read_text()


def test_backfills(site: Site, spark: SparkSession) -> None:
    for day in (1, 2):
        site.arrive(day)
    declared, backfills = code_blocks(GUIDES / "backfills.md", "python")
    engine = StateEngine(site.directory / "state", spark)
    names: dict[str, Any] = {"engine": engine, "StatefulJob": site.job}
    exec(declared.replace("2014-01-01", "2013-01-03"), names)
    assert [p.state for p in engine.partitions(names["job"])] == ["done", "done"]
    names["corrected"] = site.job(factor=2, partitions=names["job"].partitions)
    exec(backfills.replace("2013-03-01", "2013-01-01").replace("2013-03-07", "2013-01-02"), names)
    (row,) = engine.read_state("plane_delays", "planes", "total").collect()
    assert row["value"] == 6


def test_evolution() -> None:
    states, drop = code_blocks(GUIDES / "evolution.md", "python")
    names: dict[str, Any] = vars(state_engine) | {
        "ValueStateDescriptor": ValueStateDescriptor, "dataclass": dataclass, "field": field,
    }  # fmt: skip

    class Renamed(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            exec(states, names | {"runtime_context": runtime_context})

        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
            yield value

    assert KeyedHarness(Renamed(), key_by=lambda value: value).process(["a"]) == ["a"]
    job = StatefulJob("flights")
    flights = job.source("flights", FileSource("feed", schema=FLIGHT))
    exec(drop.replace("output_type=...", 'output_type="tailnum string, delay bigint"'),
         {"flights": flights, "PlaneDelays": Delays})  # fmt: skip


@pytest.mark.long
def test_flights(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = code_blocks(GUIDES / "flights.md", "python")
    names: dict[str, Any] = {}
    exec(example.replace('"data/', f'"{tmp_path}/data/'), names)
    assert len(names["engine"].checkpoints(names["job"])) >= 13


@pytest.mark.parametrize("guide", AS_THEY_ARE)
def test_examples_that_run_as_they_are(guide: str) -> None:
    run_examples(GUIDES / f"{guide}.md", blocks=AS_THEY_ARE[guide])


def test_operations_and_tables_in_databases() -> None:
    for guide in ("operations", "published_sql"):
        (example,) = code_blocks(GUIDES / f"{guide}.md", "python")
        names = {
            name: getattr(state_engine, name) for name in ("StatefulJob", "CompactionPolicy", "SqlStateTable")
        }
        exec(example, names)


def test_replays(site: Site, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    engine, job = StateEngine(site.directory / "state", spark), site.job()
    for day in (1, 2):
        site.arrive(day)
        engine.run(job)
    (example,) = code_blocks(GUIDES / "replays.md", "python")
    names: dict[str, Any] = {"engine": engine, "job": job, "corrected": site.job(factor=2)}
    exec(example.replace("from_checkpoint=120", "from_checkpoint=1"), names)
    assert "sink delays" in capsys.readouterr().out
    (row,) = engine.read_state("plane_delays", "planes", "total").collect()
    assert row["value"] == 1 + 2 * 2


@pytest.mark.parametrize("number", range(6))
def test_sinks(number: int) -> None:
    examples = code_blocks(GUIDES / "sinks.md", "python")
    assert len(examples) == 6
    job = StatefulJob("delays")
    schema = "id bigint, tailnum string, delay bigint, version bigint"
    out: DataStream = job.source("flights", FileSource("feed", schema=schema))
    out.sink("seen", CollectSink())
    sinks = ("DeltaSink", "FileSink", "SqlSink", "ForeachBatchSink")
    exec(
        examples[number],
        {"pa": pa, "stream": out, "out": out} | {name: getattr(state_engine, name) for name in sinks},
    )
    job.check()
