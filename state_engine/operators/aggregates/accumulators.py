"""What the ready-made aggregates keep of the values of a key: pure functions, without state handles.

Each is an ``AggregateFunction`` that also says the types of its accumulator and of its result. Accumulators are exact:
adding and taking back values in any order, and merging, gives the accumulator that the values left would give alone.
Values are those of one field that are not null; nulls count for nothing, as in SQL. Mirror the functions in
``org.apache.flink.table.runtime.functions.aggfunctions``, of which those with ``retract``.

=========================== ================================== =========================================
aggregate                   accumulator                        what is kept besides
=========================== ================================== =========================================
``CountValues``             values
``SumNumbers``              (total, values)
``AverageOfIntegers``       (total, values)
``AverageOfDecimals``       (total, values)
``SumDoubles``              (parts, values, NaNs, +inf, -inf)  parts: see ``exact_sum``
``AverageOfDoubles``        (parts, values, NaNs, +inf, -inf)
``Extreme``                 (value, NaNs)                      cannot take back
``CountOrderedValues``      (values, NaNs)                     every value and how often, in a sorted map
=========================== ================================== =========================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal
from operator import add, gt, lt, sub
from typing import Any, Literal

import pyarrow as pa

from state_engine.core.errors import RetractionError, ValueTypeError
from state_engine.core.keys.ordering import key_order
from state_engine.core.state.aggregate_functions import AggregateFunction, never_added
from state_engine.core.types.every_type import (
    BigIntegerType,
    DecimalType,
    FloatType,
    IntegerType,
    ListType,
    StructType,
    TypeInformation,
)
from state_engine.operators.aggregates.exact_sum import exact_sum, rounded_sum

BIGINT, DOUBLE = IntegerType(pa.int64()), FloatType(pa.float64())
_EXACT = Context(prec=80)  # more digits than any decimal type has: nothing is rounded
_MORE_DIGITS = 4
"""Fraction digits that the average of decimals has besides those of the values, as in Spark."""


class Accumulator(AggregateFunction):
    """Base of the accumulators. ``merge`` changes neither of both.

    Attributes:
        result_type: of ``get_result``, which is None where there is no value.
    """

    accumulator_type: TypeInformation
    result_type: TypeInformation

    def __init__(self, *, what: str) -> None:
        self.what = what

    def never_added(self, value: Any) -> RetractionError:
        return never_added(value, what=self.what)

    def has_values(self, accumulator: Any) -> bool:
        return bool(accumulator != self.create_accumulator())


class CountValues(Accumulator):
    """How many values there are.

    Example:
        >>> count = CountValues(what="count('amount')")
        >>> count.retract(7.5, count.add(2.0, count.add(7.5, count.create_accumulator())))
        1
    """

    accumulator_type = result_type = BIGINT

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def retract(self, value: Any, accumulator: int) -> int:
        if accumulator < 1:
            raise self.never_added(value)
        return accumulator - 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


class SumNumbers(Accumulator):
    """The exact sum of whole numbers or decimals.

    Args:
        total_type: of the sum; one that does not fit into it is an error.

    Example:
        >>> total = SumNumbers(BIGINT, what="sum_('amount')")
        >>> total.get_result(total.retract(7, total.add(2, total.add(7, total.create_accumulator()))))
        2
    """

    def __init__(self, total_type: TypeInformation, *, what: str) -> None:
        super().__init__(what=what)
        self.total_type = self.result_type = total_type
        self.accumulator_type = StructType(["total", "values"], [total_type, BIGINT])
        exact = isinstance(total_type, DecimalType)
        self._plus: Callable[[Any, Any], Any] = _EXACT.add if exact else add
        self._minus: Callable[[Any, Any], Any] = _EXACT.subtract if exact else sub

    def create_accumulator(self) -> tuple[Any, int]:
        return self.total_type.normalise(0), 0

    def add(self, value: Any, accumulator: tuple[Any, int]) -> tuple[Any, int]:
        return self._fitting(self._plus(accumulator[0], value)), accumulator[1] + 1

    def retract(self, value: Any, accumulator: tuple[Any, int]) -> tuple[Any, int]:
        total, values = self._minus(accumulator[0], value), accumulator[1] - 1
        if values < 0 or (values == 0 and total):
            raise self.never_added(value)
        return self._fitting(total), values

    def get_result(self, accumulator: tuple[Any, int]) -> Any:
        return accumulator[0] if accumulator[1] else None

    def merge(self, acc_a: tuple[Any, int], acc_b: tuple[Any, int]) -> tuple[Any, int]:
        return self._fitting(self._plus(acc_a[0], acc_b[0])), acc_a[1] + acc_b[1]

    def _fitting(self, total: Any) -> Any:
        try:
            return self.total_type.normalise(total)
        except ValueTypeError:
            raise ValueTypeError(
                f"{self.what} is {total}, which does not fit into {self.total_type}: make the field wider in a map "
                "before, at most a decimal(38,…)"
            ) from None


class AverageOfIntegers(SumNumbers):
    """The average of whole numbers: the double that is nearest to it."""

    def __init__(self, *, what: str) -> None:
        super().__init__(BigIntegerType(), what=what)
        self.result_type = DOUBLE

    def get_result(self, accumulator: tuple[int, int]) -> float | None:
        total, values = accumulator
        return total / values if values else None


class AverageOfDecimals(SumNumbers):
    """The average of decimals, with four fraction digits more; a half is rounded away from zero, as in SQL.

    Args:
        precision, scale: of the values. Where their whole digits leave no room for four more, there are fewer.

    Example:
        >>> average = AverageOfDecimals(10, 2, what="avg('price')")
        >>> average.get_result((Decimal("0.02"), 3)), average.get_result((Decimal("-0.01"), 2))
        (Decimal('0.006667'), Decimal('-0.005000'))
    """

    def __init__(self, precision: int, scale: int, *, what: str) -> None:
        super().__init__(DecimalType(38, scale), what=what)
        self._shown = min(scale + _MORE_DIGITS, 38 - (precision - scale))
        self.result_type = DecimalType(38, self._shown)

    def get_result(self, accumulator: tuple[Decimal, int]) -> Decimal | None:
        total, values = accumulator
        if not values:
            return None
        units = int(total.scaleb(self._shown, _EXACT))
        rounded = (2 * abs(units) + values) // (2 * values)
        return Decimal(rounded if units >= 0 else -rounded).scaleb(-self._shown, _EXACT)


_SUM_OF_DOUBLES = StructType(
    ["parts", "values", "nans", "infinities", "minus_infinities"],
    [ListType(DOUBLE), BIGINT, BIGINT, BIGINT, BIGINT],
)


class SumDoubles(Accumulator):
    """The sum of doubles: that of ``math.fsum``, whatever was added and taken back before.

    NaN, or both infinities, make it NaN, and one infinity makes it that, for as long as they are there.
    """

    accumulator_type, result_type = _SUM_OF_DOUBLES, DOUBLE

    def create_accumulator(self) -> tuple[Any, ...]:
        return [], 0, 0, 0, 0

    def add(self, value: float, accumulator: tuple[Any, ...]) -> tuple[Any, ...]:
        return self._moved(value, accumulator, 1)

    def retract(self, value: float, accumulator: tuple[Any, ...]) -> tuple[Any, ...]:
        parts, values, *special = left = self._moved(value, accumulator, -1)
        finite = values - sum(special)
        if min(finite, *special) < 0 or (finite == 0 and parts):
            raise self.never_added(value)
        return left

    def get_result(self, accumulator: tuple[Any, ...]) -> float | None:
        parts, values, nans, infinities, minus_infinities = accumulator
        if not values:
            return None
        if nans or (infinities and minus_infinities):
            return math.nan
        if infinities or minus_infinities:
            return math.inf if infinities else -math.inf
        return rounded_sum(parts)

    def merge(self, acc_a: tuple[Any, ...], acc_b: tuple[Any, ...]) -> tuple[Any, ...]:
        return exact_sum(acc_a[0], acc_b[0]), *map(add, acc_a[1:], acc_b[1:])

    def _moved(self, value: float, accumulator: tuple[Any, ...], by: int) -> tuple[Any, ...]:
        parts, values, nans, infinities, minus_infinities = accumulator
        if math.isfinite(value):
            return exact_sum(parts, [by * value]), values + by, nans, infinities, minus_infinities
        nans += by * math.isnan(value)
        infinities += by * (value == math.inf)
        minus_infinities += by * (value == -math.inf)
        return parts, values + by, nans, infinities, minus_infinities


class AverageOfDoubles(SumDoubles):
    """The average of doubles: their exact sum, rounded, divided by their number, as ``statistics.fmean`` has it."""

    def get_result(self, accumulator: tuple[Any, ...]) -> float | None:
        total = super().get_result(accumulator)
        return None if total is None else total / int(accumulator[1])


End = Literal["min", "max"]
"""The end of the order that is looked for."""


class Extreme(Accumulator):
    """The least or greatest value of a stream that never takes one back. NaN is greater than all numbers, as in SQL.

    Example:
        >>> least = Extreme("min", DOUBLE, what="min_('x')")
        >>> least.get_result(least.add(math.nan, least.add(7.5, least.create_accumulator())))
        7.5
    """

    def __init__(self, end: End, value_type: TypeInformation, *, what: str) -> None:
        super().__init__(what=what)
        self.end, self._sort_key = end, key_order(value_type).sort_key
        self._better = lt if end == "min" else gt
        self.accumulator_type = StructType(["value", "nans"], [value_type, BIGINT])
        self.result_type = value_type

    def create_accumulator(self) -> tuple[Any, int]:
        return None, 0

    def add(self, value: Any, accumulator: tuple[Any, int]) -> tuple[Any, int]:
        best, nans = accumulator
        if is_nan(value):
            return best, nans + 1
        return (as_in_order(value) if best is None or self._is_better(value, best) else best), nans

    def get_result(self, accumulator: tuple[Any, int]) -> Any:
        best, nans = accumulator
        return math.nan if nans and (self.end == "max" or best is None) else best

    def merge(self, acc_a: tuple[Any, int], acc_b: tuple[Any, int]) -> tuple[Any, int]:
        (best, nans), (other, more) = acc_a, acc_b
        return (best, nans + more) if other is None else self.add(other, (best, nans + more))

    def _is_better(self, value: Any, best: Any) -> bool:
        if self._sort_key is None:
            return bool(self._better(value, best))
        return bool(self._better(self._sort_key(value), self._sort_key(best)))


class CountOrderedValues(Accumulator):
    """How many values there are, of which how many are NaN; the values themselves are in a sorted map beside it."""

    accumulator_type = StructType(["values", "nans"], [BIGINT, BIGINT])
    result_type = BIGINT

    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + 1, accumulator[1] + is_nan(value)

    def retract(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        values, nans = accumulator[0] - 1, accumulator[1] - is_nan(value)
        if not 0 <= nans <= values:
            raise self.never_added(value)
        return values, nans

    def get_result(self, accumulator: tuple[int, int]) -> int:
        return accumulator[0]

    def merge(self, acc_a: tuple[int, int], acc_b: tuple[int, int]) -> tuple[int, int]:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


def is_nan(value: Any) -> bool:
    """Whether a value is NaN, which has no place in an order."""
    return isinstance(value, float) and math.isnan(value)


def as_in_order(value: Any) -> Any:
    """A value as a key of a sorted map is: zero without a sign."""
    return value + 0.0 if isinstance(value, float) else value
