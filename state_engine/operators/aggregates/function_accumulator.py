"""``FunctionAccumulator``: an ``AggregateFunction`` of a user as an accumulator among others."""

from __future__ import annotations

import copy
from typing import Any

from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.types.every_type import StructType
from state_engine.operators.aggregates.accumulators import Accumulator
from state_engine.operators.aggregates.declarations import FunctionTypes
from state_engine.operators.retraction import without_kind

Wrapped = tuple[Any]
"""The accumulator of the function, of which None is one as well, in a struct of one field."""


class FunctionAccumulator(Accumulator):
    """Calls the function on copies, which it may change in place."""

    def __init__(self, declared: FunctionTypes, *, what: str) -> None:
        super().__init__(what=what)
        self._function = declared.function
        self.accumulator_type = StructType(["accumulator"], [declared.accumulator_type])
        self.result_type = declared.output_type

    def open(self, runtime_context: RuntimeContext) -> None:
        self._function.open(runtime_context)

    def close(self) -> None:
        self._function.close()

    def create_accumulator(self) -> Wrapped:
        return (self._function.create_accumulator(),)

    def add(self, value: Any, accumulator: Wrapped) -> Wrapped:
        return (self._function.add(without_kind(value), _own(accumulator)),)

    def retract(self, value: Any, accumulator: Wrapped) -> Wrapped:
        return (self._function.retract(without_kind(value), _own(accumulator)),)

    def merge(self, acc_a: Wrapped, acc_b: Wrapped) -> Wrapped:
        return (self._function.merge(_own(acc_a), _own(acc_b)),)

    def has_values(self, accumulator: Wrapped) -> bool:
        """See the base. Only the function could tell."""
        return False

    def get_result(self, accumulator: Wrapped) -> Any:
        return self._function.get_result(_own(accumulator))


def _own(accumulator: Wrapped) -> Any:
    return copy.deepcopy(accumulator[0])
