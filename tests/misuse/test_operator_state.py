"""Misuse of operator state, broadcast state and raw state in the harness."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from state_engine import (
    CheckpointedFunction,
    KeyedBroadcastProcessFunction,
    ListCheckpointed,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    RuntimeContext,
    StateTtlConfig,
    Time,
    ValueStateDescriptor,
)
from state_engine.core.errors import (
    ConfigurationError,
    InvalidNameError,
    StateAccessError,
    StatelakeError,
    StateMigrationError,
    ValueTypeError,
)
from state_engine.testing import KeyedHarness, OperatorHarness

Use = Callable[[Any], Any]


class Asks(MapFunction, CheckpointedFunction):
    """Calls one function with the operator state store at the start, and another at the checkpoint."""

    def __init__(self, use: Use, snapshot: Use = lambda context: None) -> None:
        self.use, self.snapshot = use, snapshot

    def map(self, value: Any) -> Any:
        return value

    def initialize_state(self, context: Any) -> None:
        self.use(context.get_operator_state_store())

    def snapshot_state(self, context: Any) -> None:
        self.snapshot(context)


NUMBERS = ListStateDescriptor("numbers", int)


def expiring() -> ListStateDescriptor:
    descriptor = ListStateDescriptor("numbers", int)
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.days(1)).build())
    return descriptor


_WHERE = "operator 'harness': state 'numbers'"
REFUSED: dict[str, tuple[Use, type[StatelakeError], str]] = {
    "one name, two schemes": (
        lambda s: [s.get_list_state(NUMBERS), s.get_union_list_state(NUMBERS)], StateAccessError,
        f"{_WHERE} is declared twice, as even_split .* and as union of bigint; give them different names",
    ),
    "a descriptor of keyed state": (
        lambda s: s.get_list_state(ValueStateDescriptor("numbers", int)), StateAccessError,
        "operator 'harness': .*'numbers'.* does not describe operator state .*; use a ListStateDescriptor",
    ),
    "a list for broadcast state": (
        lambda s: s.get_broadcast_state(NUMBERS), StateAccessError,
        "operator 'harness': .*'numbers'.* scheme broadcast; use a MapStateDescriptor",
    ),
    "a time to live": (
        lambda s: s.get_list_state(expiring()), ConfigurationError,
        f"{_WHERE}: operator state does not expire; leave out enable_time_to_live, or keep",
    ),
    "a name of the engine": (
        lambda s: s.get_list_state(ListStateDescriptor("list_checkpointed", int)), ConfigurationError,
        "operator 'harness': state 'list_checkpointed': the engine itself uses this name; choose another",
    ),
    "a name that is none": (
        lambda s: s.get_list_state(ListStateDescriptor("", int)), InvalidNameError,
        "'' cannot name a state: use a text of 1 to 255 characters",
    ),
    "None as an element": (
        lambda s: s.get_list_state(NUMBERS).add(None), ValueTypeError,
        "None cannot be an element of list state 'numbers'",
    ),
    "None as a key of broadcast state": (
        lambda s: s.get_broadcast_state(MapStateDescriptor("rules", str, int)).put(None, 1), ValueTypeError,
        "None cannot be a key of map state 'rules'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_wrong_use_of_operator_state_is_reported_with_operator_and_state(what: str) -> None:
    use, kind, message = REFUSED[what]
    with pytest.raises(kind, match=message):
        OperatorHarness(Asks(use)).process([1])


def test_operator_state_of_another_type_or_scheme_is_refused_on_restore() -> None:
    first = OperatorHarness(Asks(lambda s: s.get_list_state(NUMBERS).add(1)))
    first.process([1])
    others: list[tuple[Use, str]] = [
        (
            lambda s: s.get_list_state(ListStateDescriptor("numbers", str)),
            "bigint, the function declares string: bigint cannot become string",
        ),
        (lambda s: s.get_union_list_state(NUMBERS), "even_split of bigint, the function declares union of bigint"),
    ]  # fmt: skip
    for use, shown in others:
        harness = OperatorHarness.restored(Asks(use), first.snapshot())
        with pytest.raises(
            StateMigrationError, match=f"{_WHERE} is stored as {shown}.*estore the old declaration"
        ):
            harness.process([1])


RAW: dict[str, tuple[Use, type[StatelakeError], str]] = {
    "text for bytes": (
        lambda c: c.raw_operator_state.write("x"), ValueTypeError, r"takes bytes, not 'x' \(str\): encode it first",
    ),
    "raw keyed state without keys": (
        lambda c: c.raw_keyed_state.start_key_group(0), StateAccessError,
        "operator 'harness' is not on a keyed stream, so it has no raw keyed state; call key_by before it, or write to",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", RAW)
def test_a_wrong_use_of_raw_state_is_reported(what: str) -> None:
    use, kind, message = RAW[what]
    with pytest.raises(kind, match=message):
        OperatorHarness(Asks(lambda s: None, use)).process([1])


RULES = MapStateDescriptor("rules", str, int)


class Reads(KeyedBroadcastProcessFunction):
    """Writes broadcast state where it is read-only, and keyed state where there is no key."""

    def __init__(self, use: Use = lambda state: None) -> None:
        self.use = use

    def open(self, runtime_context: RuntimeContext) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.use(ctx.get_broadcast_state(RULES))

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put("a", value)
        self.seen.update(value)


WRITES: dict[str, Use] = {
    "put": lambda s: s.put("a", 1),
    "put_all": lambda s: s.put_all({"a": 1}),
    "remove": lambda s: s.remove("a"),
    "clear": lambda s: s.clear(),
}


@pytest.mark.parametrize("method", WRITES)
def test_read_only_broadcast_state_refuses_every_write(method: str) -> None:
    shown = f"operator 'harness': state 'rules' is read-only here, so it has no {method}: change it in process_broad"
    with pytest.raises(StateAccessError, match=shown):
        KeyedHarness(Reads(WRITES[method]), key_by=lambda value: value).process([1])


def test_keyed_state_in_a_broadcast_element_is_refused() -> None:
    with pytest.raises(
        StateAccessError, match=r"state 'seen' was used without a current key.*use key_by first"
    ):
        KeyedHarness(Reads(), key_by=lambda value: value).process_broadcast([1])


class NoList(MapFunction, ListCheckpointed):
    def map(self, value: Any) -> Any:
        return value

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> Any:
        return 5


class BothHooks(Asks, ListCheckpointed):  # type: ignore[misc]
    pass


class NoHooks(MapFunction, CheckpointedFunction):
    def map(self, value: Any) -> Any:
        return value


def test_hooks_that_are_written_wrongly_are_reported() -> None:
    with pytest.raises(
        ValueTypeError, match=r"operator 'harness': snapshot_state of NoList returned 5; return a list"
    ):
        OperatorHarness(NoList()).process([1])
    with pytest.raises(
        ConfigurationError, match=r"operator 'harness': BothHooks is both a Checkpointed.*choose one"
    ):
        OperatorHarness(BothHooks(lambda s: None)).process([1])
    with pytest.raises(NotImplementedError, match="NoHooks must define initialize_state"):
        OperatorHarness(NoHooks()).process([1])
