"""What the shortcuts of keyed streams stand for: ``map_with_state``, ``reduce``, ``aggregate``, rolling ``sum``.

Each keeps one state per key and has one output per element, as in Flink: there these are ``mapWithState`` of the Scala
API, ``StreamGroupedReduceOperator``, and ``SumAggregator`` and ``ComparableAggregator``; ``aggregate`` exists there on
windows only. ``reduce`` and ``aggregate`` can take rows back where their functions say how (see ``retraction``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Literal

from state_engine.core.errors import ConfigurationError, ValueTypeError
from state_engine.core.functions.contexts import KeyedContext
from state_engine.core.functions.process_functions import KeyedProcessFunction
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.state.aggregate_functions import AggregateFunction, ReduceFunction, defines_retract
from state_engine.core.state.descriptors import AggregatingStateDescriptor, ValueStateDescriptor
from state_engine.core.types.type_information import TypeLike
from state_engine.operators.idle_keys import ForgettableFunction
from state_engine.operators.retraction import (
    NO_RESULT,
    ResultOfKey,
    RetainedRows,
    takes_back,
    without_kind,
)


class MapWithState(KeyedProcessFunction):
    """Calls ``function(value, state) -> (output, new state)``; the state is None before the first and after a None.

    Args:
        state_type: type of the state, as a descriptor would take it.
    """

    sees_time = False

    def __init__(self, function: Callable[[Any, Any], tuple[Any, Any]], state_type: TypeLike) -> None:
        if not callable(function):
            raise ConfigurationError(f"map_with_state takes a callable, not {function!r}")
        self._function, self._descriptor = function, ValueStateDescriptor("state", state_type)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._state = runtime_context.get_state(self._descriptor)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        result = self._function(value, self._state.value())
        if not isinstance(result, tuple) or len(result) != 2:
            raise ValueTypeError(
                f"the function of map_with_state returned {result!r}: return (output, new state), "
                "with None for no state"
            )
        output, state = result
        self._state.update(state)
        return [output]


class RollingReduce(ResultOfKey):
    """Emits, for every element, the reduction of all elements of its key so far.

    Args:
        inverse: takes an element back: called with the reduction and the element, gives the reduction of the others.
            None where rows are only added. With it the number of a key's rows is kept, too.
    """

    sees_time = False

    def __init__(
        self,
        function: ReduceFunction | Callable[[Any, Any], Any],
        value_type: TypeLike,
        inverse: ReduceFunction | Callable[[Any, Any], Any] | None = None,
        *,
        name: str = "reduced",
        emits_changes: bool = False,
    ) -> None:
        self._function = ReduceFunction.of(function, what="reduce")
        self._inverse = None if inverse is None else ReduceFunction.of(inverse, what="inverse of reduce")
        self._descriptor = ValueStateDescriptor(name, value_type)
        self.accepts_changes, self.emits_changes = inverse is not None, emits_changes

    def open(self, runtime_context: RuntimeContext) -> None:
        self._function.open(runtime_context)
        self._state = runtime_context.get_state(self._descriptor)
        if self._inverse is not None:
            self._inverse.open(runtime_context)
            self._rows = RetainedRows(runtime_context, self._descriptor.name, what="reduce")

    def close(self) -> None:
        self._function.close()
        if self._inverse is not None:
            self._inverse.close()

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """The reduction with this element, or without it."""
        value, stored = without_kind(value), self._state.value()
        if self._inverse is not None and takes_back(ctx.row_kind()):
            if self._rows.taken_back(value, kept=stored is not None):
                self._state.clear()
                return self.result(stored, NO_RESULT)
            return self._reduced("inverse", self._inverse, stored, value)
        if self._inverse is not None:
            self._rows.added(kept=stored is not None)
        if stored is None:
            self._state.update(value)
            return self.result(NO_RESULT, self._state.value())
        return self._reduced("reduce", self._function, stored, value)

    def _reduced(self, name: str, function: ReduceFunction, stored: Any, value: Any) -> Iterable[Any]:
        before = (
            self._state.value() if self.emits_changes else None
        )  # the function may change what it is given
        reduced = function.reduce(stored, value)
        if reduced is None:
            raise ValueTypeError(f"the {name} function returned None for {stored!r} and {value!r}")
        self._state.update(reduced)
        return self.result(before, self._state.value())


class RunningAggregate(ResultOfKey, ForgettableFunction):
    """Emits, for every element, the aggregation of all elements of its key so far.

    Args:
        function: gives the result of an accumulator. With ``retract`` it takes elements back, and the number of a key's
            rows is kept, too.
    """

    sees_time = False
    takes_back_known_rows = True

    def __init__(
        self,
        function: AggregateFunction,
        accumulator_type: TypeLike,
        *,
        emits_changes: bool = False,
    ) -> None:
        self._function = function
        self._descriptor = AggregatingStateDescriptor("aggregated", function, accumulator_type)
        self.accepts_changes, self.emits_changes = defines_retract(function), emits_changes

    def open(self, runtime_context: RuntimeContext) -> None:
        self._function.open(runtime_context)
        self._state = runtime_context.get_aggregating_state(self._descriptor)
        if self.accepts_changes:
            self._rows = RetainedRows(
                runtime_context, self._descriptor.name, what=f"aggregate({type(self._function).__name__})"
            )

    def close(self) -> None:
        self._function.close()

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """The aggregation with this element, or without it."""
        kept = self._state.get_internal() is not None
        if not self.accepts_changes:
            before = self._state.get() if kept and self.emits_changes else NO_RESULT
            self._state.add(value)
            return self.result(before, self._state.get())
        value = without_kind(value)
        before = self._state.get() if kept and self.emits_changes else NO_RESULT
        if not takes_back(ctx.row_kind()):
            self._rows.added(kept=kept)
            self._state.add(value)
            return self.result(before, self._state.get())
        last = self._rows.taken_back(value, kept=kept)
        self._state.retract(value)  # also the last one: what was never added is an error
        if last:
            self._state.clear()
            return self.result(before, NO_RESULT)
        return self.result(before, self._state.get())

    def forget(self, ctx: KeyedContext) -> Iterable[Any]:
        """Clear what is kept of the key; with kinds, a delete of its result."""
        kept = self._state.get_internal() is not None
        before = self._state.get() if kept and self.emits_changes else NO_RESULT
        self._state.clear()
        if self.accepts_changes:
            self._rows.clear()
        return self.gone(before)


RollingKind = Literal["sum", "min", "max", "min_by", "max_by"]


class RollingAggregate(RollingReduce):
    """Emits, for every element, the first element of its key with one field summed up, or its least or greatest.

    The other fields stay those of the key's first element, as in Flink; ``min_by`` and ``max_by`` emit the whole
    element that has the least or greatest value, of several the first. A null field counts as no value.

    Args:
        field: name or position of the field; of bare values, 0.
    """

    def __init__(self, kind: RollingKind, field: int | str = 0, value_type: TypeLike | None = None) -> None:
        if kind not in (*_COMBINE, *_BETTER):
            raise ConfigurationError(
                f"a rolling aggregate is one of {sorted((*_COMBINE, *_BETTER))}, not {kind!r}"
            )
        one = _OneField(_COMBINE[kind], field) if kind in _COMBINE else _WholeElement(_BETTER[kind], field)
        super().__init__(one, value_type, name="rolling")


class _OneField(ReduceFunction):
    def __init__(self, combine: Callable[[Any, Any], Any], field: int | str) -> None:
        self._combine, self._field = combine, field

    def reduce(self, value1: Any, value2: Any) -> Any:
        old, new = _field(value1, self._field), _field(value2, self._field)
        if new is None:
            return value1
        return _with_field(value1, self._field, new if old is None else self._combine(old, new))


class _WholeElement(ReduceFunction):
    def __init__(self, better: Callable[[Any, Any], Any], field: int | str) -> None:
        self._better, self._field = better, field

    def reduce(self, value1: Any, value2: Any) -> Any:
        old, new = _field(value1, self._field), _field(value2, self._field)
        return value2 if new is not None and (old is None or self._better(new, old)) else value1


_BETTER: dict[str, Callable[[Any, Any], Any]] = {"min_by": lambda a, b: a < b, "max_by": lambda a, b: a > b}
_COMBINE: dict[str, Callable[[Any, Any], Any]] = {"sum": lambda a, b: a + b, "min": min, "max": max}


def _field(value: Any, field: int | str) -> Any:
    try:
        if isinstance(value, tuple):
            return value[_position(value, field)]
        if isinstance(value, dict):
            return value[field]
        if dataclasses.is_dataclass(value):
            return getattr(value, _name(value, field))
    except (KeyError, IndexError, AttributeError, ValueError):
        raise ValueTypeError(
            f"a rolling aggregate needs the field {field!r}, which {value!r} does not have"
        ) from None
    if field != 0:
        raise ValueTypeError(f"a rolling aggregate of field {field!r} needs records, not {value!r}")
    return value


def _with_field(value: Any, field: int | str, new: Any) -> Any:
    if isinstance(value, tuple):
        parts = list(value)
        parts[_position(value, field)] = new
        return tuple(parts)  # the state's type makes its own kind of record of it
    if isinstance(value, dict):
        return {**value, field: new}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{_name(value, field): new})
    return new


def _position(value: tuple[Any, ...], field: int | str) -> int:
    if isinstance(field, int):
        return field
    # the columns of plain tuples are called f0, f1, …
    return (getattr(value, "_fields", None) or [f"f{at}" for at in range(len(value))]).index(field)


def _name(value: Any, field: int | str) -> str:
    return field if isinstance(field, str) else dataclasses.fields(value)[field].name
