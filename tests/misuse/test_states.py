"""Misuse of states and functions in the harness: the class of each error, the names in it, and the fix."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from state_engine import (
    AggregateFunction,
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessFunction,
    ReducingStateDescriptor,
    Row,
    RuntimeContext,
    SortedMapStateDescriptor,
    ValueStateDescriptor,
)
from state_engine.core.errors import StateAccessError, StatelakeError, StateMigrationError, ValueTypeError
from state_engine.testing import KeyedHarness, OperatorHarness

OUTSIDE = 200
"""Does not fit into a tinyint, the type of all states here."""


class Total(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


def folding(runtime: RuntimeContext, kind: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        start = "" if kind == "string" else 0
        return runtime.get_folding_state(FoldingStateDescriptor("s", start, lambda a, b: a + b, kind))


GET: dict[str, Callable[[RuntimeContext, Any], Any]] = {
    "value": lambda r, kind: r.get_state(ValueStateDescriptor("s", kind)),
    "list": lambda r, kind: r.get_list_state(ListStateDescriptor("s", kind)),
    "map": lambda r, kind: r.get_map_state(MapStateDescriptor("s", kind, kind)),
    "sorted map": lambda r, kind: r.get_sorted_map_state(SortedMapStateDescriptor("s", kind, kind)),
    "reducing": lambda r, kind: r.get_reducing_state(ReducingStateDescriptor("s", lambda a, b: a + b, kind)),
    "aggregating": lambda r, kind: r.get_aggregating_state(AggregatingStateDescriptor("s", Total(), kind)),
    "folding": folding,
}
WRITE: dict[str, Callable[[Any, Any], Any]] = {
    "value": lambda s, v: s.update(v),
    "list": lambda s, v: s.add(v),
    "map": lambda s, v: s.put(1, v),
    "sorted map": lambda s, v: s.put(1, v),
    "reducing": lambda s, v: s.add(v),
    "aggregating": lambda s, v: s.add(v),
    "folding": lambda s, v: s.add(v),
}
Use = Callable[[Any], Any]


class Uses(KeyedProcessFunction):
    """Uses one state; with ``caught``, the error that is raised there becomes the output."""

    def __init__(self, state: str, use: Use, kind: Any = "tinyint", *, caught: bool = False) -> None:
        self.get, self.use, self.kind, self.caught = GET[state], use, kind, caught

    def open(self, runtime_context: RuntimeContext) -> None:
        self.state = self.get(runtime_context, self.kind)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        if self.caught:
            with pytest.raises(ValueTypeError, match="must be between -128 and 127"):
                self.use(self.state)
            yield "refused"
        else:
            self.use(self.state)


def keyed(function: Any, elements: Iterable[Any] = ("a",)) -> KeyedHarness:
    harness = KeyedHarness(function, key_by=lambda value: value)
    harness.process(elements)
    return harness


OVERFLOWS: list[tuple[str, Use]] = [
    *((state, lambda s, write=write: write(s, OUTSIDE)) for state, write in WRITE.items()),
    ("list", lambda s: s.add_all([1, OUTSIDE])),
    ("list", lambda s: s.update([1, OUTSIDE])),
    ("map", lambda s: s.put(OUTSIDE, 1)),
    ("map", lambda s: s.put_all({OUTSIDE: 1})),
    ("sorted map", lambda s: s.put_all([(OUTSIDE, 1)])),
    ("reducing", lambda s: [s.add(100), s.add(100)]),
    ("aggregating", lambda s: [s.add(100), s.add(100)]),
    ("folding", lambda s: [s.add(100), s.add(100)]),
]


@pytest.mark.parametrize(("state", "use"), OVERFLOWS)
def test_an_overflow_is_an_error_of_the_write_and_not_of_the_commit(state: str, use: Use) -> None:
    harness = KeyedHarness(Uses(state, use, caught=True), key_by=lambda value: value)
    assert harness.process(["a"]) == ["refused"]
    with pytest.raises(
        ValueTypeError, match=r"state 's': 200 \(int\) is not a value of type int8: it must be"
    ):
        keyed(Uses(state, use))


@pytest.mark.parametrize("state", GET)
def test_a_value_that_does_not_fit_is_reported_with_its_state(state: str) -> None:
    with pytest.raises(ValueTypeError, match=r"state 's': 1.5 \(float\) is not a value of type int8"):
        keyed(Uses(state, lambda s: WRITE[state](s, 1.5)))


MISFITS: list[tuple[str, Use, str]] = [
    ("map", lambda s: s.get("x"), "key of map state 's': 'x'"),
    ("sorted map", lambda s: list(s.sub_items(1, "x")), "key of map state 's': 'x'"),
    ("list", lambda s: s.merge(["x"]), "list state 's': 'x'"),
    ("reducing", lambda s: s.merge("x"), "reducing state 's': 'x'"),
    ("aggregating", lambda s: s.merge("x"), "aggregating state 's': 'x'"),
]


@pytest.mark.parametrize(("state", "use", "expected"), MISFITS)
def test_what_is_looked_up_or_merged_has_the_type_of_the_state(state: str, use: Use, expected: str) -> None:
    with pytest.raises(ValueTypeError, match=rf"{expected} \(str\) is not a value of type int8"):
        keyed(Uses(state, use))


def change_while_iterating(state: Any) -> None:
    state.put(1, 1)
    for key in state:
        state.put(key + 1, 1)


REFUSED: dict[str, tuple[str, Use, type[StatelakeError], str]] = {
    "None added to a list": (
        "list", lambda s: s.add(None), ValueTypeError, "None cannot be an element of list state 's'",
    ),
    "None among added elements": (
        "list", lambda s: s.add_all([1, None]), ValueTypeError, "None cannot be an element of list state 's'",
    ),
    "None in a list put in place": (
        "list", lambda s: s.update([None]), ValueTypeError, "None cannot be an element of list state 's'",
    ),
    "None added to a reducing state": (
        "reducing", lambda s: s.add(None), ValueTypeError, "None cannot be added to reducing state 's'",
    ),
    "None as key of a map": (
        "map", lambda s: s.put(None, 1), ValueTypeError, "None cannot be a key of map state 's'",
    ),
    "None among put keys": (
        "map", lambda s: s.put_all({None: 1}), ValueTypeError, "None cannot be a key of map state 's'",
    ),
    "None as key of a sorted map": (
        "sorted map", lambda s: s.put(None, 1), ValueTypeError, "None cannot be a key of map state 's'",
    ),
    "a map changed while it is iterated": (
        "map", change_while_iterating, StateAccessError,
        "map state 's' was changed while it was iterated: collect the items into a list first",
    ),
    "a sorted map changed while it is iterated": (
        "sorted map", change_while_iterating, StateAccessError,
        "map state 's' was changed while it was iterated: collect the items into a list first",
    ),
    "a text for a number": (
        "value", lambda s: s.update("x"), ValueTypeError, r"'x' \(str\) is not a value of type int8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_wrong_use_of_a_state_is_reported_and_changes_nothing(what: str) -> None:
    state, use, kind, message = REFUSED[what]
    with pytest.raises(kind, match=message):
        keyed(Uses(state, use))
    harness = KeyedHarness(Uses(state, use), key_by=lambda value: value, on_error="dead_letter")
    assert harness.process(["a"]) == []
    assert [(r.key, r.error.split(":")[0]) for r in harness.refused] == [("a", kind.__name__)]
    assert harness.state("s") == {}


class Elsewhere(KeyedProcessFunction):
    """Uses a state in ``open`` or in ``close``."""

    def __init__(self, where: str, use: Use, state: str) -> None:
        self.where, self.use, self.get = where, use, GET[state]

    def open(self, runtime_context: RuntimeContext) -> None:
        self.state = self.get(runtime_context, "tinyint")
        if self.where == "open":
            self.use(self.state)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        return None

    def close(self) -> None:
        if self.where == "close":
            self.use(self.state)


@pytest.mark.parametrize("where", ["open", "close"])
@pytest.mark.parametrize("state", GET)
def test_keyed_state_without_a_key_is_refused(where: str, state: str) -> None:
    with pytest.raises(
        StateAccessError,
        match=r"state 's' was used without a current key.*use key_by first, and not open or close",
    ):
        keyed(Elsewhere(where, lambda s: WRITE[state](s, 1), state))


class OnPlainStream(ProcessFunction):
    def __init__(self, state: str) -> None:
        self.get = GET[state]

    def open(self, runtime_context: RuntimeContext) -> None:
        self.get(runtime_context, int)

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> None:
        return None


@pytest.mark.parametrize("state", GET)
def test_keyed_state_on_a_stream_without_keys_is_refused(state: str) -> None:
    with pytest.raises(
        StateAccessError,
        match=r"operator 'harness' is not on a keyed stream.*'s'.*call key_by before process",
    ):
        OperatorHarness(OnPlainStream(state)).process([1])


class Twice(KeyedProcessFunction):
    def __init__(self, first: str, second: str, kind: Any) -> None:
        self.first, self.second, self.kind = GET[first], GET[second], kind

    def open(self, runtime_context: RuntimeContext) -> None:
        self.first(runtime_context, "tinyint")
        self.second(runtime_context, self.kind)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        return None


@pytest.mark.parametrize("state", GET)
def test_one_name_of_two_types_or_kinds_is_refused(state: str) -> None:
    message = "operator 'harness': state 's' is declared twice, as .* and as .*; give them different names"
    with pytest.raises(StateAccessError, match=message):
        keyed(Twice(state, state, "string"))
    with pytest.raises(StateAccessError, match=message):
        keyed(Twice(state, "value" if state != "value" else "list", "tinyint"))


@pytest.mark.parametrize("state", GET)
def test_keyed_state_of_another_type_is_refused_on_restore(state: str) -> None:
    snapshot = keyed(Uses(state, lambda s: WRITE[state](s, 1))).snapshot()
    with pytest.raises(StateMigrationError, match=r"state 's' is stored as .*tinyint"):
        KeyedHarness.restored(
            Uses(state, lambda s: None, "string"), snapshot, key_by=lambda value: value
        ).process(["a"])


class Returns(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Any:
        return value


class ReturnsLater(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_processing_time_timer(0)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        return "letters"


def test_what_is_returned_instead_of_yielded_is_refused() -> None:
    for value in ("letters", b"bytes", {"a": 1}, 5):
        with pytest.raises(
            ValueTypeError, match=r"process_element returned .*: yield the outputs, or return a list"
        ):
            OperatorHarness(Returns()).process([value])
    for record in ((1, 2), Row(a=1)):
        with pytest.raises(
            ValueTypeError, match=r"returned the tuple .*: to emit it, yield it or return .it."
        ):
            OperatorHarness(Returns()).process([record])
    with pytest.raises(ValueTypeError, match="on_timer returned 'letters': yield the outputs"):
        keyed(ReturnsLater())
