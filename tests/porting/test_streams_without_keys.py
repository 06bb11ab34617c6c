"""Ported programs on streams without keys: map, flat map, filter, two streams, broadcast rules.

In the harness and as jobs in memory, with equal results.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from state_engine import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    DataStream,
    FilterFunction,
    FlatMapFunction,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    Row,
    RuntimeContext,
    StatefulJob,
    Types,
)
from state_engine.testing import OperatorHarness
from tests.porting.both import collected, sorted_plain

LINES = ["to be or not", "", "to be that is", "the question"]
COUNTED = Types.ROW_NAMED(["word", "letters"], [Types.STRING(), Types.INT()])


class Splitter(FlatMapFunction):
    def flat_map(self, value: str) -> Iterable[str]:
        yield from value.split()


class LongWords(FilterFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.least = int(runtime_context.get_job_parameter("least_letters", "3") or 0)

    def filter(self, value: str) -> bool:
        return len(value) >= self.least


class ToRow(MapFunction):
    def map(self, value: str) -> Row:
        return Row(word=value.upper(), letters=len(value))


def test_words_are_split_filtered_and_mapped() -> None:
    def words(job: StatefulJob) -> DataStream:
        lines = job.from_collection(LINES, Types.STRING(), name="lines", max_rows_per_batch=2)
        long_words = lines.flat_map(Splitter(), output_type=Types.STRING()).filter(LongWords())
        return long_words.map(ToRow(), output_type=COUNTED)

    split = OperatorHarness(Splitter()).process(LINES)
    kept = OperatorHarness(LongWords()).process(split)
    expected = OperatorHarness(ToRow(), output_type=COUNTED).process(kept)
    assert [row.word for row in expected] == ["NOT", "THAT", "THE", "QUESTION"]
    assert collected(words) == sorted_plain(expected)


ORDERS = [("apple", 2), ("pear", 1), ("apple", 5)]
PRICES = [("apple", 30), ("pear", 45)]
PAIR = Types.TUPLE([Types.STRING(), Types.INT()])
BOTH = [(1, order) for order in ORDERS] + [(2, price) for price in PRICES]
PRICED = OutputTag("priced", Types.STRING())


class Labels(CoMapFunction):
    def map1(self, value: Any) -> str:
        return f"order of {value[1]} {value[0]}"

    def map2(self, value: Any) -> str:
        return f"{value[0]} costs {value[1]}"


class Units(CoFlatMapFunction):
    def flat_map1(self, value: Any) -> Iterable[str]:
        for _ in range(value[1]):
            yield value[0]

    def flat_map2(self, value: Any) -> Iterable[str]:
        return []


class Routes(CoProcessFunction):
    """Orders to the main output, prices to a side output."""

    def process_element1(self, value: Any, ctx: CoProcessFunction.Context) -> Iterable[Any]:
        yield value[0]

    def process_element2(self, value: Any, ctx: CoProcessFunction.Context) -> Iterable[Any]:
        yield PRICED, f"{value[0]}: {value[1]}"


@pytest.mark.parametrize("function", [Labels(), Units(), Routes()], ids=lambda f: type(f).__name__)
def test_two_streams_are_handled_by_one_function(function: Any) -> None:
    def connected(job: StatefulJob) -> DataStream:
        orders = job.from_collection(ORDERS, PAIR, name="orders", max_rows_per_batch=2)
        both = orders.connect(job.from_collection(PRICES, PAIR, name="prices"))
        if isinstance(function, CoMapFunction):
            return both.map(function, output_type=Types.STRING())
        if isinstance(function, CoFlatMapFunction):
            return both.flat_map(function, output_type=Types.STRING())
        return both.process(function, uid="routes", output_type=Types.STRING())

    harness = OperatorHarness(function, parallelism=2, side_outputs=[PRICED])
    expected = harness.process_pairs(BOTH)
    if isinstance(function, CoProcessFunction):
        assert expected == ["apple", "pear", "apple"]
        expected = harness.side_output(PRICED)
        assert collected(lambda job: connected(job).get_side_output(PRICED)) == sorted_plain(expected)
    else:
        assert collected(connected) == sorted_plain(expected)
    assert expected


LIMITS = MapStateDescriptor("limits", Types.STRING(), Types.INT())


class WithinLimits(BroadcastProcessFunction):
    """Passes orders up to the limit of their fruit; one without a limit is not passed."""

    def process_element(self, value: Any, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterable[Any]:
        limit = ctx.get_broadcast_state(LIMITS).get(value[0])
        if limit is not None and value[1] <= limit:
            yield value[0], value[1]

    def process_broadcast_element(self, value: Any, ctx: BroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(LIMITS).put(value[0], value[1])


def test_rules_are_broadcast_to_a_stream_without_keys() -> None:
    limits = [("apple", 3), ("pear", 1)]

    def limited(job: StatefulJob) -> DataStream:
        rules = job.from_collection(limits, PAIR, name="limits").broadcast(LIMITS)
        orders = job.from_collection(ORDERS, PAIR, name="orders", max_rows_per_batch=2)
        return orders.connect(rules).process(WithinLimits(), uid="within_limits", output_type=PAIR)

    harness = OperatorHarness(WithinLimits(), parallelism=2)
    expected = harness.process(ORDERS, broadcast=limits)
    assert expected == [("apple", 2), ("pear", 1)]
    assert collected(limited) == sorted_plain(expected)
