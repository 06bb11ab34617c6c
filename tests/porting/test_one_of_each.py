"""Functions and states in the way of PyFlink's examples: one job, in memory and on Spark, with the same results."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import (
    AggregateFunction,
    AggregatingStateDescriptor,
    BroadcastProcessFunction,
    CheckpointListener,
    CoProcessFunction,
    CustomStateBackend,
    DataStream,
    EmbeddedRocksDBStateBackend,
    FilterFunction,
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
    Row,
    RowKind,
    RuntimeContext,
    SinkFunction,
    SortedMapStateDescriptor,
    StateBackend,
    StatefulJob,
    StateTtlConfig,
    Time,
    TimeDomain,
    Types,
    ValueStateDescriptor,
)
from state_engine.testing import CollectSink, run_in_memory
from tests.support.flink_examples import Buffering
from tests.support.pipelines import MemoryPipeline, Pipeline

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])
PAIRS = [("a", 3), ("b", 1), ("a", 5), ("b", 9), ("a", 3), ("c", 2), ("b", 1)]
LIMITS = MapStateDescriptor("limits", Types.STRING(), Types.LONG())
LARGE = OutputTag("large", Types.STRING())
ENDED = OutputTag("ended", Types.STRING())
EPOCH = datetime(1970, 1, 1)
VISIT = Types.ROW_NAMED(["user", "at"], [Types.STRING(), Types.SQL_TIMESTAMP()])
SECONDS = [("x", 0), ("y", 5), ("x", 8), ("z", 16), ("y", 40), ("x", 60)]
VISITS = [(user, EPOCH + timedelta(seconds=second)) for user, second in SECONDS]
SCORE = Types.ROW_NAMED(["name", "score"], [Types.STRING(), Types.LONG()])


class First(KeySelector):
    def get_key(self, value: Any) -> str:
        return str(value[0])


class Sum(ReduceFunction):
    def reduce(self, value1: int, value2: int) -> int:
        return value1 + value2


class Joined(FoldFunction):
    def fold(self, accumulator: str, value: int) -> str:
        return f"{accumulator}-{value}"


class Average(AggregateFunction):
    """Of the second field."""

    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value[1], accumulator[1] + 1

    def retract(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] - value[1], accumulator[1] - 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: tuple[int, int], acc_b: tuple[int, int]) -> tuple[int, int]:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class AllStates(KeyedProcessFunction):
    """One of each state."""

    def open(self, runtime_context: RuntimeContext) -> None:
        ttl = (
            StateTtlConfig.new_builder(Time.days(1))
            .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
            .set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
            .cleanup_full_snapshot()
            .build()
        )
        long, text = Types.LONG(), Types.STRING()
        last = ValueStateDescriptor("last", long)
        last.enable_time_to_live(ttl)
        self.last = runtime_context.get_state(last)
        self.all = runtime_context.get_list_state(ListStateDescriptor("all", long))
        self.counts = runtime_context.get_map_state(MapStateDescriptor("counts", long, long))
        self.order = runtime_context.get_sorted_map_state(SortedMapStateDescriptor("order", long, text))
        self.sum = runtime_context.get_reducing_state(ReducingStateDescriptor("sum", Sum(), long))
        self.mean = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor("mean", Average(), Types.TUPLE([long, long]))
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.text = runtime_context.get_folding_state(FoldingStateDescriptor("text", "", Joined(), text))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        number = value[1]
        before = self.last.value()
        self.last.update(number)
        self.all.add(number)
        self.counts.put(number, (self.counts.get(number) or 0) + 1)
        self.order.put(-number, ctx.get_current_key())
        self.sum.add(number)
        self.mean.add(value)
        self.text.add(number)
        first = self.order.first_entry()
        assert first is not None
        seen = [before, list(self.all.get()), sorted(self.counts.items()), first[0]]
        folded = [self.sum.get(), self.mean.get(), self.text.get()]
        yield ctx.get_current_key(), " ".join(map(str, seen + folded))


STATES = [
    ("a", "3 [3, 5] [(3, 1), (5, 1)] -5 8 4.0 -3-5"),
    ("a", "5 [3, 5, 3] [(3, 2), (5, 1)] -5 11 3.6666666666666665 -3-5-3"),
    ("a", "None [3] [(3, 1)] -3 3 3.0 -3"),
    ("b", "1 [1, 9] [(1, 1), (9, 1)] -9 10 5.0 -1-9"),
    ("b", "9 [1, 9, 1] [(1, 2), (9, 1)] -9 11 3.6666666666666665 -1-9-1"),
    ("b", "None [1] [(1, 1)] -1 1 1.0 -1"),
    ("c", "None [2] [(2, 1)] -2 2 2.0 -2"),
]


class Sessions(KeyedProcessFunction):
    """Counts a user's visits; ten seconds after the last one it emits the number, and the user to a side output."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.visits = runtime_context.get_state(ValueStateDescriptor("visits", Types.LONG()))
        self.ends = runtime_context.get_state(ValueStateDescriptor("ends", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self.visits.update((self.visits.value() or 0) + 1)
        timers = ctx.timer_service()
        if self.ends.value() is not None:
            timers.delete_event_time_timer(self.ends.value())
        at = ctx.timestamp()
        assert at is not None
        self.ends.update(at + 10_000)
        timers.register_event_time_timer(at + 10_000)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        assert ctx.time_domain() == TimeDomain.EVENT_TIME
        yield ctx.get_current_key(), self.visits.value(), timestamp
        yield ENDED, ctx.get_current_key()
        self.visits.clear()
        self.ends.clear()


class Split(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterable[Any]:
        if value[1] > 3:
            yield LARGE, f"{value[0]}{value[1]}"
        else:
            yield value[0], value[1]


class Prices(CoProcessFunction):
    def process_element1(self, value: Any, ctx: CoProcessFunction.Context) -> Iterable[Any]:
        yield f"{value[1]} of {value[0]}"

    def process_element2(self, value: Any, ctx: CoProcessFunction.Context) -> Iterable[Any]:
        yield f"{value[0]} costs {value[1]}"


class WithinLimits(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterable[Any]:
        if value[1] <= (ctx.get_broadcast_state(LIMITS).get(value[0]) or 0):
            yield value[0], value[1]

    def process_broadcast_element(self, value: Any, ctx: BroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(LIMITS).put(value[0], value[1])


class LargeEnough(FilterFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.least = int(runtime_context.get_job_parameter("least", "3") or 0)

    def filter(self, value: Any) -> bool:
        return bool(value[1] >= self.least)


class Numbered(MapFunction, ListCheckpointed, CheckpointListener):
    """Numbers its elements, and emits the last checkpoint of which it was notified."""

    def __init__(self) -> None:
        self.number, self.complete, self.task = 0, 0, ""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.task = runtime_context.get_task_name()

    def map(self, value: Any) -> Any:
        self.number += 1
        return f"{self.task} {value[0]}{self.number}", self.complete

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[int]:
        return [self.number]

    def restore_state(self, state: list[int]) -> None:
        self.number = sum(state)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.complete = checkpoint_id


class BufferingSink(SinkFunction, Buffering):
    """Sends elements in groups: a line of a file each. What is left over is state until the next checkpoint."""

    def __init__(self, path: Path) -> None:
        super().__init__(2, PAIR)
        self.path = path

    def invoke(self, value: Any, context: SinkFunction.Context) -> None:
        for group in self.groups(tuple(value)):
            with self.path.open("a") as file:
                file.write(" ".join(f"{name}{n}" for name, n in group) + "\n")


def programs(sent: Path) -> Callable[[StatefulJob], Mapping[str, DataStream]]:
    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        pairs = job.from_collection(PAIRS, PAIR, name="pairs", max_rows_per_batch=3)
        pairs.add_sink(BufferingSink(sent), uid="buffering").set_parallelism(1)
        visits = job.from_collection(VISITS, VISIT, name="visits", max_rows_per_batch=3)
        timed = visits.assign_timestamps_and_watermarks("at").key_by("user")
        sessions = timed.process(Sessions(), "user string, visits bigint, at bigint", uid="sessions")
        split = pairs.process(Split(), PAIR, uid="split")
        enough = pairs.filter(LargeEnough())
        limits = job.from_collection([("a", 3), ("b", 2)], PAIR, name="limits").broadcast(LIMITS)
        states = pairs.key_by(First(), key_type=Types.STRING()).process(
            AllStates(), output_type="key string, states string"
        )
        return {
            "states": states.uid("states").name("all states").set_parallelism(2),
            "sessions": sessions,
            "ended": sessions.get_side_output(ENDED),
            "small": split,
            "large": split.get_side_output(LARGE),
            "prices": enough.connect(split).process(Prices(), Types.STRING(), uid="prices"),
            "within": pairs.connect(limits).process(WithinLimits(), PAIR, uid="within"),
            "numbered": pairs.map(Numbered(), PAIR).uid("numbered").set_parallelism(1),
        }

    return build


EXPECTED = {
    "states": STATES,
    "sessions": [("x", 1, 70_000), ("x", 2, 18_000), ("y", 1, 15_000), ("y", 1, 50_000), ("z", 1, 26_000)],
    "ended": ["x", "x", "y", "y", "z"],
    "small": [("a", 3), ("a", 3), ("b", 1), ("b", 1), ("c", 2)],
    "large": ["a5", "b9"],
    "prices": [
        "3 of a", "3 of a", "5 of a", "9 of b",
        "a costs 3", "a costs 3", "b costs 1", "b costs 1", "c costs 2",
    ],
    "within": [("a", 3), ("a", 3), ("b", 1), ("b", 1)],
    "numbered": [
        ("numbered a1", 0), ("numbered a3", 0), ("numbered a5", 1), ("numbered b2", 0), ("numbered b4", 1),
        ("numbered b7", 2), ("numbered c6", 1),
    ],
}  # fmt: skip
SENT = ["a3 b1", "a5 b9", "a3 c2"]
BACKENDS: list[StateBackend] = [
    HashMapStateBackend(),
    EmbeddedRocksDBStateBackend().set_predefined_options(PredefinedOptions.SPINNING_DISK_OPTIMIZED),
    CustomStateBackend(lambda descriptor: {}),
]


def check(pipeline: MemoryPipeline | Pipeline, sent: Path) -> None:
    pipeline.run(drain=True)
    assert {name: sorted(values) for name, values in pipeline.outputs().items()} == EXPECTED
    assert sent.read_text().splitlines() == SENT
    assert pipeline.state("states", "mean") == [("a", (11, 3)), ("b", (11, 3)), ("c", (2, 1))]
    assert pipeline.state("states", "last") == [("a", 3), ("b", 1), ("c", 2)]


@pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: type(backend).__name__)
def test_in_memory(tmp_path: Path, backend: StateBackend) -> None:
    sent = tmp_path / "sent"
    with MemoryPipeline.of(programs(sent), parallelism=4, state_backend=backend) as pipeline:
        check(pipeline, sent)


@pytest.mark.spark
def test_on_spark(tmp_path: Path, spark: SparkSession) -> None:
    check(Pipeline(tmp_path, spark, programs(tmp_path / "sent"), parallelism=2), tmp_path / "sent")


FEED = [
    Row("ada", 12),
    Row.of_kind(RowKind.INSERT, "bob", 5),
    Row.of_kind(RowKind.UPDATE_BEFORE, "ada", 12),
    Row.of_kind(RowKind.UPDATE_AFTER, "ada", 100),
    Row.of_kind(RowKind.DELETE, "bob", 5),
]


class Newest(KeyedProcessFunction):
    """What is in the table of a changelog: a row that goes into a state is an insert there."""

    accepts_changes = True
    emits_changes = True

    def open(self, runtime_context: RuntimeContext) -> None:
        self.row = runtime_context.get_state(ValueStateDescriptor("row", SCORE))

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        kind = value.get_row_kind()
        if kind in (RowKind.UPDATE_BEFORE, RowKind.DELETE):
            self.row.clear()
        else:
            value.set_row_kind(RowKind.INSERT)
            self.row.update(value)
            value.set_row_kind(kind)
        yield value


def test_a_changelog_is_read_and_put_out_with_its_kinds() -> None:
    job = StatefulJob("scores")
    scores = job.from_collection(FEED, SCORE, changing=True).key_by("name")
    newest = scores.process(Newest(), output_type=SCORE, uid="newest")
    newest.sink("changelog", CollectSink())
    total = Types.TUPLE([Types.LONG(), Types.LONG()])
    scores.aggregate(Average(), total, Types.DOUBLE(), uid="means").sink("means", CollectSink())
    with run_in_memory(job) as run:
        run.run()
        shown = [(str(row.get_row_kind()), tuple(row)) for row in run.sink("changelog")]
        assert shown == [(str(row.get_row_kind()), tuple(row)) for row in FEED]
        assert run.state("newest", "row") == {"ada": ("ada", 100)}
        assert run.sink("means")[-1] == (RowKind.DELETE, 5.0)
        assert (RowKind.INSERT, 100.0) in run.sink("means")
