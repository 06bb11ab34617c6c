"""All kinds of streams and operators in whole jobs: stateless, connected, broadcast, united, split, rolling.

In memory and on Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from state_engine import (
    AggregateFunction,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    DataStream,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    RuntimeContext,
    StatefulJob,
    Types,
    ValueStateDescriptor,
)
from state_engine.core.errors import ConfigurationError, UserFunctionError
from state_engine.testing import CollectSink, run_in_memory
from tests.support.pipelines import MemoryPipeline, Pipeline

parallelisms = pytest.mark.parametrize("parallelism", [1, 4])
PAIR = Types.TUPLE([Types.STRING(), Types.INT()])
PAIRS = [("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 5)]
ODD = OutputTag("odd", Types.INT())


class Split(ProcessFunction):
    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterable[Any]:
        if value % 2:
            yield ODD, value
        else:
            yield value


class Tagged(CoMapFunction):
    def map1(self, value: int) -> str:
        return f"first {value}"

    def map2(self, value: tuple[str, int]) -> str:
        return f"second {value[0]}{value[1]}"


class Both(CoFlatMapFunction):
    def flat_map1(self, value: int) -> Iterable[str]:
        yield from [f"{value}"] * value

    def flat_map2(self, value: tuple[str, int]) -> Iterable[str]:
        return [value[0]]


class Limits(KeyedCoProcessFunction):
    """The second stream sets a limit; elements of the first are passed on up to it. Both see one state."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.limit = runtime_context.get_state(ValueStateDescriptor("limit", int, default=0))

    def process_element1(self, value: Any, ctx: Any) -> Iterable[Any]:
        if value[1] <= self.limit.value():
            yield ctx.get_current_key(), value[1]

    def process_element2(self, value: Any, ctx: Any) -> None:
        self.limit.update(value[1])


RULES = MapStateDescriptor("rules", str, int)


class Rules(KeyedBroadcastProcessFunction):
    """Multiplies by the rule of the key; counts how often each key was seen."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int, default=0))

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.seen.update(self.seen.value() + 1)
        factor = ctx.get_broadcast_state(RULES).get(value[0]) or 0
        yield value[0], value[1] * factor, self.seen.value()

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put(value[0], value[1])


class PlainRules(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        yield value[1] + sum(ctx.get_broadcast_state(RULES).values())

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put(value[0], value[1])


class Average(AggregateFunction):
    """Of the second field."""

    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]


@dataclass(frozen=True)
class Place:
    """A key that is a record."""

    letter: str
    big: bool


class Announced(PlainRules):
    """Emits every rule, before the elements."""

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        super().process_broadcast_element(value, ctx)
        return [-value[1]]


class InOrder(KeyedProcessFunction):
    """All elements so far, as text."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.all = runtime_context.get_list_state(ListStateDescriptor("all", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self.all.add(value)
        yield " ".join(map(str, self.all.get()))


