"""Misuse that only a run detects: each error has its class and its place, and nothing is committed.

In memory, but for what is about files, tables and DataFrame code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from state_engine import (
    DataStream,
    FileSource,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    SourceFunction,
    StatefulJob,
    Types,
)
from state_engine.core.errors import (
    ConfigurationError,
    InvalidKeyError,
    SourceError,
    StateAccessError,
    StatelakeError,
    UserFunctionError,
)
from tests.support.pipelines import MemoryPipeline, Pipeline

PAIR = "k string, v bigint"


def pairs(job: StatefulJob, **options: Any) -> DataStream:
    return job.from_collection([("a", 1), ("b", 2)], PAIR, name="pairs", **options)


def keyed_by(selector: Callable[[Any], Any], key_type: Any) -> Callable[[StatefulJob, Path], DataStream]:
    def build(job: StatefulJob, at: Path) -> DataStream:
        chosen = pairs(job).key_by(selector, key_type=key_type)
        return chosen.map(lambda pair: pair.v, output_type=int, uid="chosen")

    return build


def from_text(form: str) -> Callable[[StatefulJob, Path], DataStream]:
    """Rows of a form that has no row index, through a transform that makes new rows."""

    def new_rows(frame: DataFrame) -> DataFrame:
        return frame.mapInArrow(lambda batches: batches, frame.schema)

    def build(job: StatefulJob, at: Path) -> DataStream:
        at.mkdir()
        (at / "rows").write_text("a,1\n" if form == "csv" else '{"k": "a", "v": 1}\n')
        source = FileSource(str(at), format=form, schema=PAIR)  # type: ignore[arg-type]
        return mapped(job.source("rows", source).transform(new_rows))

    return build


def mapped(stream: DataStream) -> DataStream:
    return stream.key_by("k").map(lambda pair: pair.v, output_type=int, uid="mapped")


def timed(column: str) -> Callable[[StatefulJob, Path], DataStream]:
    return lambda job, at: mapped(pairs(job, event_time=column))


class Both(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield 1

    process_element2 = process_element1


def two_keys(job: StatefulJob, at: Path) -> DataStream:
    stream = pairs(job)
    return stream.key_by("k").connect(stream.key_by("v")).process(Both(), uid="both", output_type=int)


def two_shapes(job: StatefulJob, at: Path) -> DataStream:
    def renamed(frame: DataFrame) -> DataFrame:
        return frame.withColumnRenamed("v", "w")

    return mapped(pairs(job).union(pairs_of("others", job).transform(renamed)))


def pairs_of(name: str, job: StatefulJob) -> DataStream:
    return job.from_collection([("a", 1)], PAIR, name=name)


class Stamps(SourceFunction):
    def run(self, ctx: Any) -> None:
        ctx.collect_with_timestamp(1, 1000)

    def cancel(self) -> None:
        return None


def stamped(job: StatefulJob, at: Path) -> DataStream:
    numbers = job.source("stamps", Stamps(), output_type=Types.LONG(), max_rows_per_batch=4)
    return numbers.map(lambda n: n, output_type=Types.LONG())


class Diverging(KeyedBroadcastProcessFunction):
    """Puts another value into broadcast state on every subtask."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield 1

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(MapStateDescriptor("rules", str, int)).put("subtask", self.subtask)


def diverging(job: StatefulJob, at: Path) -> DataStream:
    stream = pairs(job)
    return stream.key_by("k").connect(stream.broadcast()).process(Diverging(), uid="rules", output_type=int)


def ordered_by(column: str) -> Callable[[StatefulJob, Path], DataStream]:
    def build(job: StatefulJob, at: Path) -> DataStream:
        rows = [("a", 1, datetime(2026, 1, 1))]
        kind = "k string, v bigint, at timestamp_ntz"
        stream = job.from_collection(rows, kind, name="rows", event_time="at", order_by=[column])
        rules = stream.broadcast(MapStateDescriptor("rules", str, int))
        both = stream.key_by("k").connect(rules, ordered=True)
        return both.process(Diverging(), uid="rules", output_type=int)

    return build


