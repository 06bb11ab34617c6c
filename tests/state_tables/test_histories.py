"""After every step of a random history, tables equal the state as of the head: see ``histories`` and ``wide_site``."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import StateEngine
from tests.state_tables.histories import random_rows
from tests.state_tables.wide_site import PartitionedSite, WideSite

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
