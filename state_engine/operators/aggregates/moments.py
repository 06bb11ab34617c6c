"""``Moments``: number, sum and sum of squares of values, exactly, for ``stddev`` and ``variance``.

Both sums are kept as the parts of ``exact_sum``. Squares of very small and very large doubles do not fit a double
exactly, so there are three sums of squares, each of values of its own range, scaled by a power of two. Whole numbers
are taken as they are, decimals as whole numbers of their last digit. A result is divided once and rounded once, so it
depends on the values alone, and not on the order in which they were added and taken back.
"""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction
from operator import add
from typing import Any

from state_engine.core.types.every_type import DecimalType, ListType, StructType, TypeInformation
from state_engine.operators.aggregates.accumulators import BIGINT, DOUBLE, Accumulator
from state_engine.operators.aggregates.exact_sum import exact_sum

_EXACT = Context(prec=80)
_SCALE = 600
_MIDDLE = 2.0**480
"""Squares of numbers up to it, and down to its reciprocal, are sums of doubles; others are, once scaled by
``2**-_SCALE`` or ``2**_SCALE``."""
_RANGES = (0, _SCALE, -_SCALE)
"""By which power of two values of a range are scaled: usual, small and large ones."""
_BITS = 64
"""More than a double has: a root of so many bits, with a mark of what is left out, is rounded as the exact one."""

MomentsOfValues = tuple[Any, ...]


class Moments(Accumulator):
    """Number, sum and sum of squares of numbers.

    Args:
        value_type: of the values, whole numbers, decimals or doubles.

    Example:
        >>> moments = Moments(DOUBLE, what="variance('x')")
        >>> kept = moments.create_accumulator()
        >>> for value in (2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0):
        ...     kept = moments.add(value, kept)
        >>> moments.variance(kept, population=False), moments.stddev(kept, population=True)
        (4.571428571428571, 2.0)
    """

    accumulator_type = StructType(
        ["parts", "squares", "small_squares", "large_squares", "values", "specials"],
        [*[ListType(DOUBLE)] * 4, BIGINT, BIGINT],
    )
    result_type = DOUBLE

    def __init__(self, value_type: TypeInformation, *, what: str) -> None:
        super().__init__(what=what)
        self._scale = value_type.arrow.scale if isinstance(value_type, DecimalType) else 0

    def create_accumulator(self) -> MomentsOfValues:
        return [], [], [], [], 0, 0

    def add(self, value: Any, accumulator: MomentsOfValues) -> MomentsOfValues:
        return self._moved(value, accumulator, 1)

    def retract(self, value: Any, accumulator: MomentsOfValues) -> MomentsOfValues:
        left = self._moved(value, accumulator, -1)
        *sums, values, specials = left
        if not 0 <= specials <= values or (specials == values and any(sums)):
            raise self.never_added(value)
        return left

    def merge(self, acc_a: MomentsOfValues, acc_b: MomentsOfValues) -> MomentsOfValues:
        return *map(exact_sum, acc_a[:4], acc_b[:4]), *map(add, acc_a[4:], acc_b[4:])

    def get_result(self, accumulator: MomentsOfValues) -> float | None:
        return self.variance(accumulator, population=False)

    def variance(self, accumulator: MomentsOfValues, *, population: bool) -> float | None:
        """The variance; NaN where a value is NaN or infinite, None where there are too few values."""
        exact = self._exact_variance(accumulator, population=population)
        return _rounded(exact) if isinstance(exact, Fraction) else exact

    def stddev(self, accumulator: MomentsOfValues, *, population: bool) -> float | None:
        """The root of the exact variance; None and NaN as that is."""
        exact = self._exact_variance(accumulator, population=population)
        return _rounded_root(exact) if isinstance(exact, Fraction) else exact

    def _exact_variance(self, accumulator: MomentsOfValues, *, population: bool) -> Fraction | float | None:
        parts, *squares, values, specials = accumulator
        divisor = values if population else values - 1
        if divisor < 1:
            return None
        if specials:
            return math.nan
        total = sum(map(Fraction, parts), Fraction())
        of_squares = Fraction()
        for scale, scaled in zip(_RANGES, squares, strict=True):
            of_squares += sum(map(Fraction, scaled), Fraction()) / Fraction(2) ** (2 * scale)
        exact: Fraction = (of_squares - total * total / values) / divisor / 10 ** (2 * self._scale)
        return exact

    def _moved(self, value: Any, accumulator: MomentsOfValues, by: int) -> MomentsOfValues:
        number = int(value.scaleb(self._scale, _EXACT)) if isinstance(value, Decimal) else value
        parts, *squares, values, specials = accumulator
        if not math.isfinite(number):
            return parts, *squares, values + by, specials + by
        place = _range_of(number)
        scaled = Fraction(number) * Fraction(2) ** _RANGES[place]
        squares[place] = exact_sum(squares[place], [by * scaled * scaled])
        return exact_sum(parts, [by * number]), *squares, values + by, specials


def _range_of(number: Any) -> int:
    if number == 0 or isinstance(number, int) or 1 / _MIDDLE <= abs(number) <= _MIDDLE:
        return 0
    return 1 if abs(number) < 1 else 2


def _rounded(exact: Fraction) -> float:
    try:
        return exact.numerator / exact.denominator  # Python rounds the quotient of integers correctly
    except OverflowError:
        return math.inf


def _rounded_root(exact: Fraction) -> float:
    if not exact:
        return 0.0
    bits = exact.numerator.bit_length() - exact.denominator.bit_length()
    shift = _BITS - bits // 2  # so many bits behind the point make the root as long as wanted
    scaled = exact * Fraction(4) ** shift
    root = math.isqrt(scaled.numerator // scaled.denominator)
    inexact = root * root != scaled
    return _rounded(Fraction(2 * root + inexact, 2) / Fraction(2) ** shift)
