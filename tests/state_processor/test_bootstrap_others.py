"""A job that begins with timers and with operator state: what a run would have left, handed out as after a restore."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from state_engine import (
    CheckpointedFunction,
    DeltaSink,
    FileSource,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListCheckpointed,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessFunction,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    StatelakeError,
    Types,
    ValueStateDescriptor,
)
from state_engine.core.errors import ConfigurationError, InvalidKeyError, ValueTypeError
from tests.support.tiny import Site


class Alarm(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self.count.update((self.count.value() or 0) + 1)
        if value.v < 0:
            ctx.timer_service().delete_processing_time_timer(-value.v)
        elif value.v:
            ctx.timer_service().register_processing_time_timer(value.v)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        yield f"{ctx.get_current_key()} {ctx.time_domain().name}", timestamp, self.count.value() or 0


def timers(spark: SparkSession, rows: list[tuple[Any, ...]], kind: str = "bigint") -> Any:
    return spark.createDataFrame(rows, f"k string, at {kind}")


def test_timers_fire_as_if_the_job_had_set_them(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark)
    engine, job = site.engine(), site.job(Alarm(), uid="alarms")
    given = {"processing": timers(spark, [("a", 1000), ("a", 1000), ("a", 3000), ("b", 2000), ("c", 2500)])}
    states = {"count": spark.createDataFrame([("a", 7)], "k string, value int")}
    planned = engine.state_processor(job).bootstrap(
        {"alarms": states}, timers={"alarms": given}, dry_run=True
    )
    assert planned.entries == {"alarms": {"count": 1, "_timers": 4}}
    assert not engine.checkpoints("tiny")
    engine.state_processor(job).bootstrap({"alarms": states}, timers={"alarms": given}, clock=0)
    (row,) = engine.checkpoints("tiny")
    operator = row.operator("alarms")
    assert operator is not None
    assert operator.next_timers_ms == {"processing": 1000}
    assert engine.run(job, clock=999).batches == []
    engine.run(job, clock=1500)
    assert site.outputs() == [("a PROCESSING_TIME", 1000, 7)]
    site.put(
        {"k": ["b", "d", "a"], "v": [-2000, 2200, 3000]}
    )  # one that was given is deleted, one is set again
    engine.run(job, clock=1600)
    engine.run(job, clock=9000)
    assert site.outputs() == [
        ("a PROCESSING_TIME", 1000, 7), ("a PROCESSING_TIME", 3000, 8), ("c PROCESSING_TIME", 2500, 0),
        ("d PROCESSING_TIME", 2200, 1),
    ]  # fmt: skip


@pytest.mark.long
def test_timers_of_event_time_wait_for_the_watermark(tmp_path: Path, spark: SparkSession) -> None:
    feed = tmp_path / "feed"
    feed.mkdir()
    job = StatefulJob("timed", parallelism=2)
    events = job.source(
        "events", FileSource(str(feed), schema="k string, v bigint, at timestamp"), event_time="at"
    )
    out = events.key_by("k").process(Alarm(), uid="alarms", output_type="k string, v bigint, total bigint")
    out.sink("out", DeltaSink(str(tmp_path / "sink")))
    engine = StateEngine(tmp_path / "root", spark)
    at = [("a", datetime.fromtimestamp(5, UTC)), ("b", datetime.fromtimestamp(50, UTC))]
    engine.state_processor(job).bootstrap(
        {}, timers={"alarms": {"event": timers(spark, at, "timestamp")}}, clock=0
    )

    def fired() -> list[str]:
        return sorted(r["k"] for r in spark.read.format("delta").load(str(tmp_path / "sink")).collect())

    for number, seconds in enumerate((4, 6)):
        table = {"k": ["x"], "v": [0], "at": [datetime.fromtimestamp(seconds, UTC)]}
        pq.write_table(pa.table(table), feed / f"{number}.parquet")
        engine.run(job, clock=number)
        assert fired() == (["a EVENT_TIME"] if number else [])
    left = engine.read_state(job, "alarms", "_timers").select("k", "map_key.*").collect()
    assert [tuple(r) for r in left] == [("b", 50_000, "event")]
    engine.run(job, clock=3, drain=True)
    assert fired() == ["a EVENT_TIME", "b EVENT_TIME"]


@pytest.mark.long
def test_what_is_no_timer_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark)
    engine, job = site.engine(), site.job(Alarm(), uid="alarms")
    good = timers(spark, [("a", 1)])
    refused: list[tuple[Any, type[StatelakeError], str]] = [
        ({"other": {"event": good}}, ConfigurationError, r"the job has \['alarms'\]"),
        ({"alarms": {"event": good.withColumn("x", F.lit(1))}}, ConfigurationError, "give one column"),
        (
            {"alarms": {"event": timers(spark, [("a", "1")], "string")}},
            ConfigurationError,
            r"not \['at string'\]",
        ),
        ({"alarms": {"event": timers(spark, [("a", None)])}}, InvalidKeyError, "is null"),
        ({"alarms": {"event": timers(spark, [(None, 1)])}}, InvalidKeyError, "the key 'k' is null"),
    ]
    for given, error, message in refused:
        with pytest.raises(error, match=message):
            engine.state_processor(job).bootstrap({}, timers=given)
    assert not engine.checkpoints("tiny")


class Lists(ProcessFunction, CheckpointedFunction):
    """Emits its restored state in its first batch, with the number of the subtask."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.split = store.get_list_state(ListStateDescriptor("split", int))
        self.union = store.get_union_list_state(ListStateDescriptor("all", tuple[str, int]))
        self.restored = context.is_restored()

    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        return []

    def snapshot_state(self, context: Any) -> None:
        lines = [f"{self.subtask} {self.restored}: {list(self.split.get())} {sorted(self.union.get())}"]
        self.union.update([(line, len(lines)) for line in lines])


