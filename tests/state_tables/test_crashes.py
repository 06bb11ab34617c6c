"""A publish that dies at every one of its steps, with tables of every kind in one job."""

from __future__ import annotations

import random
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import StateEngine
from tests.state_tables.crashes import dying
from tests.state_tables.histories import random_rows
from tests.state_tables.wide_site import MINUTE, WideSite

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
