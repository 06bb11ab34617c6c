"""Delta tables by name: looked up each time, refused where they are none, and named without taking a name away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from state_engine import DeltaSink, DeltaSource, DeltaStateTable
from state_engine.core.errors import ConfigurationError, InvalidNameError
from state_engine.spark.catalog import (
    check_lasting,
    location_or_new,
    register_table,
    sql_text,
    table_location,
)
from tests.support.catalogs import new_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def lake(spark: SparkSession) -> Iterator[str]:
    with new_schema(spark) as name:
        yield name


def test_a_table_is_where_the_catalog_has_it_now(lake: str, spark: SparkSession, tmp_path: Path) -> None:
    for place in ("one", "two"):
        spark.range(1).write.format("delta").save(str(tmp_path / place))
        spark.sql(f"DROP TABLE IF EXISTS {lake}.t")
        spark.sql(f"CREATE TABLE {lake}.t USING delta LOCATION '{tmp_path / place}'")
        assert table_location(spark, f"{lake}.t") == f"file://{tmp_path / place}"
        assert location_or_new(f"spark_catalog.{lake}.t") == f"file://{tmp_path / place}"


def test_a_new_table_is_going_to_be_in_its_schema(lake: str, spark: SparkSession) -> None:
    place = location_or_new(f"{lake}.new")
    assert place.startswith("file:///")
    assert place.endswith(f"/{lake}.db/new")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("{lake}.absent", "has no table .*absent: check the name, or create the table first"),
        ("{lake}.rows", "is not a Delta table .parquet.: name another one; or copy its rows"),
        ("{lake}.shown", "is not a Delta table .view."),
        ("nowhere.absent", "has no table nowhere.absent"),
        ("nowhere.lake.t", "nowhere"),
    ],
)
def test_what_is_no_delta_table_is_refused(name: str, says: str, lake: str, spark: SparkSession) -> None:
    spark.sql(f"CREATE TABLE {lake}.rows (a INT) USING parquet")
    spark.sql(f"CREATE VIEW {lake}.shown AS SELECT 1 AS a")
    with pytest.raises(ConfigurationError, match=says):
        table_location(spark, name.format(lake=lake))


@pytest.mark.parametrize("name", ["nowhere.t", "nowhere.lake.t"])
def test_no_table_is_made_where_there_is_no_schema(name: str, spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        location_or_new(name)


def test_a_name_is_given_once_and_taken_from_nobody(lake: str, spark: SparkSession, tmp_path: Path) -> None:
    for place in ("one", "two"):
        spark.range(1).write.format("delta").save(str(tmp_path / place))
    one, two = (f"file://{tmp_path / place}" for place in ("one", "two"))
    assert register_table(spark, f"{lake}.t", one)
    assert not register_table(spark, f"{lake}.t", one)
    with pytest.raises(ConfigurationError, match=r"has another table .* drop or rename it"):
        register_table(spark, f"{lake}.t", two)
    assert table_location(spark, f"{lake}.t") == one


def test_a_catalog_that_ends_with_the_session_is_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match=r"lives in memory.*catalogImplementation = hive"):
        check_lasting(spark, "spark_catalog")
    check_lasting(spark, "prod")


@pytest.mark.parametrize("text", ["it's", "a\\'b", "two\nlines", "`x`", 'say "so"'])
def test_texts_are_themselves_in_sql(text: str, spark: SparkSession) -> None:
    assert spark.sql(f"SELECT {sql_text(text)}").collect()[0][0] == text


@pytest.mark.parametrize("kind", [DeltaSource, DeltaSink, DeltaStateTable])
def test_a_table_has_a_path_or_a_name(kind: Any) -> None:
    with pytest.raises(ConfigurationError, match="neither is given"):
        kind()
    with pytest.raises(ConfigurationError, match="both are given"):
        kind("/data/t", table="lake.t")


@pytest.mark.parametrize("kind", [DeltaSource, DeltaSink, DeltaStateTable])
@pytest.mark.parametrize(
    "name", ["t", "lake.", ".t", "lake.t; DROP TABLE x", "lake.`t`", "lake/t", "../t", "a b.t", "lake.t\n", 7]
)
def test_names_of_tables_are_checked(kind: Any, name: Any) -> None:
    with pytest.raises(InvalidNameError, match=r"schema\.table or catalog\.schema\.table"):
        kind(table=name)
