"""Renames in the harness's state and in operator state: read under the former name, stored under the new one."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from state_engine.core.errors import StateMigrationError
from state_engine.core.operator_state.operator_snapshot import SubtaskSnapshot
from state_engine.core.operator_state.store import OperatorStateStore
from state_engine.core.state.descriptors import ListStateDescriptor, ValueStateDescriptor
from state_engine.core.state.memory_state import MemoryState
from state_engine.core.state.state_table import PUT, Change


@dataclass(frozen=True)
class Before:
    delay: int


@dataclass(frozen=True)
class After:
    minutes: int = field(metadata={"alias": "delay"})
    origin: str | None = None


def test_the_harness_keeps_a_renamed_state_and_its_renamed_field() -> None:
    stored = MemoryState()
    stored.fold(
        ValueStateDescriptor("last", Before), [Change(key, PUT, Before(n)) for n, key in enumerate("ab")]
    )
    now = ValueStateDescriptor("latest", After).renamed_from("last")

    assert stored.load(now, {"a"}, operator="o") == {"a": After(0)}
    assert stored.values("last") == {"a": Before(0), "b": Before(1)}  # looking moves nothing

    stored.fold(now, [Change("a", PUT, After(9, "JFK"))])
    assert set(stored.entries) == {"latest"}
    assert stored.values("latest") == {"a": After(9, "JFK"), "b": After(1)}
    # another state may have the old name then
    again = ValueStateDescriptor("last", int)
    assert stored.load(again, {"a"}, operator="o") == {}
    stored.fold(again, [Change("a", PUT, 7)])
    assert stored.values("last") == {"a": 7}
    assert stored.load(now, {"b"}, operator="o") == {"b": After(1)}
    with pytest.raises(StateMigrationError, match="operator 'o': state 'last' is stored as bigint"):
        stored.load(ValueStateDescriptor("last", str), {"a"}, operator="o")


def test_operator_state_is_written_anew_under_its_new_names() -> None:
    first = OperatorStateStore("o")
    first.get_list_state(ListStateDescriptor("pending", Before)).update([Before(1), Before(2)])
    held = SubtaskSnapshot(first.snapshot())

    second = OperatorStateStore("o", held)
    waiting = second.get_list_state(ListStateDescriptor("waiting", After).renamed_from("pending"))
    assert list(waiting.get()) == [After(1), After(2)]
    (state,) = second.snapshot()
    assert (state.name, state.elements[0]) == ("waiting", '{"minutes": 1, "origin": null}')

    # asked for under both names, they are two
    third = OperatorStateStore("o", held)
    third.get_list_state(ListStateDescriptor("pending", Before))
    assert (
        list(third.get_list_state(ListStateDescriptor("waiting", After).renamed_from("pending")).get()) == []
    )
