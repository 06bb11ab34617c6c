"""Value state: what a handle returns, stores and refuses."""

from __future__ import annotations

import pytest

from state_engine.core.errors import ConfigurationError, InvalidNameError, ValueTypeError
from state_engine.core.state.descriptors import ValueStateDescriptor
from tests.core.state.handles import Bench


def test_nothing_stored_is_none_or_the_default() -> None:
    assert Bench().at(1).value().value() is None
    assert Bench().at(1).value(default=0).value() == 0


def test_the_default_is_a_fresh_copy_each_time_and_is_not_stored() -> None:
    bench = Bench().at(1)
    state = bench.value(list[int], default=[1])
    state.value().append(2)
    assert state.value() == [1]
    assert bench.entries() == {}
    assert bench.changes() == []


def test_changing_what_was_read_changes_nothing_without_update() -> None:
    bench = Bench(s={1: {"a": [1]}}).at(1)
    state = bench.value(dict[str, list[int]])
    state.value()["a"].append(2)
    assert state.value() == {"a": [1]}
    assert bench.changes() == []


def test_changing_what_was_written_changes_nothing_afterwards() -> None:
    bench, written = Bench().at(1), [1]
    state = bench.value(list[int])
    state.update(written)
    written.append(2)
    assert state.value() == [1]


def test_update_normalises_at_once() -> None:
    state = Bench().at(1).value(float)
    state.update(3)
    assert type(state.value()) is float
    with pytest.raises(ValueTypeError, match="is not a value of type double"):
        state.update("3")
    assert state.value() == 3.0


def test_overflow_is_refused_in_update_and_the_old_value_stays() -> None:
    bench = Bench(s={1: 5}).at(1)
    state = bench.value("tinyint")
    with pytest.raises(ValueTypeError, match="between -128 and 127"):
        state.update(128)
    assert state.value() == 5
    assert bench.changes() == []


@pytest.mark.parametrize("clear", [lambda s: s.update(None), lambda s: s.clear()])
def test_updating_to_none_clears(clear: object) -> None:
    bench = Bench(s={1: 5, 2: 6}).at(1)
    state = bench.value(default=9)
    clear(state)  # type: ignore[operator]
    assert state.value() == 9
    assert bench.entries() == {2: 6}
    assert bench.changes() == [(1, "delete", None)]


def test_a_value_that_was_put_and_cleared_is_no_change() -> None:
    bench = Bench().at(1)
    state = bench.value()
    state.update(1)
    state.clear()
    state.clear()
    assert bench.changes() == []


def test_many_updates_are_one_change() -> None:
    bench = Bench(s={1: 0}).at(1)
    state = bench.value()
    for n in range(1000, 1010):
        state.update(n)
    assert bench.changes() == [(1, "put", 1009)]


def test_a_default_must_have_the_type() -> None:
    with pytest.raises(ValueTypeError):
        ValueStateDescriptor("s", int, default="x")


def test_a_descriptor_needs_a_name_and_a_type() -> None:
    with pytest.raises(InvalidNameError, match="state"):
        ValueStateDescriptor("", int)
    with pytest.raises(ConfigurationError, match="value_type_info of state 's'"):
        ValueStateDescriptor("s", None)
    assert ValueStateDescriptor("s", int).get_name() == "s"
