"""Sorted map state: entries by key, its ends and parts of it; all else is a map state's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from state_engine.core.errors import ConfigurationError, InvalidKeyError, StateAccessError, ValueTypeError
from state_engine.core.state.descriptors import MapStateDescriptor, SortedMapStateDescriptor
from state_engine.core.state.map_state import MapState
from state_engine.core.state.sorted_map_state import SortedMapState
from tests.core.state.handles import Bench
from tests.core.state.steps import Steps


def sorted_map(bench: Bench, key: Any = int, value: Any = int) -> SortedMapState:
    state: SortedMapState = bench.runtime.get_sorted_map_state(SortedMapStateDescriptor("s", key, value))
    return state


ORDERS: list[tuple[Any, list[Any]]] = [
    (int, [-300, -2, -1, 0, 1, 255, 256]),
    (float, [-math.inf, -1.5, -1.0, 0.0, 1e-300, 2.0, math.inf]),
    (str, ["", "\0", "a", "a\0", "a\0b", "aa", "b"]),
    (tuple[int, str], [(None, "z"), (-1, None), (-1, "a"), (0, None), (0, "")]),
]


@pytest.mark.parametrize(("kind", "keys"), ORDERS)
@pytest.mark.parametrize("restoring", [False, True])
def test_entries_are_in_key_order(kind: Any, keys: list[Any], restoring: bool) -> None:
    steps = Steps(SortedMapStateDescriptor("s", kind, int), restoring=restoring)
    for n in (3, 1, 4, 0, 2, *range(5, len(keys))):
        steps.at(0, lambda s, n=n: s.put(keys[n], n))
    ordered = [(k, n) for n, k in enumerate(keys)]
    assert steps.at(0, lambda s: s.items()) == ordered
    assert steps.at(0, lambda s: s.keys()) == keys
    assert steps.at(0, lambda s: iter(s)) == keys
    assert steps.at(0, lambda s: s.values()) == list(range(len(keys)))
    assert steps.at(0, lambda s: (s.first_entry(), s.last_entry())) == (ordered[0], ordered[-1])
    for to in range(len(keys)):
        assert steps.at(0, lambda s, to=to: s.head_items(keys[to])) == ordered[:to]
        assert steps.at(0, lambda s, to=to: s.tail_items(keys[to])) == ordered[to:]
        for from_ in range(len(keys)):
            items = steps.at(0, lambda s, a=from_, b=to: s.sub_items(keys[a], keys[b]))
            assert items == ordered[from_:to]


def test_writes_between_looks_keep_the_order() -> None:
    bench = Bench(s={1: {5: 5, 1: 1}}).at(1)
    state = sorted_map(bench)
    assert state.first_entry() == (1, 1)
    state.put(-3, 0)
    assert state.first_entry() == (-3, 0)
    state.remove(-3)
    state.remove(1)
    assert (state.first_entry(), state.last_entry()) == ((5, 5), (5, 5))
    state.put(5, 50)
    assert bench.changes() == [(1, "delete", (1, None)), (1, "put", (5, 50))]
    state.clear()
    state.put(7, 7)
    assert list(state) == [7]


def test_removed_and_put_again_is_in_its_place_and_no_change() -> None:
    bench = Bench(s={1: {1: 10, 2: 20, 3: 30}}).at(1)
    state = sorted_map(bench)
    state.remove(1)
    state.put(1, 10)
    assert list(state) == [1, 2, 3]
    assert bench.changes() in ([], [(1, "put", (1, 10))])


def test_undoing_keeps_the_order() -> None:
    bench = Bench(s={1: {1: 1, 3: 3}}).at(1)
    state = sorted_map(bench)
    bench.context.undo = []
    assert state.first_entry() == (1, 1)
    state.put(-1, 0)
    state.remove(3)
    state.put(2, 2)
    state.put(1, 11)
    bench.context.roll_back()
    assert list(state.items()) == [(1, 1), (3, 3)]
    state.clear()
    state.put(9, 9)
    bench.context.roll_back()
    assert (list(state.items()), state.last_entry()) == ([(1, 1), (3, 3)], (3, 3))
    assert bench.changes() == []


def test_values_are_copies() -> None:
    state = sorted_map(Bench(s={1: {1: [1], 2: [2]}}).at(1), int, list[int])
    entry = state.first_entry()
    assert entry is not None
    entry[1].append(9)
    for items in (state.head_items(9), state.tail_items(0), state.sub_items(0, 9), state.items()):
        next(items)[1].append(9)
    assert list(state.items()) == [(1, [1]), (2, [2])]


CALLS: list[Callable[[SortedMapState, Any], Any]] = [
    lambda s, k: s.head_items(k),
    lambda s, k: s.tail_items(k),
    lambda s, k: s.sub_items(k, 1.0),
    lambda s, k: s.sub_items(1.0, k),
    lambda s, k: s.put(k, 1),
    lambda s, k: s.get(k),
]


@pytest.mark.parametrize("call", CALLS)
def test_bounds_and_keys_follow_the_rules_of_keys(call: Callable[[SortedMapState, Any], Any]) -> None:
    state = sorted_map(Bench().at(1), float)
    with pytest.raises(ValueTypeError, match="None cannot be a key of map state 's'"):
        call(state, None)
    with pytest.raises(ValueTypeError, match="key of map state 's': NaN cannot be a key"):
        call(state, math.nan)
    with pytest.raises(ValueTypeError, match="is not a value of type double"):
        call(state, "x")


@pytest.mark.parametrize(
    "view",
    [lambda s: s.items(), lambda s: s.head_items(9), lambda s: s.tail_items(0), lambda s: s.sub_items(0, 9)],
)
@pytest.mark.parametrize("write", [lambda s: s.put(5, 5), lambda s: s.remove(1), lambda s: s.clear()])
def test_changing_it_while_iterating_raises(view: Callable[[Any], Any], write: Callable[[Any], Any]) -> None:
    state = sorted_map(Bench(s={1: {1: 1, 2: 2}}).at(1))

    def iterate() -> None:
        for _ in view(state):
            write(state)

    with pytest.raises(StateAccessError, match="map state 's' was changed while it was iterated"):
        iterate()


@pytest.mark.parametrize(
    "use", [lambda s: s.first_entry(), lambda s: s.last_entry(), lambda s: list(s.head_items(1))]
)
def test_without_a_key_there_is_no_state(use: Callable[[SortedMapState], Any]) -> None:
    with pytest.raises(StateAccessError, match="state 's' was used without a current key"):
        use(sorted_map(Bench()))


@pytest.mark.parametrize("kind", [list[int], dict[str, int], tuple[int, list[int]]])
def test_keys_need_an_order(kind: Any) -> None:
    with pytest.raises(InvalidKeyError, match="key_type_info of state 's'"):
        SortedMapStateDescriptor("s", kind, int)


def test_it_is_a_map_state_and_not_the_same_state() -> None:
    bench = Bench()
    assert isinstance(sorted_map(bench), MapState)
    with pytest.raises(StateAccessError, match="state 's' is declared twice"):
        bench.runtime.get_map_state(MapStateDescriptor("s", int, int))
    with pytest.raises(StateAccessError, match="use a SortedMapStateDescriptor"):
        bench.runtime.get_sorted_map_state(MapStateDescriptor("t", int, int))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="value_type_info of state 's'"):
        SortedMapStateDescriptor("s", int, None)
