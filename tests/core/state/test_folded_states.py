"""Reducing, aggregating and folding state: what is added, what is stored, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from state_engine.core.errors import ConfigurationError, StateAccessError, ValueTypeError
from state_engine.core.state.aggregate_functions import AggregateFunction, FoldFunction, ReduceFunction
from state_engine.core.state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ReducingStateDescriptor,
)
from state_engine.core.state.state import AppendingState, MergingState
from tests.core.state.aggregates import Average, Collect
from tests.core.state.handles import Bench


class Longest(ReduceFunction):
    def reduce(self, value1: str, value2: str) -> str:
        return max(value1, value2, key=len)


class Join(FoldFunction):
    def fold(self, accumulator: str, value: int) -> str:
        return f"{accumulator}-{value}"


def folding(initial: Any, function: Any, kind: Any) -> FoldingStateDescriptor:
    with pytest.warns(DeprecationWarning, match="'s': folding state is deprecated; use an Aggregating"):
        return FoldingStateDescriptor("s", initial, function, kind)


def reducing(bench: Bench, function: Any = lambda a, b: a + b, kind: Any = int) -> Any:
    return bench.runtime.get_reducing_state(ReducingStateDescriptor("s", function, kind))


def aggregating(bench: Bench, function: Any, kind: Any) -> Any:
    return bench.runtime.get_aggregating_state(AggregatingStateDescriptor("s", function, kind))


def test_reducing_stores_first_and_reduces_later() -> None:
    calls: list[tuple[int, int]] = []

    def add(a: int, b: int) -> int:
        calls.append((a, b))
        return a + b

    bench = Bench().at(1)
    state = reducing(bench, add)
    assert state.get() is None
    state.add(5)
    assert (state.get(), calls) == (5, [])
    state.add(7)
    state.add(1)
    assert (state.get(), calls) == (13, [(5, 7), (12, 1)])
    assert bench.changes() == [(1, "put", 13)]


def test_a_reduce_function_object_will_do() -> None:
    state = reducing(Bench().at(1), Longest(), str)
    for word in ("a", "abc", "ab"):
        state.add(word)
    assert state.get() == "abc"


def test_reducing_normalises_also_what_is_added_first() -> None:
    state = reducing(Bench().at(1), kind="tinyint")
    with pytest.raises(ValueTypeError, match="between -128 and 127"):
        state.add(200)
    assert state.get() is None
    state.add(100)
    with pytest.raises(ValueTypeError, match="between -128 and 127"):
        state.add(100)
    assert state.get() == 100


def test_aggregating_may_use_three_types() -> None:
    bench = Bench().at(1)
    state = aggregating(bench, Average(), tuple[int, int])
    assert state.get() is None
    for number in (1, 2, 6):
        state.add(number)
    assert state.get() == 3.0
    assert bench.changes() == [(1, "put", (9, 3))]


def test_changing_an_accumulator_in_place_is_fine() -> None:
    stored = {1: [7]}
    bench = Bench(s=stored).at(1)
    state = aggregating(bench, Collect(), list[int])
    state.add(8)
    state.get().append(99)
    assert state.get() == [7, 8]
    assert bench.changes() == [(1, "put", [7, 8])]


def test_folding_starts_from_a_fresh_initial_value() -> None:
    def append(accumulator: list[int], value: int) -> list[int]:
        accumulator.append(value)
        return accumulator

    bench = Bench()
    state = bench.runtime.get_folding_state(folding([0], append, list[int]))
    bench.at(1)
    assert state.get() is None
    state.add(1)
    state.add(2)
    bench.at(2)
    state.add(3)
    assert state.get() == [0, 3]
    bench.at(1)
    assert state.get() == [0, 1, 2]


def test_folding_with_a_function_object_into_another_type() -> None:
    state = Bench().at(1).runtime.get_folding_state(folding("start", Join(), str))
    state.add(1)
    state.add(2)
    assert state.get() == "start-1-2"


MAKE: dict[str, Callable[[], Any]] = {
    "reducing": lambda: ReducingStateDescriptor("s", lambda a, b: a + b, int),
    "aggregating": lambda: AggregatingStateDescriptor("s", Average(), tuple[int, int]),
    "folding": lambda: folding(0, lambda a, b: a + b, int),
}
EVERY = pytest.mark.parametrize("kind", list(MAKE))


@EVERY
@pytest.mark.parametrize("use", [lambda s: s.get(), lambda s: s.add(1), lambda s: s.clear()])
def test_without_a_key_there_is_no_state(kind: str, use: Callable[[Any], Any]) -> None:
    state = Bench().store.handle(MAKE[kind](), kind)
    with pytest.raises(StateAccessError, match="state 's' was used without a current key"):
        use(state)


@EVERY
def test_they_are_appending_and_all_but_folding_merge(kind: str) -> None:
    state = Bench().store.handle(MAKE[kind](), kind)
    assert isinstance(state, AppendingState)
    assert isinstance(state, MergingState) is (kind != "folding")


def test_none_is_never_stored() -> None:
    bench = Bench().at(1)
    with pytest.raises(ValueTypeError, match="None cannot be added to reducing state 's'"):
        reducing(bench).add(None)
    state = reducing(Bench(s={1: 5}).at(1), lambda a, b: None)
    with pytest.raises(ValueTypeError, match="the reduce function of state 's' returned None"):
        state.add(1)
    assert state.get() == 5

    class Nothing(Average):
        def add(self, value: int, accumulator: Any) -> Any:
            return None

    with pytest.raises(ValueTypeError, match="the aggregate function of state 's' returned None from add"):
        aggregating(Bench().at(1), Nothing(), tuple[int, int]).add(1)
    with pytest.raises(ValueTypeError, match="the fold function of state 's' returned None"):
        Bench().at(1).runtime.get_folding_state(folding(0, lambda a, b: None, int)).add(1)


def test_a_function_that_raises_changes_nothing() -> None:
    def fail(a: int, b: int) -> int:
        raise RuntimeError("no")

    bench = Bench(s={1: 5}).at(1)
    with pytest.raises(RuntimeError, match="no"):
        reducing(bench, fail).add(1)
    assert bench.changes() == []


def test_descriptors_refuse_what_is_no_function() -> None:
    with pytest.raises(ConfigurationError, match="reduce_function of state 's' takes a ReduceFunction"):
        ReducingStateDescriptor("s", 5, int)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="agg_function of state 's' must be an AggregateFunction"):
        AggregatingStateDescriptor("s", max, int)  # type: ignore[arg-type]
    with (
        pytest.warns(DeprecationWarning, match="deprecated"),
        pytest.raises(ConfigurationError, match="fold_function of state 's' takes a FoldFunction"),
    ):
        FoldingStateDescriptor("s", 0, "sum", int)  # type: ignore[arg-type]


def test_descriptors_need_a_type() -> None:
    with pytest.raises(ConfigurationError, match="type_info of state 's'"):
        ReducingStateDescriptor("s", max, None)
    with pytest.raises(ConfigurationError, match="state_type_info of state 's'"):
        AggregatingStateDescriptor("s", Average(), None)
    with (
        pytest.warns(DeprecationWarning, match="deprecated"),
        pytest.raises(ConfigurationError, match="type_info of state 's'"),
    ):
        FoldingStateDescriptor("s", 0, max, None)
    with pytest.raises(ValueTypeError):
        folding("x", max, int)


@pytest.mark.parametrize("base", [ReduceFunction(), AggregateFunction(), FoldFunction()])
def test_the_bases_name_what_must_be_defined(base: Any) -> None:
    methods = {"reduce": 2, "create_accumulator": 0, "add": 2, "get_result": 1, "merge": 2, "fold": 2}
    own = [m for m in methods if m in vars(type(base))]
    assert own
    for method in own:
        with pytest.raises(NotImplementedError, match=f"must define {method}"):
            getattr(base, method)(*[1] * methods[method])