Case = tuple[Callable[[StatefulJob, Path], DataStream], type[StatelakeError], str]
CASES: dict[str, Case] = {
    "a key selector that gives None": (
        keyed_by(lambda pair: None, str), UserFunctionError,
        "job 'pipeline', operator 'chosen'.*InvalidKeyError: the key .*is null",
    ),
    "a key selector that gives another type": (
        keyed_by(lambda pair: "x", int), UserFunctionError,
        "job 'pipeline', operator 'chosen'.*the key selector raised ValueTypeError: 'x'",
    ),
    "a key selector that gives NaN": (
        keyed_by(lambda pair: float("nan"), float), UserFunctionError, "job 'pipeline', operator 'chosen'.*NaN",
    ),
    "a missing event time": (
        timed("at"), ConfigurationError, "event_time.*there is no column 'at'",
    ),
    "a number as event time": (
        timed("v"), ConfigurationError, "event_time column 'v' must be a timestamp or a date, not bigint",
    ),
    "streams keyed by different types": (
        two_keys, ConfigurationError, "operator 'both': its two streams are keyed by .* of different types.*cast one",
    ),
    "a source function that gives times": (
        stamped, SourceError, r"source 'stamps': collect_with_timestamp has no column.*name the field in source\(",
    ),
    "rules in another order than that of event time": (
        ordered_by("v"), ConfigurationError,
        r"operator 'rules': connect\(…, ordered=True\).*rows of source 'rows' have another one "
        r"\(order_by=\['v'\]\): begin order_by with the event_time column, or leave order_by out",
    ),
    "broadcast state that differs": (
        diverging, StateAccessError,
        "operator 'rules': broadcast state 'rules' is not the same in subtask 0 and subtask 1. Declare it on every",
    ),
}  # fmt: skip
ON_SPARK: dict[str, Case] = {
    "CSV without an order": (
        from_text("csv"), ConfigurationError,
        r"a transform makes new rows \(mapInArrow.*which have no order. Name one",
    ),
    "JSON without an order": (
        from_text("json"), ConfigurationError,
        r"a transform makes new rows \(mapInArrow.*which have no order. Name one",
    ),
    "a union of different columns": (
        two_shapes, ConfigurationError, "union: the streams have different columns: .*; select the same ones",
    ),
    "a key selector that gives NaN": CASES["a key selector that gives NaN"],
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_what_only_a_run_finds_is_refused(tmp_path: Path, what: str) -> None:
    build, kind, message = CASES[what]
    with MemoryPipeline.of(lambda job: {"out": build(job, tmp_path)}, parallelism=2) as pipeline:
        with pytest.raises(kind, match=f"(?s){message}"):
            pipeline.run()
        assert pipeline.checkpoints() == []


@pytest.mark.spark
@pytest.mark.parametrize("what", ON_SPARK)
def test_what_only_a_run_on_spark_finds_is_refused(tmp_path: Path, spark: SparkSession, what: str) -> None:
    refused(tmp_path, spark, *ON_SPARK[what])


def refused(
    tmp_path: Path,
    spark: SparkSession,
    build: Callable[[StatefulJob, Path], DataStream],
    kind: type[StatelakeError],
    message: str,
) -> None:
    def job_of(job: StatefulJob) -> Mapping[str, DataStream]:
        return {"out": build(job, tmp_path / "in")}

    pipeline = Pipeline(tmp_path, spark, job_of, parallelism=2)
    with pytest.raises(kind, match=f"(?s){message}"):
        pipeline.run()
    with pipeline.engine() as engine:
        assert engine.checkpoints("pipeline") == []


@pytest.mark.spark
def test_a_column_that_cannot_be_a_key_is_reported_with_its_operator(
    tmp_path: Path, spark: SparkSession
) -> None:
    def by_lists(job: StatefulJob, at: Path) -> DataStream:
        return mapped(pairs(job).transform(lambda frame: frame.withColumn("k", F.array("v"))))

    shown = "operator 'mapped': The column 'k' has the type array<bigint>, which cannot be a key"
    refused(tmp_path, spark, by_lists, InvalidKeyError, shown)
