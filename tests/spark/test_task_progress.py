"""The progress of Spark tasks, as a callback sees it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from state_engine.spark.task_progress import task_progress

pytestmark = [pytest.mark.spark, pytest.mark.spark_tasks]


def slowly(batches: Iterator[object]) -> Iterator[object]:
    time.sleep(0.3)  # longer than it takes from one look to the next
    yield from batches


def test_tasks_are_reported_while_they_run_and_at_the_end(spark: SparkSession) -> None:
    context = spark.sparkContext
    context.setLocalProperty("spark.jobGroup.id", "of the user")
    reported: list[tuple[int, int]] = []
    tasks = 3 * context.defaultParallelism
    with task_progress(spark, reported.append):
        spark.range(0, tasks, 1, tasks).mapInArrow(slowly, "id long").collect()
    assert context.getLocalProperty("spark.jobGroup.id") == "of the user"
    context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert reported[-1] == (tasks, tasks)
    assert reported == sorted(reported)
    assert any(0 < done < tasks for done, _ in reported)
    spark.range(5).collect()
    assert reported[-1] == (tasks, tasks), "what runs afterwards is not reported"


def test_a_failure_ends_the_reports_and_is_raised(spark: SparkSession) -> None:
    reported: list[tuple[int, int]] = []
    with pytest.raises(ZeroDivisionError), task_progress(spark, reported.append):
        raise ZeroDivisionError
    assert reported == []
    assert spark.sparkContext.getLocalProperty("spark.jobGroup.id") is None
