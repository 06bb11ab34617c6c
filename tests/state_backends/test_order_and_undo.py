"""On every state backend: an entry that was removed and put again comes last, and undone writes leave no trace."""

from __future__ import annotations

import pytest

from state_engine.core.state.descriptors import ListStateDescriptor, MapStateDescriptor
from state_engine.state_backends.state_backend import StateBackend
from tests.core.state.steps import Steps
from tests.state_backends.backends import BACKENDS, on

EVERY_BACKEND = pytest.mark.parametrize("backend", [make() for make in BACKENDS.values()], ids=list(BACKENDS))


@EVERY_BACKEND
def test_an_entry_removed_and_put_again_comes_last(backend: StateBackend) -> None:
    steps = Steps(MapStateDescriptor("s", str, int), opener=on(backend))
    steps.stored = {"s": {1: {"x": 1, "y": 2}}}
    steps.at(0, lambda s: (s.remove("x"), s.put("x", 1)))
    assert list(steps.physical()) == ["y", "x"]
    assert steps.at(0, lambda s: s.items()) == [("y", 2), ("x", 1)]


@EVERY_BACKEND
def test_undone_writes_leave_no_trace(backend: StateBackend) -> None:
    steps = Steps(
        ListStateDescriptor("s", int), MapStateDescriptor("m", str, int), restoring=False, opener=on(backend)
    )
    steps.stored = {"s": {1: [1, 2]}, "m": {1: {"x": 1, "y": 2}}}
    steps.open()
    steps.context.undo = []
    steps.at(0, lambda s, m: (s.add(3), s.add_all([4, 5]), m.remove("x"), m.put("z", 9), m.put("x", 7)))
    steps.context.roll_back()
    steps.context.undo = None
    assert [c for _, changes in steps._session[1]() for c in changes] == []  # type: ignore[index]
    assert steps.at(0, lambda s, m: (s.get(), list(m.items()))) == ([1, 2], [("x", 1), ("y", 2)])
    steps.at(0, lambda s, m: s.add(6))
    assert steps.checkpoint() == {"s": {1: [1, 2, 6]}, "m": {1: {"x": 1, "y": 2}}}
    assert list(steps.physical(state="m")) == ["x", "y"]
