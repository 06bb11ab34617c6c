"""Sleeping attempts at every point of the collector lose nothing; each old rule, put back, fails the test."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.protocol import old_rules
from tests.protocol.interleaving import SKEWS_MS
from tests.protocol.schedules import empty_tables
from tests.protocol.sleepers import COMMITS, Sleeper, run_sleeper, sleepers

BEHIND, AHEAD = SKEWS_MS[0], SKEWS_MS[-1]
POINTS, TOGETHER = 100, 4
"""More than the collector has in these cases; it has one for every file and directory that it looks at."""


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    return empty_tables(tmp_path_factory.mktemp("empty"), spark)


@pytest.mark.parametrize("clocks", [(BEHIND, AHEAD), (AHEAD, BEHIND)])
def test_some_sleepers(tmp_path: Path, spark: SparkSession, empty: Path, clocks: tuple[int, int]) -> None:
    case = Sleeper("run", COMMITS, overtaken=False, hours=30, woken_at=45, skews_ms=clocks)
    assert run_sleeper(case, tmp_path / "one", spark, empty=empty) > 45


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, POINTS, TOGETHER))
def test_sleepers_at_every_point_of_the_collector(
    first: int, tmp_path: Path, spark: SparkSession, empty: Path
) -> None:
    for woken_at in range(first, first + TOGETHER):
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
