"""State types that change between runs, through the tables: fields come and go, numbers widen, times to live switch."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import (
    DataStream,
    DeltaStateTable,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    StatefulJob,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
    VectorizedKeyedFunction,
    VectorizedResult,
    open_state,
)
from state_engine.core.errors import StateMigrationError
from state_engine.core.state.evolution import evolve
from state_engine.core.types.column_forms import times_as_text, with_defaults
from state_engine.core.types.type_parsing import to_type
from state_engine.queries.fold_sql import read_sql
from tests.core.state.test_evolution import DEFAULTS
from tests.support.catalogs import new_schema
from tests.support.pipelines import Pipeline

pytestmark = pytest.mark.spark
STATES = ["one", "many", "by_number"]
ELEMENTS = [("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 5)]


class Records(KeyedProcessFunction):
    """Keeps a record, a list and a map of records, of a type that is given; fills the fields that there are."""

    def __init__(self, kind: str, ttl: StateTtlConfig | None = None) -> None:
        self.kind, self.ttl = kind, ttl
        self.fields = [part.split(":")[0].strip() for part in kind.removeprefix("struct<").split(",")]

    def open(self, runtime_context: RuntimeContext) -> None:
        descriptors = [
            ValueStateDescriptor("one", self.kind), ListStateDescriptor("many", self.kind),
            MapStateDescriptor("by_number", "int", self.kind),
        ]  # fmt: skip
        for descriptor in descriptors:
            if self.ttl is not None:
                descriptor.enable_time_to_live(self.ttl)
        self.one = runtime_context.get_state(descriptors[0])  # type: ignore[arg-type]
        self.many = runtime_context.get_list_state(descriptors[1])  # type: ignore[arg-type]
        self.by_number = runtime_context.get_map_state(descriptors[2])  # type: ignore[arg-type]

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        record = tuple(str(value.v) if f == "text" else value.v for f in self.fields)
        before = self.one.value()
        yield (
            str(ctx.get_current_key()),
            str(None if before is None else before.as_dict()),
            len(list(self.many.get())),
        )
        self.one.update(record)
        self.many.add(record)
        self.by_number.put(value.v, record)


def build(function: Any) -> Any:
    """A job of the function, a row a micro-batch."""

    def built(job: StatefulJob) -> dict[str, DataStream]:
        pairs = job.from_collection(ELEMENTS, "k string, v int", name="pairs", max_rows_per_batch=1)
        out = pairs.key_by("k").process(function, uid="records", output_type="k string, b string, n int")
        return {"out": out}

    return built


def records(kind: str, ttl: StateTtlConfig | None = None) -> Any:
    return build(Records(kind, ttl))


def keeping(kind: type) -> Any:
    return build(Keeps(kind))


def befores(pipeline: Pipeline) -> list[str]:
    return [before for _, before, _ in pipeline.outputs()["out"]]


COMPACTED = pytest.mark.parametrize("compacted", [False, True], ids=["changes", "base"])


def compact(pipeline: Pipeline) -> None:
    with pipeline.engine() as engine:
        assert engine.compact("pipeline").committed_id is not None


def test_fields_come_and_go_and_numbers_widen(tmp_path: Path, spark: SparkSession) -> None:
    def run(kind: str, batches: int) -> None:
        Pipeline(tmp_path, spark, records(kind)).run(max_batches=batches)

    run("struct<number: smallint, gone: int>", 2)
    run("struct<number: bigint, text: string>", 1)
    run("struct<text: string, number: bigint, late: double>", 2)
    pipeline = Pipeline(tmp_path, spark, records("struct<text: string, number: bigint, late: double>"))
    assert befores(pipeline) == [
        "None", "None", "{'number': 1, 'text': None}", "{'text': None, 'number': 2, 'late': None}",
        "{'text': '3', 'number': 3, 'late': None}",
    ]  # fmt: skip
    assert pipeline.state("records", "one") == [("a", ("5", 5, 5.0)), ("b", ("4", 4, 4.0))]
    many = dict(pipeline.state("records", "many"))
    assert [tuple(r) for r in many["a"]] == [(None, 1, None), ("3", 3, None), ("5", 5, 5.0)]
    assert len(pipeline.state("records", "by_number")) == 5
    changelog = tmp_path / "root" / "pipeline" / "operators" / "records" / "changelog"
    table = pl.DataFrame(pl.from_arrow(DeltaTable(str(changelog)).to_pyarrow_table()))
    assert [f.name for f in table.schema["v_one"].fields] == ["number", "gone", "text", "late"]  # type: ignore[attr-defined]


def test_other_changes_are_refused(tmp_path: Path, spark: SparkSession) -> None:
    """Which ones is said by the harness's test."""
    Pipeline(tmp_path, spark, records("struct<number: int>")).run(max_batches=1)
    with pytest.raises(StateMigrationError, match=r"(?s)state 'one'.*number.*restore the old declaration"):
        Pipeline(tmp_path, spark, records("struct<number: tinyint>")).run()
    assert len(Pipeline(tmp_path, spark, records("struct<number: int>")).run().batches) == 4


