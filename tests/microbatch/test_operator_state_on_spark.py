"""Operator state, hooks, raw state, listeners and stateful sources on the real engine, across batches and rescales."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from state_engine import (
    CheckpointedFunction,
    CheckpointListener,
    DataStream,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessFunction,
    RuntimeContext,
    SinkFunction,
    StatefulJob,
    Types,
    ValueStateDescriptor,
)
from state_engine.core.errors import RescaleError, SourceError, StateAccessError, StateMigrationError
from tests.support.flink_examples import Buffering, CounterSource
from tests.support.pipelines import Pipeline

pytestmark = pytest.mark.spark


class Groups(ProcessFunction, Buffering):
    """Emits groups of ``threshold`` elements."""

    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterable[Any]:
        for group in self.groups(value):
            yield (group,)


def buffering(cut: int, threshold: int = 4) -> Any:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        numbers = job.from_collection(range(23), Types.INT(), name="numbers", max_rows_per_batch=cut)
        return {"groups": numbers.process(Groups(threshold), uid="buffer", output_type="numbers array<int>")}

    return build


def test_a_buffering_function_loses_and_repeats_nothing_across_rescales(
    tmp_path: Path, spark: SparkSession
) -> None:
    pipeline = Pipeline(tmp_path, spark, buffering(3))
    for parallelism in (1, 4, 2):
        pipeline.run(max_batches=2, parallelism=parallelism)
    pipeline.run(parallelism=3)
    groups = pipeline.outputs()["groups"]
    assert {len(group) for group in groups} == {4}
    table = DeltaTable(str(tmp_path / "root" / "pipeline" / "operator_state")).to_pyarrow_table()
    last = max(row["write_id"] for row in table.to_pylist())
    sent = [n for group in groups for n in group]
    assert len(set(sent)) == len(sent)
    with pipeline.engine() as engine:
        (ref,) = [r for r in engine.checkpoints("pipeline")[-1].operator_state if r.operator == "buffer"]
    assert (ref.parallelism, ref.elements) == (3, 23 - len(sent))
    assert last


def test_state_that_did_not_change_is_not_written_again(tmp_path: Path, spark: SparkSession) -> None:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        numbers = job.from_collection([1, 2, 3], Types.INT(), name="numbers", max_rows_per_batch=1)
        other = job.from_collection([5], Types.INT(), name="other")
        kept = other.process(Groups(9), uid="kept", output_type="numbers array<int>")
        return {"kept": kept, "n": numbers.map(lambda n: n, output_type=Types.INT())}

    pipeline = Pipeline(tmp_path, spark, build, parallelism=2)
    pipeline.run()
    with pipeline.engine() as engine:
        rows = engine.checkpoints("pipeline")
    refs = [next(r for r in row.operator_state if r.operator == "kept") for row in rows]
    assert len(rows) == 3
    assert {ref.write_id for ref in refs} == {rows[0].write_id}
    assert [ref.last_run for ref in refs] == [row.write_id for row in rows]


class Hooks(KeyedProcessFunction, CheckpointedFunction, CheckpointListener):
    """Records the calls of its hooks, on every subtask, into union state and raw state."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.hooks = store.get_union_list_state(ListStateDescriptor("hooks", str))
        self.lines = (
            [f"restored {context.get_restored_checkpoint_id()}"] if context.is_restored() else ["new"]
        )
        self.groups = dict(context.raw_keyed_state)
        self.seen = context.get_keyed_state_store().get_state(ValueStateDescriptor("seen", int, default=0))

    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()
        self.counter = runtime_context.get_metrics_group().counter("elements")

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self.seen.update(self.seen.value() + 1)
        self.counter.inc()
        yield value, self.seen.value(), len(self.groups)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.lines.append(f"complete {checkpoint_id}")

    def snapshot_state(self, context: Any) -> None:
        self.hooks.update([f"{self.subtask}: {line}" for line in self.lines])
        for group in context.raw_keyed_state.get_key_group_list():
            context.raw_keyed_state.start_key_group(group)
            context.raw_keyed_state.write(self.groups.get(group, b"") + b"x")


def test_hooks_listeners_raw_keyed_state_and_metrics(tmp_path: Path, spark: SparkSession) -> None:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        numbers = job.from_collection([1, 2, 3], Types.INT(), name="numbers", max_rows_per_batch=1)
        hooks = numbers.key_by("value").process(
            Hooks(), uid="hooks", output_type="n int, seen int, groups int"
        )
        return {"out": hooks}

    def lines_of(write_id: str) -> list[str]:
        table = DeltaTable(str(tmp_path / "root" / "pipeline" / "operator_state")).to_pyarrow_table()
        rows = [r for r in table.to_pylist() if r["write_id"] == write_id and r["state"] == "hooks"]
        return [r["value"].strip('"') for r in sorted(rows, key=lambda r: (r["subtask"], r["position"]))]

    pipeline = Pipeline(tmp_path, spark, build, parallelism=2, max_parallelism=8)
    report = pipeline.run()
    with pipeline.engine() as engine:
        first, second, third = engine.checkpoints("pipeline")
    assert lines_of(first.write_id) == ["0: new", "1: new"]
    assert lines_of(second.write_id) == [
        f"{s}: {line}" for s in (0, 1) for line in ("restored 1", "complete 1")
    ]
    assert lines_of(third.write_id) == [
        f"{s}: {line}" for s in (0, 1) for line in ("restored 2", "complete 2")
    ]
    assert sorted(groups for _, _, groups in pipeline.outputs()["out"]) == [0, 4, 4]
    assert [b.operators["hooks"].metrics for b in report.batches] == [{"elements": 1.0}] * 3
    assert [row.metrics for row in (first, second, third)] == [{"hooks.elements": 1.0}] * 3


