"""Results do not depend on cuts and parallelism, and chained operators see the total order.

In memory at many cuts, and on Spark, whoever routes the rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine import (
    DeltaSink,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.testing import CollectSink, run_in_memory
from tests.support.limits import NOTHING_BY_DRIVER, SetLimits

Context = KeyedProcessFunction.Context
ROWS = 60
PATHS = "seq bigint, path string"


class Visits(KeyedProcessFunction):
    """Keeps the places that a key visited, in order; emits none, one or two rows per element."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.places = runtime_context.get_list_state(ListStateDescriptor("places", str))

    def process_element(self, value: Any, ctx: Context) -> Iterable[Any]:
        self.places.add(value.place)
        for _ in range(value.seq % 3):
            yield value.seq, f"{ctx.get_current_key()}:{''.join(self.places.get())}"


class Log(KeyedProcessFunction):
    """Chains the numbers of all earlier elements per length of path; counts them in a map, too."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.before = runtime_context.get_state(ValueStateDescriptor("before", str, default=""))
        self.counts = runtime_context.get_map_state(MapStateDescriptor("counts", int, int))

    def process_element(self, value: Any, ctx: Context) -> Iterable[Any]:
        chain = f"{self.before.value()}.{value.seq}"[-40:]
        self.before.update(chain)
        count = (self.counts.get(value.seq) or 0) + 1
        self.counts.remove(value.seq - 7)
        self.counts.put(value.seq, count)
        yield value.seq, count, chain, ",".join(map(str, self.counts))


def feed(directory: Path, seed: int) -> Path:
    """Three files in no order, with ties in the order column."""
    rng = random.Random(seed)
    rows = [(rng.randrange(ROWS // 2), rng.choice("abcd"), rng.choice("xyz")) for _ in range(ROWS)]
    directory.mkdir(parents=True)
    for part in range(3):
        seq, who, place = zip(*rows[part * 20 : part * 20 + 20], strict=True)
        pq.write_table(pa.table({"seq": seq, "who": who, "place": place}), directory / f"{part}.parquet")
    return directory


def with_size(rows: DataFrame) -> DataFrame:
    return rows.withColumn("size", F.length("path") % 4)


def with_size_of_table(rows: pa.Table) -> pa.Table:
    """The replacement of `with_size`."""
    return rows.append_column(
        "size", pa.array([len(path) % 4 for path in rows["path"].to_pylist()], pa.int32())
    )


def chain(source: FileSource, sink: str, *, parallelism: int, order_by: Sequence[str]) -> StatefulJob:
    job = StatefulJob("chain", parallelism=parallelism, max_parallelism=128)
    paths = job.source("visits", source, order_by=order_by).key_by("who")
    out = paths.process(Visits(), uid="paths", output_type=PATHS)
    log = (
        out.transform(with_size)
        .key_by("size")
        .process(Log(), uid="log", output_type="seq bigint, count bigint, chain string, counts string")
    )
    log.sink("log", DeltaSink(sink))
    return job


Results = tuple[list[Any], list[Any], int]
"""Outputs, state and number of batches of a chain of two operators."""


def in_memory(rows: list[Any], *, cut: int, parallelism: int, order_by: Sequence[str] = ()) -> Results:
    source = FileSource("/nowhere", schema="seq bigint, who string, place string")
    job = chain(source, "/nowhere", parallelism=parallelism, order_by=order_by)
    with run_in_memory(job, transforms={with_size: with_size_of_table}) as memory:
        for at in range(0, len(rows), cut):
            memory.process({"visits": rows[at : at + cut]})
        state = [(key, value) for key, value in memory.state("log", "before").items()]
        counts = memory.state("log", "counts").items()
        state += [(key, *entry) for key, entries in counts for entry in entries.items()]
        return sorted(map(tuple, memory.sink("log"))), sorted(state, key=repr), len(memory.checkpoints())


def rows_of(events: Path) -> list[Any]:
    """All rows, in the order of files."""
    tables = [pq.read_table(file) for file in sorted(events.iterdir())]
    return [row for table in tables for row in table.to_pylist()]


def run(
    spark: SparkSession, directory: Path, source: FileSource, *, parallelism: int, order_by: list[str]
) -> Results:
    job = chain(source, str(directory / "log"), parallelism=parallelism, order_by=order_by)
    with StateEngine(directory / "root", spark) as engine:
        report = engine.run(job)
        state = [
            tuple(row)
            for state in ("before", "counts")
            for row in engine.read_state(job, "log", state).collect()
        ]
    rows = DeltaTable(str(directory / "log")).to_pyarrow_table().to_pylist()
    return sorted(tuple(r.values()) for r in rows), sorted(state, key=repr), len(report.batches)


@pytest.mark.parametrize(
    ("seed", "cuts"), [pytest.param(1, [(5, 25)], marks=pytest.mark.long), (2, [(2, 13)])]
)
def test_neither_cuts_nor_parallelism_matter(
    tmp_path: Path,
    spark: SparkSession,
    limits: SetLimits,
    seed: int,
    cuts: list[tuple[int, int | None]],
) -> None:
    """Without order_by the total order is that of files and rows, so any cut is right; whoever routes the rows."""
    events = feed(tmp_path / "feed", seed)
    limits(**NOTHING_BY_DRIVER)
    expected = run(spark, tmp_path / "whole", FileSource(str(events)), parallelism=1, order_by=[])
    limits()
    assert expected[0]
    assert expected[2] == 1
    for parallelism, rows in ((1, ROWS), (4, 13)):
        again = in_memory(rows_of(events), cut=rows, parallelism=parallelism)
        assert again[:2] == expected[:2], (parallelism, rows)
        assert again[2] == -(-ROWS // rows)
    for parallelism, cut in cuts:
        source = FileSource(str(events), max_rows_per_batch=cut)
        outcome = run(spark, tmp_path / f"{parallelism}-{cut}", source, parallelism=parallelism, order_by=[])
        assert outcome[:2] == expected[:2], (parallelism, cut)
        assert outcome[2] == (-(-ROWS // cut) if cut else 1)


def test_every_element_in_a_batch_of_its_own() -> None:
    rows = list(zip(range(6), "aabbab", "xyzxyz", strict=True))
    expected = in_memory(rows, cut=6, parallelism=1)
    assert in_memory(rows, cut=1, parallelism=2) == (*expected[:2], 6)


def test_a_declared_order_holds_within_a_batch_through_the_chain(tmp_path: Path, spark: SparkSession) -> None:
    """Sorted by seq, ties by file and row: as if the input had been one sorted file."""
    events = feed(tmp_path / "feed", 3)
    rows = rows_of(events)
    ordered = sorted(rows, key=lambda r: r["seq"])  # stable, so ties stay in order of file and row
    expected = in_memory(ordered, cut=ROWS, parallelism=1)
    for parallelism in (1, 3):
        assert in_memory(rows, cut=ROWS, parallelism=parallelism, order_by=["seq"]) == expected
    on_spark = run(spark, tmp_path / "p3", FileSource(str(events)), parallelism=3, order_by=["seq"])
    assert on_spark == expected


class Square(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Context) -> Iterable[Any]:
        yield value.seq * value.seq


class Half(KeyedProcessFunction):
    """Sees bare numbers."""

    def process_element(self, value: int, ctx: Context) -> Iterable[Any]:
        assert type(value) is int
        assert ctx.get_current_key() == value
        yield value / 2, f"{value}"


def test_a_stream_of_scalars_carries_bare_scalars() -> None:
    job = StatefulJob("scalars", parallelism=2)
    visits = job.source("visits", FileSource("/nowhere", schema="seq bigint, who string"))
    squares = visits.key_by("who").process(Square(), uid="squares", output_type=int)
    squares.sink("squares", CollectSink())
    halves = squares.key_by("value").process(Half(), uid="halves", output_type="half double, text string")
    halves.sink("halves", CollectSink())
    with run_in_memory(job) as memory:
        outputs = memory.process({"visits": [(1, "a"), (2, "b"), (3, "a")]})
        assert sorted(outputs["squares"]) == [1, 4, 9]
        assert sorted(outputs["halves"]) == [(0.5, "1"), (2.0, "4"), (4.5, "9")]


def test_a_fork_and_sinks_everywhere(tmp_path: Path, spark: SparkSession) -> None:
    """Two operators on one stream; sinks on the source, behind a transform, and on an operator twice."""
    events = tmp_path / "feed"
    events.mkdir()
    pq.write_table(
        pa.table({"seq": list(range(10)), "who": list("ababababab"), "place": list("xyxyxyxyxy")}),
        events / "0.parquet",
    )
    job = StatefulJob("fork", parallelism=2)
    visits = job.source("visits", FileSource(str(events), max_rows_per_batch=4))
    visits.sink("raw", DeltaSink(str(tmp_path / "raw")))
    visits.transform(lambda f: f.where("seq % 2 = 0").select("seq")).sink(
        "even", DeltaSink(str(tmp_path / "even"))
    )
    by_who = visits.key_by("who").process(Visits(), uid="by_who", output_type=PATHS)
    by_place = visits.key_by("place").process(Visits(), uid="by_place", output_type=PATHS)
    by_who.sink("one", DeltaSink(str(tmp_path / "one"))).sink("two", DeltaSink(str(tmp_path / "two")))
    by_who.transform(lambda f: f.select((F.col("seq") + 100).alias("seq"))).sink(
        "moved", DeltaSink(str(tmp_path / "moved"))
    )
    by_place.sink("places", DeltaSink(str(tmp_path / "places")))

    report = StateEngine(tmp_path / "root", spark).run(job)

    def rows(name: str) -> list[Any]:
        return sorted(
            tuple(r.values()) for r in DeltaTable(str(tmp_path / name)).to_pyarrow_table().to_pylist()
        )

    emitted = [seq for seq in range(10) for _ in range(seq % 3)]
    assert [r[0] for r in rows("raw")] == list(range(10))
    assert rows("even") == [(0,), (2,), (4,), (6,), (8,)]
    assert [r[0] for r in rows("one")] == emitted
    assert rows("one") == rows("two")
    assert rows("moved") == [(seq + 100,) for seq in emitted]
    assert [r[0] for r in rows("places")] == emitted
    assert report.rows_in == 10  # though two operators and two sinks read them
    assert report.rows_out == {"raw": 10, "even": 5, "one": 9, "two": 9, "moved": 9, "places": 9}
