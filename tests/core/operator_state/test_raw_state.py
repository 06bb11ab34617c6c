"""Raw state streams: bytes in, the same bytes out, and what a function may not do with them."""

from __future__ import annotations

from typing import Any

import pytest

from state_engine.core.errors import StateAccessError, ValueTypeError
from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.core.operator_state.raw_state import (
    RawKeyedInput,
    RawKeyedOutput,
    RawOperatorInput,
    RawOperatorOutput,
)

OWN = KeyGroupRange(4, 7)


def keyed(own: KeyGroupRange | None = OWN) -> RawKeyedOutput:
    return RawKeyedOutput("sink", 1, own)


def test_bytes_of_a_subtask_come_back_as_one() -> None:
    stream = RawOperatorOutput("sink")
    written: list[Any] = [b"a", bytearray(b"b"), memoryview(b"c")]
    for data in written:
        stream.write(data)
    assert RawOperatorInput(stream.finish()).read() == b"abc"


def test_nothing_written_is_nothing_to_iterate_over() -> None:
    assert list(RawOperatorInput(RawOperatorOutput("sink").finish())) == []
    assert list(RawKeyedInput(keyed().finish())) == []


def test_key_groups_come_back_in_order_whatever_order_they_were_started_in() -> None:
    stream = keyed()
    for group, data in ((7, b"x"), (4, b"y")):
        stream.start_key_group(group)
        stream.write(data)
        stream.write(data)
    stream.start_key_group(5)
    assert list(RawKeyedInput(stream.finish())) == [(4, b"yy"), (5, b""), (7, b"xx")]


def test_a_function_can_loop_over_its_key_groups() -> None:
    assert list(keyed().get_key_group_list()) == [4, 5, 6, 7]


@pytest.mark.parametrize("group", [3, 8, -1, "4", None])
def test_a_key_group_of_another_subtask_is_refused(group: Any) -> None:
    with pytest.raises(StateAccessError, match=r"operator 'sink': key group .* subtask 1, which has 4 … 7"):
        keyed().start_key_group(group)


def test_a_key_group_is_started_once() -> None:
    stream = keyed()
    stream.start_key_group(4)
    stream.start_key_group(5)
    with pytest.raises(StateAccessError, match="key group 4 was started before"):
        stream.start_key_group(4)


def test_bytes_need_a_key_group() -> None:
    with pytest.raises(StateAccessError, match="call start_key_group before write"):
        keyed().write(b"x")


def test_there_is_no_raw_keyed_state_without_keys() -> None:
    for use in (lambda s: s.start_key_group(0), lambda s: s.write(b"x"), lambda s: s.get_key_group_list()):
        with pytest.raises(StateAccessError, match="operator 'sink' is not on a keyed stream"):
            use(keyed(None))


@pytest.mark.parametrize("data", ["text", 5, [1], None])
def test_only_bytes_can_be_written(data: Any) -> None:
    with pytest.raises(ValueTypeError, match="takes bytes"):
        RawOperatorOutput("sink").write(data)
    stream = keyed()
    stream.start_key_group(4)
    with pytest.raises(ValueTypeError, match="takes bytes"):
        stream.write(data)


def test_streams_are_closed_after_snapshot_state() -> None:
    operator, by_key = RawOperatorOutput("sink"), keyed()
    by_key.start_key_group(4)
    assert (operator.finish(), by_key.finish()) == (b"", ((4, b""),))
    for use in (lambda: operator.write(b"x"), lambda: by_key.write(b"x"), lambda: by_key.start_key_group(5)):
        with pytest.raises(StateAccessError, match="inside snapshot_state only"):
            use()
