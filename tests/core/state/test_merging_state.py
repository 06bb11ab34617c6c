"""Merging states: what one of them stores, taken in by another one, for another key, with TTL, and undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from state_engine.core.errors import ConfigurationError, StateAccessError, ValueTypeError
from state_engine.core.state.aggregate_functions import AggregateFunction, defines_merge
from state_engine.core.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from tests.core.state.aggregates import Average, Collect
from tests.core.state.handles import Bench

MAKE: dict[str, Callable[[], StateDescriptor]] = {
    "list": lambda: ListStateDescriptor("s", int),
    "reducing": lambda: ReducingStateDescriptor("s", lambda a, b: a + b, int),
    "aggregating": lambda: AggregatingStateDescriptor("s", Average(), tuple[int, int]),
}
EVERY = pytest.mark.parametrize("kind", list(MAKE))
INTERNALS = {"list": [1, 5], "reducing": 6, "aggregating": (6, 2)}
"""What is stored after 1 and 5 were added."""


class Summed(NamedTuple):
    total: int
    seen: list[int]


def handle(bench: Bench, kind: str) -> Any:
    return bench.store.handle(MAKE[kind](), kind)


def collecting(bench: Bench) -> Any:
    return bench.store.handle(AggregatingStateDescriptor("s", Collect(), list[int]), "aggregating")


@EVERY
def test_what_is_merged_into_nothing_is_what_is_stored(kind: str) -> None:
    bench = Bench().at(1)
    state = handle(bench, kind)
    state.merge(INTERNALS[kind])
    assert bench.changes() == [(1, "append" if kind == "list" else "put", INTERNALS[kind])]


@EVERY
def test_nothing_is_none_and_merging_it_changes_nothing(kind: str) -> None:
    bench = Bench().at(1)
    state = handle(bench, kind)
    assert state.get_internal() is None
    state.merge(None)
    assert (bench.changes(), bench.entries()) == ([], {})
    stored = Bench(s={1: INTERNALS[kind]}).at(1)
    handle(stored, kind).merge(None)
    assert stored.changes() == []


def test_an_empty_list_changes_nothing_and_lists_append() -> None:
    bench = Bench(s={1: [7]}).at(1)
    state = bench.list()
    state.merge([])
    assert bench.changes() == []
    state.merge([8, 9])
    state.merge(state.get_internal())
    assert bench.changes() == [(1, "append", [8, 9, 7, 8, 9])]


@EVERY
def test_merging_is_undone_with_its_element(kind: str) -> None:
    for stored in ({}, {1: INTERNALS[kind]}):
        bench = Bench(s=dict(stored)).at(1)
        state = handle(bench, kind)
        before = state.get_internal()
        bench.context.undo = []
        state.merge(INTERNALS[kind])
        assert state.get_internal() != before
        bench.context.roll_back()
        bench.context.undo = None
        assert (state.get_internal(), bench.changes()) == (before, [])


def test_what_is_given_and_what_was_gotten_is_the_callers() -> None:
    bench = Bench(s={1: [1], 2: [2]})
    state = collecting(bench)
    for key, merged in ((1, [1, 5]), (3, [5])):  # with and without something stored
        bench.at(key)
        given = [5]
        state.merge(given)
        assert given == [5], "Collect empties the second accumulator"
        state.get_internal().append(99)
        given.append(6)
        assert state.get_internal() == merged
    bench.at(2)
    assert state.get_internal() == [2]


def test_a_reduce_function_may_change_what_is_merged() -> None:
    def take(a: Summed, b: Summed) -> Summed:
        a.seen.extend(b.seen)
        b.seen.clear()
        return Summed(a.total + b.total, a.seen)

    bench = Bench(s={1: Summed(1, [1])}).at(1)
    state = bench.runtime.get_reducing_state(ReducingStateDescriptor("s", take, Summed))
    given = (2, [2])  # as it comes through a stream
    state.merge(given)
    assert given == (2, [2])
    merged = state.get_internal()
    assert (merged, type(merged)) == (Summed(3, [1, 2]), Summed)


@EVERY
def test_what_such_a_state_does_not_store_is_refused(kind: str) -> None:
    for stored in ({}, {1: INTERNALS[kind]}):
        bench = Bench(s=dict(stored)).at(1)
        for wrong in ("abc", [1, "x"]):
            with pytest.raises(ValueTypeError):
                handle(bench, kind).merge(wrong)
        assert bench.changes() == []


def test_a_list_of_text_is_not_taken_for_text() -> None:
    with pytest.raises(ValueTypeError, match=r"list state 's' merges a list of .* not 'abc'"):
        Bench().at(1).list(str).merge("abc")


def test_an_aggregate_function_must_define_merge() -> None:
    class Last(AggregateFunction):
        def create_accumulator(self) -> int:
            return 0

        def add(self, value: int, accumulator: int) -> int:
            return value

        def get_result(self, accumulator: int) -> int:
            return accumulator

    bench = Bench().at(1)
    state = bench.runtime.get_aggregating_state(AggregatingStateDescriptor("s", Last(), int))
    state.add(3)
    assert state.get_internal() == 3
    for internal in (None, 4):
        with pytest.raises(ConfigurationError, match="state 's' cannot be merged: Last must define"):
            state.merge(internal)
    assert state.get() == 3
    assert (defines_merge(Last()), defines_merge(Average())) == (False, True)


def test_merge_must_give_an_accumulator() -> None:
    class Forgets(Average):
        def merge(self, acc_a: Any, acc_b: Any) -> Any:
            return None

    bench = Bench(s={1: (1, 1)}).at(1)
    descriptor = AggregatingStateDescriptor("s", Forgets(), tuple[int, int])
    with pytest.raises(ValueTypeError, match="the aggregate function of state 's' returned None from merge"):
        bench.runtime.get_aggregating_state(descriptor).merge((2, 1))
    assert bench.changes() == []


@EVERY
@pytest.mark.parametrize("use", ["get_internal", "merge"])
def test_without_a_key_there_is_nothing_to_merge(kind: str, use: str) -> None:
    state = handle(Bench(), kind)
    with pytest.raises(StateAccessError, match="state 's' was used without a current key"):
        getattr(state, use)(*[INTERNALS[kind]] * (use == "merge"))
