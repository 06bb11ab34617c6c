"""C: a declared running aggregate, ``count()`` and ``sum_()``, over many events in several micro-batches.

All files wait when the run begins, and the source cuts them into micro-batches. Memory is that of Spark's Python
workers, in which the subtasks run: the most after the first micro-batch, and the most of all.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.comparison import OnStep, spark_application
from benchmarks.contenders import flink
from benchmarks.figures import Comparison, Fact, Figures, Timed
from benchmarks.memory import peaks
from benchmarks.parts.reference import rates_of_flink
from benchmarks.unequal import check_by_key
from benchmarks.workload import EVENT_SCHEMA, FILES, PARALLELISM, Feed, Workload, hand_over, scratch
from state_engine import DeltaSink, FileSource, StateEngine, StatefulJob, count, sum_


def totals(directory: Path) -> StatefulJob:
    """The job, with input and sink below a directory."""
    job = StatefulJob("totals", parallelism=PARALLELISM)
    source = FileSource(str(directory / "input"), schema=EVENT_SCHEMA, max_files_per_batch=FILES)
    keyed = job.source("events", source).key_by("k")
    keyed.aggregate(n=count(), total=sum_("v")).uid("totals").sink(
        "totals", DeltaSink(str(directory / "totals"))
    )
    return job


def measure(
    *,
    events: int,
    keys: int,
    batches: int,
    rounds: int,
    verify_events: int,
    verify_keys: int,
    flinks: Sequence[str] = flink.TOTALS,
    done: OnStep = print,
) -> Figures:
    """Rounds over all events, each on a new root.

    Raises:
        UnequalResultsError: totals are not those of the formula.
    """
    memory: list[int] = []

    def remember(_: Any) -> None:
        memory.append(peaks()["worker"])

    with spark_application() as spark:
        one_round(spark, verify_events, verify_keys, 2)
        done(f"equal: totals of {verify_keys:,} keys")
        seconds = []
        for number in range(rounds):
            seconds.append(one_round(spark, events, keys, batches, on_batch=remember))
            done(f"round {number + 1}: {seconds[-1]:.2f} s, and equal totals")
    rates, missing = rates_of_flink(flinks, events, keys, done)
    title = f"{events:,} events over {keys:,} keys, count() and sum_(), {batches} micro-batches"
    return Figures(
        {"full": Comparison(title, [Timed("statelake", seconds, events), *rates])},
        {
            "memory_first": Fact(
                "most memory of a Python worker after the first micro-batch", memory[0], "MB"
            ),
            "memory_last": Fact("and after any micro-batch of all rounds", max(memory), "MB"),
        },
        missing=missing,
    )


def one_round(spark: SparkSession, events: int, keys: int, batches: int, *, on_batch: Any = None) -> float:
    """Seconds of one run over all events; the totals are compared before they are given.

    Raises:
        UnequalResultsError: they are not those of the formula.
    """
    with scratch() as directory:
        feed = Feed(Workload(keys), directory / "feed")
        (directory / "input").mkdir()
        for _ in range(batches):
            hand_over(feed.write(events // batches), directory / "input")
        with StateEngine(directory / "root", spark) as engine:
            started = time.perf_counter()
            report = engine.run(totals(directory), on_progress=on_batch)
            seconds = time.perf_counter() - started
        if len(report.batches) != batches:
            raise RuntimeError(f"{batches} batches were cut into {len(report.batches)}")
        check_totals(spark, directory / "totals", feed)
    return seconds


def check_totals(spark: SparkSession, table: Path, feed: Feed) -> None:
    """Compare the last row of each key, and the number of all, with what the events must lead to.

    Raises:
        UnequalResultsError: they differ.
    """
    by_key = spark.read.format("delta").load(str(table)).groupBy("k")
    newest = by_key.agg(
        F.max("n").alias("n"), F.count("*").alias("rows"), F.max("total").alias("total")
    ).toArrow()
    keys, *numbers = (newest[column].to_pylist() for column in ("k", "n", "rows", "total"))
    actual = dict(zip(keys, zip(*numbers, strict=True), strict=True))
    # values are not negative, so the newest total is the greatest
    wanted = {k: (n, n, n * v) for k, (n, v) in feed.workload.values_of(feed.events).items()}
    check_by_key("statelake", "totals", actual, wanted)
