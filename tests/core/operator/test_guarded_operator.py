"""What hooks of a function raise: a refusal that names no row, but for what no other row would cure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from state_engine.core.errors import MissingFilesError, StateMigrationError, StorageError
from state_engine.core.functions.checkpointed import CheckpointedFunction
from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.functions.vectorized_functions import PerElement
from state_engine.core.operator.guarded_operator import GuardedOperator
from state_engine.core.operator.operator_lifecycle import OperatorLifecycle
from state_engine.core.operator.outputs import ElementRefused

HOOKS: list[Callable[[GuardedOperator], Any]] = [GuardedOperator.snapshot, GuardedOperator.close]


class Failing(CheckpointedFunction):
    """Raises at the end of its life."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def initialize_state(self, context: Any) -> None:
        pass

    def snapshot_state(self, context: Any) -> None:
        raise self.error

    def close(self) -> None:
        raise self.error


class Operator(GuardedOperator):
    """Runs it."""

    def __init__(self, error: Exception) -> None:
        info = TaskInfo("failing")
        self._life = OperatorLifecycle(Failing(error), info=info, clock_ms=0)


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        StorageError("full"),
        MissingFilesError("gone"),
        StateMigrationError("other"),
        PerElement(),
    ],
)
def test_what_is_no_fault_of_the_function_comes_out_as_it_is(
    error: Exception, hook: Callable[[GuardedOperator], Any]
) -> None:
    with pytest.raises(type(error)) as raised:
        hook(Operator(error))
    assert raised.value is error


@pytest.mark.parametrize("hook", HOOKS)
def test_what_the_function_raises_is_a_refusal_of_no_row(hook: Callable[[GuardedOperator], Any]) -> None:
    with pytest.raises(ElementRefused) as raised:
        hook(Operator(ZeroDivisionError("by zero")))
    refusal = raised.value.refusal
    assert (refusal.index, refusal.key, refusal.error) == (None, None, "ZeroDivisionError: by zero")
