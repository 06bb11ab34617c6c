"""From a Delta table that Spark changes to tables that others read: all equal a computation from the final table."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from tests.published.changing_histories import TABLES, World

STEPS = 4


def go_through(seed: int, directory: Path, spark: SparkSession, *, steps: int = STEPS) -> None:
    world = World(directory, spark, Random(seed), vectors=seed % 2 == 0)
    world.run()
    for _ in range(steps):
        for _ in range(world.chance.randrange(1, 3)):
            world.change()
        world.step()
        assert world.table_changes() == [(name, 0, 0) for name in TABLES], world.done
    world.engine.run(world.job())
    assert world.shown() == world.expected(), world.done


@pytest.mark.parametrize("seed", range(3))
def test_states_and_tables_are_those_of_the_final_table(
    seed: int, tmp_path: Path, spark: SparkSession
) -> None:
    go_through(seed, tmp_path, spark)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 170))
def test_states_and_tables_are_those_of_the_final_table_in_many_histories(
    seed: int, tmp_path: Path, spark: SparkSession
) -> None:
    go_through(seed, tmp_path, spark, steps=10)
