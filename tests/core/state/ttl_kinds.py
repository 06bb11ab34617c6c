"""What the tests of time to live share: how to write an item to each state, and how to read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from state_engine.core.state.aggregate_functions import AggregateFunction
from state_engine.core.state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SortedMapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.state.ttl import StateTtlConfig
from tests.core.state.steps import Steps, with_ttl


class Sum(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator


def folding() -> StateDescriptor:
    with pytest.warns(DeprecationWarning, match="'s': folding state is deprecated"):
        return FoldingStateDescriptor("s", 0, lambda total, value: total + value, int)


class Kind:
    """How to write an item to a state, to read it, and what is read where there is none."""

    def __init__(
        self,
        make: Callable[[], StateDescriptor],
        write: Callable[[Any, int], Any],
        read: Callable[[Any], Any],
        shown: Callable[[int], Any],
        empty: Any,
    ) -> None:
        self.make, self.write, self.read, self.shown, self.empty = make, write, read, shown, empty


def _replace(state: Any, value: int) -> None:
    state.clear()
    state.add(value)


_READ_VALUE: Any = (lambda s: s.value(), lambda v: v, None)
_READ_SUM: Any = (lambda s: s.get(), lambda v: v, None)
_READ_ITEMS: Any = (lambda s: list(s.items()), lambda v: [("k", v)], [])
KINDS = {
    "value": Kind(lambda: ValueStateDescriptor("s", int), lambda s, v: s.update(v), *_READ_VALUE),
    "list": Kind(
        lambda: ListStateDescriptor("s", int),
        lambda s, v: s.update([v]),
        lambda s: s.get(),
        lambda v: [v],
        [],
    ),
    "map": Kind(lambda: MapStateDescriptor("s", str, int), lambda s, v: s.put("k", v), *_READ_ITEMS),
    "map entry": Kind(
        lambda: MapStateDescriptor("s", str, int),
        lambda s, v: s.put("k", v),
        lambda s: s.get("k"),
        lambda v: v,
        None,
    ),
    "sorted map": Kind(
        lambda: SortedMapStateDescriptor("s", str, int), lambda s, v: s.put("k", v), *_READ_ITEMS
    ),
    "first entry": Kind(
        lambda: SortedMapStateDescriptor("s", str, int),
        lambda s, v: s.put("k", v),
        lambda s: s.first_entry(),
        lambda v: ("k", v),
        None,
    ),
    "reducing": Kind(lambda: ReducingStateDescriptor("s", lambda a, b: a + b, int), _replace, *_READ_SUM),
    "aggregating": Kind(lambda: AggregatingStateDescriptor("s", Sum(), int), _replace, *_READ_SUM),
    "folding": Kind(folding, _replace, *_READ_SUM),
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
BOTH = pytest.mark.parametrize("restoring", [False, True], ids=["straight", "restored"])
CLOCKS = pytest.mark.parametrize("event_time", [False, True], ids=["processing time", "event time"])


class Life:
    """One item of a state with TTL, as the vectors write and read it."""

    def __init__(self, kind: Kind, restoring: bool, config: StateTtlConfig | None, event_time: bool = False):
        self.kind, self.empty = kind, kind.empty
        self.steps = Steps(with_ttl(kind.make(), config), restoring=restoring, event_time=event_time)

    def write(self, now: int, value: int) -> None:
        self.steps.at(now, lambda s: self.kind.write(s, value))

    def read(self, now: int) -> Any:
        value = self.steps.at(now, self.kind.read)
        return None if value == self.kind.empty else value

    def shows(self, now: int, value: int) -> bool:
        return bool(self.read(now) == self.kind.shown(value))
