"""List state: order, appending, replacing, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.descriptors import ListStateDescriptor
from state_engine.core.state.ttl import StateTtlConfig
from state_engine.core.types.durations import Time
from state_engine.testing import KeyedHarness
from tests.core.state.handles import Bench


def test_nothing_stored_is_an_empty_list() -> None:
    state = Bench().at(1).list()
    assert state.get() == []
    assert list(state) == []


def test_adding_writes_only_what_was_added() -> None:
    bench = Bench(s={1: [1, 2]}).at(1)
    state = bench.list()
    state.add(3)
    state.add_all(iter([4]))
    assert bench.changes() == [(1, "append", [3, 4])]


def test_update_replaces_with_one_clear_in_front() -> None:
    bench = Bench(s={1: [1, 2]}).at(1)
    state = bench.list()
    state.update([9])
    state.add(10)
    assert state.get() == [9, 10]
    assert bench.changes() == [(1, "clear", None), (1, "append", [9, 10])]


@pytest.mark.parametrize("empty", [[], ()])
def test_an_empty_update_clears(empty: object) -> None:
    bench = Bench(s={1: [1]}).at(1)
    state = bench.list()
    state.update(empty)  # type: ignore[arg-type]
    assert bench.entries() == {}
    assert bench.changes() == [(1, "clear", None)]


@pytest.mark.parametrize("ttl", [None, StateTtlConfig.new_builder(Time.seconds(1)).build()])
def test_an_update_with_none_is_refused_and_changes_nothing(ttl: StateTtlConfig | None) -> None:
    class Updates(KeyedProcessFunction):
        def open(self, runtime_context: RuntimeContext) -> None:
            descriptor = ListStateDescriptor("s", int)
            if ttl is not None:
                descriptor.enable_time_to_live(ttl)
            self.state = runtime_context.get_list_state(descriptor)

        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
            self.state.update(value)
            return [self.state.get()]

    harness = KeyedHarness(Updates(), key_by=lambda v: 1)
    assert harness.process([[1, 2]]) == [[1, 2]]
    with pytest.raises(ValueTypeError, match=r"list state 's': update\(None\) is refused.*clear\(\) empty"):
        harness.process([None])
    assert harness.state("s") == {1: [1, 2]}


def test_a_list_cleared_and_filled_with_the_same_elements_is_still_right() -> None:
    bench = Bench(s={1: [1, 2]}).at(1)
    state = bench.list()
    state.clear()
    state.add_all([1, 2, 3])
    assert bench.changes() == [(1, "clear", None), (1, "append", [1, 2, 3])]


def test_a_new_list_needs_no_clear_even_when_cleared_before() -> None:
    bench = Bench().at(1)
    state = bench.list()
    state.add(1)
    state.clear()
    state.clear()
    assert bench.changes() == []
    state.add(2)
    assert bench.changes() == [(1, "append", [2])]


def test_none_is_no_element_and_a_refused_one_adds_nothing() -> None:
    bench = Bench(s={1: [1]}).at(1)
    state = bench.list()
    with pytest.raises(ValueTypeError, match="None cannot be an element of list state 's'"):
        state.add(None)
    with pytest.raises(ValueTypeError):
        state.add_all([2, "x"])
    with pytest.raises(ValueTypeError):
        state.update([2, None])
    assert state.get() == [1]
    assert bench.changes() == []


def test_what_get_returned_is_the_callers() -> None:
    bench = Bench(s={1: [[1]]}).at(1)
    state = bench.list(list[int])
    got = state.get()
    got.append([2])
    got[0].append(5)
    assert state.get() == [[1]]
    assert bench.changes() == []


def test_what_was_added_is_a_copy() -> None:
    state, added = Bench().at(1).list(list[int]), [1]
    state.add(added)
    added.append(2)
    assert state.get() == [[1]]


def test_a_list_may_be_extended_by_itself() -> None:
    state = Bench(s={1: [1, 2]}).at(1).list()
    state.add_all(state)
    assert state.get() == [1, 2, 1, 2]
    state.update(reversed(state.get()))
    assert state.get() == [2, 1, 2, 1]


def test_elements_are_normalised() -> None:
    state = Bench().at(1).list("tinyint")
    with pytest.raises(ValueTypeError, match="between"):
        state.add(200)


def test_a_descriptor_needs_a_type() -> None:
    with pytest.raises(ConfigurationError, match="elem_type_info of state 's'"):
        ListStateDescriptor("s", None)
