"""``OperatorStateStore``: lists and maps of a subtask, what a snapshot holds of them, and every misuse."""

from __future__ import annotations

from typing import Any

import pytest

from state_engine.core.errors import ConfigurationError, StateAccessError, StateMigrationError, ValueTypeError
from state_engine.core.operator_state.broadcast_state import BroadcastState, ReadOnlyBroadcastState
from state_engine.core.operator_state.operator_snapshot import StateElements, SubtaskSnapshot
from state_engine.core.operator_state.store import OperatorStateStore
from state_engine.core.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    SortedMapStateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.state.state_table import KeyContext
from state_engine.core.state.ttl import StateTtlConfig
from state_engine.core.types.durations import Time
from state_engine.core.types.plain_type import PlainType
from state_engine.core.types.type_parsing import to_type

NUMBERS = ListStateDescriptor("numbers", int)
RULES = MapStateDescriptor("rules", str, int)
RULES_TYPE = "struct<`key`: string, `value`: bigint>"


def restored(*states: StateElements) -> OperatorStateStore:
    return OperatorStateStore("sink", SubtaskSnapshot(states))


def test_a_snapshot_holds_the_states_by_name() -> None:
    store = OperatorStateStore("sink")
    store.get_union_list_state(ListStateDescriptor("z", str)).add("a")
    store.get_broadcast_state(RULES).put_all({"x": 1, "y": None})
    store.get_list_state(NUMBERS).update([3, 1])
    assert store.snapshot() == (
        StateElements("numbers", "even_split", "bigint", ("3", "1")),
        StateElements(
            "rules", "broadcast", RULES_TYPE,
            ('{"key": "x", "value": 1}', '{"key": "y", "value": null}'),
        ),
        StateElements("z", "union", "string", ('"a"',)),
    )  # fmt: skip


def test_a_state_without_elements_is_in_the_snapshot() -> None:
    store = OperatorStateStore("sink")
    store.get_list_state(NUMBERS)
    assert store.snapshot() == (StateElements("numbers", "even_split", "bigint"),)


def test_what_was_restored_can_be_read_and_changed() -> None:
    first = OperatorStateStore("sink")
    first.get_list_state(NUMBERS).add_all([1, 2])
    first.get_broadcast_state(RULES).put_all([("b", 1), ("a", 2)])

    second = restored(*first.snapshot())
    assert second.get_list_state(NUMBERS).get() == [1, 2]
    assert list(second.get_broadcast_state(RULES).items()) == [("b", 1), ("a", 2)]
    second.get_list_state(NUMBERS).add(3)
    second.get_broadcast_state(RULES).remove("b")
    assert [s.elements for s in second.snapshot()] == [("1", "2", "3"), ('{"key": "a", "value": 2}',)]


def test_state_that_nobody_asks_for_stays_as_it_is() -> None:
    old = (
        StateElements("old", "union", "anything", ("?",)),
        StateElements("rules", "broadcast", "x", ("{}",)),
    )
    store = restored(*old)
    assert store.snapshot() == old
    assert store.get_registered_state_names() == {"old"}
    assert store.get_registered_broadcast_state_names() == {"rules"}
    store.get_list_state(NUMBERS)
    assert [s.name for s in store.snapshot()] == ["numbers", "old", "rules"]
    assert store.get_registered_state_names() == {"numbers", "old"}


def test_state_that_was_only_read_keeps_its_very_texts() -> None:
    was = StateElements("numbers", "even_split", "bigint", ("1", " 2"))
    store = restored(was)
    numbers = store.get_list_state(NUMBERS)
    assert numbers.get() == [1, 2]
    assert store.snapshot()[0] is was
    numbers.update([1, 2])
    assert store.snapshot()[0].elements == ("1", "2")


def test_a_snapshot_does_not_change_with_what_is_written_later() -> None:
    store = OperatorStateStore("sink")
    nested = store.get_list_state(ListStateDescriptor("nested", list[int]))
    nested.add([1])
    was = store.snapshot()
    nested.add([2])
    assert was[0].elements == ("[1]",)
    assert store.snapshot()[0].elements == ("[1]", "[2]")


def test_values_are_normalised_when_written_and_copied_when_read() -> None:
    store = OperatorStateStore("sink")
    nested, own = store.get_list_state(ListStateDescriptor("nested", list[int])), [1]
    nested.add(own)
    own.append(2)
    nested.get()[0].append(3)
    assert nested.get() == [[1]]
    with pytest.raises(ValueTypeError):
        nested.add(["no number"])
    with pytest.raises(ValueTypeError, match="None cannot be an element"):
        nested.add(None)


def test_a_refused_element_takes_its_writes_back() -> None:
    context = KeyContext()
    store = OperatorStateStore(
        "sink", SubtaskSnapshot((StateElements("numbers", "even_split", "bigint", ("1",)),)), context
    )
    numbers, rules = store.get_list_state(NUMBERS), store.get_broadcast_state(RULES)
    rules.put("kept", 1)
    before = store.snapshot()

    context.undo = []
    numbers.add(2)
    numbers.update([7])
    rules.put("kept", 2)
    rules.clear()
    rules.put("lost", 3)
    context.roll_back()

    assert store.snapshot() == before
    assert numbers.get() == [1]


