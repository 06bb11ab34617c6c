"""Every example of the guide about queries runs, on a job of averages."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from state_engine import (
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.cli.main import app
from tests.support.guides import GUIDES, Reader, code_blocks

GUIDE = GUIDES / "queries.md"


class CountWindowAverage(KeyedProcessFunction):
    """The average of every two values of a key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", tuple[int, float]))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        count, total = self.sum.value() or (0, 0.0)
        count, total = count + 1, total + value.reading
        if count < 2:
            self.sum.update((count, total))
        else:
            self.sum.clear()
            yield ctx.get_current_key(), total / count


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    """A directory with a root ``state``, on which the job ran twice."""
    directory = tmp_path_factory.mktemp("guide")
    (directory / "readings").mkdir()
    for number, rows in enumerate(({"a": 1.0, "b": 2.0}, {"a": 3.0, "c": 5.0})):
        table = pa.table({"sensor": list(rows), "reading": list(rows.values())})
        pq.write_table(table, directory / "readings" / f"{number}.parquet")
        job = StatefulJob("averages", parallelism=2)
        readings = job.source("readings", FileSource(str(directory / "readings")))
        averages = CountWindowAverage()
        readings.key_by("sensor").process(
            averages, uid="average", output_type="sensor string, average double"
        )
        StateEngine(directory / "state", spark).run(job)
    return directory


def test_the_examples_in_python_run(
    site: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(site)
    names: dict[str, Any] = {"engine": StateEngine("state", spark)}
    examples = code_blocks(GUIDE, "python")
    assert len(examples) >= 6
    for block in examples:
        if "duckdb" in block:
            continue
        exec(compile(block, str(GUIDE), "exec"), names)
    assert names["changed"].counts() == {"added": 1, "removed": 1, "changed": 0}
    assert sorted((row["sensor"], row["value"]["f1"]) for row in names["sums"].to_pylist()) == [
        ("b", 2.0),
        ("c", 5.0),
    ]
    assert "readings" in capsys.readouterr().out


@pytest.mark.long
def test_the_example_in_duckdb_runs(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb = pytest.importorskip("duckdb", reason="DuckDB is not installed")
    monkeypatch.chdir(site)
    reading, asking = (
        next(b for b in code_blocks(GUIDE, "python") if text in b) for text in ("sums = ", "duckdb")
    )
    names: dict[str, Any] = {}
    exec(reading, names)
    exec(asking.replace("duckdb.sql", "found = duckdb.sql"), names)
    assert sorted(names["found"]) == [("b", 2.0), ("c", 5.0)]
    assert duckdb is names["duckdb"]


@pytest.mark.long
def test_the_commands_run(site: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(site)
    monkeypatch.setenv("STATELAKE__ROOT", "state")
    lines = [line for block in code_blocks(GUIDE, "") for line in block.splitlines()]
    assert len(lines) >= 4
    for line in lines:
        command, *arguments = shlex.split(line.split(" > ")[0])
        assert command == "statelake"
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, (line, done.output, done.exception)


CATALOGS = GUIDES / "catalogs.md"


@pytest.fixture
def payments(spark: SparkSession) -> Iterator[None]:
    spark.sql("CREATE SCHEMA lake")
    rows = spark.createDataFrame([("a", 5), ("b", 7), ("a", 1)], "account string, amount bigint").coalesce(1)
    rows.write.format("delta").saveAsTable("lake.payments")
    yield
    spark.sql("DROP SCHEMA lake CASCADE")


@pytest.mark.usefixtures("payments")
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    monkeypatch.setattr(
        "state_engine.cli.operations.check_lasting", lambda *_: None
    )  # tests have a catalog in memory
    monkeypatch.setenv("STATELAKE__ROOT", "state")
    Reader(tmp_path, monkeypatch).read(CATALOGS, spark=spark)
    assert sorted(map(tuple, spark.sql("SELECT account, value FROM lake.balances__balance").collect())) == [
        ("a", 6),
        ("b", 7),
    ]
    assert spark.table("lake.history").count() == 3
    assert sorted(map(tuple, spark.table("lake.latest").collect())) == [("a", 6), ("b", 7)]
