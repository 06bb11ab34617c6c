"""``map_with_state``, ``reduce`` and rolling aggregates: one output per element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.aggregate_functions import ReduceFunction
from state_engine.core.types.row import Row
from state_engine.operators.rolling import MapWithState, RollingAggregate, RollingReduce
from state_engine.testing import KeyedHarness


class Pair(NamedTuple):
    key: str
    value: int | None


@dataclass
class Record:
    key: str
    value: int


def one_by_one(function: Any, elements: list[Any], key_by: Any) -> list[Any]:
    """The outputs, which must be the same in one batch and in one batch per element."""
    whole = KeyedHarness(function, key_by=key_by, parallelism=3).process(elements)
    harness = KeyedHarness(function, key_by=key_by)
    assert [output for element in elements for output in harness.process([element])] == whole
    return whole


def test_map_with_state_sees_the_state_before_the_element() -> None:
    def count(value: tuple[str, int], seen: int | None) -> tuple[Any, int | None]:
        return (value[0], seen), None if value[1] == 0 else (seen or 0) + value[1]

    elements = [("a", 1), ("b", 5), ("a", 2), ("a", 0), ("a", 4), ("a", 1)]
    assert one_by_one(MapWithState(count, int), elements, lambda v: v[0]) == [
        ("a", None), ("b", None), ("a", 1), ("a", 3), ("a", None), ("a", 4),
    ]  # fmt: skip


@pytest.mark.parametrize("result", [None, 5, [1, 2], (1, 2, 3)])
def test_map_with_state_returns_output_and_state(result: Any) -> None:
    harness = KeyedHarness(MapWithState(lambda value, state: result, int), key_by=lambda v: v)
    with pytest.raises(ValueTypeError, match=r"return \(output, new state\)"):
        harness.process([1])
    with pytest.raises(ConfigurationError, match="map_with_state takes a callable, not 5"):
        MapWithState(5, int)  # type: ignore[arg-type]


def test_reduce_emits_the_reduction_so_far() -> None:
    class Longest(ReduceFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            self.opened = True

        def reduce(self, value1: str, value2: str) -> str:
            assert self.opened
            return max(value1, value2, key=len)

    words = ["a", "bb", "abc", "ab", "b"]
    assert one_by_one(RollingReduce(Longest(), str), words, lambda w: w[0]) == ["a", "bb", "abc", "abc", "bb"]


def test_a_reduction_to_nothing_is_refused() -> None:
    with pytest.raises(ValueTypeError, match="the reduce function returned None for 1 and 3"):
        KeyedHarness(RollingReduce(lambda a, b: None, int), key_by=lambda v: 1).process([1, 3])


@pytest.mark.parametrize(
    ("kind", "expected"), [("sum", [3, 1, 5, 4, 8]), ("min", [3, 1, 2, 1, 2]), ("max", [3, 1, 3, 3, 3])]
)
def test_rolling_aggregates_of_one_field(kind: Any, expected: list[int]) -> None:
    values = [("a", 3), ("b", 1), ("a", 2), ("b", 3), ("a", 3)]
    keys = [key for key, _ in values]
    by_position = RollingAggregate(kind, 1, tuple[str, int])
    assert one_by_one(by_position, values, lambda v: v[0]) == list(zip(keys, expected, strict=True))
    pairs = one_by_one(RollingAggregate(kind, "value", Pair), [Pair(*v) for v in values], lambda v: v.key)
    assert pairs == [Pair(k, e) for k, e in zip(keys, expected, strict=True)]
    assert {type(p) for p in pairs} == {Pair}
    records = one_by_one(
        RollingAggregate(kind, "value", Record), [Record(*v) for v in values], lambda v: v.key
    )
    assert records == [Record(k, e) for k, e in zip(keys, expected, strict=True)]
    rows = [Row(key=k, value=v) for k, v in values]
    aggregates = one_by_one(
        RollingAggregate(kind, "value", "key string, value bigint"), rows, lambda v: v.key
    )
    assert [(r.key, r.value) for r in aggregates] == list(zip(keys, expected, strict=True))


def test_other_fields_stay_those_of_the_first_element() -> None:
    rolling = RollingAggregate("max", "value", "key bigint, name string, value bigint")
    rows = [Row(key=1, name=n, value=v) for n, v in [("first", 1), ("second", 5)]]
    assert [tuple(r) for r in one_by_one(rolling, rows, lambda r: r.key)] == [
        (1, "first", 1),
        (1, "first", 5),
    ]


@pytest.mark.parametrize(
    ("kind", "expected"), [("min_by", "first second second second"), ("max_by", "first first third third")]
)
def test_by_gives_whole_elements_and_of_several_the_first(kind: Any, expected: str) -> None:
    values = [("first", 2), ("second", 1), ("third", 3), ("fourth", 3), ("fifth", None)]
    rolling = RollingAggregate(kind, 1, "name string, value bigint")
    rows = [Row(name=name, value=value) for name, value in values]
    elements = one_by_one(rolling, rows, lambda row: 1)
    assert [row.name for row in elements] == [*expected.split(), expected.split()[-1]]
    assert [tuple(row) for row in elements] == [(row.name, dict(values)[row.name]) for row in elements]
    assert one_by_one(RollingAggregate(kind, value_type=int), [2, 1, 3], lambda v: 1) == (
        [2, 1, 1] if kind == "min_by" else [2, 2, 3]
    )


def test_a_null_field_counts_as_no_value() -> None:
    values = [Pair("a", None), Pair("a", 2), Pair("a", None), Pair("a", 1)]
    rolling = one_by_one(RollingAggregate("sum", "value", Pair), values, lambda v: v.key)
    assert [p.value for p in rolling] == [None, 2, 2, 3]


def test_bare_values_are_their_own_field() -> None:
    assert one_by_one(RollingAggregate("sum", value_type=int), [1, 2, 3], lambda v: 1) == [1, 3, 6]
    with pytest.raises(ValueTypeError, match="a rolling aggregate of field 'x' needs records, not 1"):
        KeyedHarness(RollingAggregate("sum", "x", int), key_by=lambda v: 1).process([1, 2])


@pytest.mark.parametrize("field", ["nope", 7])
def test_a_field_that_is_not_there_is_reported(field: Any) -> None:
    harness = KeyedHarness(RollingAggregate("sum", field, Pair), key_by=lambda v: v.key)
    with pytest.raises(ValueTypeError, match=f"needs the field {field!r}"):
        harness.process([Pair("a", 1), Pair("a", 2)])


def test_an_unknown_aggregate_is_reported() -> None:
    with pytest.raises(ConfigurationError, match=r"one of \['max', 'max_by', 'min', 'min_by', 'sum'\], not"):
        RollingAggregate("mean", 0, int)  # type: ignore[arg-type]
