"""PyFlink-style programs, ported by changing imports: in the harness and in memory, with equal results.

Each program uses state and functions in the way of PyFlink's examples. Elements come one in a batch in memory and all
at once in the harness, so state is stored and read again between any two of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from state_engine import (
    AggregateFunction,
    AggregatingStateDescriptor,
    CustomStateBackend,
    DataStream,
    EmbeddedRocksDBStateBackend,
    FoldFunction,
    FoldingStateDescriptor,
    HashMapStateBackend,
    KeyedProcessFunction,
    KeySelector,
    ListCheckpointed,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    PredefinedOptions,
    ProcessFunction,
    ReduceFunction,
    ReducingStateDescriptor,
    RuntimeContext,
    SortedMapStateDescriptor,
    StateBackend,
    StatefulJob,
    StateTtlConfig,
    Time,
    Types,
    ValueStateDescriptor,
)
from state_engine.testing import KeyedHarness, OperatorHarness
from tests.support.pipelines import MemoryPipeline

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])
PAIRS = [("a", 3), ("b", 1), ("a", 5), ("b", 9), ("a", 3), ("c", 2), ("b", 1)]
LATE = OutputTag("late", Types.STRING())


class SumReduce(ReduceFunction):
    def reduce(self, value1: int, value2: int) -> int:
        return value1 + value2


class Average(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: tuple[int, int], acc_b: tuple[int, int]) -> tuple[int, int]:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Joined(FoldFunction):
    def fold(self, accumulator: str, value: int) -> str:
        return f"{accumulator}-{value}"


class AllStates(KeyedProcessFunction):
    """One of each state, as PyFlink's state example has it."""

    def open(self, runtime_context: RuntimeContext) -> None:
        ttl = (
            StateTtlConfig.new_builder(Time.days(1))
            .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
            .set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
            .cleanup_full_snapshot()
            .build()
        )
        last = ValueStateDescriptor("last", Types.LONG())
        last.enable_time_to_live(ttl)
        self.last = runtime_context.get_state(last)
        self.all = runtime_context.get_list_state(ListStateDescriptor("all", Types.LONG()))
        self.counts = runtime_context.get_map_state(MapStateDescriptor("counts", Types.LONG(), Types.LONG()))
        self.order = runtime_context.get_sorted_map_state(
            SortedMapStateDescriptor("order", Types.LONG(), Types.STRING())
        )
        self.sum = runtime_context.get_reducing_state(
            ReducingStateDescriptor("sum", SumReduce(), Types.LONG())
        )
        self.mean = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor("mean", Average(), Types.TUPLE([Types.LONG(), Types.LONG()]))
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.text = runtime_context.get_folding_state(
                FoldingStateDescriptor("text", "", Joined(), Types.STRING())
            )

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        number = value[1]
        before = self.last.value()
        self.last.update(number)
        self.all.add(number)
        self.counts.put(number, (self.counts.get(number) or 0) + 1)
        self.order.put(-number, ctx.get_current_key())
        self.sum.add(number)
        self.mean.add(number)
        self.text.add(number)
        first = self.order.first_entry()
        assert first is not None
        yield (
            ctx.get_current_key(), before, list(self.all.get()), sorted(self.counts.items()), first[0], self.sum.get(),
            self.mean.get(), self.text.get(),
        )  # fmt: skip


ALL = Types.ROW_NAMED(
    ["key", "before", "all", "counts", "first", "sum", "mean", "text"],
    [
        Types.STRING(), Types.LONG(), Types.LIST(Types.LONG()), Types.LIST(Types.TUPLE([Types.LONG(), Types.LONG()])),
        Types.LONG(), Types.LONG(), Types.DOUBLE(), Types.STRING(),
    ],
)  # fmt: skip


class First(KeySelector):
    def get_key(self, value: Any) -> str:
        return str(value[0])


BACKENDS: dict[str, StateBackend] = {
    "heap": HashMapStateBackend(),
    "rocksdb": EmbeddedRocksDBStateBackend().set_predefined_options(
        PredefinedOptions.SPINNING_DISK_OPTIMIZED
    ),
    "custom": CustomStateBackend(lambda descriptor: {}),
}


def plain(value: Any) -> Any:
    """Lists, tuples and records as tuples, to compare with values from Parquet."""
    if isinstance(value, dict):
        return tuple(plain(v) for v in value.values())
    return tuple(plain(v) for v in value) if isinstance(value, list | tuple) else value


def every_state(cut: int) -> Callable[[StatefulJob], dict[str, DataStream]]:
    def build(job: StatefulJob) -> dict[str, DataStream]:
        pairs = job.from_collection(PAIRS, PAIR, name="pairs", max_rows_per_batch=cut)
        states = pairs.key_by(First(), key_type=Types.STRING()).process(AllStates(), output_type=ALL)
        return {"out": states.uid("states").name("all states").set_parallelism(2)}

    return build


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_state_on_every_backend(backend: str) -> None:
    build = every_state(1 if backend == "heap" else 3)
    expected = KeyedHarness(AllStates(), key_by=First().get_key, output_type=ALL).process(PAIRS)
    with MemoryPipeline.of(build, parallelism=4, state_backend=BACKENDS[backend]) as pipeline:
        pipeline.run()
        outputs = pipeline.outputs()["out"]
        assert sorted(map(plain, outputs), key=repr) == sorted(map(plain, expected), key=repr)
        assert pipeline.state("states", "mean") == [("a", (11, 3)), ("b", (11, 3)), ("c", (2, 1))]
        assert pipeline.state("states", "text") == [("a", "-3-5-3"), ("b", "-1-9-1"), ("c", "-2")]
        assert pipeline.state("states", "last") == [("a", 3), ("b", 1), ("c", 2)]


class Enumerate(MapFunction, ListCheckpointed):
    """Numbers elements; the number is state of the subtask."""

    def __init__(self) -> None:
        self.number = 0

    def map(self, value: Any) -> Any:
        self.number += 1
        return self.number, value[0]

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[int]:
        return [self.number]

    def restore_state(self, state: list[int]) -> None:
        self.number = sum(state)


class Split(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any]:
        if value[1] > 4:
            yield LATE, f"{value[0]}{value[1]}"
        else:
            yield value[0], value[1]


def test_functions_without_keys() -> None:
    numbered_type = Types.TUPLE([Types.INT(), Types.STRING()])

    def build(job: StatefulJob) -> dict[str, DataStream]:
        pairs = job.from_collection(PAIRS, PAIR, name="pairs", max_rows_per_batch=2)
        split = pairs.process(Split(), output_type=PAIR)
        return {
            "numbered": pairs.map(Enumerate(), output_type=numbered_type).uid("numbered").set_parallelism(1),
            "small": split,
            "late": split.get_side_output(LATE),
        }

    with MemoryPipeline.of(build, parallelism=2) as pipeline:
        pipeline.run()
        outputs = pipeline.outputs()
    assert outputs["numbered"] == OperatorHarness(Enumerate(), output_type=numbered_type).process(PAIRS)
    harness = OperatorHarness(Split(), side_outputs=[LATE])
    assert sorted(outputs["small"]) == sorted(harness.process(PAIRS))
    assert sorted(outputs["late"]) == sorted(harness.side_output(LATE)) == ["a5", "b9"]