def test_the_same_declaration_gives_the_same_state() -> None:
    store = OperatorStateStore("sink")
    store.get_list_state(NUMBERS).add(1)
    assert store.get_list_state(ListStateDescriptor("numbers", int)).get() == [1]
    store.get_broadcast_state(RULES).put("a", 1)
    assert store.get_broadcast_state(RULES, read_only=True).get("a") == 1


def test_broadcast_state_is_writable_only_where_asked_for() -> None:
    store = OperatorStateStore("sink")
    assert type(store.get_broadcast_state(RULES)) is BroadcastState
    assert type(store.get_broadcast_state(RULES, read_only=True)) is ReadOnlyBroadcastState


def test_a_type_may_evolve_and_the_state_is_written_anew() -> None:
    store = restored(
        StateElements("legs", "even_split", "struct<`a`: int, `b`: int>", ('{"a": 1, "b": 2}',)),
        StateElements(
            "rules", "broadcast", "struct<`key`: string, `value`: int>", ('{"key": "x", "value": 1}',)
        ),
    )
    legs = store.get_list_state(ListStateDescriptor("legs", "struct<a: bigint, c: string>"))
    assert legs.get() == [(1, None)]
    assert dict(store.get_broadcast_state(RULES).items()) == {"x": 1}
    assert store.snapshot() == (
        StateElements("legs", "even_split", "struct<`a`: bigint, `c`: string>", ('{"a": 1, "c": null}',)),
        StateElements("rules", "broadcast", RULES_TYPE, ('{"key": "x", "value": 1}',)),
    )


# -- misuse ------------------------------------------------------------------------------------------------------------


def test_one_name_two_types_is_refused() -> None:
    store = OperatorStateStore("sink")
    store.get_list_state(NUMBERS)
    with pytest.raises(StateAccessError, match="operator 'sink': state 'numbers' is declared twice, as"):
        store.get_list_state(ListStateDescriptor("numbers", str))
    with pytest.raises(StateAccessError, match="union of bigint; give them different names"):
        store.get_union_list_state(NUMBERS)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (
            StateElements("numbers", "even_split", "string", ('"1"',)),
            "is stored as string, .*string cannot become bigint",
        ),
        (StateElements("numbers", "union", "bigint", ("1",)), "is stored as union of bigint, the function"),
    ],
)
def test_another_type_or_scheme_than_stored_is_refused(stored: StateElements, message: str) -> None:
    with pytest.raises(StateMigrationError, match=f"operator 'sink': state 'numbers' {message}"):
        restored(stored).get_list_state(NUMBERS)


def test_a_number_is_not_narrowed() -> None:
    store = restored(StateElements("numbers", "even_split", "bigint", ("3",)))
    with pytest.raises(StateMigrationError, match=r"state 'numbers' is stored as bigint, .*bigint cannot"):
        store.get_list_state(ListStateDescriptor("numbers", "tinyint"))


def test_elements_without_a_type_do_not_get_one() -> None:
    store = restored(StateElements("list_checkpointed", "even_split", "plain", ("3",)))
    with pytest.raises(StateMigrationError, match="is stored as even_split of plain, the function declares"):
        store.list_checkpointed(to_type(int, parameter="p"))
    store = restored(StateElements("list_checkpointed", "even_split", "bigint", ("3",)))
    with pytest.raises(StateMigrationError, match="declares even_split of plain"):
        store.list_checkpointed(PlainType())


TTL = StateTtlConfig.new_builder(Time.seconds(1)).build()


def test_operator_state_does_not_expire() -> None:
    store, descriptor = OperatorStateStore("sink"), ListStateDescriptor("numbers", int)
    descriptor.enable_time_to_live(TTL)
    with pytest.raises(ConfigurationError, match="operator state does not expire"):
        store.get_list_state(descriptor)


@pytest.mark.parametrize(
    ("method", "descriptor", "wanted"),
    [
        ("get_list_state", ValueStateDescriptor("v", int), "ListStateDescriptor"),
        ("get_list_state", RULES, "ListStateDescriptor"),
        ("get_union_list_state", "numbers", "ListStateDescriptor"),
        ("get_broadcast_state", NUMBERS, "MapStateDescriptor"),
        ("get_broadcast_state", SortedMapStateDescriptor("m", str, int), "MapStateDescriptor"),
    ],
)
def test_another_descriptor_is_refused(method: str, descriptor: Any, wanted: str) -> None:
    with pytest.raises(StateAccessError, match=f"operator 'sink': .*use a {wanted}"):
        getattr(OperatorStateStore("sink"), method)(descriptor)


@pytest.mark.parametrize("name", ["list_checkpointed", "raw_operator", "raw_keyed"])
def test_names_of_the_engine_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="the engine itself uses this name"):
        OperatorStateStore("sink").get_list_state(ListStateDescriptor(name, int))
