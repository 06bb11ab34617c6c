"""A harness that is restored with other declarations: read, or refused, as the engine does from its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.errors import StateMigrationError
from state_engine.core.functions.every_function import KeyedProcessFunction
from state_engine.core.harness.harness_state import HarnessState
from state_engine.core.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.state.ttl import StateTtlConfig
from state_engine.core.types.durations import Time
from state_engine.state_backends.rocksdb_backend import EmbeddedRocksDBStateBackend
from state_engine.testing import KeyedHarness
from tests.core.state.evolution_samples import Evolved, converted, evolutions

TTL = StateTtlConfig.new_builder(Time.milliseconds(100)).update_ttl_on_create_and_write().build()
Use = Callable[..., Any]


class Uses(KeyedProcessFunction):
    """Yields what ``use`` gives of a value, a list and a map, for the second part of an element."""

    def __init__(
        self, kind: Any, use: Use, *, ttl: StateTtlConfig | None = None, key_kind: Any = "int"
    ) -> None:
        self.kind, self.use, self.ttl, self.key_kind = kind, use, ttl, key_kind

    def open(self, runtime_context: Any) -> None:
        self.states = (
            runtime_context.get_state(self._living(ValueStateDescriptor("one", self.kind))),
            runtime_context.get_list_state(self._living(ListStateDescriptor("many", self.kind))),
            runtime_context.get_map_state(
                self._living(MapStateDescriptor("by_number", self.key_kind, self.kind))
            ),
        )

    def _living(self, descriptor: StateDescriptor) -> Any:
        if self.ttl is not None:
            descriptor.enable_time_to_live(self.ttl)
        return descriptor

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        yield self.use(*self.states, value[1])


def write(one: Any, many: Any, by_number: Any, value: Any) -> None:
    one.update(value)
    many.add(value)
    by_number.put(1, value)


def read(one: Any, many: Any, by_number: Any, value: Any) -> Any:
    return one.value(), many.get(), dict(by_number.items())


def written(function: Uses, *elements: tuple[str, Any], **options: Any) -> HarnessState:
    harness = KeyedHarness(function, key_by=lambda pair: pair[0], **options)
    harness.process(elements)
    return harness.snapshot()


def restored(function: Uses, snapshot: HarnessState, **options: Any) -> KeyedHarness:
    return KeyedHarness.restored(function, snapshot, key_by=lambda pair: pair[0], **options)


@given(data=st.data(), change=evolutions(), on_disk=st.integers(0, 9), parallelism=st.integers(1, 3))
def test_every_supported_change_reads_what_the_model_says(
    data: st.DataObject, change: Evolved, on_disk: int, parallelism: int
) -> None:
    value, backend = data.draw(change.values), EmbeddedRocksDBStateBackend() if on_disk == 9 else None
    snapshot = written(Uses(change.old, write), ("a", value), backend=backend)
    expected = change.new.normalise(converted(change, change.old.normalise(value)))
    harness = restored(Uses(change.new, read), snapshot, backend=backend, parallelism=parallelism)
    assert harness.process([("a", None)]) == [(expected, [expected], {1: expected})]
    assert harness.state("one") == {"a": expected}


def test_keys_of_a_map_widen() -> None:
    snapshot = written(Uses("int", write, key_kind="decimal(5,2)"), ("a", 7))
    assert restored(Uses("bigint", read, key_kind="decimal(9,2)"), snapshot).process([("a", None)]) == [
        (7, [7], {1: 7})
    ]


class Before(NamedTuple):
    number: int
    text: str


@dataclass
class After:
    text: str
    number: int


def test_a_record_becomes_the_class_that_is_declared_now() -> None:
    snapshot = written(Uses(Before, write), ("a", Before(1, "x")))
    expected = After("x", 1)
    outputs = restored(Uses(After, read), snapshot).process([("a", None)])
    assert outputs == [(expected, [expected], {1: expected})]


def test_the_same_fields_in_another_class_are_read_as_that_class() -> None:
    snapshot = written(Uses("struct<number: bigint, text: string>", write), ("a", (1, "x")))
    ((one, many, by_number),) = restored(Uses(Before, read), snapshot).process([("a", None)])
    assert [type(record) for record in (one, many[0], by_number[1])] == [Before] * 3


def test_time_to_live_may_be_switched_on_and_off() -> None:
    snapshot = written(Uses("int", write), ("a", 1), ("b", 2))
    living = restored(Uses("int", read, ttl=TTL), snapshot, clock_ms=1_000)
    assert living.process([("a", None)]) == [(1, [1], {1: 1})]  # without a time it lives until it is touched
    living.function = Uses("int", write, ttl=TTL)
    living.process([("a", 3)])
    living.function = Uses("int", read, ttl=TTL)
    living.set_clock(1_100)
    assert living.process([("a", None), ("b", None)]) == [(None, [1], {}), (2, [2], {1: 2})]
    snapshot = written(Uses("int", write, ttl=TTL), ("a", 1))
    for_good = restored(Uses("bigint", read), snapshot, clock_ms=1_000)
    assert for_good.process([("a", None)]) == [(1, [1], {1: 1})]
    assert for_good.state("many") == {"a": [1]}


def test_with_a_time_to_live_what_is_widened_expires_when_it_would_have() -> None:
    snapshot = written(Uses("int", write, ttl=TTL), ("a", 1))
    for clock_ms, expected in ((99, (1, [1], {1: 1})), (100, (None, [], {}))):
        harness = restored(Uses("bigint", read, ttl=TTL), snapshot, clock_ms=clock_ms)
        assert harness.process([("a", None)]) == [expected]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("struct<number: tinyint>", "int cannot become tinyint"),
        ("struct<number: string>", "int cannot become string"),
        ("struct<other: int>", r"no field is left of \['number'\]"),
        ("int", "cannot become int"),
    ],
)
def test_other_changes_are_refused_and_nothing_is_lost(kind: str, why: str) -> None:
    old = Uses("struct<number: int>", read)
    snapshot = written(Uses("struct<number: int>", write), ("a", (1,)))
    harness = restored(Uses(kind, write), snapshot)
    shown = f"operator 'harness': state 'one' is stored as .*{why}.*restore the old declaration"
    for _ in range(2):
        with pytest.raises(StateMigrationError, match=shown):
            harness.process([("a", None)])
    harness.function = old
    for unharmed in (harness, restored(old, snapshot)):
        assert unharmed.process([("a", None)]) == [((1,), [(1,)], {1: (1,)})]


def test_a_batch_that_fails_leaves_what_is_stored_in_its_old_form() -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no")

    harness = restored(Uses("bigint", fail), written(Uses("int", write), ("a", 1)))
    with pytest.raises(RuntimeError, match="no"):
        harness.process([("a", None)])
    harness.function = Uses("int", read)
    assert harness.process([("a", None)]) == [(1, [1], {1: 1})]
