"""Jobs whose tables have names in the catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import DeltaSink, DeltaSource, DeltaStateTable, StateEngine, StatefulJob
from state_engine.core.errors import ConfigurationError, SourceError
from state_engine.monitoring.job_history import read_history
from state_engine.testing import run_in_memory
from tests.support.catalogs import new_schema
from tests.support.tiny import OUTPUT, Sum


@pytest.fixture
def lake(spark: SparkSession) -> Iterator[str]:
    with new_schema(spark) as name:
        yield name


@pytest.fixture
def engine(spark: SparkSession, tmp_path: Path) -> StateEngine:
    return StateEngine(tmp_path / "root", spark)


def job(lake: str) -> StatefulJob:
    made = StatefulJob("named", parallelism=2)
    rows = made.source("events", DeltaSource(table=f"{lake}.events"))
    sums = rows.key_by("k").process(Sum(), uid="sums", output_type=OUTPUT)
    sums.sink("out", DeltaSink(table=f"{lake}.out"))
    sums.sink("latest", DeltaSink(table=f"{lake}.latest", key=["k"]))
    sums.publish_state("total", DeltaStateTable(table=f"{lake}.totals"), name="totals")
    return made


def put(spark: SparkSession, lake: str, *rows: tuple[str, int]) -> None:
    spark.createDataFrame(list(rows), "k string, v bigint").coalesce(1).write.format("delta").mode(
        "append"
    ).saveAsTable(f"{lake}.events")


def rows_of(spark: SparkSession, table: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in spark.table(table).collect())


def test_sources_sinks_and_published_tables_have_names(
    engine: StateEngine, lake: str, spark: SparkSession
) -> None:
    put(spark, lake, ("a", 1), ("b", 2))
    engine.run(job(lake))
    put(spark, lake, ("a", 5))
    engine.run(job(lake))
    assert rows_of(spark, f"{lake}.out") == [("a", 1, 1), ("a", 5, 6), ("b", 2, 2)]
    assert rows_of(spark, f"{lake}.latest") == [("a", 5, 6), ("b", 2, 2)]
    assert rows_of(spark, f"{lake}.totals") == [("a", 6), ("b", 2)]


def test_a_name_that_was_dropped_is_given_again(engine: StateEngine, lake: str, spark: SparkSession) -> None:
    """Also where a run was killed after it made the table and before the catalog knew."""
    put(spark, lake, ("a", 1))
    engine.run(job(lake))
    for name in ("out", "latest", "totals"):
        spark.sql(f"DROP TABLE {lake}.{name}")  # external tables: their rows stay
    put(spark, lake, ("a", 5))
    StateEngine(engine.root, spark).run(job(lake))
    assert rows_of(spark, f"{lake}.out") == [("a", 1, 1), ("a", 5, 6)]
    assert rows_of(spark, f"{lake}.latest") == [("a", 5, 6)]
    assert rows_of(spark, f"{lake}.totals") == [("a", 6)]


def test_a_source_that_was_made_anew_is_refused_and_one_that_moved_is_not(
    engine: StateEngine, lake: str, spark: SparkSession, tmp_path: Path
) -> None:
    put(spark, lake, ("a", 1))
    engine.run(job(lake))
    spark.sql(f"ALTER TABLE {lake}.events RENAME TO {lake}.moved")
    there = Path(spark.sql(f"DESCRIBE DETAIL {lake}.moved").collect()[0]["location"].removeprefix("file:"))
    put(spark, lake, ("x", 1), ("y", 1))
    with pytest.raises(SourceError, match=f"{lake}.events was dropped and created again since version 0"):
        engine.run(job(lake))
    spark.sql(f"DROP TABLE {lake}.events")
    there.rename(tmp_path / "elsewhere")
    spark.sql(f"CREATE TABLE {lake}.events USING delta LOCATION '{tmp_path / 'elsewhere'}'")
    put(spark, lake, ("a", 5))
    engine.run(job(lake))
    assert rows_of(spark, f"{lake}.totals") == [("a", 6)]


@pytest.mark.parametrize("name", ["out", "latest", "totals"])
def test_outputs_go_to_no_table_of_another_kind(
    name: str, engine: StateEngine, lake: str, spark: SparkSession
) -> None:
    put(spark, lake, ("a", 1))
    spark.sql(f"CREATE TABLE {lake}.{name} (k STRING) USING parquet")
    with pytest.raises(ConfigurationError, match=f"{lake}.{name} is not a Delta table .parquet."):
        engine.run(job(lake))
    assert not engine.checkpoints("named")
    assert rows_of(spark, f"{lake}.{name}") == []


def test_who_only_looks_asks_no_catalog(
    engine: StateEngine, lake: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(spark, lake, ("a", 1))
    engine.run(job(lake))

    def asked(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr("state_engine.spark.catalog.described", asked)
    history = read_history(engine.root, "named")
    assert history is not None
    assert history.left_alone(job(lake)) == {}
    assert history.unpublished(job(lake)) == []
    assert {one.name for one in history.tables(job(lake))} == {"latest", "totals"}
    assert history.new_data(job(lake)) == {"events": False}
    put(spark, lake, ("a", 5))
    assert history.new_data(job(lake)) == {"events": True}


def test_before_the_first_run_only_a_session_knows_whether_there_are_rows(lake: str) -> None:
    from state_engine.monitoring.job_history import has_new_data

    assert has_new_data(DeltaSource(table=f"{lake}.events"), []) is None


def test_in_memory_no_catalog_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("state_engine.spark.catalog.described", None)
    with run_in_memory(job("lake"), types={"events": "k string, v bigint"}) as run:
        run.process({"events": [("a", 1), ("a", 5)]})
        assert [tuple(row) for row in run.table("totals")] == [("a", 6)]


def test_a_job_is_built_and_described_without_a_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("state_engine.spark.catalog.described", None)
    made = job("lake")
    assert made.published["totals"].table.shown == "lake.totals"
    made.check()
    sums = made.source("others", DeltaSource(table="lake.more")).key_by("k")
    more = sums.process(Sum(), uid="more", output_type=OUTPUT)
    with pytest.raises(ConfigurationError, match=r"lake\.totals is the published table 'totals' already"):
        more.publish_state("total", DeltaStateTable(table="lake.totals"), name="again")
