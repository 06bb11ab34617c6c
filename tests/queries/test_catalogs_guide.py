"""The examples of the guide about catalogs run as they stand there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.guides import GUIDES, Reader

GUIDE = GUIDES / "catalogs.md"


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
    Reader(tmp_path, monkeypatch).read(GUIDE, spark=spark)
    assert sorted(map(tuple, spark.sql("SELECT account, value FROM lake.balances__balance").collect())) == [
        ("a", 6),
        ("b", 7),
    ]
    assert spark.table("lake.history").count() == 3
    assert sorted(map(tuple, spark.table("lake.latest").collect())) == [("a", 6), ("b", 7)]
