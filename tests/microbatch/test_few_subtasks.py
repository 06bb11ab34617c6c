"""Subtasks of a few rows run in Spark tasks, and inside ``subtasks_in_process`` in this process, with equal results."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import StatefulJob
from state_engine.testing import run_in_memory, subtasks_in_process
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
    with subtasks_in_process(spark):
        with subtasks_in_process(spark):
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


@pytest.mark.spark_tasks
def test_what_runs_in_this_process_moves_no_subtasks_of_other_engines(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Neither a job in memory does, nor an engine with another session, in other threads."""
    inside, beside = (Site(tmp_path / name, spark.newSession()) for name in ("inside", "beside"))
    jobs = [
        site.job(Sum(with_process), output="k string, total bigint, process bigint")
        for site in (inside, beside)
    ]

    def run(site: Site, job: StatefulJob) -> set[int]:
        site.put(ROWS)
        site.engine().run(job)
        return processes(site)

    with (
        ThreadPoolExecutor(1) as thread,
        subtasks_in_process(inside.spark),
        run_in_memory(jobs[0], types={"events": "k string, v bigint"}) as memory,
    ):
        while_in_memory = thread.submit(run, beside, jobs[1])
        [out] = memory.process({"events": [("a", 1)]}).values()
        assert out == [("a", 1, os.getpid())]
        assert run(inside, jobs[0]) == {os.getpid()}
        assert os.getpid() not in while_in_memory.result()
