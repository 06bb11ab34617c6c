"""Transforms of keyed state and operators that leave: what changes, what stays, and whom they never overtake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine import (
    DeltaSink,
    DeltaStateTable,
    FileSource,
    KeyedProcessFunction,
    RuntimeContext,
    StateEngine,
    StatefulJob,
    ValueStateDescriptor,
)
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.errors import ConfigurationError, InvalidKeyError, StateMigrationError, ValueTypeError
from state_engine.state_processor.state_transform import StateChange
from tests.support.small_job import CLOCK_MS, build, folded, write_feed
from tests.support.tiny import Site, Sum


def tenfold(state: DataFrame) -> DataFrame:
    return state.withColumn("value", F.col("value") * 10)


def test_values_change_and_the_job_goes_on_from_them(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark).put({"k": ["a", "b", "c"], "v": [0, 2, 3]})
    engine, job = site.engine(), site.job()
    engine.run(job)
    planned = engine.state_processor(job).transform_state("sums", "total", map=tenfold, dry_run=True)
    assert planned.states == [StateChange("sums", "total", before=3, after=3, added=0, changed=2, deleted=0)]
    assert (planned.parent_id, planned.committed_id, len(engine.checkpoints(job))) == (1, None, 1)

    done = engine.state_processor(job).transform_state("sums", "total", map=tenfold)
    assert (done.states, done.committed_id) == (planned.states, 2)
    assert site.state() == {"a": 0, "b": 20, "c": 30}
    row = engine.checkpoints(job)[-1]
    assert (row.kind, row.parent_id, sum(o.changed_entries for o in row.operators)) == ("transform", 1, 2)
    site.put({"k": ["a", "b"], "v": [1, 1]}, "1")
    engine.run(job)
    assert site.state() == {"a": 1, "b": 21, "c": 30}
    engine.compact(job)
    assert site.state() == {"a": 1, "b": 21, "c": 30}
    nothing = engine.state_processor(job).transform_state("sums", "total", filter="value > 0")
    assert (nothing.changes, nothing.committed_id) == (0, None)

    with pytest.raises(ConfigurationError, match=r"checkpoint 2 transformed the state.*replay from"):
        engine.replay(job)
    assert engine.restore(job, checkpoint_id=1).abandoned == [
        2,
        3,
    ]  # the transform and the micro-batch after it
    assert site.state() == {"a": 0, "b": 2, "c": 3}


@pytest.mark.long
def test_what_is_no_transform_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark).put({"k": ["a", "b"], "v": [1, 2]})
    engine, job = site.engine(), site.job()
    engine.run(job)
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"filter": "true", "map": tenfold}, ConfigurationError, r"not \['map', 'filter'\]"),
        (
            {"filter": "total > 1"},
            ConfigurationError,
            r"filter 'total > 1' does not fit the columns .*'value'",
        ),
        ({"filter": ""}, ConfigurationError, "filter '' does not fit the columns"),
        ({"delete_keys": "a"}, ConfigurationError, "delete_keys must be a DataFrame, .* not 'a'"),
        ({"map": lambda s: 7}, ConfigurationError, "not 7"),
        ({"map": lambda s: s.withColumn("k", F.lit(1))}, ConfigurationError, "its key is stored as"),
        (
            {"map": lambda s: s.withColumn("k", F.lit("a"))},
            ValueTypeError,
            "2 rows are given, for the key {'k': 'a'}",
        ),
        (
            {"map": lambda s: s.withColumn("k", F.lit(None).cast("string"))},
            InvalidKeyError,
            "the key 'k' is null",
        ),
        ({"map": lambda s: s.withColumn("value", F.lit("x"))}, ConfigurationError, "'value' is string"),
        ({"delete_keys": [("a", 1)]}, ConfigurationError, r"has the columns \['k'\], given is \('a', 1\)"),
        ({"delete_keys": [{"name": "a"}]}, ConfigurationError, r"has the columns \['k'\], given is"),
        ({"delete_keys": [None]}, InvalidKeyError, "cannot be a key"),
    ]
    for given, error, message in refused:
        with pytest.raises(error, match=message):
            engine.state_processor(job).transform_state("sums", "total", **given)
    for operator, state, message in (
        ("other", "total", "there is of"),
        ("sums", "other", r"there are \['total'\]"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            engine.state_processor(job).transform_state(operator, state, filter="true")
    assert len(engine.checkpoints(job)) == 1


@pytest.mark.long
def test_every_shape_is_what_plain_python_makes_of_it(tmp_path: Path, spark: SparkSession) -> None:
    engine = StateEngine(tmp_path / "root", spark)
    job = build(write_feed(tmp_path / "feed"), tmp_path / "sinks")
    engine.run(job, clock=CLOCK_MS)
    before = folded(engine, "totals") | folded(engine, "ranks")

    def odd(name: str) -> bool:
        return int(name[1:]) % 2 == 1

    is_odd = F.substring("name", 2, 9).cast("int") % 2 == 1
    engine.state_processor(job).transform_state(
        "totals",
        "total",
        map=lambda s: s.withColumn("value", F.when(is_odd, F.col("value")).otherwise(7)),
    )
    engine.state_processor(job).transform_state(
        "totals",
        "recent",
        map=lambda s: s.withColumn(
            "value",
            F.when(is_odd, F.array_append("value", F.lit(1))).otherwise(F.array().cast("array<bigint>")),
        ),
    )
    engine.state_processor(job).transform_state(
        "totals",
        "parities",
        map=lambda s: s.withColumn(
            "map_key",
            F.when(is_odd & (F.col("map_key") == "odd"), F.lit("strange")).otherwise(F.col("map_key")),
        ),
    )
    engine.state_processor(job).transform_state(
        "ranks",
        "seen",
        map=lambda s: s.withColumn("value", F.struct(F.lit(1).alias("f0"), F.col("value.f1").alias("f1"))),
    )
    engine.state_processor(job).transform_state("totals", "total", filter=F.col("name") != "n3")

    expected: dict[tuple[Any, ...], Any] = {}
    for (state, key), value in before.items():
        if state == "total" and key != "n3":
            expected[state, key] = value if odd(key) else 7
        elif state == "recent" and odd(key):
            expected[state, key] = [*value, 1]
        elif state == "parities":
            expected[state, key] = {"strange" if odd(key) and p == "odd" else p: n for p, n in value.items()}
        elif state == "seen":
            expected[state, key] = {"f0": 1, "f1": value["f1"]}
    states = folded(engine, "totals") | folded(engine, "ranks")
    assert drop_empty(states) == drop_empty(expected)
    seen = {r["parity"]: r["value"].asDict() for r in engine.read_state(job, "ranks", "seen").collect()}
    assert seen == {k: v for (s, k), v in expected.items() if s == "seen"}

    gone = engine.state_processor(job).transform_state(
        "totals", delete_keys=spark.createDataFrame([("n1",), ("x",)], "name string")
    )
    assert {s.state: s.deleted for s in gone.states} == {
        "total": 1,
        "recent": 1,
        "parities": len(expected["parities", "n1"]),
    }
    left = {k: v for k, v in expected.items() if k[1] != "n1"}
    assert drop_empty(folded(engine, "totals") | folded(engine, "ranks")) == drop_empty(left)
    engine.compact(job)
    recent = {r["name"]: r["value"] for r in engine.read_state(job, "totals", "recent").collect()}
    assert recent == {k: v for (s, k), v in left.items() if s == "recent"}
    engine.run(job, clock=CLOCK_MS)


def drop_empty(entries: dict[Any, Any]) -> dict[Any, Any]:
    return {k: v for k, v in entries.items() if v not in ({}, [])}


class Alarm(KeyedProcessFunction):
    """Counts, and sets a timer for each element; two states."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.first = runtime_context.get_state(ValueStateDescriptor("first", int))
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        if value.v >= 0:
            self.first.update(value.v)
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_processing_time_timer(1000 + abs(value.v))

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield ctx.get_current_key(), timestamp, self.count.value() or 0


