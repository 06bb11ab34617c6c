"""The exact sum of doubles, as a few doubles: what is taken back leaves the sum of the rest, bit for bit.

Every double is a fraction whose denominator is a power of two, so sums are computed in integers, and nothing is rounded
but what is shown. A sum is kept as its *parts*: the first is the sum rounded to a double, the second what that left
out, rounded, and so on until nothing is left. The same sum has the same parts whatever was added and taken back on the
way to it, so no trace of a value stays behind. Rounding is that of ``math.fsum``, to the nearest, ties to even.
Decision 0065.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from fractions import Fraction


def exact_sum(*addends: Iterable[float | Fraction]) -> list[float]:
    """The parts of the sum of finite doubles, or other numbers that are sums of some; none where it is zero.

    A sum whose addends have magnitudes from ``a`` to ``b`` has about ``log2(b / a) / 53 + 1`` parts: one or two for
    amounts of money, about forty for all doubles that there are. Beyond the largest double, parts are that one.

    Example:
        >>> exact_sum([0.1], [0.2])
        [0.30000000000000004, -2.7755575615628914e-17]
        >>> exact_sum(exact_sum([0.1], [0.2]), [-0.1])
        [0.2]
    """
    total, unit = _fraction(value for values in addends for value in values)
    parts = []
    while total:
        part = rounded = _rounded(total, unit)
        if math.isinf(rounded):
            part = math.copysign(sys.float_info.max, rounded)
        parts.append(part)
        numerator, denominator = part.as_integer_ratio()
        total -= numerator * (unit // denominator)
    return parts


def rounded_sum(parts: list[float]) -> float:
    """The sum of some parts as a double; infinite beyond the largest one.

    Example:
        >>> rounded_sum(exact_sum([1e308], [1e308])), rounded_sum(exact_sum([1e308], [1e308], [-1e308]))
        (inf, 1e+308)
    """
    if not parts:
        return 0.0
    return parts[0] if abs(parts[0]) < sys.float_info.max else _rounded(*_fraction(parts))


def _fraction(values: Iterable[float | Fraction]) -> tuple[int, int]:
    """The sum of doubles as a numerator and a denominator, which is a power of two and a multiple of all of theirs."""
    total, unit = 0, 1
    for value in values:
        numerator, denominator = value.as_integer_ratio()
        if denominator > unit:
            total, unit = total * (denominator // unit), denominator
        total += numerator * (unit // denominator)
    return total, unit


def _rounded(numerator: int, denominator: int) -> float:
    try:
        return numerator / denominator  # Python rounds the quotient of integers correctly
    except OverflowError:
        return math.inf if numerator > 0 else -math.inf
