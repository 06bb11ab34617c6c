"""Any reader that the guide names reads the current rows of a published table, and sees no column of the engine's."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaProtocolError
from pyspark.sql import SparkSession

from state_engine import DeltaStateTable, StateEngine, StatefulJob
from tests.state_tables.histories import Site, random_rows, rows_of
from tests.support.guides import GUIDES, code_blocks

COLUMNS = ["k", "shop", "value"]


class Both(Site):
    """A site whose map is shown by two tables: with deletion vectors, and without."""

    def job(self) -> StatefulJob:
        job = super().job()
        balances = job.stream(job.operators["balances"])
        balances.publish_state(
            "shops", DeltaStateTable(self.table("with_vectors")), name="with_vectors", map_key="shop"
        )
        return job


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Both:
    """Rows came, were replaced and went, in several commits; a restore took some of that back."""
    chance = random.Random(11)
    directory = tmp_path_factory.mktemp("readers")
    made = Both(directory, random_rows(chance, 45), StateEngine(directory / "root", spark=spark), chance)
    made.engine.run(made.job(), max_batches=9)
    made.engine.restore(made.job(), checkpoint_id=made.path[5].checkpoint_id)
    made.engine.run(made.job())
    assert list(Path(made.table("with_vectors")).glob("*.parquet"))
    assert has_vectors(made.table("with_vectors"))
    assert not has_vectors(made.table("per_shop"))
    return made


def has_vectors(path: str) -> bool:
    return any("deletionVector" in log.read_text() for log in Path(path, "_delta_log").glob("*.json"))


def sorted_rows(rows: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, rows))


@pytest.mark.parametrize("name", ["with_vectors", "per_shop"])
def test_spark(site: Both, spark: SparkSession, name: str) -> None:
    expected = site.expected()["per_shop"]
    frame = spark.read.format("delta").load(site.table(name))
    assert frame.columns == COLUMNS
    assert sorted_rows(frame.collect()) == expected
    by_sql = spark.sql(f"SELECT value FROM delta.`{site.table(name)}` WHERE k = 'a' AND shop = 'x'")
    assert [row.value for row in by_sql.collect()] == [
        v for k, shop, v in expected if (k, shop) == ("a", "x")
    ]
    assert frame.count() == len(expected), "by statistics"


@pytest.mark.parametrize("name", ["with_vectors", "per_shop"])
def test_polars(site: Both, name: str) -> None:
    expected = site.expected()["per_shop"]
    scanned = pl.scan_delta(site.table(name))
    assert scanned.collect_schema().names() == COLUMNS
    assert sorted_rows(scanned.collect().rows()) == expected
    filtered = scanned.filter(pl.col("k") == "a").select("shop", "value").collect().rows()
    assert sorted_rows(filtered) == [(shop, v) for k, shop, v in expected if k == "a"]


def test_delta_rs_where_rows_do_not_go_by_deletion_vectors(site: Both) -> None:
    expected = site.expected()["per_shop"]
    table = DeltaTable(site.table("per_shop"))
    read = table.to_pyarrow_table()
    assert read.column_names == COLUMNS
    assert sorted_rows(zip(*read.to_pydict().values(), strict=True)) == expected
    filtered = table.to_pyarrow_dataset().to_table(filter=pa.compute.field("k") == "a")
    assert filtered.num_rows == len([one for one in expected if one[0] == "a"])
    with pytest.raises(DeltaProtocolError):
        DeltaTable(site.table("with_vectors")).to_pyarrow_table()


@pytest.mark.parametrize("name", ["with_vectors", "per_shop"])
def test_duckdb_over_arrow(site: Both, name: str) -> None:
    """By polars, or where rows do not go by deletion vectors by delta-rs, as a table that is scanned."""
    expected = site.expected()["per_shop"]
    shops: Any = pl.read_delta(site.table(name)).to_arrow()
    if name == "per_shop":
        shops = DeltaTable(site.table(name)).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("shops", shops)
        assert connection.sql("SELECT * FROM shops").columns == COLUMNS
        assert sorted_rows(connection.sql("SELECT * FROM shops").fetchall()) == expected
        totals = connection.sql("SELECT shop, sum(value) FROM shops GROUP BY shop ORDER BY shop").fetchall()
    by_shop: dict[str, int] = {}
    for _, shop, value in expected:
        by_shop[shop] = by_shop.get(shop, 0) + value
    assert [(shop, int(total)) for shop, total in totals] == sorted(by_shop.items())


def test_the_example_of_the_guide_shows_balances(tmp_path: Path, spark: SparkSession) -> None:
    names: dict[str, Any] = {"__name__": "guide"}
    for example in code_blocks(GUIDES / "published_tables.md", "python"):
        exec(compile(example, "published_tables.md", "exec"), names)
    job = names["job"]([("ada", 5), ("bob", 2), ("ada", -1)], str(tmp_path / "balances"))
    StateEngine(tmp_path / "root", spark=spark).run(job)
    assert rows_of(pl.read_delta(str(tmp_path / "balances"))) == [("ada", 4), ("bob", 2)]
