"""Every query here, on Spark and some on Flink, over the same files; results are compared with those of polars."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import polars as pl
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession

from benchmarks.comparison import OnStep, site
from benchmarks.contenders import flink
from benchmarks.figures import Comparison, Figures, Timed
from benchmarks.nexmark import on_flink, on_spark
from benchmarks.nexmark.events import write
from benchmarks.nexmark.expected import EXPECTED, frames
from benchmarks.nexmark.queries import QUERIES
from benchmarks.unequal import UnequalResultsError
from state_engine import StateEngine

_MINUTE_MS = 60_000


def run(spark: SparkSession, name: str, directory: Path, into: Path, *, files_per_batch: int) -> float:
    """Seconds of one query over all files, until every window has ended."""
    query = QUERIES[name]
    job = query.job(directory, into, files_per_batch=files_per_batch)
    with StateEngine(f"{into}-root", spark) as engine:
        started = time.perf_counter()
        engine.run(job, drain=True)
        if query.of_clock:
            engine.run(job, clock=time.time_ns() // 1_000_000 + _MINUTE_MS)
        return time.perf_counter() - started


def check(spark: SparkSession, name: str, into: Path, wanted: pl.DataFrame, *, whole: bool = True) -> int:
    """Compare the results of a query with those of polars; returns how many there are.

    Args:
        whole: whether all must be there, and not only right ones.

    Raises:
        UnequalResultsError: they differ.
    """
    results = pl.from_arrow(spark.read.format("delta").load(str(into)).toArrow())
    assert isinstance(results, pl.DataFrame)
    if name == "q12":
        results = results.group_by("bidder").agg(pl.col("n").sum())
    return compare(name, results, wanted, whole=whole)


def compare(name: str, results: pl.DataFrame, wanted: pl.DataFrame, *, whole: bool = True) -> int:
    """Compare rows as ``check`` does."""
    columns = sorted(wanted.columns)
    try:
        results = _comparable(results.select(columns))
        wanted = _comparable(wanted.select(columns))
        if not whole:
            wanted = wanted.join(results, on=columns, how="semi", nulls_equal=True)
        assert_frame_equal(results.sort(columns), wanted.sort(columns), check_dtypes=False, rel_tol=1e-9)
    except (AssertionError, pl.exceptions.PolarsError) as error:
        raise UnequalResultsError(f"{name}, {QUERIES[name].title}: {error}") from None
    return results.height


def _comparable(rows: pl.DataFrame) -> pl.DataFrame:
    decimals = [column for column, kind in rows.schema.items() if kind.is_decimal()]
    return rows.with_columns(pl.col(decimals).cast(pl.Float64))


def measure(
    *, events: int, batches: int, files_per_batch: int = 2, only: Collection[str] = (), done: OnStep = print
) -> Figures:
    """One round of each query on each engine that can run it.

    Raises:
        UnequalResultsError: results are not those of polars.
    """
    comparisons, missing = {}, []
    with site() as (spark, directory):
        write(directory, events, files=batches * files_per_batch)
        rows = frames(directory)
        for query in only or QUERIES:
            timed = []
            for engine, seconds, count in _runs(
                spark, query, directory, EXPECTED[query](rows), files_per_batch
            ):
                timed.append(Timed(engine, [seconds], events))
                results = "results that nobody kept" if count is None else f"{count:,} results"
                done(f"{query} on {engine}: {seconds:.2f} s, {results}")
            comparisons[query] = Comparison(f"{query}: {QUERIES[query].title}", timed)
            if query in on_spark.CANNOT:
                missing.append(f"{query} on Spark: {on_spark.CANNOT[query]}")
    if not flink.available():
        missing.append("Flink: run make .venv-flink/.ready")
    return Figures(comparisons, missing=missing)


def _runs(
    spark: SparkSession, query: str, directory: Path, wanted: pl.DataFrame, files_per_batch: int
) -> Iterator[tuple[str, float, int | None]]:
    """Each engine that can run a query, its seconds, and how many results it gave."""
    engines: dict[str, Callable[..., float]] = {"statelake": run}
    if query not in on_spark.CANNOT:
        engines["spark"] = on_spark.run
    for engine, runs in engines.items():
        into = directory / f"{query}-{engine}"
        seconds = runs(spark, query, directory, into, files_per_batch=files_per_batch)
        whole = engine == "statelake" or on_spark.gives_all(query)
        yield engine, seconds, check(spark, query, into, wanted, whole=whole)
    if flink.available() and query in on_flink.COLUMNS:
        seconds = on_flink.run(query, directory)
        written = on_flink.written(query, directory)
        yield "flink", seconds, None if written is None else compare(query, written, wanted)
