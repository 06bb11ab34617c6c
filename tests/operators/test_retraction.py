"""``reduce`` and ``aggregate`` take rows back: kinds of their results, their state, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from state_engine.core.errors import ConfigurationError, RetractionError, StateMigrationError, ValueTypeError
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.aggregate_functions import AggregateFunction, ReduceFunction, defines_retract
from state_engine.core.state.descriptors import AggregatingStateDescriptor
from state_engine.core.types.row import Row, RowKind
from state_engine.operators.rolling import RollingAggregate, RollingReduce, RunningAggregate
from state_engine.testing import KeyedHarness
from tests.core.state.aggregates import Average
from tests.core.state.handles import Bench

INSERT, BEFORE, AFTER, DELETE = RowKind
AMOUNT = "user string, amount bigint"


class Rows(AggregateFunction):
    """The rows themselves, in a list that is changed in place."""

    def create_accumulator(self) -> list[Row]:
        return []

    def add(self, value: Row, accumulator: list[Row]) -> list[Row]:
        accumulator.append(value)
        return accumulator

    def retract(self, value: Row, accumulator: list[Row]) -> list[Row]:
        accumulator.remove(value)
        return accumulator

    def get_result(self, accumulator: list[Row]) -> list[Row]:
        return accumulator


class Total(Average):
    def retract(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] - value, accumulator[1] - 1


def summed(**options: Any) -> KeyedHarness:
    taken = RollingReduce(lambda a, b: a + b, int, lambda total, b: total - b, emits_changes=True)
    return KeyedHarness(taken, key_by=lambda value: "k", changing=True, **options)


def test_a_reduction_takes_back_what_it_was_given() -> None:
    harness = summed()
    assert harness.process([5, (AFTER, 2), (BEFORE, 5)]) == [
        (INSERT, 5), (BEFORE, 5), (AFTER, 7), (BEFORE, 7), (AFTER, 2),
    ]  # fmt: skip
    assert (harness.state("reduced"), harness.state("reduced_rows")) == ({"k": 2}, {"k": 1})
    assert harness.process([(DELETE, 2)]) == [(DELETE, 2)]
    assert (harness.state("reduced"), harness.state("reduced_rows")) == ({}, {})


def test_a_function_that_changes_what_it_is_given_changes_no_result_that_came_out_before() -> None:
    def longer(kept: list[int], more: list[int]) -> list[int]:
        kept.extend(more)
        return kept

    def shorter(kept: list[int], less: list[int]) -> list[int]:
        del kept[-len(less) :]
        return kept

    reduce = RollingReduce(longer, list[int], shorter, emits_changes=True)
    harness = KeyedHarness(reduce, key_by=lambda value: "k", changing=True)
    (first,) = harness.process([(INSERT, [1])])
    assert harness.process([(INSERT, [2, 3])]) == [(BEFORE, [1]), (AFTER, [1, 2, 3])]
    assert first == (INSERT, [1])
    assert harness.process([(DELETE, [2, 3])]) == [(BEFORE, [1, 2, 3]), (AFTER, [1])]
    assert harness.state("reduced") == {"k": [1]}


def test_an_aggregation_takes_back_what_it_was_given() -> None:
    function = RunningAggregate(Total(), tuple[int, int], emits_changes=True)
    harness = KeyedHarness(function, key_by=lambda value: "k", changing=True)
    assert harness.process([5, 2, (DELETE, 5)]) == [
        (INSERT, 5.0), (BEFORE, 5.0), (AFTER, 3.5), (BEFORE, 3.5), (AFTER, 2.0),
    ]  # fmt: skip
    assert (harness.state("aggregated"), harness.state("aggregated_rows")) == ({"k": (2, 1)}, {"k": 1})
    assert harness.process([(BEFORE, 2)]) == [(DELETE, 2.0)]
    assert (harness.state("aggregated"), harness.state("aggregated_rows")) == ({}, {})


def test_rows_that_are_kept_have_no_kind() -> None:
    harness = KeyedHarness(
        RunningAggregate(Rows(), list[tuple[str, int]], emits_changes=True),
        key_by=lambda row: row.user,
        changing=True,
        input_type=AMOUNT,
    )
    rows = [Row.of_kind(AFTER, user="a", amount=n) for n in (1, 2)]
    assert harness.process([*rows, Row.of_kind(DELETE, user="a", amount=1)])[-1] == (AFTER, [("a", 2)])
    best = RollingReduce(lambda a, b: max(a, b), AMOUNT, lambda a, b: a, emits_changes=True)
    kept = KeyedHarness(best, key_by=lambda row: row.user, changing=True, input_type=AMOUNT)
    assert kept.process(rows)[-1].get_row_kind() is AFTER
    assert kept.state("reduced") == {"a": Row(user="a", amount=2)}


@pytest.mark.parametrize(
    "function",
    [
        RollingReduce(lambda a, b: a + b, int, lambda total, b: total - b),
        RunningAggregate(Total(), tuple[int, int]),
    ],
)
def test_what_was_never_added_is_refused_and_changes_nothing(function: Any) -> None:
    harness = KeyedHarness(function, key_by=lambda value: "k", changing=True, on_error="dead_letter")
    assert harness.process([(DELETE, 5), 3]) in ([3], [3.0])
    assert "never added to this key" in harness.refused[0].error
    assert [names for names in ("reduced_rows", "aggregated_rows") if _rows(harness, names) == {"k": 1}]


def _rows(harness: KeyedHarness, name: str) -> Any:
    try:
        return harness.state(name)
    except ConfigurationError:
        return None


def test_a_function_that_fails_leaves_the_number_of_rows_as_it_was() -> None:
    class Refusing(Total):
        def retract(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
            raise RetractionError("no")

    function = RunningAggregate(Refusing(), tuple[int, int])
    harness = KeyedHarness(function, key_by=lambda value: "k", changing=True, on_error="dead_letter")
    harness.process([5, (DELETE, 5)])
    assert (harness.state("aggregated"), harness.state("aggregated_rows")) == ({"k": (5, 1)}, {"k": 1})


def test_functions_are_opened_and_closed_with_the_operator() -> None:
    calls: list[str] = []

    class Noted(ReduceFunction):
        def __init__(self, name: str) -> None:
            self.name = name

        def open(self, runtime_context: RuntimeContext) -> None:
            calls.append(f"open {self.name}")

        def close(self) -> None:
            calls.append(f"close {self.name}")

        def reduce(self, value1: int, value2: int) -> int:
            return value1 + value2

    function = RollingReduce(Noted("add"), int, Noted("take"))
    function.open(Bench().runtime)
    function.close()
    assert calls == ["open add", "open take", "close add", "close take"]


def test_an_inverse_that_gives_none_is_an_error() -> None:
    function = RollingReduce(lambda a, b: a + b, int, lambda a, b: None)
    harness = KeyedHarness(function, key_by=lambda value: "k", changing=True)
    with pytest.raises(ValueTypeError, match="the inverse function returned None for 3 and 2"):
        harness.process([1, 2, (DELETE, 2)])


def test_rows_that_were_not_counted_cannot_be_taken_back() -> None:
    old = KeyedHarness(RollingReduce(lambda a, b: a + b, int), key_by=lambda value: "k")
    old.process([1, 2])
    function = RollingReduce(lambda a, b: a + b, int, lambda total, b: total - b)
    new = KeyedHarness.restored(function, old.snapshot(), key_by=lambda value: "k", changing=True)
    assert new.process([4]) == [7]
    with pytest.raises(StateMigrationError, match="reduce takes back a row of a key whose rows were not"):
        new.process([(DELETE, 4)])


def test_which_functions_can_take_rows_back() -> None:
    assert (defines_retract(Total()), defines_retract(Average())) == (True, False)
    accepting = [
        RunningAggregate(Total(), int), RunningAggregate(Average(), int), RollingReduce(max, int),
        RollingReduce(max, int, min), RollingAggregate("max", 0, int),
    ]  # fmt: skip
    assert [function.accepts_changes for function in accepting] == [True, False, False, True, False]
    with pytest.raises(ConfigurationError, match=r"RunningAggregate takes inserts only.*say accepts_changes"):
        KeyedHarness(RunningAggregate(Average(), int), key_by=lambda value: "k", changing=True)


def test_an_aggregating_state_takes_a_value_back() -> None:
    bench = Bench().at(1)
    state = bench.store.handle(AggregatingStateDescriptor("s", Total(), tuple[int, int]), "aggregating")
    with pytest.raises(RetractionError, match="aggregating state 's' cannot take back 5, which was never"):
        state.retract(5)
    state.add(5)
    state.add(2)
    state.retract(5)
    assert state.get_internal() == (2, 1)
    plain = bench.store.handle(AggregatingStateDescriptor("p", Average(), tuple[int, int]), "aggregating")
    plain.add(5)
    with pytest.raises(ConfigurationError, match=r"Average must define retract\(self, value, accumulator\)"):
        plain.retract(5)
