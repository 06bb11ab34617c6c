"""Map state: entries, iteration, order, keys that are one, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from state_engine.core.errors import ConfigurationError, InvalidKeyError, StateAccessError, ValueTypeError
from state_engine.core.state.descriptors import MapStateDescriptor
from state_engine.core.state.map_state import MapState
from tests.core.state.handles import Bench
from tests.core.types.type_samples import Visit


def test_nothing_stored_is_an_empty_map() -> None:
    state = Bench().at(1).map()
    assert state.get("a") is None
    assert state["a"] is None
    assert "a" not in state
    assert not state.contains("a")
    assert state.is_empty()
    assert list(state) == list(state.items()) == list(state.values()) == []


def test_entries_in_all_spellings() -> None:
    state = Bench().at(1).map()
    state.put("a", 1)
    state["b"] = 2
    state.put_all({"c": 3})
    state.put_all([("d", 4)])
    assert list(state.items()) == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    assert list(state.keys()) == list(state) == ["a", "b", "c", "d"]
    assert list(state.values()) == [1, 2, 3, 4]
    del state["a"]
    state.remove("b")
    state.remove("not there")
    assert ("a" in state, "c" in state, state["c"], state.is_empty()) == (False, True, 3, False)


def test_values_may_be_none_and_keys_not() -> None:
    bench = Bench().at(1)
    state = bench.map()
    state.put("a", None)
    assert state.get("a") is None
    assert "a" in state
    assert bench.changes() == [(1, "put", ("a", None))]
    calls: list[Callable[[], Any]] = [
        lambda: state.put(None, 1),
        lambda: state.get(None),
        lambda: state.remove(None),
        lambda: None in state,
    ]
    for call in calls:
        with pytest.raises(ValueTypeError, match="None cannot be a key of map state 's'"):
            call()


def test_after_the_last_remove_nothing_is_stored() -> None:
    bench = Bench(s={1: {"a": 1}}).at(1)
    state = bench.map()
    state.remove("a")
    assert state.is_empty()
    assert bench.entries() == {}
    assert bench.changes() == [(1, "clear", None)]


def test_changes_tell_only_what_differs() -> None:
    bench = Bench(s={1: {"a": 1, "b": 2, "c": 3}}).at(1)
    state = bench.map()
    state.put("b", 20)
    state.remove("c")
    state.put("d", 4)
    state.put("e", 5)
    state.remove("e")
    assert bench.changes() == [(1, "delete", ("c", None)), (1, "put", ("b", 20)), (1, "put", ("d", 4))]


def test_clear_and_refill_is_one_clear_with_the_new_entries() -> None:
    bench = Bench(s={1: {"a": 1, "b": 2}}).at(1)
    state = bench.map()
    state.clear()
    state.put("z", 26)
    assert list(state.items()) == [("z", 26)]
    assert bench.changes() == [(1, "clear", None), (1, "put", ("z", 26))]


WRITES: list[Callable[[MapState], Any]] = [
    lambda s: s.put("a", 5),
    lambda s: s.put("new", 5),
    lambda s: s.remove("a"),
    lambda s: s.clear(),
    lambda s: s.put_all({"a": 1}),
]


@pytest.mark.parametrize("view", ["items", "keys", "values", "__iter__"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("entries", [{"a": 1}, {"a": 1, "b": 2, "c": 3}])
def test_changing_a_map_while_iterating_raises(
    view: str, write: Callable[[MapState], Any], entries: dict[str, int]
) -> None:
    state = Bench(s={1: dict(entries)}).at(1).map()

    def iterate() -> None:
        for _ in getattr(state, view)():
            write(state)

    with pytest.raises(StateAccessError, match="map state 's' was changed while it was iterated"):
        iterate()


def test_iterating_over_a_list_of_the_items_may_change_the_map() -> None:
    state = Bench(s={1: {"a": 1, "b": 2}}).at(1).map()
    for key in list(state):
        state.remove(key)
    assert state.is_empty()


def test_values_are_copies_in_both_directions() -> None:
    bench, written = Bench(s={1: {"a": [1]}}).at(1), [7]
    state = bench.map(str, list[int])
    state["a"].append(2)
    next(iter(state.values())).append(3)
    dict(state.items())["a"].append(4)
    assert state["a"] == [1]
    assert bench.changes() == []
    state["b"] = written
    written.append(8)
    assert state["b"] == [7]


def test_keys_and_values_are_normalised() -> None:
    state = Bench().at(1).map("double", "tinyint")
    state.put(1, 5)
    assert [type(k) for k in state] == [float]
    with pytest.raises(ValueTypeError, match="between"):
        state.put(1.0, 500)
    with pytest.raises(ValueTypeError):
        state.put("1", 1)
    assert list(state.items()) == [(1.0, 5)]


def test_negative_zero_is_zero_and_nan_is_no_key() -> None:
    state = Bench().at(1).map(float, int)
    state.put(-0.0, 1)
    state.put(0.0, 2)
    ((key, value),) = state.items()
    assert (math.copysign(1, key), value) == (1, 2)
    with pytest.raises(ValueTypeError, match="key of map state 's': NaN cannot be a key"):
        state.put(math.nan, 1)


def test_floats_inside_of_keys_follow_the_same_rules() -> None:
    state = Bench().at(1).map(tuple[float, str], int)
    state.put((-0.0, "a"), 1)
    state.put((0.0, "a"), 2)
    ((key, value),) = state.items()
    assert (math.copysign(1, key[0]), value) == (1, 2)
    with pytest.raises(ValueTypeError, match="NaN"):
        state.put((math.nan, "a"), 1)


@pytest.mark.parametrize("kind", [list[int], dict[str, int], tuple[int, list[int]], Visit])
def test_what_cannot_be_a_key_cannot_be_a_map_key(kind: Any) -> None:
    with pytest.raises(InvalidKeyError, match="key_type_info of state 's'"):
        MapStateDescriptor("s", kind, int)


def test_a_put_all_from_the_map_itself() -> None:
    state = Bench(s={1: {"a": 1}}).at(1).map()
    state.put_all((key + "2", value) for key, value in state.items())
    assert dict(state.items()) == {"a": 1, "a2": 1}


def test_a_descriptor_needs_both_types() -> None:
    with pytest.raises(ConfigurationError, match="key_type_info of state 's'"):
        MapStateDescriptor("s", None, int)
    with pytest.raises(ConfigurationError, match="value_type_info of state 's'"):
        MapStateDescriptor("s", int, None)