@pytest.mark.long
def test_timers_go_with_the_last_state_of_their_key(tmp_path: Path, spark: SparkSession) -> None:
    site = Site(tmp_path, spark).put({"k": ["a", "b", "c", "d"], "v": [1, 2, -3, 4]})
    engine, job = site.engine(), site.job(Alarm(), uid="alarms")
    engine.run(job, clock=10)
    by_state = engine.state_processor(job).transform_state("alarms", "first", filter="k != 'a'")
    assert {s.state: s.deleted for s in by_state.states} == {"first": 1, "_timers": 0}  # its count is left
    by_state = engine.state_processor(job).transform_state("alarms", "count", delete_keys=["a", "c"])
    assert {s.state: s.deleted for s in by_state.states}["_timers"] == 2
    assert engine.checkpoints(job)[-1].operator("alarms").next_timers_ms == {"processing": 1002}  # type: ignore[union-attr]
    engine.state_processor(job).transform_state("alarms", delete_keys=["b"])
    assert engine.checkpoints(job)[-1].operator("alarms").next_timers_ms == {"processing": 1004}  # type: ignore[union-attr]
    assert engine.run(job, clock=1003).batches == []
    engine.run(job, clock=2000)
    assert site.outputs() == [("d", 1004, 1)]


@pytest.fixture
def site(tmp_path: Path, spark: SparkSession) -> Site:
    """After one micro-batch of a job with two operators; more input waits."""
    site = Site(tmp_path, spark).put({"k": ["a", "b"], "v": [1, 2]})
    site.engine().run(job_of(site, "sums", "old"))
    return site.put({"k": ["a"], "v": [10]}, "1")


