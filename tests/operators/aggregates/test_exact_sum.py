"""Sums of doubles are exact: what is left after values were taken back is the sum of the rest, bit for bit."""

from __future__ import annotations

import math
import struct
import sys
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from state_engine.operators.aggregates.exact_sum import exact_sum, rounded_sum

FINITE = st.floats(allow_nan=False, allow_infinity=False)
MONEY = st.integers(-10_000_000, 10_000_000).map(lambda cents: cents / 100)
EDGES = st.sampled_from(
    [
        5e-324,
        -5e-324,
        sys.float_info.min,
        sys.float_info.max,
        -sys.float_info.max,
        1e308,
        -1e308,
        -0.0,
        1.0,
        2.0**-53,
    ]
)
VALUES = st.lists(FINITE | MONEY | EDGES, max_size=12)


def bits(value: float) -> bytes:
    return struct.pack("<d", value)


def added(values: list[float]) -> list[float]:
    """One after the other, as elements come."""
    parts: list[float] = []
    for value in values:
        parts = exact_sum(parts, [value])
    return parts


@given(VALUES)
def test_parts_are_the_exact_sum_and_its_rounding_is_that_of_fsum(values: list[float]) -> None:
    parts = added(values)
    assert sum(map(Fraction, parts)) == sum(map(Fraction, values))
    try:
        expected = math.fsum(values)
    except OverflowError:
        return  # fsum gives up where a sum on the way is too large
    assert bits(rounded_sum(parts)) == bits(expected)


@given(VALUES, VALUES, st.randoms())
def test_what_is_taken_back_leaves_no_trace(kept: list[float], gone: list[float], random: object) -> None:
    steps = [(value, True) for value in kept + gone]
    random.shuffle(steps)  # type: ignore[attr-defined]
    for value in gone:  # each somewhere behind the place where it was added
        place = steps.index((value, True))
        steps.insert(random.randint(place + 1, len(steps)), (value, False))  # type: ignore[attr-defined]
    parts: list[float] = []
    for value, adds in steps:
        parts = exact_sum(parts, [value if adds else -value])
    assert [*map(bits, parts)] == [*map(bits, added(kept))]


@given(VALUES)
def test_parts_do_not_depend_on_the_order_or_on_how_sums_were_merged(values: list[float]) -> None:
    half = len(values) // 2
    merged = exact_sum(added(values[half:]), added(values[:half]))
    assert merged == added(values) == added(values[::-1])


def test_beyond_the_largest_double_the_sum_is_infinite_and_comes_back() -> None:
    parts = added([1e308, 1e308, 5.0])
    assert (len(parts), rounded_sum(parts)) == (3, math.inf)
    assert exact_sum(parts, [-1e308]) == [1e308, 5.0]
    assert rounded_sum(added([-1e308, -1e308])) == -math.inf
    largest = sys.float_info.max
    assert rounded_sum(added([largest])) == largest
    assert rounded_sum(added([largest, 1.0])) == largest


def test_the_number_of_parts_is_small() -> None:
    assert max(len(added([0.01 * n for n in range(1, 1000)][:many])) for many in (10, 100, 999)) <= 2
    assert len(added([2.0**n for n in range(-1074, 1024, 2)])) <= 2100 / 53 + 1
