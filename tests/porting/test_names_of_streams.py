"""Methods of PyFlink's streams beside operators: partitioning, ``project``, ``print``, ``execute_and_collect``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import (
    CoFlatMapFunction,
    CoMapFunction,
    DataStream,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    MapStateDescriptor,
    RuntimeContext,
    StatefulJob,
    Types,
    ValueStateDescriptor,
)
from state_engine.core.errors import ConfigurationError
from tests.support.pipelines import MemoryPipeline, Pipeline

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])
PAIRS = [("a", 3), ("b", 1), ("a", 5), ("b", 9), ("a", 3)]
RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


def pairs_of(job: StatefulJob, name: str = "pairs", *, cut: int | None = None) -> DataStream:
    return job.from_collection(PAIRS, PAIR, name=name, max_rows_per_batch=cut)


def operator_of(job: StatefulJob) -> DataStream:
    return pairs_of(job).map(lambda pair: pair, PAIR, uid="above")


BEHIND_NO_OPERATOR: dict[str, Callable[[StatefulJob], Any]] = {
    "key_by": lambda j: operator_of(j).key_by("f0"),
    "connect": lambda j: operator_of(j).connect(pairs_of(j, "others")),
    "connect a broadcast stream": lambda j: operator_of(j).connect(pairs_of(j, "others").broadcast(RULES)),
    "rebalance": lambda j: operator_of(j).rebalance(),
    "shuffle": lambda j: operator_of(j).shuffle(),
    "rescale": lambda j: operator_of(j).rescale(),
    "forward": lambda j: operator_of(j).forward(),
    "broadcast": lambda j: operator_of(j).broadcast(),
    "project": lambda j: operator_of(j).project(0),
    "union": lambda j: operator_of(j).union(pairs_of(j, "others")),
    "a source": pairs_of,
}


@pytest.mark.parametrize("step", BEHIND_NO_OPERATOR)
def test_behind_a_step_that_makes_no_operator_nothing_is_named(step: str) -> None:
    """A uid there would belong to another operator, whose state would be lost."""
    job = StatefulJob("named")
    stream = BEHIND_NO_OPERATOR[step](job)
    for give in ("uid", "name"):
        with pytest.raises(
            ConfigurationError, match=f"{give} is about the operator that makes a stream, and no operator"
        ):
            getattr(stream, give)("other")
    with pytest.raises(ConfigurationError, match="set_parallelism is about the operator"):
        stream.set_parallelism(2)
    assert "other" not in job.operators
    assert all(o.uid == "above" and o.name is None and o.parallelism is None for o in job.operators.values())


def test_partitioning_and_tuning_are_accepted_and_say_that_they_have_no_effect(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = StatefulJob("partitioned")
    with caplog.at_level(logging.INFO, logger="state_engine"):
        mapped = operator_of(job).rebalance().shuffle().rescale().forward().map(lambda pair: pair, PAIR)
        mapped.start_new_chain().disable_chaining().slot_sharing_group("slow").set_buffer_timeout(5).uid(
            "mapped"
        )
    said = [r.getMessage() for r in caplog.records if "has no effect here" in r.getMessage()]
    methods = ("rebalance", "shuffle", "rescale", "forward", "start_new_chain", "disable_chaining")
    for method in (*methods, "slot_sharing_group", "set_buffer_timeout"):
        assert sum(f"job 'partitioned': {method}() has no effect here" in message for message in said) == 1
    assert list(job.operators) == ["above", "mapped"]
    assert [i.parent.uid for i in job.operators["mapped"].inputs] == ["above"]  # type: ignore[union-attr]
    assert mapped.get_name() == "mapped"
    assert mapped.name("Copies").get_name() == "Copies"


@pytest.mark.parametrize("method", ["rebalance", "shuffle", "rescale", "forward"])
def test_a_keyed_stream_is_partitioned_already(method: str) -> None:
    keyed = pairs_of(StatefulJob("keyed")).key_by("f0")
    with pytest.raises(ConfigurationError, match=f"partitioned by its key; call {method} before key_by"):
        getattr(keyed, method)()


def test_project_takes_positions_of_records() -> None:
    job = StatefulJob("projected")
    for wrong in ((), (-1,), ("f0",), (True,)):
        with pytest.raises(ConfigurationError, match="project takes positions of fields, from 0"):
            pairs_of(job, f"pairs_{len(job.sources)}").project(*wrong)
    with pytest.raises(ConfigurationError, match="this stream has bare values"):
        job.from_collection([1], Types.LONG(), name="numbers").project(0)


class Joined(KeyedCoProcessFunction):
    """Adds the last value of the other stream for the key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        yield value[0], value[1] + (self.last.value() or 0)

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
        self.last.update(value[1])


class Tagged(CoMapFunction):
    def map1(self, value: Any) -> str:
        return f"one {value[0]}{value[1]}"

    def map2(self, value: Any) -> str:
        return f"two {value}"


