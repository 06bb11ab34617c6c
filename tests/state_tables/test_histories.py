"""Random histories of a job whose states tables show, and publishes that die at each of their steps."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import StateEngine
from tests.state_tables.histories import MINUTE, PartitionedSite, WideSite, dying, random_rows

STEPS = 9


def site_of(
    kind: type[WideSite],
    seed: int,
    directory: Path,
    spark: SparkSession,
    *,
    steps: int = STEPS,
    **options: Any,
) -> WideSite:
    """A site that went through a history."""
    chance = random.Random(seed)
    engine = StateEngine(directory / "root", spark=spark)
    databases = {"lite": {"url": f"sqlite:///{directory}/out.db"}, **options.pop("databases", {})}
    site = kind(directory, random_rows(chance, 60), engine, chance, databases=databases, **options)
    site.run()
    site.check()
    for _ in range(steps):
        site.step()
        site.check()
    site.engine.run(site.job(), clock=site.now_ms)
    site.by_spark = True
    site.check()
    return site


@pytest.mark.parametrize("seed", range(2))
def test_tables_equal_the_state_after_every_step(seed: int, tmp_path: Path, spark: SparkSession) -> None:
    site_of(WideSite, seed, tmp_path, spark)


@pytest.mark.parametrize("seed", range(2))
def test_tables_equal_the_state_after_backfills(seed: int, tmp_path: Path, spark: SparkSession) -> None:
    site_of(PartitionedSite, seed, tmp_path, spark, steps=5)


def test_tables_of_postgresql_equal_the_state(
    tmp_path: Path, spark: SparkSession, also_postgres: dict[str, Any]
) -> None:
    site_of(WideSite, 50, tmp_path, spark, steps=3, **also_postgres)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 200))
def test_tables_equal_the_state_in_many_histories(
    seed: int, tmp_path: Path, spark: SparkSession, also_postgres: dict[str, Any]
) -> None:
    site_of(WideSite, seed, tmp_path, spark, by_spark=True, **also_postgres)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(200, 300))
def test_tables_equal_the_state_in_many_histories_with_backfills(
    seed: int, tmp_path: Path, spark: SparkSession, also_postgres: dict[str, Any]
) -> None:
    site_of(PartitionedSite, seed, tmp_path, spark, by_spark=True, **also_postgres)


STRIDE = 9
"""So many tests share the steps of a publish."""


def dies_everywhere(
    directory: Path,
    spark: SparkSession,
    *,
    first: int = 0,
    stride: int = STRIDE,
    anew: bool = False,
    databases: dict[str, Any],
    passwords: dict[str, str] | None = None,
) -> set[str]:
    """One publish after the other, each of which dies some steps further on.

    Args:
        first: number of the step that the first one dies at.
        stride: how many steps further each one dies.
        anew: whether all tables are deleted before, so that each publish makes them.

    Returns:
        The kinds of steps that they died at.
    """
    chance = random.Random(7)
    engine = StateEngine(directory / "root", spark=spark)
    site = WideSite(
        directory, random_rows(chance, 6), engine, chance, databases=databases, passwords=passwords or {}
    )
    died: set[str] = set()
    for step in count(first, stride):
        if anew and step > first:
            site.lose_tables()
        with dying(step) as steps:
            site.now_ms += MINUTE
            site.engine.run(site.job(), max_batches=1, clock=site.now_ms)
        site.opened_anew()
        site.check()
        if len(steps.taken) <= step:
            return died
        died.add(steps.taken[step])
        site.rows += random_rows(chance, 3)
    raise AssertionError("a publish has an end")


def lite(directory: Path) -> dict[str, Any]:
    return {"lite": {"url": f"sqlite:///{directory}/out.db"}}


def test_a_publish_dies_at_many_steps(tmp_path: Path, spark: SparkSession) -> None:
    assert len(dies_everywhere(tmp_path, spark, databases=lite(tmp_path))) > 2


@pytest.mark.long
@pytest.mark.parametrize("first", range(STRIDE))
@pytest.mark.parametrize("anew", [False, True])
def test_a_publish_dies_at_every_step(anew: bool, first: int, tmp_path: Path, spark: SparkSession) -> None:
    """Also the one that makes the tables."""
    assert dies_everywhere(tmp_path, spark, first=first, anew=anew, databases=lite(tmp_path))


# who dies as a query begins leaves its cursor open, which a process that is gone does not
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.long
@pytest.mark.parametrize("first", range(STRIDE))
@pytest.mark.parametrize("anew", [False, True])
def test_a_publish_to_postgresql_dies_at_every_step(
    anew: bool, first: int, tmp_path: Path, spark: SparkSession, also_postgres: dict[str, Any]
) -> None:
    assert dies_everywhere(tmp_path, spark, first=first, anew=anew, **also_postgres)