class RawBytes(ProcessFunction, CheckpointedFunction):
    def initialize_state(self, context: Any) -> None:
        self.data = context.raw_operator_state.read()

    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterable[Any]:
        yield self.data.decode()

    def snapshot_state(self, context: Any) -> None:
        context.raw_operator_state.write(self.data + b"x")


def test_raw_operator_state_cannot_be_rescaled(tmp_path: Path, spark: SparkSession) -> None:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        numbers = job.from_collection([1, 2, 3, 4], Types.INT(), name="numbers", max_rows_per_batch=1)
        return {"out": numbers.process(RawBytes(), uid="raw", output_type=str)}

    pipeline = Pipeline(tmp_path, spark, build, parallelism=2)
    pipeline.run(max_batches=3)
    assert pipeline.outputs()["out"] == ["", "x", "xx"]
    with pytest.raises(RescaleError, match="only its function can take apart: its parallelism cannot become"):
        pipeline.run(parallelism=3)
    pipeline.run()
    assert pipeline.outputs()["out"][-1] == "xxx"


def counting(fail_at: int | None = None) -> Any:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        numbers = job.source(
            "counter", CounterSource(fail_at=fail_at), output_type=Types.LONG(), max_rows_per_batch=4
        )
        return {"numbers": numbers, "tens": numbers.map(lambda n: n * 10, output_type=Types.LONG())}

    return build


def test_a_counter_source_has_no_gap_and_no_repeat(tmp_path: Path, spark: SparkSession) -> None:
    pipeline = Pipeline(tmp_path, spark, counting(), parallelism=2)
    assert len(pipeline.run(max_batches=2).batches) == 2
    with pytest.raises(SourceError, match=r"source 'counter': CounterSource raised RuntimeError: on purpose"):
        Pipeline(tmp_path, spark, counting(fail_at=9)).run()
    # a source without end gives one batch to a run that nobody limits
    assert len(pipeline.run().batches) == 1
    assert sorted(pipeline.outputs()["numbers"]) == list(range(12))
    assert sorted(pipeline.outputs()["tens"]) == list(range(0, 120, 10))


class Sends(SinkFunction):
    """Appends to a file: a system outside of the engine."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def invoke(self, value: Any, context: Any) -> None:
        with self.path.open("a") as file:
            file.write(f"{value}\n")


def test_a_sink_function_gets_every_element(tmp_path: Path, spark: SparkSession) -> None:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        numbers = job.from_collection([1, 2, 3], Types.INT(), name="numbers", max_rows_per_batch=2)
        numbers.add_sink(Sends(tmp_path / "sent"), uid="sends")
        return {}

    Pipeline(tmp_path, spark, build, parallelism=2).run()
    assert sorted((tmp_path / "sent").read_text().split()) == ["1", "2", "3"]


class Diverging(KeyedBroadcastProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield value[1]

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(MapStateDescriptor("rules", str, int)).put("subtask", self.subtask)


def test_operator_state_that_goes_wrong_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    def diverging(job: StatefulJob) -> Mapping[str, DataStream]:
        pairs = job.from_collection([("a", 1)], "k string, v int", name="pairs")
        ruled = pairs.key_by("k").connect(pairs.broadcast())
        return {"out": ruled.process(Diverging(), uid="diverging", output_type=int)}

    pipeline = Pipeline(tmp_path / "diverging", spark, diverging, parallelism=2)
    message = "operator 'diverging': broadcast state 'rules' is not the same in subtask 0 and subtask 1"
    with pytest.raises(StateAccessError, match=message):
        pipeline.run()
    assert pipeline.outputs() == {}

    renamed = Pipeline(tmp_path / "renamed", spark, buffering(30))
    renamed.run()

    def other(job: StatefulJob) -> Mapping[str, DataStream]:
        numbers = job.from_collection(range(30), Types.INT(), name="numbers")
        return {"groups": numbers.map(lambda n: n, output_type=Types.INT())}

    with pytest.raises(StateMigrationError, match="holds state of operators \\['buffer'\\]"):
        Pipeline(tmp_path / "renamed", spark, other).run()