class Numbered(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()

    def map(self, value: Any) -> Any:
        return value[0], self.subtask


class FlatTagged(CoFlatMapFunction):
    def flat_map1(self, value: Any) -> Iterable[str]:
        return []

    def flat_map2(self, value: Any) -> Iterable[str]:
        return [f"flat {value}"]


class Point:
    """No dataclass, in a module that workers cannot import."""

    def __init__(self, x: int) -> None:
        self.x = x

    def moved(self, by: int) -> Point:
        return Point(self.x + by)


class Moves(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        pickled = Types.PICKLED_BYTE_ARRAY(allow_pickle=True)
        self.point = runtime_context.get_state(ValueStateDescriptor("point", pickled))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        moved = (self.point.value() or Point(0)).moved(value[1])
        self.point.update(moved)
        yield value[0], moved.x


def build(job: StatefulJob) -> dict[str, DataStream]:
    pairs = pairs_of(job, cut=2)
    words = job.from_collection(["x", "y"], Types.STRING(), name="words")
    kinds = [Types.STRING(), Types.LONG(), Types.DOUBLE()]
    rows = job.from_collection([("a", 1, 0.5)], Types.ROW_NAMED(["key", "n", "x"], kinds), name="rows")
    return {
        "least": pairs.key_by("f0").min_by(1, uid="least"),
        "greatest": pairs.key_by("f0").max_by("f1").uid("greatest"),
        "projected": pairs.project(1, 0, 1),
        "projected_twice": rows.project(2, 0).rebalance().project(0).map(lambda r: r.x, Types.DOUBLE()),
        "joined": pairs.key_by("f1")
        .connect(job.from_collection([("a", 100)], PAIR, name="others"))
        .key_by(lambda pair: pair[0], lambda pair: pair[0], Types.STRING())
        .process(Joined(), uid="joined", output_type=PAIR),
        "everywhere": pairs.broadcast().map(Numbered(), PAIR, uid="everywhere").set_parallelism(3),
        "tagged": pairs.connect(words.broadcast()).map(Tagged(), Types.STRING(), uid="tagged").set_parallelism(2),
        "flat": pairs.connect(words.broadcast()).flat_map(FlatTagged(), Types.STRING(), uid="flat").set_parallelism(2),
        "moved": pairs.key_by("f0").process(Moves(), uid="moved", output_type=PAIR),
    }  # fmt: skip


NAMED = {
    "least": [("a", 3), ("a", 3), ("a", 3), ("b", 1), ("b", 1)],
    "greatest": [("a", 3), ("a", 5), ("a", 5), ("b", 1), ("b", 9)],
    "projected": sorted((n, key, n) for key, n in PAIRS),
    "projected_twice": [0.5],
    # in the first micro-batch the pairs come before the other stream's element, as streams are merged
    "joined": [("a", 3), ("a", 103), ("a", 105), ("b", 1), ("b", 9)],
    "everywhere": sorted((key, subtask) for key, _ in PAIRS for subtask in range(3)),
    "tagged": sorted([f"one {key}{n}" for key, n in PAIRS] + 2 * ["two x", "two y"]),
    "flat": sorted(2 * ["flat x", "flat y"]),
    "moved": [("a", 3), ("a", 8), ("a", 11), ("b", 1), ("b", 10)],
}


def test_streams_in_memory() -> None:
    with MemoryPipeline.of(build, parallelism=2) as pipeline:
        pipeline.run()
        assert {name: sorted(values) for name, values in pipeline.outputs().items()} == NAMED


@pytest.mark.spark
def test_streams_are_printed_and_projected_on_spark(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    def printing(job: StatefulJob) -> dict[str, DataStream]:
        words = job.from_collection(["x", "y"], Types.STRING(), name="words")
        words.print("word").name("print words").uid("printed").set_parallelism(1)
        mapped = pairs_of(job, cut=2).map(lambda pair: pair, PAIR)
        mapped.print()
        return {"projected": mapped.project(1, 0, 1)}

    pipeline = Pipeline(tmp_path, spark, printing, parallelism=2)
    pipeline.run()
    assert sorted(pipeline.outputs()["projected"]) == NAMED["projected"]
    counted = {
        s.name: s.rows for row in pipeline.checkpoints() for s in row.sources if s.name == "words" and s.rows
    }
    assert counted["words"] == 2
    said = capsys.readouterr().out.splitlines()
    assert sorted(line for line in said if line.startswith("word> ")) == ["word> x", "word> y"]
    assert len([line for line in said if line.startswith("(")]) == 5  # tuples, as their type says


@pytest.mark.spark
def test_execute_and_collect(spark: SparkSession) -> None:
    numbers = (
        StatefulJob("collected").from_collection([3, 1, 2], Types.LONG()).map(lambda n: n + 1, Types.LONG())
    )
    with numbers.execute_and_collect("a name", spark=spark) as collected:
        assert collected.next() == 4
        assert list(collected) == [2, 3]
    assert list(collected) == []
    assert numbers.execute_and_collect(limit=2, spark=spark) == [4, 2]


def test_pickled_objects_of_a_class_that_cannot_be_imported() -> None:
    class Local:
        def __init__(self) -> None:
            self.twice = lambda n: 2 * n

    kind = Types.PICKLED_BYTE_ARRAY(allow_pickle=True)
    [back] = kind.from_arrow(kind.to_arrow([kind.normalise(Local())], storage=True))
    assert back.twice(4) == 8
