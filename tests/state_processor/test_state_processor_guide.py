"""Every example of the guide to beginning with state, changing it and erasing keys runs, on a small job of flights."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from typer.testing import CliRunner

from state_engine import (
    CheckpointedFunction,
    DataStream,
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    ProcessFunction,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.cli import state as cli_state
from state_engine.cli.main import app
from tests.support.guides import GUIDES, code_blocks, fenced_blocks

pytestmark = [pytest.mark.long, pytest.mark.spark]

GUIDE = GUIDES / "state_processor.md"
SCHEMA = "tailnum string, delay bigint"
FLIGHTS = [("N123", 5), ("N456", 7), ("N123", 1), ("TEST1", 9)]


class Planes(KeyedProcessFunction):
    """All states that the guide names, and timers."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.values = {
            name: runtime_context.get_state(ValueStateDescriptor(name, int))
            for name in ("last_flight", "seen", "minutes", "count", "total")
        }
        self.recent = runtime_context.get_list_state(ListStateDescriptor("recent", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        added = {"seen": 1, "minutes": value.delay, "count": 1, "total": value.delay}
        for name, number in added.items():
            self.values[name].update((self.values[name].value() or 0) + number)
        yield value.tailnum, self.values["total"].value()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        return []


class Counted(StatefulProcessor):
    """A Structured Streaming query that counts flights."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "count bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        count = (self.count.get()[0] if self.count.exists() else 0) + len(list(rows))  # type: ignore[index]
        self.count.update((count,))
        yield Row(tailnum=key[0], count=count)

    def close(self) -> None:
        pass


class Site:
    """A directory with input, a root and sinks; makes the job of the guide."""

    def __init__(self, directory: Path, spark: SparkSession) -> None:
        self.directory, self.spark = directory, spark
        self.engine = StateEngine(directory / "root", spark)
        self.arrive(FLIGHTS)

    def arrive(self, rows: list[tuple[str, int]]) -> None:
        frame = self.spark.createDataFrame(rows, SCHEMA).coalesce(1)
        frame.write.mode("append").parquet(str(self.directory / "flights"))

    def job(self, name: str = "planes") -> StatefulJob:
        job = StatefulJob(name, parallelism=2)
        flights = job.source("flights", FileSource(str(self.directory / "flights")))
        planes = flights.key_by("tailnum").process(
            Planes(), uid="planes", output_type="tailnum string, total bigint"
        )
        planes.sink("totals", DeltaSink(str(self.directory / f"totals_{name}")))
        return job

    def state(self, name: str, job: str = "planes") -> dict[str, Any]:
        rows = self.engine.read_state(job, "planes", name).collect()
        return {row["tailnum"]: row["value"] for row in rows}


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Site:
    return Site(tmp_path, spark)


def block(part: str, language: str = "python") -> str:
    (text,) = (text for text in code_blocks(GUIDE, language) if part in text)
    return text


def test_no_block_is_left_out() -> None:
    assert sorted(language for language, _ in fenced_blocks(GUIDE)) == [
        "",
        "",
        "python",
        "python",
        "python",
        "python",
        "python",
        "python",
    ]


def test_a_job_begins_with_state(site: Site, spark: SparkSession) -> None:
    names: dict[str, Any] = {
        "engine": site.engine,
        "job": site.job(),
        "last": spark.createDataFrame([("N123", 8)], "tailnum string, value int"),
        "recent": spark.createDataFrame([("N123", 1), ("N123", 2)], "tailnum string, value int"),
    }
    code = block('"recent": recent')
    entries = eval(code, names)
    assert entries == {"planes": {"last_flight": 1, "recent": 1}}
    assert site.engine.checkpoints("planes") == []
    assert eval(code.replace("dry_run=True", "dry_run=False"), names) == entries
    assert (site.state("last_flight"), site.state("recent")) == ({"N123": 8}, {"N123": [1, 2]})
    site.arrive([("N9", 4)])  # what was there before is in the state already
    assert site.engine.run(site.job()).rows_in == 1


class Export(ProcessFunction, CheckpointedFunction):
    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.buffered = store.get_list_state(ListStateDescriptor("buffered", int))
        self.lines = store.get_union_list_state(ListStateDescriptor("lines", str))

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        yield f"{value.total}", sum(self.buffered.get())

    def snapshot_state(self, context: Any) -> None:
        pass


def test_a_job_begins_with_timers_and_operator_state(site: Site, spark: SparkSession) -> None:
    job = site.job()
    totals = DataStream(job, job.operators["planes"])
    totals.process(Export(), uid="export", output_type="total string, buffered bigint").set_parallelism(
        1
    ).sink("exported", DeltaSink(str(site.directory / "exported")))
    names: dict[str, Any] = {
        "engine": site.engine,
        "job": job,
        "last": spark.createDataFrame([("N123", 8)], "tailnum string, value int"),
        "alarms": spark.createDataFrame([("N123", 5000)], "tailnum string, at bigint"),
    }
    exec(block("operator_state="), names)
    (row,) = site.engine.checkpoints("planes")
    assert row.operators[0].next_timers_ms == {"processing": 5000}
    site.engine.run(job)
    exported = spark.read.format("delta").load(str(site.directory / "exported")).collect()
    assert {r["buffered"] for r in exported} == {16}


def test_a_key_gets_another_type(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.engine.run(site.job())
    exec(block("change_key_type("), {"engine": site.engine, "job": site.job()})
    assert site.state("count") == {"123": 2, "456": 1, "TEST1": 1}
    assert [r.kind for r in site.engine.checkpoints("planes")] == ["checkpoint", "transform"]
    line = block("change-key-type", "").strip()
    registered = SimpleNamespace(job=site.job(), prepare=lambda: None)
    monkeypatch.setattr(cli_state, "declared", {"planes": registered}.__getitem__)
    monkeypatch.setenv("STATELAKE__ROOT", str(site.directory / "root"))
    done = CliRunner().invoke(app, shlex.split(line)[1:])
    assert done.exit_code == 0, done.output
    assert "stored the same way" in done.output


def test_a_query_is_taken_over(site: Site, streaming: SparkSession) -> None:
    queries = site.directory / "queries"

    def drain(rows: DataFrame, name: str) -> None:
        writer = rows.writeStream.outputMode("update").format("noop")
        query = writer.option("checkpointLocation", str(queries / name)).trigger(availableNow=True).start()
        query.awaitTermination()

    flights = streaming.readStream.schema(SCHEMA).parquet(str(site.directory / "flights"))
    by_plane = flights.groupBy("tailnum")
    drain(by_plane.transformWithState(Counted(), "tailnum string, count bigint", "Update", "None"), "planes")
    drain(by_plane.agg(F.sum("delay").alias("total")), "sums")

    tree = ast.parse(block("bootstrap_from_spark").replace('"/queries/', f'"{queries}/'))
    names: dict[str, Any] = {"engine": site.engine}
    jobs = iter(["planes", "sums"])  # a job begins once
    for statement in tree.body:
        if isinstance(statement, ast.Expr):
            names["job"] = site.job(next(jobs))
        exec(compile(ast.Module([statement], []), str(GUIDE), "exec"), names)
    assert next(jobs, None) is None
    assert site.state("count") == {"N123": 2, "N456": 1, "TEST1": 1}
    assert site.state("total", "sums") == {"N123": 6, "N456": 7, "TEST1": 9}
    assert not site.engine.run(site.job()).batches  # the query had read all there is


def test_outputs_are_compared(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    schema = "tailnum string, total bigint"
    names: dict[str, Any] = {
        "old_output": spark.createDataFrame([("N123", 6), ("N456", 7)], schema),
        "new_output": spark.createDataFrame([("N123", 6), ("N456", 8)], schema),
    }
    exec(block("compare_outputs"), names)
    outputs = names["difference"]
    assert (outputs.is_equal, outputs.rows_only_old, outputs.rows_only_new) == (False, 1, 1)
    assert "N456" in capsys.readouterr().out


def test_state_is_changed_and_a_key_is_forgotten(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.engine.run(site.job())
    names: dict[str, Any] = {"engine": site.engine, "job": site.job(), "F": F}
    exec(block("transform_state"), names)
    assert site.state("seen") == {"TEST1": 1}  # the filter was a dry run, the keys were taken out
    assert site.state("minutes") == {"TEST1": 540}
    assert [r.kind for r in site.engine.checkpoints("planes")] == ["checkpoint", "transform", "transform"]

    site.arrive([("N123", 3), ("N9", 4)])
    site.engine.run(site.job())
    monkeypatch.chdir(site.directory)
    monkeypatch.setenv("STATELAKE__ROOT", str(site.directory / "root"))
    dry, real = block("statelake state erase-keys", "").splitlines()
    for line, left in ((dry, {"N123", "N9", "TEST1"}), (real, {"N9", "TEST1"})):
        command, *arguments = shlex.split(line)
        assert command == "statelake"
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, (line, done.output, done.exception)
        assert set(site.state("total")) == left
    sink = site.spark.read.format("delta").load(str(site.directory / "totals_planes"))
    assert sink.where("tailnum = 'N123'").count() == 0
