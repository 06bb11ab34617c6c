"""Ported programs on keyed streams: reduce, joins, rules, event-time timers and expiring state.

In the harness and as jobs in memory, with equal results; one with timers and a side output on Spark, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from state_engine import (
    DataStream,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ReduceFunction,
    Row,
    RuntimeContext,
    StatefulJob,
    StateTtlConfig,
    Time,
    TimeDomain,
    Types,
    ValueStateDescriptor,
)
from state_engine.core.functions.keyed_functions import RollingReduce
from state_engine.core.types.type_parsing import to_type
from state_engine.testing import KeyedHarness
from tests.porting.both import collected, sorted_plain
from tests.support.pipelines import MemoryPipeline

SCORE = Types.ROW_NAMED(["player", "points"], [Types.STRING(), Types.LONG()])
SCORES = [Row(player=p, points=n) for p, n in [("ann", 3), ("bob", 7), ("ann", 9), ("bob", 2), ("ann", 4)]]


class ByPlayer(KeySelector):
    def get_key(self, value: Row) -> str:
        return str(value.player)


class Best(ReduceFunction):
    def reduce(self, value1: Row, value2: Row) -> Row:
        return value1 if value1.points >= value2.points else value2


def test_the_best_score_so_far_is_a_reduction() -> None:
    def best(job: StatefulJob) -> DataStream:
        scores = job.from_collection(SCORES, SCORE, name="scores", max_rows_per_batch=2)
        return scores.key_by(ByPlayer(), key_type=Types.STRING()).reduce(Best()).uid("best")

    rolling = RollingReduce(Best(), to_type(SCORE, parameter="scores"))
    expected = KeyedHarness(rolling, key_by=ByPlayer().get_key, parallelism=2).process(SCORES)
    assert [tuple(row) for row in expected] == [("ann", 3), ("bob", 7), ("ann", 9), ("bob", 7), ("ann", 9)]
    assert collected(best) == sorted_plain(expected)


PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])
TRIPLE = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()])
ORDERS = [("a", 1), ("b", 2), ("c", 3)]
PAYMENTS = [("b", 20), ("a", 10)]


class Join(KeyedCoProcessFunction):
    """Joins elements of two streams by key; the first one of a pair waits in state."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.order = runtime_context.get_state(ValueStateDescriptor("order", Types.LONG()))
        self.payment = runtime_context.get_state(ValueStateDescriptor("payment", Types.LONG()))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        self.order.update(value[1])
        yield from self.joined(ctx)

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        self.payment.update(value[1])
        yield from self.joined(ctx)

    def joined(self, ctx: Any) -> Iterable[Any]:
        if self.order.value() is not None and self.payment.value() is not None:
            yield ctx.get_current_key(), self.order.value(), self.payment.value()
            self.order.clear()
            self.payment.clear()


def test_two_keyed_streams_are_joined() -> None:
    def joined(job: StatefulJob) -> DataStream:
        orders = job.from_collection(ORDERS, PAIR, name="orders", max_rows_per_batch=2)
        payments = job.from_collection(PAYMENTS, PAIR, name="payments", max_rows_per_batch=1)
        connected = orders.key_by("f0").connect(payments.key_by("f0"))
        return connected.process(Join(), uid="join", output_type=TRIPLE)

    harness = KeyedHarness(Join(), key_by=lambda pair: pair[0], parallelism=2)
    pairs = [(1, order) for order in ORDERS] + [(2, payment) for payment in PAYMENTS]
    expected = harness.process_pairs(pairs)
    assert sorted(expected) == [("a", 1, 10), ("b", 2, 20)]
    assert collected(joined) == sorted_plain(expected)


RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