def job_of(site: Site, *uids: str, key: str = "k") -> StatefulJob:
    job = StatefulJob("tiny", parallelism=2)
    rows = job.source("events", FileSource(str(site.feed)))
    for uid in uids:
        sums = rows.key_by(key).process(Sum(), uid=uid, output_type="k string, v bigint, total bigint")
        sums.sink(uid, DeltaSink(str(site.directory / uid)))
        if uid == "old":
            sums.publish_state("total", DeltaStateTable(str(site.directory / "shown")), name="shown")
    return job


def test_an_operator_leaves_and_the_job_goes_on(site: Site) -> None:
    engine, job = site.engine(), job_of(site, "sums")
    with pytest.raises(StateMigrationError, match=r"drop_operators\('old'\).*drop-operators tiny --operator"):
        engine.run(job)
    processor = engine.state_processor(job)
    planned = processor.drop_operators("old", dry_run=True)
    assert (planned.operators, planned.committed_id) == ({"old": {"total": 2}}, None)
    assert len(engine.checkpoints(job)) == 1
    done = processor.drop_operators("old", requested_by="me")
    row = engine.checkpoints(job)[-1]
    assert (row.checkpoint_id, row.kind, row.requested_by) == (
        done.committed_id,
        CheckpointKind.TRANSFORM,
        "me",
    )
    assert [operator.uid for operator in row.operators] == ["sums"]
    engine.run(job)
    assert site.state() == {"a": 11, "b": 2}
    assert sorted(pl.read_delta(str(site.directory / "shown")).rows()) == [("a", 1), ("b", 2)]  # as it was

    engine.run(job_of(site.put({"k": ["b"], "v": [5]}, "2"), "sums", "old"))  # it begins with nothing
    assert (site.state(), site.state(operator="old")) == ({"a": 11, "b": 7}, {"b": 5})
    engine.restore("tiny", checkpoint_id=1)
    assert site.state(operator="old") == {"a": 1, "b": 2}


def test_a_key_of_other_columns_is_no_other_type(site: Site) -> None:
    processor = site.engine().state_processor(job_of(site, "sums", "old", key="v"))
    with pytest.raises(ConfigurationError, match=r"stored by \['k'\], the job keys by \['v'\]. Other"):
        processor.change_key_type("sums", dry_run=True)
