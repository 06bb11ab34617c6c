"""What declared aggregates are on a stream.

``plan`` binds them to its columns: which accumulators are kept of a key, in which states, and which columns come out.
It runs nothing: ``keyed_aggregates`` does, row by row, and ``column_aggregates`` by whole columns. Plays the part of
Flink's ``AggregateInfoList``. Decision 0065.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Literal

import pyarrow as pa

from state_engine.core.errors import ConfigurationError, InvalidKeyError
from state_engine.core.keys.ordering import key_order
from state_engine.core.names import stored_name
from state_engine.core.state.descriptors import SortedMapStateDescriptor, ValueStateDescriptor
from state_engine.core.types.every_type import (
    BigIntegerType,
    DecimalType,
    FloatType,
    IntegerType,
    StructType,
    TypeInformation,
)
from state_engine.operators.aggregates.accumulators import (
    BIGINT,
    Accumulator,
    AverageOfDecimals,
    AverageOfDoubles,
    AverageOfIntegers,
    CountOrderedValues,
    CountValues,
    Extreme,
    SumDoubles,
    SumNumbers,
)
from state_engine.operators.aggregates.declarations import Aggregate

STATE = "aggregates"
"""Name of the state with the accumulators of a key."""
ROWS = "rows"
"""Its first field: how many rows the key has."""


@dataclass(frozen=True)
class AggregateStep:
    """What is kept of one field, for one aggregate or several.

    Attributes:
        values: the state that holds all different values with their numbers; None where none does.
    """

    name: str
    value_of: Callable[[Any], Any]
    position: int
    value_type: TypeInformation
    accumulator: Accumulator
    values: SortedMapStateDescriptor | None = None


@dataclass(frozen=True)
class Result:
    """A column that comes out.

    Attributes:
        step: place of the step that it is of; None for the number of rows.
        end: the end of the sorted values that it is; None where the accumulator gives it.
    """

    name: str
    type: TypeInformation
    step: int | None = None
    end: Literal["min", "max"] | None = None


@dataclass(frozen=True)
class AggregatePlan:
    """What declared aggregates are on a stream.

    Attributes:
        steps: the accumulators that are kept; aggregates of one field share those that are the same.
    """

    steps: tuple[AggregateStep, ...]
    results: tuple[Result, ...]

    @property
    def state(self) -> ValueStateDescriptor:
        """The state with the number of rows and all accumulators; an accumulator is null where it missed rows."""
        names = [ROWS, *(step.name for step in self.steps)]
        types = [BIGINT, *(step.accumulator.accumulator_type for step in self.steps)]
        return ValueStateDescriptor(STATE, StructType(names, types))


def plan(
    aggregates: Mapping[str, Aggregate], columns: StructType, *, scalar: bool = False, changing: bool
) -> AggregatePlan:
    """The accumulators and columns of aggregates of a stream.

    Args:
        scalar: whether its elements are bare values of the one column.

    Example:
        >>> from state_engine.core.types.type_parsing import to_type
        >>> payments = to_type("user string, amount bigint", parameter="payments")
        >>> made = plan({"n": count(), "mean": avg("amount")}, payments, changing=True)
        >>> [str(result.type) for result in made.results], made.state
        (['int64', 'double'], ValueStateDescriptor('aggregates', \
struct<rows: int64, avg_amount: struct<total: decimal128(38, 0), values: int64>>))
    """
    steps: dict[str, AggregateStep] = {}
    results = []
    for name, aggregate in aggregates.items():
        if aggregate.field is None:
            results.append(Result(name, BIGINT))
            continue
        where = f"aggregate {name}={aggregate}"
        position = _position(aggregate.field, columns, scalar=scalar, where=where)
        kind = columns.types[position]
        ordered = changing and aggregate.kind in ("min", "max")
        step_name = stored_name(f"{'values' if ordered else aggregate.kind}_{columns.names[position]}")
        if step_name not in steps:
            accumulator = _accumulator(aggregate, kind, ordered=ordered, where=where)
            values = SortedMapStateDescriptor(step_name, kind, BIGINT) if ordered else None
            getter = _getter(position, columns, scalar=scalar)
            steps[step_name] = AggregateStep(step_name, getter, position, kind, accumulator, values)
        shown = kind if ordered else steps[step_name].accumulator.result_type
        at = list(steps).index(step_name)
        results.append(Result(name, shown, at, _END.get(aggregate.kind) if ordered else None))
    return AggregatePlan(tuple(steps.values()), tuple(results))


_END: dict[str, Literal["min", "max"]] = {"min": "min", "max": "max"}


def _position(field: str | int, columns: StructType, *, scalar: bool, where: str) -> int:
    names = list(columns.names)
    if isinstance(field, int) and 0 <= field < len(names):
        return field
    if not scalar and field in names:
        return names.index(str(field))
    raise ConfigurationError(
        f"{where}: the stream has bare values, which are field 0"
        if scalar
        else f"{where}: the stream has no such field; it has {names}"
    )


def _getter(position: int, columns: StructType, *, scalar: bool) -> Callable[[Any], Any]:
    if scalar:
        return _whole
    if dataclasses.is_dataclass(columns.made_by):
        return attrgetter(columns.names[position])
    return itemgetter(position)


def _whole(element: Any) -> Any:
    return element


def _accumulator(aggregate: Aggregate, kind: TypeInformation, *, ordered: bool, where: str) -> Accumulator:
    what = str(aggregate)
    if aggregate.kind == "count":
        return CountValues(what=what)
    if aggregate.kind in ("min", "max"):
        try:
            key_order(kind)
        except InvalidKeyError:
            raise ConfigurationError(
                f"{where}: values of type {kind} have no order; make another field of them in a map before"
            ) from None
        return CountOrderedValues(what=what) if ordered else Extreme(_END[aggregate.kind], kind, what=what)
    makers = {kind: make for kind, make in _OF_NUMBERS.items() if kind[0] == aggregate.kind}
    for (_, number), make in makers.items():
        if isinstance(kind, number):
            return make(kind.arrow, what)
    raise ConfigurationError(
        f"{where}: the field is of type {kind}, and this is for numbers: make it one in a map before, or take count, "
        "min_ or max_"
    )


def _sum_of_integers(kind: pa.DataType, what: str) -> Accumulator:
    return SumNumbers(BigIntegerType() if pa.types.is_decimal(kind) else BIGINT, what=what)


_OF_NUMBERS: dict[tuple[str, type], Callable[[pa.DataType, str], Accumulator]] = {
    ("sum", IntegerType): _sum_of_integers,
    ("sum", DecimalType): lambda kind, what: SumNumbers(DecimalType(38, kind.scale), what=what),
    ("sum", FloatType): lambda kind, what: SumDoubles(what=what),
    ("avg", IntegerType): lambda kind, what: AverageOfIntegers(what=what),
    ("avg", DecimalType): lambda kind, what: AverageOfDecimals(kind.precision, kind.scale, what=what),
    ("avg", FloatType): lambda kind, what: AverageOfDoubles(what=what),
}
