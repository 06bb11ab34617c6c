"""Random schedules of runs, kills, pauses and operations on the real engine keep every guarantee."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.protocol.old_rules import whatever_lies_there_is_published
from tests.protocol.schedules import empty_tables, run_schedule

FEW, ALL, TOGETHER = 5, 1000, 20


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    return empty_tables(tmp_path_factory.mktemp("empty"), spark)


@pytest.mark.parametrize("first", range(0, FEW, 5))
def test_some_schedules(first: int, tmp_path: Path, spark: SparkSession, empty: Path) -> None:
    for seed in range(first, first + 5):
        run_schedule(seed, tmp_path / str(seed), spark, empty=empty)


@pytest.mark.long
def test_files_of_tasks_that_ran_beside_show_if_whatever_lies_there_is_published(
    tmp_path: Path, spark: SparkSession, empty: Path
) -> None:
    """The rule that only listed files are published, taken back: the first schedules notice."""

    def goes_wrong(seed: int) -> bool:
        rule = whatever_lies_there_is_published
        try:
            run_schedule(seed, tmp_path / str(seed), spark, empty=empty, old_rule=rule)
        except AssertionError:
            return True
        return False

    assert any(map(goes_wrong, range(8)))


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, ALL, TOGETHER))
def test_many_schedules(first: int, tmp_path: Path, spark: SparkSession, empty: Path) -> None:
    for seed in range(first, first + TOGETHER):
        run_schedule(seed, tmp_path / str(seed), spark, empty=empty)
