"""Taking a Structured Streaming query over: its state, what it had read, and a shadow run beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from state_engine import (
    DeltaSink,
    DeltaSource,
    FileSource,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.core.errors import ConfigurationError, SetupError
from state_engine.replay.comparison import compare_outputs
from state_engine.sources.base import Source
from state_engine.state_processor.spark_state_reader import SparkQuery, SparkState
from tests.support.tiny import OUTPUT, Site, Sum

SCHEMA = "k string, v bigint"


class Everything(StatefulProcessor):
    """A value, a list and a map per key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total bigint")
        self.recent = handle.getListState("recent", "v bigint")
        self.counts = handle.getMapState("counts", "v bigint", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        total = self.total.get()[0] if self.total.exists() else 0  # type: ignore[index]
        for v in sorted(row.v for row in rows):
            total += v
            self.recent.appendValue((v,))
            known: Any = self.counts.getValue((v,)) if self.counts.containsKey((v,)) else (0,)
            self.counts.updateValue((v,), (known[0] + 1,))
        self.total.update((total,))
        yield Row(k=key[0], total=total)

    def close(self) -> None:
        pass


class Ours(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int))
        self.recent = runtime_context.get_list_state(ListStateDescriptor("recent", int))
        self.counts = runtime_context.get_map_state(MapStateDescriptor("counts", int, int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.total.update((self.total.value() or 0) + value.v)
        self.recent.add(value.v)
        self.counts.put(value.v, (self.counts.get(value.v) or 0) + 1)
        yield value.k, value.v, self.total.value()


def drain(rows: DataFrame, checkpoint: Path, table: Path, mode: str = "update") -> None:
    """Run a query over the present input, and stop it."""

    def append(batch: DataFrame, _: int) -> None:
        batch.write.format("delta").mode("append").save(str(table))

    writer = (
        rows.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint)).foreachBatch(append)
    )
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()


@pytest.mark.long
def test_a_transform_with_state_query_over_files_is_taken_over(
    tmp_path: Path, streaming: SparkSession
) -> None:
    site = Site(tmp_path, streaming)
    site.put({"k": ["a", "b", "a"], "v": [1, 2, 3]}, "0").put({"k": ["a", "c"], "v": [1, 5]}, "1")

    def query() -> None:
        events = streaming.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").parquet(str(site.feed))
        drain(
            events.groupBy("k").transformWithState(Everything(), "k string, total bigint", "Update", "None"),
            tmp_path / "query",
            tmp_path / "old",
        )

    query()
    job = StatefulJob("ours", parallelism=2)
    job.source("events", FileSource(str(site.feed))).key_by("k").process(
        Ours(), uid="sums", output_type=OUTPUT
    ).sink("out", DeltaSink(str(site.sink)))
    states = {name: SparkState(name) for name in ("total", "recent", "counts")}
    site.put({"k": ["a", "d"], "v": [10, 7]}, "2")  # nobody has read this
    engine, checkpoint = site.engine(), tmp_path / "query"
    planned = engine.state_processor(job).bootstrap_from_spark("sums", checkpoint, states, dry_run=True)
    assert planned.entries == {"sums": {"total": 3, "recent": 3, "counts": 4}}
    done = engine.state_processor(job).bootstrap_from_spark("sums", checkpoint, states)
    assert (done.committed_id, done.from_the_beginning) == (1, [])
    engine.run(job)
    read = {n: engine.read_state(job, "sums", n).collect() for n in states}
    assert {r["k"]: r["value"] for r in read["total"]} == {"a": 15, "b": 2, "c": 5, "d": 7}
    assert {r["k"]: sorted(r["value"]) for r in read["recent"]} == {
        "a": [1, 1, 3, 10],
        "b": [2],
        "c": [5],
        "d": [7],
    }
    assert {(r["k"], r["map_key"]): r["value"] for r in read["counts"]} == {
        ("a", 1): 2, ("a", 3): 1, ("a", 10): 1, ("b", 2): 1, ("c", 5): 1, ("d", 7): 1
    }  # fmt: skip
    assert len(site.outputs()) == 2

    query()  # the old one goes on beside it, into its own sink: totals after the same input must be the same
    old = (
        streaming.read.format("delta")
        .load(str(tmp_path / "old"))
        .groupBy("k")
        .agg(F.max("total").alias("total"))
    )
    new = engine.read_state(job, "sums", "total").select("k", F.col("value").alias("total"))
    assert compare_outputs(old, new, ["k"]).is_equal
    wrong = compare_outputs(old, new.replace(15, 16, ["total"]), ["k"])
    assert (wrong.rows_only_old, wrong.rows_only_new, wrong.keys_differing) == (1, 1, 1)
    assert [tuple(r) for r in wrong.only_old.collect()] == [("a", 15, 1)]


