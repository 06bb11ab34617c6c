"""``python -m benchmarks.small_files``: many files of one row, by a ``FileSource`` and by a plain read of Spark.

In each round both read the same new directory of JSON files (``--format csv`` or ``parquet``: of those) and append its
rows to a Delta table: this engine as one micro-batch of a job without operators, with all of its commits, and Spark as
one ``spark.read.load(…).write``, which remembers no file. They alternate, in one Spark application.

Both tables must have every row once before a figure is printed. Counted is the wall time of the call, and the processor
time that this process and its children took meanwhile. The last line is ``ratio to spark = N``: the median of the
engine, divided by that of Spark.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from pyspark.sql import SparkSession

from benchmarks.comparison import site
from benchmarks.figures import Spread, chosen_of, load_of_machine
from benchmarks.started import processor_s
from benchmarks.unequal import check_rows
from state_engine import DeltaSink, FileSource, StateEngine, StatefulJob

SCHEMA = "id bigint, text string"
STATELAKE, SPARK = "statelake", "spark"


@dataclass(frozen=True)
class Took:
    """One call.

    Attributes:
        seconds: of wall time.
        processor_s: of this process and its children.
    """

    seconds: float
    processor_s: float


def run(
    files: Annotated[int, typer.Option(min=1, help="Files of a row that each round brings.")] = 10_000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that are counted.")] = 3,
    warm_up: Annotated[int, typer.Option(min=0, help="Rounds before these.")] = 1,
    format_: Annotated[str, typer.Option("--format", help="json, csv or parquet.")] = "json",
) -> None:
    """Compare a micro-batch of many small files with a plain read of Spark."""
    (form,) = chosen_of(format_, list(_WRITERS), what="format")
    taken = measure(files, rounds=rounds, warm_up=warm_up, form=form)
    wall = {engine: Spread.of([one.seconds for one in calls]) for engine, calls in taken.items()}
    processor = {engine: Spread.of([one.processor_s for one in calls]) for engine, calls in taken.items()}
    print(f"{files:,} files of {form}, of a row each, into a Delta table; {load_of_machine()}")
    for engine in taken:
        print(f"{engine}: {wall[engine]}; processor {processor[engine].median:.2f} s")
    print(f"ratio of processor time = {processor[STATELAKE].median / processor[SPARK].median:.2f}")
    print(f"ratio to spark = {wall[STATELAKE].median / wall[SPARK].median:.2f}", flush=True)


def measure(
    files: int, *, rounds: int, warm_up: int, form: str = "json", done: Callable[[str], None] = print
) -> dict[str, list[Took]]:
    """The calls of both that count.

    Raises:
        UnequalResultsError: a table does not have each row once.
    """
    taken: dict[str, list[Took]] = {STATELAKE: [], SPARK: []}
    with site() as (spark, home):
        for number in range(warm_up + rounds):
            feed = _write(home / f"feed-{number}", files, first=number * files, form=form)
            works: dict[str, Callable[[], None]] = {
                STATELAKE: lambda feed=feed: _run_job(spark, home, feed, form),  # type: ignore[misc]
                SPARK: lambda feed=feed: _read_plainly(spark, home, feed, form),  # type: ignore[misc]
            }
            for engine in sorted(works, reverse=bool(number % 2)):
                took = _timed(works[engine])
                done(f"{engine}: {took.seconds:.2f} s, {took.processor_s:.2f} s of processor")
                taken[engine] += [took] if number >= warm_up else []
        expected = Counter((number, f"text {number}") for number in range((warm_up + rounds) * files))
        for engine in taken:
            rows = spark.read.format("delta").load(str(home / engine)).collect()
            check_rows(engine, "rows", Counter((row["id"], row["text"]) for row in rows), expected)
    return taken


def _write(directory: Path, files: int, *, first: int, form: str) -> Path:
    directory.mkdir()
    for number in range(first, first + files):
        _WRITERS[form](directory / f"{number:08}.{form}", number)
    return directory


_WRITERS: dict[str, Callable[[Path, int], object]] = {
    "json": lambda file, n: file.write_text(f'{{"id": {n}, "text": "text {n}"}}\n'),
    "csv": lambda file, n: file.write_text(f"{n},text {n}\n"),
    "parquet": lambda file, n: pq.write_table(pa.table({"id": [n], "text": [f"text {n}"]}), file),
}
"""Write a file of one row."""


def _run_job(spark: SparkSession, home: Path, feed: Path, form: str) -> None:
    job = StatefulJob(feed.name.replace("-", "_"))
    rows = job.source("files", FileSource(str(feed), schema=SCHEMA, format=form))  # type: ignore[arg-type]
    rows.sink("rows", DeltaSink(str(home / STATELAKE)))
    with StateEngine(home / "root", spark) as engine:
        batches = len(engine.run(job).batches)
    if batches != 1:
        raise RuntimeError(f"the files are one micro-batch, not {batches}")


def _read_plainly(spark: SparkSession, home: Path, feed: Path, form: str) -> None:
    rows = spark.read.schema(SCHEMA).load(str(feed), format=form)
    rows.write.format("delta").mode("append").save(str(home / SPARK))


def _timed(work: Callable[[], None]) -> Took:
    processor, started = processor_s(), time.perf_counter()
    work()
    return Took(time.perf_counter() - started, processor_s() - processor)


if __name__ == "__main__":
    typer.run(run)
