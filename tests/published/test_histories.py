"""After every step of a random history, tables equal the state as of the head: see ``histories``."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from state_engine import StateEngine
from tests.published.histories import Site, random_rows

STEPS = 9


def go_through(seed: int, directory: Path, spark: SparkSession) -> None:
    chance = random.Random(seed)
    engine = StateEngine(directory / "root", spark=spark)
    site = Site(directory, random_rows(chance, 60), engine, chance)
    site.run()
    site.check()
    for _ in range(STEPS):
        site.step()
        site.check()
    site.engine.run(site.job())
    site.check()


@pytest.mark.parametrize("seed", range(6))
def test_tables_equal_the_state_after_every_step(seed: int, tmp_path: Path, spark: SparkSession) -> None:
    go_through(seed, tmp_path, spark)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 300))
def test_tables_equal_the_state_in_many_histories(seed: int, tmp_path: Path, spark: SparkSession) -> None:
    go_through(seed, tmp_path, spark)