@pytest.mark.long
def test_an_aggregation_over_a_delta_table_is_taken_over(tmp_path: Path, streaming: SparkSession) -> None:
    site, table = Site(tmp_path, streaming), tmp_path / "table"

    def add(*rows: tuple[str, int]) -> None:
        streaming.createDataFrame(list(rows), SCHEMA).write.format("delta").mode("append").save(str(table))

    add(("a", 1), ("b", 2))
    add(("a", 3))
    events = streaming.readStream.format("delta").load(str(table))
    sums = events.groupBy(F.upper("k").alias("name")).agg(F.sum("v").alias("total"), F.count("v").alias("n"))
    drain(sums, tmp_path / "query", tmp_path / "old")
    add(("a", 10), ("c", 5))

    job = StatefulJob("ours")
    job.source("events", DeltaSource(str(table))).transform(lambda d: d.withColumn("k", F.upper("k"))).key_by(
        "k"
    ).process(Sum(), uid="sums", output_type=OUTPUT).sink("out", DeltaSink(str(site.sink)))
    engine, checkpoint = site.engine(), str(tmp_path / "query")
    wanted = {"total": SparkState(key={"k": "key._groupingexpression"}, value="value.sum")}
    with pytest.raises(ConfigurationError, match=r"cannot be read so: .*nope.* gives"):
        engine.state_processor(job).bootstrap_from_spark(
            "sums", checkpoint, {"total": SparkState(value="value.nope")}
        )
    ahead_ms = time.time_ns() // 1_000_000 + 3650 * 86_400_000
    processor = engine.state_processor(job)
    for dry_run in (True, False):
        with pytest.raises(SetupError, match=r"the clock of this machine says .*max_clock_jump"):
            processor.bootstrap_from_spark("sums", checkpoint, wanted, clock=ahead_ms, dry_run=dry_run)
    assert engine.checkpoints(job) == []
    processor.bootstrap_from_spark("sums", checkpoint, wanted, clock=ahead_ms, accept_clock=True)
    assert [row.clock_ms for row in engine.checkpoints(job)] == [ahead_ms]
    engine.run(job)
    assert {r["k"]: r["value"] for r in engine.read_state(job, "sums", "total").collect()} == {
        "A": 14,
        "B": 2,
        "C": 5,
    }
    assert site.outputs() == [("A", 10, 14), ("C", 5, 5)]


@pytest.mark.long
def test_offsets_that_say_nothing_are_refused_by_name(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark).put({"k": ["a"], "v": [1]})
    with pytest.raises(ConfigurationError, match="not a checkpoint of a query with a committed batch"):
        SparkQuery.at(spark, str(tmp_path))
    for name in ("commits", "offsets"):
        (tmp_path / name).mkdir()
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"topic":{"0":7}}\n-')
    query, files = SparkQuery.at(spark, str(tmp_path)), FileSource(str(site.feed))
    sources: dict[str, Source] = {"kafka": files, "later": files}
    with pytest.raises(ConfigurationError, match=r"'kafka': the query's offset .*positions=\{"):
        query.positions(sources, {})
    with pytest.raises(ConfigurationError, match="reads 2 sources, the job"):
        query.positions({"kafka": files}, {})
    assert query.positions(sources, {"kafka": "all"}) == {"kafka": "all"}
