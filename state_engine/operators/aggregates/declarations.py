"""Declared aggregates: ``count``, ``sum_``, ``avg``, ``min_``, ``max_``.

A declaration says what is asked for, and knows no types; ``plan`` binds it to the columns of a stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["count", "sum", "avg", "min", "max"]


@dataclass(frozen=True)
class Aggregate:
    """One aggregate of the rows of a key, as declared.

    Attributes:
        field: name or position of the field whose values it is of; None for rows.
    """

    kind: Kind
    field: str | int | None = None

    def __str__(self) -> str:
        return f"{_SPELLED.get(self.kind, self.kind)}({'' if self.field is None else repr(self.field)})"


_SPELLED: dict[str, str] = {"sum": "sum_", "min": "min_", "max": "max_"}


def count(field: str | int | None = None) -> Aggregate:
    """The number of rows; of a field, the number of its values that are not null.

    Args:
        field: name or position; of bare values, 0.

    Example:
        >>> print(count(), count("amount"))
        count() count('amount')
    """
    return Aggregate("count", field)


def sum_(field: str | int) -> Aggregate:
    """The exact sum of a field; null where it has no value.

    Of whole numbers a bigint, of decimals a ``decimal(38, …)`` of the same scale: a sum that does not fit is an error.
    Of floating-point numbers the double that ``math.fsum`` gives.

    Args:
        field: name or position; of bare values, 0.
    """
    return Aggregate("sum", field)


def avg(field: str | int) -> Aggregate:
    """The average of a field; null where it has no value.

    The exact sum, divided by the number of values: of whole and floating-point numbers a double, of decimals a decimal
    with four more fraction digits.

    Args:
        field: name or position; of bare values, 0.
    """
    return Aggregate("avg", field)


def min_(field: str | int) -> Aggregate:
    """The least value of a field; null where it has none.

    Where rows are updated and deleted, all different values of the key are kept, each with its number.

    Args:
        field: name or position of a field whose values have an order; of bare values, 0.
    """
    return Aggregate("min", field)


def max_(field: str | int) -> Aggregate:
    """The greatest value of a field; null where it has none. NaN is greater than all numbers, as in SQL.

    Where rows are updated and deleted, all different values of the key are kept, each with its number.

    Args:
        field: name or position of a field whose values have an order; of bare values, 0.
    """
    return Aggregate("max", field)
