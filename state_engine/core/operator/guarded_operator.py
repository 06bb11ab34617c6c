"""``GuardedOperator``: what operators that run a user's function on rows have in common.

What a hook of the function raises ends the batch as a refusal that names no row, whatever the policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from state_engine.core.functions.vectorized_functions import PerElement
from state_engine.core.operator.atomic_call import BATCH_FATAL_ERRORS
from state_engine.core.operator.operator_lifecycle import OperatorLifecycle
from state_engine.core.operator.outputs import ElementRefused, Refusal
from state_engine.core.operator_state.operator_snapshot import SubtaskSnapshot

T = TypeVar("T")


class GuardedOperator:
    """An operator whose function's errors are refusals."""

    _life: OperatorLifecycle

    @property
    def asked(self) -> frozenset[str]:
        return self._life.asked

    def snapshot(self) -> SubtaskSnapshot:
        """The operator state at the end of the batch; call it after the last timer, also where no element came."""
        return self._guard(self._life.snapshot)

    def close(self) -> None:
        self._guard(self._life.close)

    def metrics(self) -> dict[str, float]:
        """What the function's metrics say by now, by name."""
        return self._life.runtime_context.metrics()

    def _guard(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except (*BATCH_FATAL_ERRORS, PerElement):
            raise
        except Exception as error:
            raise ElementRefused(Refusal(None, None, "", "").caused_by(error)) from error
