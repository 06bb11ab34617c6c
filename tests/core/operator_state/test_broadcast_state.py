"""Broadcast state: a map for the side that writes it, read-only elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from state_engine.core.errors import StateAccessError
from state_engine.core.operator_state.broadcast_state import BroadcastState, ReadOnlyBroadcastState
from state_engine.core.operator_state.store import OperatorStateStore
from state_engine.core.state.descriptors import MapStateDescriptor

RULES = MapStateDescriptor("rules", str, list[int])


def both() -> tuple[BroadcastState, ReadOnlyBroadcastState]:
    store = OperatorStateStore("alerts")
    writer = store.get_broadcast_state(RULES)
    writer.put_all({"a": [1], "b": None})
    return writer, store.get_broadcast_state(RULES, read_only=True)


def test_both_sides_read_the_same_map() -> None:
    for side in both():
        assert list(side.items()) == [("a", [1]), ("b", None)]
        assert list(side.keys()) == list(side) == ["a", "b"]
        assert list(side.values()) == [[1], None]
        assert side.get("a") == side["a"] == [1]
        assert side.get("missing") is None
        assert "b" in side
        assert side.contains("b")
        assert not side.contains("c")
        assert not side.is_empty()


def test_the_readers_see_what_is_written() -> None:
    writer, reader = both()
    writer["c"] = [3]
    del writer["a"]
    writer.remove("b")
    assert list(reader.items()) == [("c", [3])]
    writer.clear()
    assert reader.is_empty()


def test_only_a_put_stores() -> None:
    writer, reader = both()
    for side in (writer, reader):
        side.get("a").append(9)
        next(iter(side.items()))[1].append(9)
        next(iter(side.values())).append(9)
    assert reader.get("a") == [1]


def _set(state: Any) -> None:
    state["a"] = [2]


def _delete(state: Any) -> None:
    del state["a"]


@pytest.mark.parametrize(
    ("write", "method"),
    [
        (lambda s: s.put("a", [2]), "put"),
        (lambda s: s.put_all({"a": [2]}), "put_all"),
        (lambda s: s.remove("a"), "remove"),
        (lambda s: s.clear(), "clear"),
        (_set, "put"),
        (_delete, "remove"),
    ],
)
def test_the_other_side_cannot_write(write: Callable[[Any], None], method: str) -> None:
    _, reader = both()
    with pytest.raises(
        StateAccessError,
        match=f"operator 'alerts': state 'rules' is read-only here, so it has no {method}: .*process_broadcast_element",
    ):
        write(reader)
    assert reader.get("a") == [1]


def test_a_map_is_not_changed_while_it_is_iterated_over() -> None:
    writer, _ = both()
    keys = iter(writer)
    next(keys)
    writer.put("c", [1])
    with pytest.raises(StateAccessError, match="iterat"):
        next(keys)
