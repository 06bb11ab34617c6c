"""A plan refuses a table that does not take the columns of a sink, with the words of the run."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import DeltaSink, FileSource, SqlSink, StateEngine, StatefulJob
from state_engine.core.errors import ConfigurationError, SinkError, UserFunctionError
from tests.support.catalogs import new_schema

OLD, WITH_LINEAGE = "id bigint", " with lineage"


def job(directory: Path, columns: str, *, fails: bool = False, table: str = "") -> StatefulJob:
    columns, marked, _ = columns.partition(WITH_LINEAGE)
    made = StatefulJob("landing")
    rows = made.source("rows", FileSource(str(directory / "feed"), schema=OLD))

    def padded(row: Any) -> Any:
        assert not fails
        return (row.id, *[None] * columns.count(","))

    path = "" if table else f"{directory}/out"
    rows.map(padded, columns, uid="padded").sink("out", DeltaSink(path, bool(marked), table=table))
    return made


def written(directory: Path, spark: SparkSession) -> None:
    """The job has written to the table."""
    with StateEngine(directory / "root", spark) as engine:
        engine.run(job(directory, OLD))


def altered(directory: Path, spark: SparkSession) -> None:
    written(directory, spark)
    spark.sql(f"ALTER TABLE delta.`{directory}/out` ADD COLUMNS (more string)")


def foreign(directory: Path, spark: SparkSession) -> None:
    spark.sql(f"CREATE TABLE delta.`{directory}/out` (id string) USING delta")


def partitioned(directory: Path, spark: SparkSession) -> None:
    spark.sql(f"CREATE TABLE delta.`{directory}/out` (id bigint, day date) USING delta PARTITIONED BY (day)")


def forgetful(directory: Path, spark: SparkSession) -> None:
    foreign(directory, spark)
    DeltaTable(f"{directory}/out").alter.set_table_properties(
        {"delta.setTransactionRetentionDuration": "interval 1 days"}
    )


def left_empty(directory: Path, spark: SparkSession) -> None:
    """A batch failed after the engine had made the table."""
    with StateEngine(directory / "root", spark) as engine, pytest.raises(UserFunctionError):
        engine.run(job(directory, OLD, fails=True))


def nothing(directory: Path, spark: SparkSession) -> None:
    """There is no table."""


@pytest.mark.parametrize(
    ("before", "columns", "says"),
    [
        (written, OLD, ""),
        (written, "id bigint, more string", "the output has id long, more string"),
        (written, "id int", "has the columns id long, the output has id integer"),
        (altered, OLD, "has the columns id long, more string"),
        (altered, "id bigint, more string", ""),
        (foreign, OLD, "has the columns id string"),
        (forgetful, "id string", "forgets what was published"),
        (partitioned, OLD, "has the columns day date, id long"),
        (partitioned, "id bigint, day date", ""),
        (left_empty, "id bigint, more string", ""),
        (written, f"{OLD}{WITH_LINEAGE}", "for _write_id, see lineage="),
        (left_empty, f"{OLD}{WITH_LINEAGE}", ""),
        (nothing, OLD, ""),
    ],
)
def test_the_columns_of_a_table(
    spark: SparkSession,
    tmp_path: Path,
    before: Callable[[Path, SparkSession], None],
    columns: str,
    says: str,
) -> None:
    (tmp_path / "feed").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "feed" / "1.parquet")
    before(tmp_path, spark)
    pq.write_table(pa.table({"id": [2]}), tmp_path / "feed" / "2.parquet")
    changed = job(tmp_path, columns)
    with StateEngine(tmp_path / "root", spark) as engine:
        plan = engine.plan(changed)
        refused = [text for one in plan.of("refused") for text in one.texts]
        if not says:
            assert refused == []
            assert [batch.rows_in for batch in engine.run(changed).batches][-1:] == [
                1 if before in (written, altered) else 2
            ]
            return
        with pytest.raises(SinkError, match=says) as error:
            engine.run(changed)
    assert [str(error.value)] == refused


def test_a_table_that_the_catalog_knows_is_where_the_head_says(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "feed").mkdir()
    with new_schema(spark) as lake, StateEngine(tmp_path / "root", spark) as engine:
        of_name, changed = (job(tmp_path, columns, table=f"{lake}.landed") for columns in (OLD, "id int"))
        (note,) = engine.plan(of_name).notes
        assert f"takes its rows: where {lake}.landed is, only Spark's catalog knows" in note
        for number in (1, 2):
            pq.write_table(pa.table({"id": [number]}), tmp_path / "feed" / f"{number}.parquet")
            if number == 1:
                engine.run(of_name)
        assert engine.plan(of_name).notes == ()
        with pytest.raises(SinkError, match="has the columns id long, the output has id integer") as error:
            engine.run(changed)
        assert [text for one in engine.plan(changed).of("refused") for text in one.texts] == [
            str(error.value)
        ]


def test_a_sample_runs_what_needs_spark(spark: SparkSession, tmp_path: Path) -> None:
    def keyed(factor: int) -> StatefulJob:
        made = StatefulJob("keyed")
        rows = made.source("rows", FileSource(str(tmp_path / "feed"), schema=OLD))
        rows.transform(lambda frame: frame.selectExpr(f"id * {factor} AS id")).sink(
            "out", DeltaSink(f"{tmp_path}/out")
        )
        return made

    (tmp_path / "feed").mkdir()
    pq.write_table(pa.table({"id": [1, 2, 3]}), tmp_path / "feed" / "1.parquet")
    with StateEngine(tmp_path / "root", spark) as engine:
        engine.run(keyed(1))
        sample = engine.plan(keyed(2), sample=3).sample
        assert sample is not None
        (out,) = sample.compared
        assert (out.name, out.same, out.only_old, out.only_new) == ("out", 1, 2, 2)
        assert engine.plan(keyed(2)).sample is None
        with pytest.raises(ConfigurationError, match="sample must be at least 1"):
            engine.plan(keyed(2), sample=0)


def to_database(directory: Path, columns: str, url: str, **options: Any) -> StatefulJob:
    made = StatefulJob("stored")
    rows = made.source("rows", FileSource(str(directory / "feed"), schema=OLD))
    padded = rows.map(lambda row: (row.id, *[None] * columns.count(",")), columns, uid="padded")
    padded.sink("out", SqlSink(url, "landed", **options))
    return made


@pytest.mark.parametrize(
    ("before", "columns", "says"),
    [
        (OLD, OLD, ""),
        (OLD, "id bigint, more string", "has no column 'more'"),
        ("", OLD, ""),
        ("INSERT INTO landed VALUES ('a')", OLD, "has id TEXT, which does not hold every int64"),
        ("SELECT 1", "id bigint, more string", "has no column 'more'"),
    ],
    ids=["the same", "more columns", "no file", "a table of others", "an empty table of others"],
)
def test_the_columns_of_a_table_in_a_database(
    spark: SparkSession, tmp_path: Path, before: str, columns: str, says: str
) -> None:
    (tmp_path / "feed").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "feed" / "1.parquet")
    file = tmp_path / "out.db"
    url, is_empty = f"sqlite:///{file}", before.startswith("SELECT")
    with StateEngine(tmp_path / "root", spark) as engine:
        if before == OLD:
            engine.run(to_database(tmp_path, OLD, url))
        elif before:
            with closing(sqlite3.connect(file)) as connection:
                connection.execute("CREATE TABLE landed (id TEXT)")
                connection.execute(before)
                connection.commit()
        pq.write_table(pa.table({"id": [2]}), tmp_path / "feed" / "2.parquet")
        changed = to_database(tmp_path, columns, url)
        refused = [text for one in engine.plan(changed).of("refused") for text in one.texts]
        assert file.exists() == bool(before)
        if not says:
            assert refused == []
            engine.run(changed)
            return
        with pytest.raises(SinkError, match=says) as error:
            engine.run(changed)
    assert refused == ([] if is_empty else [str(error.value)]), "an empty table may be one of ours, made anew"


@pytest.mark.parametrize(
    ("options", "says"),
    [({}, "cannot be used"), ({"password_env": "NOT_SET_HERE"}, "variable NOT_SET_HERE")],
    ids=["nobody listens", "no password"],
)
def test_a_database_that_cannot_be_reached_is_a_note(
    tmp_path: Path, spark: SparkSession, options: dict[str, Any], says: str
) -> None:
    job = to_database(tmp_path, OLD, "postgresql://nobody@127.0.0.1:9/none", **options)
    with StateEngine(tmp_path / "root", spark) as engine:
        plan = engine.plan(job)
    assert plan.of("refused") == ()
    (note,) = plan.notes
    assert "whether the table of sink out takes its rows" in note
    assert says in note
