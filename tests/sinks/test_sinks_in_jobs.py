"""Sinks of running jobs: of each kind, several on one stream, behind DataFrame code, without state, after a crash."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from state_engine import DeltaSink, FileSink, FileSource, ForeachBatchSink, SqlSink, StateEngine, StatefulJob
from tests.sources.runs import Numbered, with_one_key, write_ids
from tests.support.tiny import OUTPUT, ROWS, Site, Sum

pytestmark = pytest.mark.spark_tasks


@pytest.fixture
def feed(tmp_path: Path) -> Path:
    write_ids(tmp_path / "feed" / "a.parquet", 0, 4)
    return tmp_path / "feed"


def even(rows: DataFrame) -> DataFrame:
    return rows.where("n % 2 = 0").select("n")


def job_with_four_sinks(feed: Path, out: Path) -> StatefulJob:
    job = StatefulJob("sinks", parallelism=2)
    numbered = job.source("input", FileSource(str(feed))).transform(with_one_key).key_by("one_key")
    stream = numbered.process(Numbered(), uid="count", output_type="n bigint, fields string")
    stream.sink("one", DeltaSink(str(out / "one"))).sink("two", DeltaSink(str(out / "two")))
    stream.sink("as_csv", FileSink(str(out / "csv"), "csv"))
    stream.transform(even).sink("even", FileSink(str(out / "even")))
    return job


def delta(path: Path, column: str = "n") -> list[int]:
    return sorted(DeltaTable(str(path)).to_pyarrow_table()[column].to_pylist())


def files(path: Path, form: str) -> list[int]:
    return sorted(ds.dataset(path, format=form, partitioning="hive").to_table()["n"].to_pylist())


def everywhere(out: Path) -> list[list[int]]:
    return [delta(out / "one"), delta(out / "two"), files(out / "csv", "csv"), files(out / "even", "parquet")]


def test_several_sinks_on_one_stream_and_one_behind_a_transform(
    spark: SparkSession, tmp_path: Path, feed: Path
) -> None:
    with StateEngine(tmp_path / "root", spark) as engine:
        job = job_with_four_sinks(feed, tmp_path)
        (report,) = engine.run(job).batches
        assert report.rows_out == {"one": 4, "two": 4, "as_csv": 4, "even": 2}
        write_ids(feed / "b.parquet", 4, 3)
        engine.run(job)
        assert everywhere(tmp_path) == [[1, 2, 3, 4, 5, 6, 7]] * 3 + [[2, 4, 6]]


def test_stateless_job(spark: SparkSession, tmp_path: Path, feed: Path) -> None:
    job = StatefulJob("plain")
    stream = job.source("input", FileSource(str(feed)))
    stream.transform(lambda rows: rows.selectExpr("id * 10 AS n")).sink(
        "out", DeltaSink(str(tmp_path / "out"))
    )
    stream.sink("raw", DeltaSink(str(tmp_path / "raw")))
    with StateEngine(tmp_path / "root", spark) as engine:
        assert [b.rows_in for b in engine.run(job).batches] == [4]
        write_ids(feed / "b.parquet", 4, 2)
        engine.run(job)
    assert delta(tmp_path / "out") == [0, 10, 20, 30, 40, 50]
    assert delta(tmp_path / "raw", "id") == list(range(6))


@pytest.mark.long
def test_rows_of_a_database_and_of_a_function_arrive_once(spark: SparkSession, tmp_path: Path) -> None:
    site, calls = Site(tmp_path, spark), list[tuple[int, list[tuple[Any, ...]]]]()
    url = f"sqlite:///{tmp_path}/out.db"

    def called(rows: Any, checkpoint_id: int) -> None:
        records = rows.to_pylist() if hasattr(rows, "to_pylist") else [r.asDict() for r in rows.collect()]
        calls.append((checkpoint_id, sorted(tuple(row.values()) for row in records)))

    def job(*, as_dataframe: bool = False) -> StatefulJob:
        job = StatefulJob("tiny", parallelism=2)
        stream = job.source("events", FileSource(str(site.feed), max_rows_per_batch=4)).key_by("k")
        out = stream.process(Sum(), uid="sums", output_type=OUTPUT)
        out.sink("rows", SqlSink(url, "rows", lineage=True)).sink("totals", SqlSink(url, "totals", key=["k"]))
        out.sink("calls", ForeachBatchSink(called, name="calls_of_a_job", as_dataframe=as_dataframe))
        out.transform(lambda rows: rows.where("v > 2").select("v")).sink("large", SqlSink(url, "large"))
        return job

    def rows(query: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(tmp_path / "out.db")) as lite:
            return sorted(lite.execute(query).fetchall())

    first, second = [("a", 1, 1), ("a", 3, 4), ("b", 2, 2), ("c", 4, 4)], [("a", 5, 9), ("d", 6, 6)]
    site.put(ROWS, "0")
    site.put({"k": ["a", "d"], "v": [5, 6]}, "1")
    with site.engine() as engine:
        assert [b.rows_out for b in engine.run(job()).batches] == [
            {"rows": 4, "calls": 4, "large": 2},
            {"rows": 2, "calls": 2, "large": 2},
        ]
        assert engine.run(job(as_dataframe=True)).batches == []
        site.put({"k": ["d"], "v": [1]}, "2")
        engine.run(job(as_dataframe=True))
        committed = engine.checkpoints("tiny")
    assert rows("SELECT k, v, total FROM rows") == sorted([*first, *second, ("d", 1, 7)])
    assert rows("SELECT k, v, total FROM totals") == [("a", 5, 9), ("b", 2, 2), ("c", 4, 4), ("d", 1, 7)]
    assert rows("SELECT v FROM large") == [(3,), (4,), (5,), (6,)]
    assert calls == [(1, first), (2, second), (3, [("d", 1, 7)])]
    assert set(rows("SELECT _write_id FROM rows")) == {(f"{row.write_id}/rows",) for row in committed}
    columns = json.loads(committed[0].sinks[0].schema)["fields"]
    assert [c["name"] for c in columns] == ["k", "v", "total", "_write_id"]
