"""Random interleavings of runners, and attempts that sleep while files are collected: nothing is lost or repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.protocol import old_rules
from tests.protocol.interleaving import SKEWS_MS
from tests.protocol.old_rules import whatever_lies_there_is_published
from tests.protocol.schedules import empty_tables, run_schedule
from tests.protocol.sleepers import COMMITS, Sleeper, run_sleeper, sleepers

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


BEHIND, AHEAD = SKEWS_MS[0], SKEWS_MS[-1]
POINTS, SLEEPERS_TOGETHER = 100, 4
"""More than the collector has in these cases; it has one for every file and directory that it looks at."""


@pytest.mark.parametrize("clocks", [(BEHIND, AHEAD), (AHEAD, BEHIND)])
def test_some_sleepers(tmp_path: Path, spark: SparkSession, empty: Path, clocks: tuple[int, int]) -> None:
    case = Sleeper("run", COMMITS, overtaken=False, hours=30, woken_at=45, skews_ms=clocks)
    assert run_sleeper(case, tmp_path / "one", spark, empty=empty) > 45


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, POINTS, SLEEPERS_TOGETHER))
def test_sleepers_at_every_point_of_the_collector(
    first: int, tmp_path: Path, spark: SparkSession, empty: Path
) -> None:
    for woken_at in range(first, first + SLEEPERS_TOGETHER):
        hours = ((0, 30), (11, 13))[woken_at % 2]
        for i, case in enumerate(sleepers(woken_at, hours=hours)):
            run_sleeper(case, tmp_path / f"{woken_at}-{i}", spark, empty=empty)


@pytest.mark.long
@pytest.mark.parametrize(
    ("rule", "case"), old_rules.COLLECTION, ids=[rule.__name__ for rule, _ in old_rules.COLLECTION]
)
def test_an_old_rule_put_back_makes_a_sleeper_go_wrong(
    rule: old_rules.Rule, case: Sleeper, tmp_path: Path, spark: SparkSession, empty: Path
) -> None:
    run_sleeper(case, tmp_path / "today", spark, empty=empty, durability="os")
    with pytest.raises(AssertionError, match="Sleeper"):
        run_sleeper(case, tmp_path / "then", spark, empty=empty, old_rule=rule, durability="os")
