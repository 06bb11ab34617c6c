"""Renames in the harness's state and in operator state: read under the former name, stored under the new one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from state_engine.core.errors import StateMigrationError
from state_engine.core.operator_state.operator_snapshot import SubtaskSnapshot
from state_engine.core.operator_state.store import OperatorStateStore
from state_engine.core.state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
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


@dataclass(frozen=True)
class Filled:
    delay: int
    runway: str = "unknown"
    stops: list[int] = field(default_factory=list)


def _held(store: OperatorStateStore, scheme: str, kind: type) -> Any:
    if scheme == "broadcast":
        return store.get_broadcast_state(MapStateDescriptor("held", str, kind))
    get = store.get_list_state if scheme == "even_split" else store.get_union_list_state
    return get(ListStateDescriptor("held", kind))


@pytest.mark.parametrize("scheme", ["even_split", "union", "broadcast"])
def test_operator_state_is_written_anew_with_the_default_of_an_added_field(scheme: str) -> None:
    """So the view ``operator_state``, which shows what was written, has it from the next micro-batch on."""
    first = OperatorStateStore("o")
    held = _held(first, scheme, Before)
    held.put("a", Before(1)) if scheme == "broadcast" else held.add(Before(1))
    second = OperatorStateStore("o", SubtaskSnapshot(first.snapshot()))
    _held(second, scheme, Filled)

    (state,) = second.snapshot()
    (element,) = map(json.loads, state.elements)
    record = element["value"] if scheme == "broadcast" else element
    assert record == {"delay": 1, "runway": "unknown", "stops": []}


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