@COMPACTED
def test_a_field_that_comes_back_does_not_bring_its_old_values(
    tmp_path: Path, spark: SparkSession, compacted: bool
) -> None:
    both, one = "struct<number: int, gone: int>", "struct<number: int>"
    for kind in (both, one):
        Pipeline(tmp_path, spark, records(kind)).run(max_batches=1)
    pipeline = Pipeline(tmp_path, spark, records(both))
    if compacted:
        compact(pipeline)
    pipeline.run()
    assert befores(pipeline)[2:] == [
        "{'number': 1, 'gone': None}", "{'number': 2, 'gone': None}", "{'number': 3, 'gone': 3}",
    ]  # fmt: skip
    assert pipeline.state("records", "one") == [("a", (5, 5)), ("b", (4, 4))]


@dataclass(frozen=True)
class Before:
    number: int
    many: list[int]


@dataclass(frozen=True)
class After:
    minutes: int = field(metadata={"alias": "number"})
    many: list[int]
    late: str | None = None


@dataclass(frozen=True)
class WithDefault:
    number: int
    many: list[int]
    late: int = 7


@dataclass(frozen=True)
class WithLaterDefault:
    number: int
    many: list[int]
    late: int = 8


class Keeps(KeyedProcessFunction):
    """Keeps a record in a value, a list and a map; gives what the value was, as a dict."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def open(self, runtime_context: RuntimeContext) -> None:
        self.one = runtime_context.get_state(ValueStateDescriptor("one", self.kind))
        self.many = runtime_context.get_list_state(ListStateDescriptor("many", self.kind))
        self.by_number = runtime_context.get_map_state(MapStateDescriptor("by_number", int, self.kind))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        before = self.one.value()
        yield str(ctx.get_current_key()), str(before and asdict(before)), len(list(self.many.get()))
        record = self.kind(value.v, [value.v])
        self.one.update(record)
        self.many.add(record)
        self.by_number.put(value.v, record)


@COMPACTED
def test_what_was_stored_before_a_field_was_added_has_the_default_of_then(
    tmp_path: Path, spark: SparkSession, compacted: bool
) -> None:
    Pipeline(tmp_path, spark, keeping(Before)).run(max_batches=2)
    Pipeline(tmp_path, spark, keeping(WithDefault)).run(max_batches=1)
    pipeline = Pipeline(tmp_path, spark, keeping(WithLaterDefault))
    if compacted:
        compact(pipeline)
    pipeline.run()
    assert befores(pipeline) == [
        "None", "None", "{'number': 1, 'many': [1], 'late': 7}", "{'number': 2, 'many': [2], 'late': 7}",
        "{'number': 3, 'many': [3], 'late': 7}",
    ]  # fmt: skip
    assert [r.late for r in dict(pipeline.state("records", "many"))["a"]] == [7, 7, 8]


def test_everybody_reads_the_default_in_old_records(tmp_path: Path, spark: SparkSession) -> None:
    """DataFrames, SQL with and without Spark, a view of a catalog, and a table that was published before."""

    def built(kind: type) -> Any:
        def streams_of(job: StatefulJob) -> dict[str, DataStream]:
            streams = keeping(kind)(job)
            table = DeltaStateTable(str(tmp_path / "one"), deletion_vectors=False)
            streams["out"].publish_state("one", table, name="shown")
            return streams

        return streams_of

    Pipeline(tmp_path, spark, built(Before)).run(max_batches=2)
    pipeline = Pipeline(tmp_path, spark, built(WithDefault))
    pipeline.run(max_batches=1)
    with pipeline.engine() as engine, new_schema(spark) as lake:
        engine.register("spark_catalog", lake)
        for state in STATES:
            value = "explode(value)" if state == "many" else "value"
            frames = [
                engine.read_state("pipeline", "records", state),
                engine.sql("pipeline", f"SELECT * FROM {state}"),
                spark.createDataFrame(open_state.read_state(engine.root, "pipeline", "records", state)),
                *([] if state == "one" else [spark.table(f"{lake}.records__{state}")]),
            ]
            for frame in frames:
                lates = [row.record.late for row in frame.selectExpr(f"{value} AS record").collect()]
                assert sorted(lates) == ([7, 7] if state == "one" else [7, 7, 7])
    assert set(DeltaTable(str(tmp_path / "one")).to_pyarrow_table()["late"].to_pylist()) == {7}


def test_a_query_reads_each_type_of_default(spark: SparkSession) -> None:
    """As columns without Spark have it, whatever the session is set to."""
    given = [
        (f"f{n}", kind, field(default_factory=partial(copy, default)))
        for n, (kind, default) in enumerate(DEFAULTS.values())
    ]
    evolution = evolve(
        "struct<`a`: bigint>", to_type(make_dataclass("Made", [("a", int), *given]), parameter="p")
    )
    stored = evolution.read(pa.array([{"a": 1}, None]))
    session = spark.newSession()
    for name, value in (("session.timeZone", "Asia/Kolkata"), ("parser.escapedStringLiterals", "true")):
        session.conf.set(f"spark.sql.{name}", value)
    frame = session.createDataFrame(pa.table({"v": stored}))
    text = read_sql("v", evolution.type, evolution.storage)
    answer = frame.selectExpr(f"{text} AS v").toArrow()["v"].combine_chunks()
    wanted = times_as_text(with_defaults(stored, evolution.type), evolution.type).to_pylist()
    assert answer.to_pylist() == wanted
    assert None not in wanted[0].values()


class Columns(VectorizedKeyedFunction):
    """Gives what the value was, and keeps the number of the row in it."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def open(self, runtime_context: Any) -> None:
        runtime_context.get_state(ValueStateDescriptor("one", self.kind))

    def process_batch(self, rows: pa.Table, state: pa.Table, ctx: Any) -> VectorizedResult:
        before = [str(one) for one in state["one"].to_pylist()]
        names = [one.name for one in fields(self.kind)]
        kept = [
            dict.fromkeys(names, n) | ({"many": [n]} if "many" in names else {})
            for n in rows["v"].to_pylist()
        ]
        outputs = pa.table({"k": state["k"], "b": before, "n": [0] * len(before), "_row": rows["_row"]})
        stored = pa.array(kept, state["one"].type)
        return VectorizedResult(outputs, state=pa.table({"_key": state["_key"], "one": stored}))


