"""The benchmark of a published table: all three tables hold the same rows, or no time is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.published_table import MERGE_WITHOUT, NAMES, OURS, World, compare
from benchmarks.unequal import UnequalResultsError


@pytest.mark.spark
@pytest.mark.long
def test_three_tables_get_the_same_changes(tmp_path: Path, spark: SparkSession) -> None:
    shown: list[str] = []
    done = compare(spark, 3_000, 40, tmp_path, rounds=1, warm_up=1, on_step=shown.append)
    assert [len(done.rounds[name]) for name in NAMES] == [1, 1, 1]
    assert [text.split(", ")[1].split(":")[0] for text in shown] == list(NAMES) * 2
    assert all(done.rounds[name][0].bytes_written > 0 for name in NAMES)
    assert 0 < done.share(OURS) < 1


@pytest.mark.spark
@pytest.mark.long
def test_a_row_that_differs_is_an_error(tmp_path: Path, spark: SparkSession) -> None:
    world = World(spark, 500, 10, tmp_path)
    world.round()
    world.check()
    spark.sql(f"UPDATE delta.`{tmp_path / MERGE_WITHOUT}` SET note = 'other' WHERE k = 7")
    with pytest.raises(UnequalResultsError, match=f"{MERGE_WITHOUT} and {OURS} differ in 2 rows"):
        world.check()
    world.close()