class Counted(ProcessFunction, ListCheckpointed):
    count = 0

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.count += 1
        yield value.k, value.v, self.count

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[Any]:
        return [self.count]

    def restore_state(self, state: list[Any]) -> None:
        self.count = sum(state)


RULES = MapStateDescriptor("rules", Types.STRING(), Types.INT())


class Ruled(KeyedBroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield value.k, value.v, ctx.get_broadcast_state(RULES).get(value.k)

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put(value.k, value.v)


@pytest.mark.long
@pytest.mark.parametrize("parallelism", [1, 3])
def test_lists_are_handed_out_as_after_a_restore(
    tmp_path: Path, spark: SparkSession, parallelism: int
) -> None:
    job = StatefulJob("lists", parallelism=parallelism)
    job.from_collection([("a", 1)], "k string, v bigint", name="events").process(
        Lists(), uid="lists", output_type="string"
    ).sink("out", DeltaSink(str(tmp_path / "sink")))
    engine = StateEngine(tmp_path / "root", spark)
    given = {"lists": {"split": range(5), "all": [("x", 1), ("y", 2)]}}
    planned = engine.state_processor(job).bootstrap({}, operator_state=given, dry_run=True)
    assert planned.operator_state == {"lists": {"split": 5, "all": 2}} or planned.operator_state == {
        "lists": {"all": 2, "split": 5}
    }
    assert not engine.checkpoints("lists")
    engine.state_processor(job).bootstrap({}, operator_state=given)
    engine.run(job)
    rows = engine.sql("lists", "SELECT value FROM operator_state WHERE state = 'all'").collect()
    shares = {1: ["[0, 1, 2, 3, 4]"], 3: ["[0, 1]", "[2, 3]", "[4]"]}[parallelism]
    shown = sorted(str(r["value"]) for r in rows)
    assert len(shown) == parallelism
    for subtask, (line, share) in enumerate(zip(shown, shares, strict=True)):
        assert f"{subtask} True: {share}" in line
        assert line.count("'x'") == line.count("'y'") == 1


@pytest.mark.long
def test_lists_of_functions_and_broadcast_state(tmp_path: Path, spark: SparkSession) -> None:
    rows = [("a", 1), ("b", 2)]
    job = StatefulJob("others", parallelism=2)
    events = job.from_collection(rows, "k string, v bigint", name="events")
    rules = job.from_collection([("b", 20)], "k string, v bigint", name="rules")
    counted = events.process(Counted(), uid="counted", output_type="k string, v bigint, n bigint")
    counted.set_parallelism(1).sink("counted", DeltaSink(str(tmp_path / "counted")))
    ruled = events.key_by("k").connect(rules.broadcast(RULES))
    ruled.process(Ruled(), uid="ruled", output_type="k string, v bigint, n bigint").sink(
        "ruled", DeltaSink(str(tmp_path / "ruled"))
    )
    engine = StateEngine(tmp_path / "root", spark)
    refused: list[tuple[Any, type[StatelakeError], str]] = [
        ({"other": {"x": []}}, ConfigurationError, r"the job has \['counted', 'ruled'\]"),
        ({"counted": {"x": []}}, ConfigurationError, r"it.* asks for \['list_checkpointed'\]"),
        ({"ruled": {RULES: {"a": "ten"}}}, ValueTypeError, "operator state 'rules': .*'ten'"),
        ({"ruled": {RULES: 7}}, ValueTypeError, "operator state 'rules'"),
        ({"counted": {"list_checkpointed": "12"}}, ValueTypeError, "a sequence of its elements, not as '12'"),
    ]
    for given, error, message in refused:
        with pytest.raises(error, match=message):
            engine.state_processor(job).bootstrap({}, operator_state=given)
    done = engine.state_processor(job).bootstrap(
        {},
        operator_state={"counted": {"list_checkpointed": [10, 90]}, "ruled": {RULES: {"a": 10, "b": 11}}},
    )
    assert done.operator_state == {"counted": {"list_checkpointed": 2}, "ruled": {"rules": 2}}
    engine.run(job)
    assert read(spark, tmp_path / "counted") == [("a", 1, 101), ("b", 2, 102)]
    assert read(spark, tmp_path / "ruled") == [("a", 1, 10), ("b", 2, 20)]


def read(spark: SparkSession, path: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(r) for r in spark.read.format("delta").load(str(path)).collect())