class Rules(KeyedBroadcastProcessFunction):
    """The number of elements of a key, times the factor that was broadcast for it."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.LONG()))

    def process_element(
        self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext
    ) -> Iterable[Any]:
        self.seen.add(value[1])
        factor = ctx.get_broadcast_state(RULES).get(value[0]) or 0
        yield value[0], value[1], factor * len(list(self.seen.get()))

    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(RULES).put(value[0], value[1])


def test_rules_are_broadcast_to_a_keyed_stream() -> None:
    elements = [("a", 1), ("b", 2), ("a", 3), ("c", 4)]

    def ruled(job: StatefulJob) -> DataStream:
        rules = job.from_collection(PAYMENTS, PAIR, name="rules").broadcast(RULES)
        keyed = job.from_collection(elements, PAIR, name="elements", max_rows_per_batch=2).key_by("f0")
        return keyed.connect(rules).process(Rules(), uid="ruled", output_type=TRIPLE)

    harness = KeyedHarness(Rules(), key_by=lambda pair: pair[0], parallelism=2)
    expected = harness.process(elements, broadcast=PAYMENTS)
    assert expected == [("a", 1, 10), ("b", 2, 20), ("a", 3, 20), ("c", 4, 0)]
    assert collected(ruled) == sorted_plain(expected)


EPOCH = datetime(1970, 1, 1)
VISIT = Types.ROW_NAMED(["user", "at"], [Types.STRING(), Types.SQL_TIMESTAMP()])
SECONDS = [("x", 0), ("y", 5), ("x", 8), ("z", 16), ("y", 40), ("x", 60)]
VISITS = [(u, EPOCH + timedelta(seconds=s)) for u, s in SECONDS]
ENDED = OutputTag("ended", Types.STRING())


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


def sessions(job: StatefulJob) -> tuple[DataStream, DataStream]:
    visits = job.from_collection(VISITS, VISIT, name="visits", max_rows_per_batch=3)
    timed = visits.assign_timestamps_and_watermarks("at")
    ended = timed.key_by("user").process(Sessions(), uid="sessions", output_type=TRIPLE)
    return ended, ended.get_side_output(ENDED)


def test_sessions_end_by_event_time_timers() -> None:
    check_sessions()


@pytest.mark.spark
def test_sessions_end_by_event_time_timers_on_spark(spark: SparkSession) -> None:
    check_sessions(spark)


def check_sessions(spark: SparkSession | None = None) -> None:
    harness = KeyedHarness(
        Sessions(),
        key_by=lambda visit: visit[0],
        timestamp_of=lambda visit: (visit[1] - EPOCH) // timedelta(milliseconds=1),
        max_out_of_orderness_ms=0,
        side_outputs=[ENDED],
    )
    expected = harness.process(VISITS) + harness.drain()
    assert sorted(expected) == [
        ("x", 1, 70_000), ("x", 2, 18_000), ("y", 1, 15_000), ("y", 1, 50_000), ("z", 1, 26_000),
    ]  # fmt: skip
    assert collected(lambda job: sessions(job)[0], spark=spark, drain=True) == sorted_plain(expected)
    ended = collected(lambda job: sessions(job)[1], spark=spark, drain=True)
    assert ended == sorted_plain(harness.side_output(ENDED)) == ["x", "x", "y", "y", "z"]


class OncePerMinute(KeyedProcessFunction):
    """Emits an element unless one of its key was emitted in the last minute."""

    def open(self, runtime_context: RuntimeContext) -> None:
        ttl = (
            StateTtlConfig.new_builder(Time.minutes(1))
            .set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)
            .set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
            .build()
        )
        descriptor = ValueStateDescriptor("passed", Types.BOOLEAN())
        descriptor.enable_time_to_live(ttl)
        self.passed = runtime_context.get_state(descriptor)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        if not self.passed.value():
            self.passed.update(True)
            yield value[0], ctx.timer_service().current_processing_time()


def test_state_expires_by_processing_time() -> None:
    arrivals = {1_000: ("a", 1), 40_000: ("a", 2), 60_999: ("a", 3), 61_000: ("a", 4)}

    def build(job: StatefulJob) -> Mapping[str, DataStream]:
        elements = job.from_collection(arrivals.values(), PAIR, name="elements", max_rows_per_batch=1)
        return {"out": elements.key_by("f0").process(OncePerMinute(), uid="once", output_type=PAIR)}

    harness = KeyedHarness(OncePerMinute(), key_by=lambda pair: pair[0])
    expected: list[Any] = []
    with MemoryPipeline.of(build, parallelism=2) as pipeline:
        for clock_ms, element in arrivals.items():
            harness.set_clock(clock_ms)
            expected += harness.process([element])
            pipeline.run(max_batches=1, clock=clock_ms)
        assert expected == [("a", 1_000), ("a", 61_000)]
        assert pipeline.outputs()["out"] == expected
