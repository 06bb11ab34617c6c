"""The interfaces of functions with checkpoint hooks: what must be defined, and what need not be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from state_engine.core.functions.checkpointed import (
    CheckpointedFunction,
    CheckpointListener,
    ListCheckpointed,
    has_checkpoint_hooks,
    has_operator_state,
)
from state_engine.core.functions.every_function import MapFunction


class Nothing(CheckpointedFunction):
    pass


class NoList(ListCheckpointed):
    pass


class Deaf(CheckpointListener):
    pass


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Nothing().snapshot_state(None), r"Nothing must define snapshot_state\(self, context\)"),  # type: ignore[arg-type]
        (lambda: Nothing().initialize_state(None), r"Nothing must define initialize_state\(self, context\)"),  # type: ignore[arg-type]
        (
            lambda: NoList().snapshot_state(1, 2),
            r"NoList must define snapshot_state\(self, checkpoint_id, timestamp\)",
        ),
        (lambda: NoList().restore_state([]), r"NoList must define restore_state\(self, state\)"),
        (
            lambda: Deaf().notify_checkpoint_complete(1),
            r"Deaf must define notify_checkpoint_complete\(self, checkpoint_id\)",
        ),
    ],
)
def test_a_missing_hook_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        call()


def test_a_listener_need_not_hear_of_aborted_checkpoints() -> None:
    Deaf().notify_checkpoint_aborted(1)


def test_the_interfaces_mix() -> None:
    class Sink(CheckpointedFunction, CheckpointListener):
        def __init__(self) -> None:
            self.completed: list[int] = []

        def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
            self.completed.append(checkpoint_id)

    sink = Sink()
    sink.notify_checkpoint_complete(3)
    assert isinstance(sink, CheckpointedFunction)
    assert sink.completed == [3]


@pytest.mark.parametrize(
    ("function", "hooks", "state"),
    [
        (Nothing(), True, True),
        (NoList(), True, True),
        (Deaf(), True, False),
        (MapFunction(), False, False),
        (None, False, False),
        (Nothing, False, False),  # the class is no function
    ],
)
def test_what_checkpoints_concern(function: Any, hooks: bool, state: bool) -> None:
    assert (has_checkpoint_hooks(function), has_operator_state(function)) == (hooks, state)