class Seen(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.all = runtime_context.get_list_state(ListStateDescriptor("all", int))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self.all.add(value[1])
        yield str(ctx.get_current_key()), list(self.all.get())


def stateless(job: StatefulJob) -> Mapping[str, DataStream]:
    numbers = job.from_collection(range(1, 9), Types.INT(), name="numbers", max_rows_per_batch=3)
    doubled = numbers.map(lambda n: n * 2, output_type=Types.INT())
    split = numbers.process(Split(), output_type=Types.INT())
    return {
        "doubled": doubled,
        "big": doubled.filter(lambda n: n > 10),
        "repeated": numbers.flat_map(lambda n: [n] * (n % 3), output_type=Types.INT()).name("repeats"),
        "even": split,
        "odd": split.get_side_output(ODD),
        "odd_squares": split.get_side_output(ODD).map(lambda n: f"{n * n}", output_type=Types.STRING()),
        "united": numbers.union(doubled).filter(lambda n: n < 5),
    }


@parallelisms
def test_stateless_functions_side_outputs_and_unions(parallelism: int) -> None:
    with MemoryPipeline.of(stateless, parallelism=parallelism) as pipeline:
        check_stateless(pipeline, parallelism)


@pytest.mark.spark
def test_stateless_functions_on_spark(tmp_path: Path, spark: SparkSession) -> None:
    check_stateless(Pipeline(tmp_path, spark, stateless, parallelism=4), 4)


def check_stateless(pipeline: Pipeline | MemoryPipeline, parallelism: int) -> None:
    report = pipeline.run()
    outputs = {name: sorted(values, key=str) for name, values in pipeline.outputs().items()}
    expected: dict[str, list[Any]] = {
        "doubled": [2, 4, 6, 8, 10, 12, 14, 16],
        "big": [12, 14, 16],
        "repeated": [1, 2, 2, 4, 5, 5, 7, 8, 8],
        "even": [2, 4, 6, 8],
        "odd": [1, 3, 5, 7],
        "odd_squares": ["1", "9", "25", "49"],
        "united": [1, 2, 2, 3, 4, 4],
    }
    assert outputs == {name: sorted(values, key=str) for name, values in expected.items()}
    assert report.rows_in == 8
    assert len(report.batches) == 3
    if parallelism == 1:
        assert pipeline.outputs()["repeated"] == expected["repeated"]


def connected(job: StatefulJob) -> Mapping[str, DataStream]:
    numbers = job.from_collection([1, 2, 3], Types.INT(), name="numbers")
    pairs = job.from_collection(PAIRS, PAIR, name="pairs", max_rows_per_batch=2)
    limits = job.from_collection([("a", 3), ("b", 2)], PAIR, name="limits")
    rules = job.from_collection([("a", 10), ("b", 100)], PAIR, name="rules", max_rows_per_batch=1)
    return {
        "co_map": numbers.connect(pairs).map(Tagged(), output_type=Types.STRING()),
        "co_flat_map": numbers.connect(pairs).flat_map(Both(), output_type=Types.STRING()),
        "limited": limits.key_by("f0")
        .connect(limits.key_by("f0"))
        .process(Limits(), uid="limited", output_type=PAIR),
        "ruled": pairs.key_by("f0")
        .connect(rules.broadcast(RULES))
        .process(Rules(), uid="ruled", output_type="k string, v bigint, n bigint"),
        "plainly_ruled": pairs.connect(rules.broadcast(RULES)).process(
            PlainRules(), uid="plainly_ruled", output_type=Types.LONG()
        ),
    }


@parallelisms
def test_connected_and_broadcast_streams(parallelism: int) -> None:
    with MemoryPipeline.of(connected, parallelism=parallelism) as pipeline:
        check_connected(pipeline)


@pytest.mark.spark
def test_connected_streams_on_spark(tmp_path: Path, spark: SparkSession) -> None:
    check_connected(Pipeline(tmp_path, spark, connected, parallelism=4))


def check_connected(pipeline: Pipeline | MemoryPipeline) -> None:
    pipeline.run()
    outputs = {name: sorted(values, key=str) for name, values in pipeline.outputs().items()}
    shown = [f"second {k}{v}" for k, v in PAIRS]
    assert outputs["co_map"] == sorted(["first 1", "first 2", "first 3", *shown])
    assert outputs["co_flat_map"] == sorted(["1", "2", "2", "3", "3", "3", *(k for k, _ in PAIRS)])
    # without order_by the first stream comes first, and no limit is known then
    assert "limited" not in outputs
    assert pipeline.state("limited", "limit") == [("a", 3), ("b", 2)]
    # batches: rules a | b | -, pairs a1 b2 | a3 b4 | a5
    assert outputs["ruled"] == [("a", 10, 1), ("a", 30, 2), ("a", 50, 3), ("b", 0, 1), ("b", 400, 2)]
    assert outputs["plainly_ruled"] == sorted([11, 12, 113, 114, 115], key=str)


def test_what_broadcast_elements_put_out_comes_first() -> None:
    """The order in a chained operator is the same."""
    job = StatefulJob("announcing")
    numbers = job.from_collection([("a", 3), ("b", 4)], PAIR, name="numbers")
    rules = job.from_collection([("a", 10), ("b", 100)], PAIR, name="rules")
    announced = numbers.connect(rules.broadcast(RULES)).process(
        Announced(), uid="announced", output_type=Types.LONG()
    )
    in_order = announced.key_by(lambda n: "all", key_type=str).process(
        InOrder(), uid="in_order", output_type=Types.STRING()
    )
    in_order.sink("in_order", CollectSink())
    with run_in_memory(job) as run:
        assert run.process()["in_order"][-1] == "-10 -100 113 114"


def keyed(job: StatefulJob) -> Mapping[str, DataStream]:
    pairs = job.from_collection(PAIRS, PAIR, name="pairs", max_rows_per_batch=2)
    by_letter = pairs.key_by(lambda pair: pair[0], key_type=Types.STRING())
    return {
        "seen": by_letter.process(Seen(), uid="seen", output_type="k string, all array<int>"),
        "by_record": pairs.key_by(lambda pair: Place(pair[0], pair[1] > 2), key_type=Place).process(
            Seen(), uid="by_record", output_type="k string, all array<int>"
        ),
        "by_both": pairs.key_by(lambda pair: (pair[0], pair[1] > 2), key_type=tuple[str, bool]).process(
            Seen(), uid="by_both", output_type="k string, all array<int>"
        ),
        "summed": pairs.key_by("f0").sum("f1", uid="summed"),
        "least": pairs.key_by("f0").min(1, uid="least"),
        "greatest": pairs.key_by("f0").max("f1").uid("greatest"),
        "reduced": pairs.key_by("f0").reduce(lambda a, b: (a[0], a[1] * b[1]), uid="reduced"),
        "averaged": pairs.key_by("f0").aggregate(Average(), tuple[int, int], Types.DOUBLE(), uid="averaged"),
        "counted": pairs.key_by("f0").map_with_state(
            lambda pair, seen: ((pair[0], seen or 0), (seen or 0) + pair[1]), Types.INT(), PAIR, uid="counted"
        ),
        "mapped": pairs.key_by("f0").map(lambda pair: pair[1], output_type=Types.INT(), uid="mapped"),
    }


@parallelisms
def test_keyed_shortcuts_and_key_selectors(parallelism: int) -> None:
    with MemoryPipeline.of(keyed, parallelism=parallelism) as pipeline:
        check_keyed(pipeline)


@pytest.mark.spark
def test_keyed_shortcuts_and_key_selectors_on_spark(tmp_path: Path, spark: SparkSession) -> None:
    check_keyed(Pipeline(tmp_path, spark, keyed, parallelism=4))


def check_keyed(pipeline: Pipeline | MemoryPipeline) -> None:
    pipeline.run()
    outputs = {name: sorted(values, key=str) for name, values in pipeline.outputs().items()}
    expected: dict[str, list[Any]] = {
        "seen": [("a", [1]), ("a", [1, 3]), ("a", [1, 3, 5]), ("b", [2]), ("b", [2, 4])],
        "by_both": [
            ("('a', False)", [1]), ("('a', True)", [3]), ("('a', True)", [3, 5]), ("('b', False)", [2]),
            ("('b', True)", [4]),
        ],
        "by_record": [
            ("Place(letter='a', big=False)", [1]), ("Place(letter='a', big=True)", [3]),
            ("Place(letter='a', big=True)", [3, 5]), ("Place(letter='b', big=False)", [2]),
            ("Place(letter='b', big=True)", [4]),
        ],
        "summed": [("a", 1), ("a", 4), ("a", 9), ("b", 2), ("b", 6)],
        "averaged": [1.0, 2.0, 3.0, 2.0, 3.0],
        "least": [("a", 1), ("a", 1), ("a", 1), ("b", 2), ("b", 2)],
        "greatest": [("a", 1), ("a", 3), ("a", 5), ("b", 2), ("b", 4)],
        "reduced": [("a", 1), ("a", 3), ("a", 15), ("b", 2), ("b", 8)],
        "counted": [("a", 0), ("a", 1), ("a", 4), ("b", 0), ("b", 2)],
        "mapped": [1, 2, 3, 4, 5],
    }  # fmt: skip
    assert outputs == {name: sorted(values, key=str) for name, values in expected.items()}
    assert pipeline.state("seen", "all") == [("a", [1, 3, 5]), ("b", [2, 4])]
    assert pipeline.state("by_both", "all") == [
        ("a", False, [1]),
        ("a", True, [3, 5]),
        ("b", False, [2]),
        ("b", True, [4]),
    ]


@pytest.mark.spark
def test_collect_gives_the_elements_of_a_stream(spark: SparkSession) -> None:
    job = StatefulJob("collecting")
    numbers = job.from_collection([3, 1, 2], Types.INT(), max_rows_per_batch=1)
    rows = numbers.transform(lambda f: f.withColumn("twice", F.col("value") * 2))
    assert numbers.map(lambda n: n + 1, output_type=Types.INT()).collect(spark=spark) == [4, 2, 3]
    assert [row.twice for row in rows.filter(lambda row: row.value > 1).collect(spark=spark)] == [6, 4]
    assert job.sinks == {}


@pytest.mark.spark
def test_two_streams_in_one_declared_order(tmp_path: Path, spark: SparkSession) -> None:
    """Elements of both streams come by their order column, so a limit holds from its own place on."""

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        kind = "at bigint, k string, v bigint"
        values = job.from_collection(
            [(1, "a", 5), (3, "a", 6), (5, "a", 7)], kind, name="values", order_by=["at"]
        )
        limits = job.from_collection([(2, "a", 6), (4, "a", 6)], kind, name="limits", order_by=["at"])

        def plain(stream: DataStream) -> Any:
            return stream.transform(lambda f: f.select("k", "v", "at")).key_by("k")

        limited = plain(values).connect(plain(limits)).process(Limits(), uid="limited", output_type=PAIR)
        return {
            "limited": limited,
            "united": values.union(limits).map(lambda r: r.at, output_type=Types.LONG()),
        }

    pipeline = Pipeline(tmp_path, spark, build)
    pipeline.run()
    assert pipeline.outputs() == {"limited": [("a", 6)], "united": [1, 2, 3, 4, 5]}


def test_a_failing_key_selector_is_reported_or_set_aside() -> None:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        numbers = job.from_collection([4, 0, 2], Types.INT(), name="numbers")
        keyed_by = numbers.key_by(lambda n: 8 // n, key_type=int)
        return {"out": keyed_by.map(lambda n: n, output_type=Types.INT(), uid="same")}

    with (
        MemoryPipeline.of(build) as failing,
        pytest.raises(UserFunctionError, match="key selector raised ZeroDivisionError") as failure,
    ):
        failing.run()
    assert failure.value.operator == "same"
    with MemoryPipeline.of(build, on_error="dead_letter") as aside:
        report = aside.run()
        assert sorted(aside.outputs()["out"]) == [2, 4]
        assert report.batches[0].rows_refused == 1


def test_what_streams_refuse() -> None:
    job = StatefulJob("refusing")
    numbers = job.from_collection([1], Types.INT(), name="numbers")
    with pytest.raises(ConfigurationError, match="output_type is missing: declare what map gives"):
        numbers.map(lambda n: n)
    with pytest.raises(ConfigurationError, match="which works on keyed streams: call key_by first"):
        numbers.process(Seen(), uid="seen", output_type=int)
    with pytest.raises(ConfigurationError, match="takes one stream; connected streams need a CoMapFunction"):
        numbers.connect(numbers).map(Split())
    with pytest.raises(ConfigurationError, match="one of the connected streams is keyed and the other is"):
        numbers.connect(numbers.key_by("value")).map(Tagged(), int)
    with pytest.raises(ConfigurationError, match="takes no broadcast elements"):
        numbers.connect(numbers.broadcast(RULES)).process(Split(), uid="x", output_type=int)
    with pytest.raises(ConfigurationError, match="key_type of key_by is missing"):
        numbers.key_by(lambda n: n)
    with pytest.raises(ConfigurationError, match="call it right after map, process"):
        numbers.uid("numbers2")
    with pytest.raises(ConfigurationError, match="cannot be joined with one of job"):
        numbers.union(StatefulJob("other").from_collection([1], Types.INT()))
    numbers.key_by("value").reduce(lambda a, b: a)
    with pytest.raises(ConfigurationError, match="may hold state, which is found by the operator's uid"):
        job.check()
