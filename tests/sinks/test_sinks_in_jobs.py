"""Sinks of running jobs: several on one stream, behind DataFrame code, without state, and after a crash."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from state_engine import DeltaSink, FileSink, FileSource, StateEngine, StatefulJob
from state_engine.core.errors import SinkIdentityError
from state_engine.sinks.base import Publisher
from state_engine.sinks.delta import DeltaPublisher
from state_engine.sinks.files import FilePublisher
from tests.sources.runs import Numbered, with_one_key, write_ids
from tests.support.killed import Killed

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


@pytest.mark.parametrize("publisher", [DeltaPublisher, FilePublisher])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_crash_around_a_publish_is_settled(
    spark: SparkSession,
    tmp_path: Path,
    feed: Path,
    monkeypatch: pytest.MonkeyPatch,
    publisher: type[Publisher],
    after: bool,
) -> None:
    publish: Callable[..., None] = publisher.publish

    def dies(self: Publisher, *args: Any) -> None:
        if after:
            publish(self, *args)
        raise Killed

    job = job_with_four_sinks(feed, tmp_path)
    with StateEngine(tmp_path / "root", spark) as engine:
        monkeypatch.setattr(publisher, "publish", dies)
        with pytest.raises(Killed):
            engine.run(job)
        monkeypatch.undo()
    with StateEngine(tmp_path / "root", spark) as engine:
        assert len(engine.checkpoints(job)) == 1
        assert engine.publish_pending(job) == [1]
        assert engine.run(job).batches == []
    assert everywhere(tmp_path) == [[1, 2, 3, 4]] * 3 + [[2, 4]]


def test_table_that_is_made_anew_after_a_crash_and_put_back(
    spark: SparkSession, tmp_path: Path, feed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(self: Publisher, *args: Any) -> None:
        raise Killed

    job = StatefulJob("plain")
    job.source("input", FileSource(str(feed))).sink("out", DeltaSink(str(tmp_path / "out")))
    engine = StateEngine(tmp_path / "root", spark)
    monkeypatch.setattr(DeltaPublisher, "publish", dies)
    with pytest.raises(Killed):
        engine.run(job)
    monkeypatch.undo()
    shutil.move(tmp_path / "out", tmp_path / "aside")
    write_deltalake(str(tmp_path / "out"), pa.table({"id": range(3)}))
    with pytest.raises(SinkIdentityError, match="was re-created since rows were staged"):
        engine.run(job)
    shutil.rmtree(tmp_path / "out")
    shutil.move(tmp_path / "aside", tmp_path / "out")
    assert engine.run(job).published_pending == [1]
    assert delta(tmp_path / "out", "id") == [0, 1, 2, 3]
    engine.close()


def test_copied_root_that_writes_to_the_same_table(spark: SparkSession, tmp_path: Path, feed: Path) -> None:
    def job(feed: Path) -> StatefulJob:
        plain = StatefulJob("plain")
        plain.source("input", FileSource(str(feed))).sink("out", DeltaSink(str(tmp_path / "out")))
        return plain

    other = tmp_path / "other feed"
    with StateEngine(tmp_path / "root", spark) as engine:
        engine.run(job(feed))
        shutil.copytree(tmp_path / "root", tmp_path / "copy")
        write_ids(feed / "b.parquet", 4, 1)
        engine.run(job(feed))
    write_ids(other / "b.parquet", 100, 2)
    with (
        StateEngine(tmp_path / "copy", spark) as engine,
        pytest.raises(SinkIdentityError, match="copy of this root"),
    ):
        engine.run(job(other))
    assert delta(tmp_path / "out", "id") == [0, 1, 2, 3, 4]
