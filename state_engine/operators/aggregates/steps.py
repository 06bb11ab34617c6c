"""Which accumulator serves an aggregate, for the type of its field and for what it must be able to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any

import pyarrow as pa

from state_engine.core.errors import ConfigurationError, InvalidKeyError
from state_engine.core.keys.ordering import key_order
from state_engine.core.names import stored_name
from state_engine.core.types.every_type import (
    BigIntegerType,
    DecimalType,
    FloatType,
    IntegerType,
    ListType,
    StructType,
    TypeInformation,
)
from state_engine.operators.aggregates.accumulators import (
    BIGINT,
    DOUBLE,
    Accumulator,
    AverageOfDecimals,
    AverageOfDoubles,
    AverageOfIntegers,
    CountOrderedValues,
    CountValues,
    End,
    Extreme,
    SumDoubles,
    SumNumbers,
)
from state_engine.operators.aggregates.declarations import Aggregate
from state_engine.operators.aggregates.distinct import CountDistinct, DifferentValues
from state_engine.operators.aggregates.function_accumulator import FunctionAccumulator
from state_engine.operators.aggregates.group_states import GroupState, Shown
from state_engine.operators.aggregates.moments import Moments
from state_engine.operators.aggregates.ordered_values import CountElements, Elements, EndOfTime, ValueByOther


@dataclass(frozen=True)
class Beside:
    """A state beside accumulators.

    Attributes:
        make: gives it, with ``in_windows``: whether a key has several groups of rows.
    """

    name: str
    make: Callable[..., GroupState]


@dataclass(frozen=True)
class AggregateStep:
    """What is kept of one field, for one aggregate or several.

    Attributes:
        position: of the field; None for whole rows.
        beside: the state that holds values themselves; None where none does. Several steps may share one.
        with_time: whether the accumulator takes each value with the event time of its row.
        of: what the step is made for; two that differ never share a name.
    """

    name: str
    value_of: Callable[[Any], Any]
    position: int | None
    value_type: TypeInformation
    accumulator: Accumulator
    beside: Beside | None = None
    with_time: bool = False
    of: Any = None


@dataclass(frozen=True)
class Result:
    """A column that comes out.

    Attributes:
        step: place of the step that it is of; None for the number of rows.
        of: makes it of the accumulator; None where the values beside show it.
        shows: what of these.
    """

    name: str
    type: TypeInformation
    step: int | None = None
    of: Callable[[Any], Any] | None = None
    shows: Shown | None = None


@dataclass(frozen=True)
class Fields:
    """The columns of a stream, for an aggregate of some of them.

    Args:
        scalar: whether its elements are bare values of the one column.
        where: the aggregate, for messages.
    """

    columns: StructType
    scalar: bool
    where: str

    def position(self, field: str | int | None) -> int:
        """Place of a field by name or position. Raises ConfigurationError where there is none."""
        names = list(self.columns.names)
        if isinstance(field, int) and 0 <= field < len(names):
            return field
        if not self.scalar and field in names:
            return names.index(str(field))
        raise ConfigurationError(
            f"{self.where}: the stream has bare values, which are field 0"
            if self.scalar
            else f"{self.where}: the stream has no such field; it has {names}"
        )

    def type(self, field: str | int | None) -> TypeInformation:
        return self.columns.types[self.position(field)]

    def name(self, field: str | int | None) -> str:
        return self.columns.names[self.position(field)]

    def value_of(self, field: str | int | None) -> Callable[[Any], Any]:
        position = self.position(field)
        if self.scalar:
            return _whole
        if dataclasses.is_dataclass(self.columns.made_by):
            return attrgetter(self.columns.names[position])
        return itemgetter(position)

    def both_of(self, field: str | int | None, other: str | int | None) -> Callable[[Any], Any]:
        """What gives the values of two fields of an element, and None where one of them is null."""
        value_of, other_of = self.value_of(field), self.value_of(other)

        def both(element: Any) -> Any:
            values = value_of(element), other_of(element)
            return None if None in values else values

        return both

    def ordered(self, field: str | int | None) -> TypeInformation:
        """Type of a field whose values have an order. Raises ConfigurationError where they have none."""
        kind = self.type(field)
        try:
            key_order(kind)
        except InvalidKeyError:
            raise ConfigurationError(
                f"{self.where}: values of type {kind} have no order; make another field of them in a map before"
            ) from None
        return kind


def step_of(
    name: str, aggregate: Aggregate, fields: Fields, *, retract: bool
) -> tuple[AggregateStep, Result]:
    """What is kept for an aggregate, and its result; the place of the step is not known yet."""
    if aggregate.of_function is not None:
        return _function(name, aggregate, fields)
    kind, what = aggregate.kind, str(aggregate)
    if kind == "count_distinct":
        accumulator: Accumulator = CountDistinct(what=what)
        return _step("distinct", aggregate, fields, accumulator, _values(aggregate, fields)), _shown(
            name, accumulator
        )
    if kind == "collect_set" or (retract and kind in _ENDS):
        step = _step("values", aggregate, fields, CountOrderedValues(what=what), _values(aggregate, fields))
        if kind == "collect_set":
            return step, Result(name, ListType(step.value_type), shows="set")
        return step, Result(name, step.value_type, shows=_ENDS[kind])
    if kind == "collect_list":
        return _collected(name, aggregate, fields)
    if kind in ("stddev", "variance"):
        moments = Moments(_number(fields, aggregate, "count_distinct, min_ or max_"), what=what)
        of = partial(getattr(moments, kind), population=aggregate.population)
        return _step("moments", aggregate, fields, moments), Result(name, DOUBLE, of=of)
    accumulator = _accumulator(aggregate, fields)
    step = _step(kind, aggregate, fields, accumulator)
    if kind in ("first", "last"):
        step = dataclasses.replace(step, with_time=True)
    if aggregate.by is not None:
        both = fields.both_of(aggregate.field, aggregate.by)
        by = fields.name(aggregate.by)
        step = dataclasses.replace(
            step, name=stored_name(f"{step.name}_of_{by}"), value_of=both, with_time=True, of=(*step.of, by)
        )
    return step, _shown(name, accumulator)


_ENDS: dict[str, End] = {
    "min": "min",
    "max": "max",
    "min_by": "min",
    "max_by": "max",
    "first": "min",
    "last": "max",
}


def _shown(name: str, accumulator: Accumulator) -> Result:
    return Result(name, accumulator.result_type, of=accumulator.get_result)


def _step(
    prefix: str, aggregate: Aggregate, fields: Fields, accumulator: Accumulator, beside: Beside | None = None
) -> AggregateStep:
    field = fields.name(aggregate.field)
    return AggregateStep(
        stored_name(f"{prefix}_{field}"),
        fields.value_of(aggregate.field),
        fields.position(aggregate.field),
        fields.type(aggregate.field),
        accumulator,
        beside,
        of=(prefix, field),
    )


def _values(aggregate: Aggregate, fields: Fields) -> Beside:
    name = stored_name(f"values_{fields.name(aggregate.field)}")
    return Beside(name, partial(DifferentValues, name, fields.ordered(aggregate.field)))


def _collected(name: str, aggregate: Aggregate, fields: Fields) -> tuple[AggregateStep, Result]:
    first = "" if aggregate.most is None else f"first_{aggregate.most}_"
    kind = fields.type(aggregate.field)
    state = stored_name(f"{first}elements_{fields.name(aggregate.field)}")
    beside = Beside(state, partial(Elements, state, kind, aggregate.most))
    step = _step(f"{first}elements", aggregate, fields, CountElements(what=str(aggregate)), beside)
    return step, Result(name, ListType(kind), shows="list")


def _function(name: str, aggregate: Aggregate, fields: Fields) -> tuple[AggregateStep, Result]:
    assert aggregate.of_function is not None
    accumulator = FunctionAccumulator(aggregate.of_function, what=str(aggregate))
    whole = aggregate.field is None
    step = AggregateStep(
        stored_name(f"function_{name}"),
        _whole if whole else fields.value_of(aggregate.field),
        None if whole else fields.position(aggregate.field),
        fields.columns if whole else fields.type(aggregate.field),
        accumulator,
        of=("function", name),
    )
    return step, _shown(name, accumulator)


def _whole(element: Any) -> Any:
    return element


def _accumulator(aggregate: Aggregate, fields: Fields) -> Accumulator:
    what, kind = str(aggregate), aggregate.kind
    if kind == "count":
        return CountValues(what=what)
    if kind in ("first", "last"):
        return EndOfTime(_ENDS[kind], fields.type(aggregate.field), what=what)
    if kind in ("min_by", "max_by"):
        return ValueByOther(
            _ENDS[kind], fields.type(aggregate.field), fields.ordered(aggregate.by), what=what
        )
    if kind in ("min", "max"):
        return Extreme(_ENDS[kind], fields.ordered(aggregate.field), what=what)
    number = _number(fields, aggregate, "count, min_ or max_")
    make = next(
        make for (of, numbers), make in _OF_NUMBERS.items() if of == kind and isinstance(number, numbers)
    )
    return make(number.arrow, what)


def _number(fields: Fields, aggregate: Aggregate, instead: str) -> TypeInformation:
    kind = fields.type(aggregate.field)
    if isinstance(kind, IntegerType | DecimalType | FloatType):
        return kind
    raise ConfigurationError(
        f"{fields.where}: the field is of type {kind}, and this is for numbers: make it one in a map before, or take "
        f"{instead}"
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
