"""Net changes and undoing, against a plain model: any writes, over several batches, with elements that fail.

The harness does what the engine does between batches: it folds the changes of a batch into what is stored and loads
it again for the next. So wherever batches are cut, the stored state, the order of map entries included, must be that
of the model, to which a failing element does nothing at all.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from state_engine.core.functions.every_function import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from state_engine.core.state.state_table import DELETE, PUT, KeyedEntries
from state_engine.testing import KeyedHarness

Op = tuple[Any, ...]

_VALUE: st.SearchStrategy[Op] = st.one_of(
    st.tuples(st.just("update"), st.none() | st.integers(0, 3)), st.just(("clear_value",))
)
_ELEMENTS = st.lists(st.integers(0, 3), max_size=3)
_LIST: st.SearchStrategy[Op] = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 3)),
    st.tuples(st.just("add_all"), _ELEMENTS),
    st.tuples(st.just("update_list"), _ELEMENTS),
    st.just(("clear_list",)),
)
_MAP_KEYS = st.sampled_from("ab")
_MAP: st.SearchStrategy[Op] = st.one_of(
    st.tuples(st.just("put"), _MAP_KEYS, st.none() | st.lists(st.integers(0, 1), max_size=1)),
    st.tuples(st.just("remove"), _MAP_KEYS),
    st.just(("clear_map",)),
)
_OPS = {"value": _VALUE, "list": _LIST, "map": _MAP}


@dataclass(frozen=True)
class Element:
    """One element: its key, what the function does, and whether it then raises."""

    key: int
    ops: list[Op]
    fails: bool


def batches_of(*kinds: str) -> st.SearchStrategy[list[list[Element]]]:
    """Micro-batches of elements that write to these states."""
    ops = st.lists(st.one_of(*[_OPS[kind] for kind in kinds]), min_size=2, max_size=5)
    element = st.builds(
        Element, st.sampled_from([0, 0, 1]), ops, st.sampled_from([False, False, False, True])
    )
    return st.lists(st.lists(element, min_size=1, max_size=2), min_size=2, max_size=4)


@dataclass
class Model:
    """The three states of one key as plain Python values."""

    value: int | None = None
    elements: list[int] = field(default_factory=list)
    entries: dict[str, list[int] | None] = field(default_factory=dict)

    def apply(self, op: Op) -> None:
        match op:
            case ("update", value):
                self.value = value
            case ("clear_value",):
                self.value = None
            case ("add", element):
                self.elements.append(element)
            case ("add_all", elements):
                self.elements.extend(elements)
            case ("update_list", elements):
                self.elements = list(elements)
            case ("clear_list",):
                self.elements = []
            case ("put", key, value):
                self.entries[key] = value
            case ("remove", key):
                self.entries.pop(key, None)
            case ("clear_map",):
                self.entries = {}

    def seen(self) -> tuple[Any, ...]:
        return self.value, tuple(self.elements), tuple((k, repr(v)) for k, v in self.entries.items())


class Writer(KeyedProcessFunction):
    """Applies the element to its states, and emits their new values."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value", int))
        self.list = runtime_context.get_list_state(ListStateDescriptor("elements", int))
        self.map = runtime_context.get_map_state(MapStateDescriptor("entries", str, list[int]))

    def process_element(self, value: Element, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        for op in value.ops:
            self.apply(op)
            yield self.seen()
        if value.fails:
            raise ValueError("on purpose")
        yield self.seen()

    def apply(self, op: Op) -> None:
        calls: dict[str, Callable[..., None]] = {
            "update": self.value.update,
            "clear_value": self.value.clear,
            "add": self.list.add,
            "add_all": self.list.add_all,
            "update_list": self.list.update,
            "clear_list": self.list.clear,
            "put": self.map.put,
            "remove": self.map.remove,
            "clear_map": self.map.clear,
        }
        calls[op[0]](*op[1:])

    def seen(self) -> tuple[Any, ...]:
        return self.value.value(), tuple(self.list.get()), tuple((k, repr(v)) for k, v in self.map.items())


def expected(elements: Iterable[Element], models: dict[int, Model]) -> tuple[list[Any], int]:
    """Outputs and number of refusals; changes the models."""
    outputs: list[Any] = []
    refused = 0
    for element in elements:
        model, seen = copy.deepcopy(models.setdefault(element.key, Model())), []
        for op in element.ops:
            model.apply(op)
            seen.append(model.seen())
        if element.fails:
            refused += 1
            continue
        models[element.key] = model
        outputs += [*seen, model.seen()]
    return outputs, refused


def stored(harness: KeyedHarness) -> dict[str, dict[int, Any]]:
    values = {name: harness.state(name) for name in ("value", "elements", "entries")}
    # equal dicts may differ in order
    values["entries"] = {k: list(v.items()) for k, v in values["entries"].items()}
    return values


def stored_by(models: dict[int, Model]) -> dict[str, dict[int, Any]]:
    return {
        "value": {k: m.value for k, m in models.items() if m.value is not None},
        "elements": {k: m.elements for k, m in models.items() if m.elements},
        "entries": {k: list(m.entries.items()) for k, m in models.items() if m.entries},
    }


KINDS = st.sampled_from([*((kind,) for kind in _OPS), tuple(_OPS)])


@settings(max_examples=150)
@given(
    batches=KINDS.flatmap(lambda kinds: batches_of(*kinds)),
    parallelism=st.sampled_from([1, 1, 2]),
    restored=st.booleans(),
)
def test_state_and_outputs_are_the_models_after_every_batch(
    batches: list[list[Element]], parallelism: int, restored: bool
) -> None:
    """Also with a restore, at another parallelism, between any two of them."""
    options: dict[str, Any] = {"key_by": lambda e: e.key, "on_error": "dead_letter"}
    harness = KeyedHarness(Writer(), parallelism=parallelism, **options)
    models: dict[int, Model] = {}
    for batch in [*batches, []]:
        if restored:
            harness = KeyedHarness.restored(Writer(), harness.snapshot(), parallelism=2, **options)
        outputs, failed = expected(batch, models)
        before = len(harness.refused)
        assert harness.process(batch) == outputs
        assert stored(harness) == stored_by(models)
        assert len(harness.refused) - before == failed


def test_changes_of_values_are_those_of_keys_whose_value_is_another_one() -> None:
    """Kept, updated, cleared, new; and of a key that came and went nothing is known."""
    loaded = {"kept": (1, 0.5), "updated": (2, 0.5), "cleared": (3, 0.5), "gone": (4, 0.5)}
    entries: dict[Any, Any] = dict(loaded)
    table = KeyedEntries(ValueStateDescriptor("window", tuple[int, float]), entries)
    assert list(table.changes()) == []
    entries.update(updated=(5, 0.5), new=(6, 0.5), cleared=None)
    del entries["gone"]
    changes = {change.key: (change.op, change.value) for change in table.changes()}
    assert changes == {
        "updated": (PUT, (5, 0.5)),
        "new": (PUT, (6, 0.5)),
        "cleared": (DELETE, None),
        "gone": (DELETE, None),
    }
    assert len(list(table.changes())) == len(changes)  # one a key
