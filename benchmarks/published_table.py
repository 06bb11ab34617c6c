"""``python -m benchmarks.published_table``: what does it take to bring a large table to a few changed keys?

A job has the state of all keys, and a published table shows it. A micro-batch changes 1,000 keys, drawn at random, and
the table follows. Beside it stand two Delta tables with the same rows, which get the same 1,000 rows by Spark's
``MERGE INTO``: one with deletion vectors, one without. What counts of ours is the step ``publish`` of the
micro-batch: reading what changed, and the commit to the table. Of ``MERGE`` it is the statement; its rows wait in a
cached DataFrame.

Rounds alternate (A B C A B C) in one Spark application. What a round writes is counted as the bytes of the files that
come to the table's directory, log entries included, and shown as a share of the table.

**Equal results come first**: over few rows, before any time is taken, and again over all, before any figure is printed,
the three tables must hold the same rows, and those that the rounds gave must be there. The last lines are
``ratio merge = N`` and ``ratio merge_without_vectors = N``: the median of ``MERGE``, divided by ours.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.comparison import OnStep, site
from benchmarks.report import steps
from benchmarks.unequal import UnequalResultsError
from benchmarks.workload import PARALLELISM
from state_engine import (
    DeltaStateTable,
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)

OURS, MERGE, MERGE_WITHOUT = "statelake", "merge", "merge_without_vectors"
NAMES = (OURS, MERGE, MERGE_WITHOUT)
VERIFY_ROWS = 20_000
VALUE = "amount bigint, changed bigint, note string"


@dataclass(frozen=True)
class Applied:
    """One round of one contender.

    Attributes:
        seconds: wall time.
        bytes_written: to the directory of its table.
    """

    seconds: float
    bytes_written: int


@dataclass
class Comparison:
    """All rounds that count, by contender.

    Attributes:
        table_bytes: size of our table.
    """

    rounds: dict[str, list[Applied]] = field(default_factory=lambda: {name: [] for name in NAMES})
    table_bytes: int = 0

    def median_s(self, name: str) -> float:
        """The middle wall time of a contender."""
        return statistics.median(one.seconds for one in self.rounds[name])

    def share(self, name: str) -> float:
        """The most that a round of a contender wrote, as a share of our table."""
        return max(one.bytes_written for one in self.rounds[name]) / self.table_bytes


class _Latest(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.latest = runtime_context.get_state(ValueStateDescriptor("latest", VALUE))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.latest.update((value.amount, value.changed, value.note))
        yield from ()


def _job(directory: Path) -> StatefulJob:
    job = StatefulJob("latest", parallelism=PARALLELISM)
    source = FileSource(str(directory / "feed"), schema=f"k bigint, {VALUE}")
    latest = job.source("feed", source).key_by("k").process(_Latest(), output_type="k bigint", uid="latest")
    latest.publish_state("latest", DeltaStateTable(str(directory / OURS)))
    return job


class World:
    """Three tables with the same rows, and what changes them.

    Args:
        spark: session.
        rows: of each table.
        keys: that a round changes.
        directory: for all of it.
    """

    def __init__(self, spark: SparkSession, rows: int, keys: int, directory: Path) -> None:
        self._spark, self._rows, self._keys, self._directory = spark, rows, keys, directory
        self._random, self._round = np.random.default_rng(rows), 0
        self._expected: dict[int, tuple[int, int, str]] = {}
        self._engine = StateEngine(directory / "root", spark)
        self._job = _job(directory)
        (directory / "feed").mkdir(parents=True)
        given = spark.range(rows).selectExpr("id AS k", *_FIRST)
        self._engine.state_processor(self._job).bootstrap({"latest": {"latest": given}})
        self._ours(self._changes())
        for name in (MERGE, MERGE_WITHOUT):
            self._write_peer(name)

    def _write_peer(self, name: str) -> None:
        ours = self._read(OURS)
        vectors = str(name == MERGE).lower()
        writer = ours.repartition(len(ours.inputFiles())).write.format("delta")
        writer.option("delta.enableDeletionVectors", vectors).save(self._path(name))

    def round(self) -> dict[str, Applied]:
        """Change the same keys in all three tables, one after the other."""
        changes = self._changes()
        applied = {OURS: self._ours(changes)}
        frame = self._spark.createDataFrame(changes).cache()
        frame.count()
        frame.createOrReplaceTempView("changes")
        for name in (MERGE, MERGE_WITHOUT):
            applied[name] = self._merge(name)
        frame.unpersist()
        return applied

    def check(self) -> None:
        """Compare all rows of the three tables; raises UnequalResultsError."""
        ours = self._read(OURS)
        for name in (MERGE, MERGE_WITHOUT):
            peer = self._read(name)
            if (count := peer.exceptAll(ours).count() + ours.exceptAll(peer).count()) != 0:
                raise UnequalResultsError(f"{name} and {OURS} differ in {count} rows")
        if ours.count() != self._rows:
            raise UnequalResultsError(f"{OURS} has {ours.count()} rows, expected {self._rows}")
        keys = self._spark.createDataFrame([(k,) for k in self._expected], "k bigint")
        shown = {row.k: tuple(row)[1:] for row in ours.join(keys, "k").collect()}
        if shown != self._expected:
            raise UnequalResultsError(f"{OURS}: the changed keys do not have the values that they were given")

    def bytes_of(self, name: str) -> int:
        """What is in the directory of a table."""
        return sum(self._files(name).values())

    def close(self) -> None:
        """End the engine; the session stays."""
        self._engine.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _changes(self) -> pa.Table:
        self._round += 1
        keys = self._random.choice(self._rows, self._keys, replace=False)
        amounts = self._random.integers(0, 1_000_000, self._keys)
        note = f"round {self._round}"
        self._expected |= {int(k): (int(a), self._round, note) for k, a in zip(keys, amounts, strict=True)}
        number, notes = np.full(self._keys, self._round), [note] * self._keys
        return pa.table({"k": keys, "amount": amounts, "changed": number, "note": notes})

    def _ours(self, changes: pa.Table) -> Applied:
        pq.write_table(changes, self._directory / "feed" / f"{self._round:04d}.parquet")
        before = self._files(OURS)
        report = self._engine.run(self._job)
        (batch,) = report.batches
        return Applied(batch.steps_s["publish"], self._written(OURS, before))

    def _merge(self, name: str) -> Applied:
        before, started = self._files(name), time.perf_counter()
        self._spark.sql(
            f"MERGE INTO delta.`{self._path(name)}` AS t USING changes AS c ON t.k = c.k "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        return Applied(time.perf_counter() - started, self._written(name, before))

    def _read(self, name: str) -> Any:
        return self._spark.read.format("delta").load(self._path(name))

    def _path(self, name: str) -> str:
        return str(self._directory / name)

    def _files(self, name: str) -> dict[Path, int]:
        return {file: file.stat().st_size for file in (self._directory / name).rglob("*") if file.is_file()}

    def _written(self, name: str, before: dict[Path, int]) -> int:
        return sum(size for file, size in self._files(name).items() if file not in before)


_FIRST = ("id * 7 AS amount", "CAST(0 AS bigint) AS changed", "CAST(id % 1000 AS string) AS note")
"""The values of each key at the beginning."""


def compare(
    spark: SparkSession,
    rows: int,
    keys: int,
    directory: Path,
    *,
    rounds: int,
    warm_up: int,
    on_step: OnStep = print,
) -> Comparison:
    """Change keys in all three tables, round after round, and compare all rows in the end.

    Raises:
        UnequalResultsError: the tables do not hold the same rows.
    """
    world, done = World(spark, rows, keys, directory), Comparison()
    for number in range(warm_up + rounds):
        for name, applied in world.round().items():
            if number >= warm_up:
                done.rounds[name].append(applied)
            on_step(f"{rows:,} rows, {name}: {applied.seconds:.2f} s, {applied.bytes_written:,} bytes")
    done.table_bytes = world.bytes_of(OURS)
    world.check()
    world.close()
    return done


# -- the command -------------------------------------------------------------------------------------------------------


def run(
    rows: Annotated[int, typer.Option(min=100, help="Rows of the table.")] = 10_000_000,
    keys: Annotated[int, typer.Option(min=1, help="Keys that a round changes.")] = 1000,
    rounds: Annotated[int, typer.Option(min=1, help="Counted rounds; medians are printed.")] = 3,
    warm_up: Annotated[int, typer.Option(min=1, help="Rounds over all rows before these.")] = 2,
) -> None:
    """Change keys of a published table and of two that Spark's MERGE changes, compare all rows, and print times."""
    if keys > rows:
        raise typer.BadParameter(f"a table of {rows:,} rows has no {keys:,} keys to change")
    console = Console()
    few = min(rows, VERIFY_ROWS)
    total = (rounds + warm_up + 2) * len(NAMES)
    with steps(console, total) as on_step, site() as (spark, place):
        compare(spark, few, min(keys, few), place / "few", rounds=1, warm_up=1, on_step=on_step)
        done = compare(spark, rows, keys, place / "all", rounds=rounds, warm_up=warm_up, on_step=on_step)
    console.print(_table(done, rows, keys))
    for name in (MERGE, MERGE_WITHOUT):
        print(f"ratio {name} = {done.median_s(name) / done.median_s(OURS):.2f}", flush=True)


def _table(done: Comparison, rows: int, keys: int) -> Table:
    table = Table(
        title=f"{keys:,} changed keys in {rows:,} rows ({done.table_bytes / 1e6:,.0f} MB); equal in all three, "
        f"{len(done.rounds[OURS])} round(s)",
        title_justify="left",
    )
    table.add_column("table")
    for column in ("min s", "median s", "max s", "÷ ours", "most written, MB", "share of the table"):
        table.add_column(column, justify="right")
    for name, applied in done.rounds.items():
        seconds, most = [one.seconds for one in applied], max(one.bytes_written for one in applied)
        table.add_row(
            name, *(f"{s:.2f}" for s in (min(seconds), done.median_s(name), max(seconds))),
            f"{done.median_s(name) / done.median_s(OURS):.2f}", f"{most / 1e6:,.2f}", f"{done.share(name):.2%}",
        )  # fmt: skip
    return table


if __name__ == "__main__":
    typer.run(run)
