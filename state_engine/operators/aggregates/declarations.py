"""Declared aggregates: ``count``, ``sum_``, ``first``, ``collect_list`` and so on.

A declaration says what is asked for, and knows no types; ``plan`` binds it to the columns of a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from state_engine.core.errors import ConfigurationError
from state_engine.core.state.aggregate_functions import AggregateFunction
from state_engine.core.types.durations import Span, to_milliseconds
from state_engine.core.types.type_information import TypeInformation, TypeLike
from state_engine.core.types.type_parsing import to_type

Kind = Literal[
    "count", "sum", "avg", "min", "max", "count_distinct", "collect_set", "collect_list", "first", "last", "min_by",
    "max_by", "stddev", "variance", "function",
]  # fmt: skip


Spans = Span | Sequence[Span]
"""A span of time, or several."""


@dataclass(frozen=True)
class Reach:
    """The rows that an aggregate of ``over`` is of: those of some spans of time, or so many; else all.

    Attributes:
        spans: in milliseconds, each with what the name of its column ends with.
    """

    spans: tuple[tuple[str, int], ...] = ()
    rows: int | None = None


@dataclass(frozen=True)
class FunctionTypes:
    """A function that aggregates, with its types.

    Attributes:
        accumulator_type: what is stored.
    """

    function: AggregateFunction
    accumulator_type: TypeInformation
    output_type: TypeInformation


@dataclass(frozen=True)
class Aggregate:
    """One aggregate of the rows of a key, as declared.

    Attributes:
        field: name or position of the field whose values it is of; None for rows.
        by: the field that says which value is the least or greatest.
        most: how many values are collected at most; None for all.
        population: whether the values are a population. Otherwise they are a sample.
        of_function: what ``aggregate_with`` was given.
        reach: the rows that it is of, where it is for ``over``.
    """

    kind: Kind
    field: str | int | None = None
    by: str | int | None = None
    most: int | None = None
    population: bool = False
    of_function: FunctionTypes | None = None
    reach: Reach = Reach()

    def __str__(self) -> str:
        given = [repr(one) for one in (self.field, self.by) if one is not None]
        given += [] if self.most is None else [f"most={self.most}"]
        given += ["population=True"] if self.population else []
        if self.of_function is not None:
            given = [f"{type(self.of_function.function).__name__}()", *(f"field={one}" for one in given)]
        spans, rows = [ms for _, ms in self.reach.spans], self.reach.rows
        given += [f"last={spans if len(spans) > 1 else spans[0]}"] if spans else []
        given += [] if rows is None else [f"last_rows={rows}"]
        return f"{_SPELLED.get(self.kind, self.kind)}({', '.join(given)})"


def _of(aggregate: Aggregate, last: Spans | None, last_rows: int | None) -> Aggregate:
    """The aggregate of some of the rows. Raises ConfigurationError where these are no such rows."""
    what = str(aggregate)[:-1] + ", …)"
    if last is None and last_rows is None:
        return aggregate
    if last is not None and last_rows is not None:
        raise ConfigurationError(f"{what}: last and last_rows exclude each other: make two aggregates")
    if last_rows is not None:
        if type(last_rows) is not int or last_rows < 1:
            raise ConfigurationError(f"{what}: last_rows must be a whole number above 0, not {last_rows!r}")
        return replace(aggregate, reach=Reach(rows=last_rows))
    several = not isinstance(last, str) and isinstance(last, Sequence)
    given: list[Span] = list(last) if several else [last]  # type: ignore[arg-type,list-item]
    spans = [(f"_{_spelled(span)}" if several else "", to_milliseconds(span)) for span in given]
    if not spans or any(ms < 0 for _, ms in spans):
        raise ConfigurationError(
            f"{what}: last takes a span of 0 or more, or a list of such spans, not {last!r}"
        )
    return replace(aggregate, reach=Reach(tuple(spans)))


def _spelled(span: Span) -> str:
    return span.replace(" ", "") if isinstance(span, str) else f"{to_milliseconds(span)}ms"


_SPELLED: dict[str, str] = {"sum": "sum_", "min": "min_", "max": "max_", "function": "aggregate_with"}


def count(
    field: str | int | None = None, *, last: Spans | None = None, last_rows: int | None = None
) -> Aggregate:
    """The number of rows; of a field, the number of its values that are not null.

    Args:
        field: name or position; of bare values, 0.
        last: for ``over``, the span of time that it is of, or several, each with a column of its own.
        last_rows: for ``over``, how many rows it is of.

    Example:
        >>> print(count(), count("amount"))
        count() count('amount')
    """
    return _of(Aggregate("count", field), last, last_rows)


def sum_(field: str | int, *, last: Spans | None = None, last_rows: int | None = None) -> Aggregate:
    """The exact sum of a field; null where it has no value.

    Of whole numbers a bigint, of decimals a ``decimal(38, …)`` of the same scale: a sum that does not fit is an error.
    Of floating-point numbers the double that ``math.fsum`` gives.

    Args:
        field: name or position; of bare values, 0.
        last: for ``over``, the span of time that it is of, or several, each with a column of its own.
        last_rows: for ``over``, how many rows it is of.
    """
    return _of(Aggregate("sum", field), last, last_rows)


def avg(field: str | int, *, last: Spans | None = None, last_rows: int | None = None) -> Aggregate:
    """The average of a field; null where it has no value.

    The exact sum, divided by the number of values: of whole and floating-point numbers a double, of decimals a decimal
    with four more fraction digits.

    Args:
        field: name or position; of bare values, 0.
        last: for ``over``, the span of time that it is of, or several, each with a column of its own.
        last_rows: for ``over``, how many rows it is of.
    """
    return _of(Aggregate("avg", field), last, last_rows)


def min_(field: str | int, *, last: Spans | None = None, last_rows: int | None = None) -> Aggregate:
    """The least value of a field; null where it has none.

    Where rows are updated and deleted, all different values of the key are kept, each with its number.

    Args:
        field: name or position of a field whose values have an order; of bare values, 0.
        last: for ``over``, the span of time that it is of, or several, each with a column of its own.
        last_rows: for ``over``, how many rows it is of.
    """
    return _of(Aggregate("min", field), last, last_rows)


def max_(field: str | int, *, last: Spans | None = None, last_rows: int | None = None) -> Aggregate:
    """The greatest value of a field; null where it has none. NaN is greater than all numbers, as in SQL.

    Where rows are updated and deleted, all different values of the key are kept, each with its number.

    Args:
        field: name or position of a field whose values have an order; of bare values, 0.
        last: for ``over``, the span of time that it is of, or several, each with a column of its own.
        last_rows: for ``over``, how many rows it is of.
    """
    return _of(Aggregate("max", field), last, last_rows)


def count_distinct(field: str | int, *, last: Spans | None = None, last_rows: int | None = None) -> Aggregate:
    """How many different values a field has. NaN is one value, and ``-0.0`` is ``0.0``.

    All different values of the key, or of the window, are kept, each with its number.

    Args:
        field: name or position of a field whose values have an order; of bare values, 0.
        last: for ``over``, the span of time that it is of, or several, each with a column of its own.
        last_rows: for ``over``, how many rows it is of.

    Example:
        >>> print(count_distinct("user"))
        count_distinct('user')
    """
    return _of(Aggregate("count_distinct", field), last, last_rows)


def collect_set(field: str | int, *, last: Spans | None = None, last_rows: int | None = None) -> Aggregate:
    """All different values of a field, in their order, NaN last; an empty list where it has none.

    Args:
        field: name or position of a field whose values have an order; of bare values, 0.
        last: for ``over``, the span of time that it is of, or several, each with a column of its own.
        last_rows: for ``over``, how many rows it is of.
    """
    return _of(Aggregate("collect_set", field), last, last_rows)


def collect_list(
    field: str | int, most: int | None = None, *, last: Spans | None = None, last_rows: int | None = None
) -> Aggregate:
    """All values of a field, by the event time of their rows; an empty list where it has none.

    Values of one time, and those of a stream without event time, stand in the order of the stream. Rows that are
    updated or deleted cannot be taken back.

    Args:
        field: name or position; of bare values, 0.
        most: keep the first so many; all by default.
        last: for ``over``, the span of time that it is of, or several, each with a column of its own.
        last_rows: for ``over``, how many rows it is of.

    Raises:
        ConfigurationError: ``most`` is not above 0.
    """
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise ConfigurationError(f"collect_list: most must be a whole number above 0, not {most!r}")
    return _of(Aggregate("collect_list", field, most=most), last, last_rows)


def first(field: str | int, *, last: Spans | None = None, last_rows: int | None = None) -> Aggregate:
    """The value of a field in the row with the least event time; null where it has no value.

    Of rows of one time, and in a stream without event time, the first one of the stream counts. Rows that are updated
    or deleted cannot be taken back.

    Args:
        field: name or position; of bare values, 0.
        last: for ``over``, the span of time that it is of, or several, each with a column of its own.
        last_rows: for ``over``, how many rows it is of.
    """
    return _of(Aggregate("first", field), last, last_rows)


def last(field: str | int, *, last: Spans | None = None, last_rows: int | None = None) -> Aggregate:
    """The value of a field in the row with the greatest event time; null where it has no value.

    Of rows of one time, and in a stream without event time, the last one of the stream counts. Rows that are updated or
    deleted cannot be taken back.

    Args:
        field: name or position; of bare values, 0.
        last: for ``over``, the span of time that it is of, or several, each with a column of its own.
        last_rows: for ``over``, how many rows it is of.
    """
    return _of(Aggregate("last", field), last, last_rows)


def min_by(
    field: str | int, by: str | int, *, last: Spans | None = None, last_rows: int | None = None
) -> Aggregate:
    """The value of a field in the row that has the least value of another one; null where no row has both.

    Of several such rows the one with the least event time counts, of one time the first one of the stream. Rows that
    are updated or deleted cannot be taken back.

    Args:
        field: name or position.
        by: name or position of a field whose values have an order.
        last: for ``over``, the span of time that it is of, or several, each with a column of its own.
        last_rows: for ``over``, how many rows it is of.
    """
    return _of(Aggregate("min_by", field, by), last, last_rows)


def max_by(
    field: str | int, by: str | int, *, last: Spans | None = None, last_rows: int | None = None
) -> Aggregate:
    """The value of a field in the row that has the greatest value of another one; null where no row has both.

    NaN is greater than all numbers. Of several such rows the one with the least event time counts, of one time the
    first one of the stream. Rows that are updated or deleted cannot be taken back.

    Args:
        field: name or position.
        by: name or position of a field whose values have an order.
        last: for ``over``, the span of time that it is of, or several, each with a column of its own.
        last_rows: for ``over``, how many rows it is of.
    """
    return _of(Aggregate("max_by", field, by), last, last_rows)


def stddev(
    field: str | int, population: bool = False, *, last: Spans | None = None, last_rows: int | None = None
) -> Aggregate:
    """The standard deviation of a field of numbers, a double: exact, and rounded once.

    It is null where the field has no value, and of one value, unless it is that of a population. With NaN or an
    infinity among the values it is NaN.

    Args:
        field: name or position; of bare values, 0.
        population: divide by the number of values. A sample is divided by one less.
        last: for ``over``, the span of time that it is of, or several, each with a column of its own.
        last_rows: for ``over``, how many rows it is of.
    """
    return _of(Aggregate("stddev", field, population=population), last, last_rows)


def variance(
    field: str | int, population: bool = False, *, last: Spans | None = None, last_rows: int | None = None
) -> Aggregate:
    """The variance of a field of numbers, a double: exact, and rounded once.

    It is null where the field has no value, and of one value, unless it is that of a population. With NaN or an
    infinity among the values it is NaN.

    Args:
        field: name or position; of bare values, 0.
        population: divide by the number of values. A sample is divided by one less.
        last: for ``over``, the span of time that it is of, or several, each with a column of its own.
        last_rows: for ``over``, how many rows it is of.
    """
    return _of(Aggregate("variance", field, population=population), last, last_rows)


def aggregate_with(
    function: AggregateFunction,
    accumulator_type: TypeLike,
    output_type: TypeLike,
    field: str | int | None = None,
    *,
    last: Spans | None = None,
    last_rows: int | None = None,
) -> Aggregate:
    """What an ``AggregateFunction`` makes of whole rows, or of a field, beside other aggregates.

    Its state has the name of its column: with another name it begins again.

    Args:
        function: adds values to an accumulator. ``merge`` is for windows that overlap and for sessions, ``retract``
            for rows that are updated and deleted.
        accumulator_type: what is stored.
        output_type: of the results.
        field: name or position of the field whose values it is given, those that are not null; without, whole rows.
        last: for ``over``, the span of time that it is of, or several, each with a column of its own.
        last_rows: for ``over``, how many rows it is of.

    Raises:
        ConfigurationError: the function is not an ``AggregateFunction``, or a type is not one.
    """
    if not isinstance(function, AggregateFunction):
        raise ConfigurationError(f"aggregate_with takes an AggregateFunction, not {function!r}")
    kept = to_type(accumulator_type, parameter="accumulator_type of aggregate_with")
    shown = to_type(output_type, parameter="output_type of aggregate_with")
    return _of(
        Aggregate("function", field, of_function=FunctionTypes(function, kept, shown)), last, last_rows
    )
