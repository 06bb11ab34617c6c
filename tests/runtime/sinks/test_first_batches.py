"""A first batch that fails leaves nothing that refuses the second try, also where the job has changed in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine.core.errors import SinkError, UserFunctionError
from tests.runtime.tiny import ROWS, Site, Sum

pytestmark = pytest.mark.spark

OTHER = "k string, total double"


def failing(value: Any, total: int) -> Any:
    raise ValueError("not today")


def other(value: Any, total: int) -> Any:
    return [(value.k, float(total))]


def fail_first(site: Site) -> None:
    with pytest.raises(UserFunctionError, match="not today"):
        site.engine().run(site.job(Sum(failing)))
    assert DeltaTable(str(site.sink)).schema().to_arrow() is not None  # it was made before


def test_other_columns_and_another_key_after_a_failed_first_batch(
    tmp_path: Path, spark: SparkSession
) -> None:
    site = Site(tmp_path, spark).put(ROWS)
    fail_first(site)
    assert spark.read.format("delta").load(str(site.sink)).columns == [
        "k",
        "v",
        "total",
    ]  # Spark remembers it
    site.engine().run(site.job(Sum(other), output=OTHER, key_by=("k", "v")))
    assert site.outputs() == [("a", 1.0), ("a", 3.0), ("b", 2.0), ("c", 4.0)]
    assert (
        sorted(tuple(r) for r in spark.read.format("delta").load(str(site.sink)).collect()) == site.outputs()
    )


def test_a_table_that_is_not_the_engines_or_is_used_stays(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark).put(ROWS)
    spark.sql(f"CREATE TABLE delta.`{site.sink}` (mine string) USING delta")
    with pytest.raises(SinkError, match="mine"):
        site.engine().run(site.job(Sum(other), output=OTHER))
    assert spark.read.format("delta").load(str(site.sink)).columns == ["mine"]

    used = Site(tmp_path / "used", spark).put(ROWS)
    fail_first(used)
    (used.sink / "somebody.parquet").touch()
    with pytest.raises(SinkError, match="total"):
        used.engine().run(used.job(Sum(other), output=OTHER))
    (used.sink / "somebody.parquet").unlink()
    used.engine().run(used.job())
    with pytest.raises(SinkError, match="total"):
        used.put({"k": ["z"], "v": [1]}, "more").engine().run(used.job(Sum(other), output=OTHER))
