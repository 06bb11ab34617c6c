"""W: windows and sessions over many events: over columns, per element, and those of others, on the same files.

Events lie up to a day behind the newest one, so each key has a day of open hours; the watermark is a day behind, and no
event is late. All files wait when the run begins. Statelake and Spark write their results to a Delta table and commit
each micro-batch; Flink's SQL and polars write Parquet files. Results are compared with what PyArrow makes of the same
events.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.comparison import OnStep, spark_application
from benchmarks.contenders import flink
from benchmarks.contenders.transform_with_state import OPTIONS
from benchmarks.figures import Comparison, Figures, Timed
from benchmarks.unequal import check_rows
from benchmarks.workload import FILES, PARALLELISM, scratch
from state_engine import DeltaSink, FileSource, Session, StateEngine, StatefulJob, Tumbling, count, sum_
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.aggregates.plan import plan
from state_engine.operators.windows.aligned_windows import AlignedWindows
from state_engine.operators.windows.session_windows import SessionWindows
from state_engine.operators.windows.window_results import RowsWithBounds, WindowAccumulators, WindowSettings

SCHEMA = "k bigint, v bigint, at timestamp"
RESULT = "k bigint, window_start timestamp, window_end timestamp, n bigint, total bigint"
FLINK, POLARS = "flink_sql", "polars"
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
GAP_MS = 30 * 60_000
START_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
_STRIDE, _SPREAD = 7919, 2_654_435_761


class HoursPerElement(AlignedWindows):
    """The same windows without their form over columns."""

    def vectorized(self) -> None:
        return None


class SessionsPerElement(SessionWindows):
    """The same sessions without their form over columns."""

    def vectorized(self) -> None:
        return None


def events(first: int, count: int, *, of: int, keys: int) -> pa.Table:
    """Some of so many events, the newest of which come within ten hours.

    Example:
        >>> events(0, 2, of=4, keys=10)["k"].to_pylist()
        [0, 9]
    """
    number = np.arange(first, first + count, dtype=np.int64)
    at = START_MS + number * (10 * HOUR_MS) // of - number * _SPREAD % DAY_MS
    instants = pa.array(at * 1000).cast(pa.timestamp("us", "UTC"))
    return pa.table({"k": number * _STRIDE % keys, "v": number % 1000, "at": instants})


def write(directory: Path, batches: int, *, of: int, keys: int) -> None:
    """Write all events as files, several for each micro-batch."""
    directory.mkdir()
    files = batches * FILES
    for file in range(files):
        start, end = of * file // files, of * (file + 1) // files
        pq.write_table(events(start, end - start, of=of, keys=keys), directory / f"{file:05}.parquet")


def job(directory: Path, windows: Any, *, per_element: bool = False) -> StatefulJob:
    """The job, with its input and sink beside each other."""
    made = StatefulJob("windows", parallelism=PARALLELISM)
    source = FileSource(str(directory / "input"), schema=SCHEMA, max_files_per_batch=FILES)
    keyed = made.source("events", source, event_time="at", max_out_of_orderness="1 day").key_by("k")
    aggregates = {"n": count(), "total": sum_("v")}
    if per_element:
        columns = to_type(SCHEMA, parameter="events")
        assert isinstance(columns, StructType)
        kind = SessionsPerElement if isinstance(windows, Session) else HoursPerElement
        kept = WindowAccumulators(plan(aggregates, columns, merge=True))
        results = keyed.process(
            kind(windows, kept, RowsWithBounds(), WindowSettings()), RESULT, uid="windows"
        )
    else:
        results = keyed.window(windows).aggregate(uid="windows", **aggregates)
    results.sink("results", DeltaSink(str(directory / "results")))
    return made


def run_statelake(spark: SparkSession, directory: Path, windows: Any, *, per_element: bool = False) -> float:
    """Seconds of one run over all files."""
    with StateEngine(directory / "root", spark) as engine:
        started = time.perf_counter()
        engine.run(job(directory, windows, per_element=per_element))
        return time.perf_counter() - started


def run_spark(spark: SparkSession, directory: Path, windows: Any) -> float:
    """Seconds of one query that takes what is there, ``availableNow``, and ends; its state is in RocksDB."""
    session = spark.newSession()
    for name, value in OPTIONS.items():
        session.conf.set(name, value)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    rows = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", str(FILES))
    grouped = rows.parquet(str(directory / "input")).withWatermark("at", "1 day")
    window = (
        F.session_window("at", "30 minutes") if isinstance(windows, Session) else F.window("at", "1 hour")
    )
    totals = grouped.groupBy(window.alias("w"), "k").agg(F.count("*").alias("n"), F.sum("v").alias("total"))
    results = totals.select(
        "k", F.col("w.start").alias("window_start"), F.col("w.end").alias("window_end"), "n", "total"
    )
    writer = results.writeStream.format("delta").outputMode("append").trigger(availableNow=True)
    started = time.perf_counter()
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).start(
        str(directory / "results")
    )
    query.awaitTermination()
    return time.perf_counter() - started


def run_flink(spark: SparkSession, directory: Path, windows: Any) -> float:
    """Seconds of Flink's SQL over the same events, with its start; its state is on the heap.

    They are in one file, because Flink reads several in any order, and many would be late. Their times are
    milliseconds. Windows that end with the input come out, too; they are none of the results here.
    """
    given = directory / "flink"
    (given / "input").mkdir(parents=True)
    rows = pa.concat_tables(pq.read_table(file) for file in sorted((directory / "input").iterdir()))
    ms = pc.divide(rows["at"].cast(pa.int64()), 1000)
    pq.write_table(rows.drop_columns("at").append_column("ms", ms), given / "input" / "events.parquet")
    return flink.run_windows("sessions" if isinstance(windows, Session) else "hours", given)


def run_polars(spark: SparkSession, directory: Path, windows: Any) -> float:
    """Seconds of a program in this process for windows of an hour: what is left where nothing has to be safe.

    Open windows are a data frame in memory. A batch writes a Parquet file of its results and one of the windows that it
    changed, without a commit.
    """
    assert windows == _WINDOWS["hours"]
    files, results = sorted((directory / "input").iterdir()), directory / "polars"
    results.mkdir()
    started, newest, window = time.perf_counter(), START_MS, ["k", "window_start"]
    sums = [pl.col("n").sum(), pl.col("total").sum()]
    open_ = pl.DataFrame(
        schema={"k": pl.Int64, "window_start": pl.Datetime("us", "UTC"), "n": pl.Int64, "total": pl.Int64}
    )
    for first in range(0, len(files), FILES):
        rows = pl.read_parquet(files[first : first + FILES])
        newest = max(newest, rows.select(pl.col("at").dt.timestamp("ms").max()).item())
        start = pl.col("at").dt.truncate("1h").alias("window_start")
        added = rows.group_by("k", start).agg(n=pl.len().cast(pl.Int64), total=pl.col("v").sum())
        open_ = pl.concat([open_, added]).group_by(window).agg(sums)
        changed = open_.join(added.select(window), on=window, how="semi")
        changed.write_parquet(results / f"changed-{first:05}.parquet")
        over = pl.col("window_start").dt.timestamp("ms") + HOUR_MS <= newest - DAY_MS
        open_.filter(over).write_parquet(results / f"results-{first:05}.parquet")
        open_ = open_.filter(~over)
    return time.perf_counter() - started


def results_of_polars(directory: Path) -> pa.Table:
    """The results of ``run_polars``, as ``expected`` has them."""
    rows = pl.read_parquet(directory / "polars" / "results-*.parquet")
    start = pl.col("window_start").dt.timestamp("ms")
    return rows.select("k", start=start, end=start + HOUR_MS, n="n", total="total").to_arrow()


def results_of_flink(directory: Path) -> pa.Table:
    """The results of windows that ended a day before the newest event, as ``expected`` has them."""
    rows = ds.dataset(
        directory / "flink" / "results", format="parquet", exclude_invalid_files=True
    ).to_table()
    newest = pc.max(pq.read_table(directory / "flink" / "input" / "events.parquet")["ms"]).as_py()
    columns = {"k": rows["k"]}
    for name in ("start", "end"):
        columns[name] = pc.divide(rows[f"window_{name}"].cast(pa.timestamp("us")).cast(pa.int64()), 1000)
    table = pa.table(columns | {"n": rows["n"], "total": rows["total"]})
    return table.filter(pc.less_equal(table["end"], newest - DAY_MS))


def expected(table: pa.Table, *, sessions: bool) -> pa.Table:
    """The windows of events that have ended a day before the newest of them: key, start, end, count and sum."""
    at = table["at"].cast(pa.int64()).to_numpy() // 1000
    if sessions:
        order = np.lexsort((at, table["k"].to_numpy()))
        keys, times = table["k"].to_numpy()[order], at[order]
        new = np.append(True, (keys[1:] != keys[:-1]) | (times[1:] - times[:-1] > GAP_MS))
        number = np.cumsum(new) - 1
        starts = times[new]
        ends = times[np.append(np.flatnonzero(new)[1:], len(times)) - 1] + GAP_MS
        rows = pa.table(
            {"k": keys, "start": starts[number], "end": ends[number], "v": table["v"].to_numpy()[order]}
        )
    else:
        start = at // HOUR_MS * HOUR_MS
        rows = pa.table({"k": table["k"], "start": start, "end": start + HOUR_MS, "v": table["v"]})
    ended = rows.filter(pc.less_equal(rows["end"], int(at.max()) - DAY_MS))
    made = ended.group_by(["k", "start", "end"]).aggregate([("v", "count"), ("v", "sum")])
    return made.rename_columns({"v_count": "n", "v_sum": "total"})


def results_of(spark: SparkSession, directory: Path) -> pa.Table:
    """What an engine wrote, as ``expected`` has it."""
    rows: DataFrame = spark.read.format("delta").load(str(directory / "results"))
    bounds = [F.unix_millis(f"window_{name}").alias(name) for name in ("start", "end")]
    return rows.select("k", *bounds, "n", "total").toArrow()


def check(spark: SparkSession, name: str, directory: Path, wanted: pa.Table) -> None:
    """Raises UnequalResultsError where the results are not those that are wanted."""
    columns = ["k", "start", "end", "n", "total"]
    actual = _RESULTS[name](directory) if name in _RESULTS else results_of(spark, directory)
    if actual.num_rows > 200_000:  # too many for Python: their number and sums of all columns
        sums = [(*(pc.sum(table[c]).as_py() for c in columns), table.num_rows) for table in (actual, wanted)]
        check_rows(name, "sums of results", Counter([sums[0]]), Counter([sums[1]]))
        return
    rows = (Counter(zip(*(table[c].to_pylist() for c in columns), strict=True)) for table in (actual, wanted))
    check_rows(name, "results", *rows)


_WINDOWS: Mapping[str, Any] = {"hours": Tumbling("1 h"), "sessions": Session("30 min")}
_ENGINES: Mapping[str, Callable[..., float]] = {
    "statelake": run_statelake,
    "statelake_per_element": partial(run_statelake, per_element=True),
    "spark": run_spark,
    FLINK: run_flink,
    POLARS: run_polars,
}
_RESULTS = {FLINK: results_of_flink, POLARS: results_of_polars}
"""Of engines that write no Delta table."""


def _engines_of(name: str) -> list[str]:
    """The engines that take part with some windows here."""
    left_out = {POLARS} if name == "sessions" else set()
    if not flink.available():
        left_out.add(FLINK)
    return [engine for engine in _ENGINES if engine not in left_out]


def measure(
    *,
    events: int,
    keys: int,
    session_keys: int,
    batches: int,
    rounds: int,
    element_events: int,
    verify_events: int,
    verify_keys: int,
    open_sessions: Mapping[int, int],
    open_rounds: int,
    done: OnStep = print,
) -> Figures:
    """Rounds of each engine over the same files, each on a new root; then a few rows on open sessions.

    Args:
        element_events: so many are measured per element, in as many micro-batches and over the same share of the keys,
            so that each has as many open windows; the time of all is in proportion.
        open_sessions: how many rows a micro-batch has, by the number of sessions that are open.

    Raises:
        UnequalResultsError: results are not those of PyArrow.
    """
    comparisons = {}
    with spark_application() as spark:
        for name, windows in _WINDOWS.items():
            one = partial(_round, spark, windows)
            of_keys = session_keys if name == "sessions" else keys
            engines = _engines_of(name)
            for engine in engines:
                one(engine, verify_events, verify_keys, 3)
                done(f"equal: {name} of {engine}")
            seconds: dict[str, list[float]] = {engine: [] for engine in engines}
            for number in range(rounds):
                for engine in engines:
                    if engine == "statelake_per_element":
                        share = max(of_keys * element_events // events, 1)
                        taken = one(engine, element_events, share, batches) * events / element_events
                    else:
                        taken = one(engine, events, of_keys, batches)
                    seconds[engine].append(taken)
                    done(f"round {number + 1}: {name} of {engine}, {taken:.2f} s")
            title = f"{name}: {events:,} events over {of_keys:,} keys, {batches} micro-batches"
            comparisons[name] = Comparison(
                title, [Timed(engine, of, events) for engine, of in seconds.items()]
            )
        timed = []
        for number, rows in open_sessions.items():
            took = _on_open_sessions(spark, number, rows, open_rounds)
            timed.append(Timed(open_name(number), took, rows))
            done(f"{open_name(number)}: {sorted(took)[len(took) // 2]:.3f} s")
        comparisons["open"] = Comparison("a micro-batch of a few rows on open sessions", timed)
    return Figures(comparisons)


def open_name(number: int) -> str:
    """The name of a series on so many open sessions."""
    return f"on {number:,} open sessions"


def _round(spark: SparkSession, windows: Any, engine: str, number: int, keys: int, batches: int) -> float:
    with scratch() as directory:
        write(directory / "input", batches, of=number, keys=keys)
        seconds = _ENGINES[engine](spark, directory, windows)
        wanted = expected(events(0, number, of=number, keys=keys), sessions=isinstance(windows, Session))
        check(spark, engine, directory, wanted)
    return seconds


def _on_open_sessions(spark: SparkSession, number: int, rows: int, rounds: int) -> list[float]:
    """Seconds of micro-batches of so many rows, each of another key with an open session."""
    with scratch() as directory:
        (directory / "input").mkdir()
        made, seconds = job(directory, Session("30 min")), []

        def add(file: int, keys: np.ndarray[Any, Any]) -> None:
            # sessions begin within 20 minutes, and end at different times
            at = START_MS + (keys * _STRIDE % (GAP_MS * 2 // 3) if file == 0 else GAP_MS * 2 // 3 + file)
            instants = pa.array(np.broadcast_to(at, len(keys)) * 1000).cast(pa.timestamp("us", "UTC"))
            table = pa.table({"k": keys, "v": keys % 1000, "at": instants})
            pq.write_table(table, directory / "input" / f"{file:05}.parquet")

        with StateEngine(directory / "root", spark) as engine:
            add(0, np.arange(number))
            engine.run(made)
            engine.compact(made)
            for file in range(1, rounds + 1):
                add(file, (np.arange(rows) + file * rows) * _STRIDE % number)
                started = time.perf_counter()
                engine.run(made)
                seconds.append(time.perf_counter() - started)
    return seconds[rounds // 3 :]
