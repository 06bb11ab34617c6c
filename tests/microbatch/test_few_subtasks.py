"""Subtasks of a few rows run in Spark tasks, and inside ``subtasks_in_process`` in this process, with equal results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine.testing import subtasks_in_process
from tests.support.tiny import ROWS, Site, Sum


def with_process(element: Any, total: int) -> list[tuple[str, int, int]]:
    """The sum, and the process that made it."""
    return [(element.k, total, os.getpid())]


def processes(site: Site) -> set[int]:
    return {row[2] for row in site.outputs()}


@pytest.mark.spark_tasks
def test_subtasks_run_in_this_process_only_where_that_is_asked_for(
    tmp_path: Path, spark: SparkSession
) -> None:
    site = Site(tmp_path, spark)
    job = site.job(Sum(with_process), output="k string, total bigint, process bigint")
    engine = site.engine()
    site.put(ROWS, "0")
    engine.run(job)
    assert os.getpid() not in processes(site)
    before = processes(site)
    with subtasks_in_process():
        with subtasks_in_process():
            pass
        site.put(ROWS, "1")
        engine.run(job)
    assert processes(site) - before == {os.getpid()}
    assert site.state() == {"a": 8, "b": 4, "c": 8}
    during = site.outputs()
    site.put(ROWS, "2")
    engine.run(job)
    assert os.getpid() not in {row[2] for row in site.outputs() if row not in during}
    assert site.state() == {"a": 12, "b": 6, "c": 12}