def test_a_function_over_columns_gets_the_default(tmp_path: Path, spark: SparkSession) -> None:
    Pipeline(tmp_path, spark, build(Columns(Before))).run(max_batches=2)
    pipeline = Pipeline(tmp_path, spark, build(Columns(WithDefault)))
    pipeline.run()
    assert befores(pipeline) == [
        "None", "None", "{'number': 1, 'many': [1], 'late': 7}", "{'number': 2, 'many': [2], 'late': 7}",
        "{'number': 3, 'many': [3], 'late': 3}",
    ]  # fmt: skip


@COMPACTED
@pytest.mark.long
def test_a_field_is_renamed_by_an_alias(tmp_path: Path, spark: SparkSession, compacted: bool) -> None:
    Pipeline(tmp_path, spark, keeping(Before)).run(max_batches=2)
    pipeline = Pipeline(tmp_path, spark, keeping(After))
    pipeline.run(max_batches=1)
    if compacted:
        compact(pipeline)
    pipeline.run()
    assert befores(pipeline)[2:] == [
        "{'minutes': 1, 'many': [1], 'late': None}", "{'minutes': 2, 'many': [2], 'late': None}",
        "{'minutes': 3, 'many': [3], 'late': None}",
    ]  # fmt: skip
    ((_, last), _) = pipeline.state("records", "one")
    assert last.asDict() == {"minutes": 5, "many": [5], "late": None}
    assert [r.minutes for r in dict(pipeline.state("records", "many"))["a"]] == [1, 3, 5]
    assert {v.minutes for _, _, v in pipeline.state("records", "by_number")} == {1, 2, 3, 4, 5}
    changelog = DeltaTable(str(tmp_path / "root" / "pipeline" / "operators" / "records" / "changelog"))
    assert [f.name for f in changelog.to_pyarrow_table().schema.field("v_one").type] == [
        "number",
        "many",
        "late",
    ]


@pytest.mark.long
def test_time_to_live_may_be_switched_on_and_off(tmp_path: Path, spark: SparkSession) -> None:
    ttl = StateTtlConfig.new_builder(Time.milliseconds(100)).update_ttl_on_create_and_write().build()
    kind = "struct<number: int>"

    def run(with_ttl: bool, clock: int) -> None:
        Pipeline(tmp_path, spark, records(kind, ttl if with_ttl else None)).run(max_batches=1, clock=clock)

    run(False, 0)  # a, without a time
    run(True, 1_000)  # b, with one
    run(True, 1_050)  # a: the old entry lives until it is touched
    run(True, 1_150)  # b: expired
    run(True, 1_160)  # a: expired
    reads = [(before, n) for _, before, n in Pipeline(tmp_path, spark, records(kind)).outputs()["out"]]
    assert reads == [("None", 0), ("None", 0), ("{'number': 1}", 1), ("None", 0), ("None", 1)]


@pytest.mark.long
def test_the_length_of_a_time_to_live_may_change(tmp_path: Path, spark: SparkSession) -> None:
    """Stored times are kept, and the length of today counts from them."""

    def run(length: int, clock: int) -> None:
        ttl = StateTtlConfig.new_builder(Time.milliseconds(length)).build()
        Pipeline(tmp_path, spark, records("struct<number: int>", ttl)).run(max_batches=1, clock=clock)

    run(100, 0)  # a
    run(100, 10)  # b
    run(1_000, 500)  # a: would have expired, and lives longer now
    run(100, 600)  # b: expired at 110
    run(50, 545)  # clocks never go back: a, written at 500, is expired at 600
    assert befores(Pipeline(tmp_path, spark, records("struct<number: int>"))) == [
        "None",
        "None",
        "{'number': 1}",
        "None",
        "None",
    ]
