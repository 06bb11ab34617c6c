"""Accumulators of the aggregates: after any history of adding and taking back they are those of the values left."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.errors import RetractionError, ValueTypeError
from state_engine.core.types.every_type import BigIntegerType, DecimalType, StringType, TypeInformation
from state_engine.core.types.type_parsing import to_type
from state_engine.operators.aggregates.accumulators import (
    BIGINT,
    DOUBLE,
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

CENTS = DecimalType(38, 2)
INTEGERS = st.integers(-(2**40), 2**40)
DECIMALS = st.integers(-(10**12), 10**12).map(lambda cents: Decimal(cents).scaleb(-2))
DOUBLES = st.floats(width=64) | st.sampled_from([math.nan, math.inf, -math.inf, 0.1, -0.1, 1e16, -0.0])


class Case(NamedTuple):
    accumulator: Accumulator
    values: st.SearchStrategy[Any]
    expected: Callable[[list[Any]], Any]


def sum_of_doubles(values: list[float]) -> float:
    if any(map(math.isnan, values)) or {math.inf, -math.inf} <= set(values):
        return math.nan
    if any(map(math.isinf, values)):
        return sum(value for value in values if math.isinf(value))
    try:
        return math.fsum(values)
    except OverflowError:  # fsum gives up where a sum on the way is too large
        total = sum(map(Fraction, values), Fraction())
        try:
            return float(total)
        except OverflowError:
            return math.inf if total > 0 else -math.inf


def average_of_decimals(values: list[Decimal]) -> Decimal:
    exact = sum(map(Fraction, values), Fraction()) / len(values) * 10**6
    rounded = math.floor(abs(exact) + Fraction(1, 2))
    return Decimal(rounded if exact >= 0 else -rounded).scaleb(-6)


CASES = {
    "count": Case(CountValues(what="count('x')"), INTEGERS, len),
    "sum of integers": Case(SumNumbers(BIGINT, what="sum_('x')"), INTEGERS, sum),
    "sum of big integers": Case(
        SumNumbers(BigIntegerType(), what="sum_('x')"), st.integers(-(10**30), 10**30), sum
    ),
    "sum of decimals": Case(SumNumbers(CENTS, what="sum_('x')"), DECIMALS, lambda v: sum(v, Decimal("0.00"))),
    "sum of doubles": Case(SumDoubles(what="sum_('x')"), DOUBLES, sum_of_doubles),
    "average of integers": Case(
        AverageOfIntegers(what="avg('x')"), st.integers(-(2**63), 2**63 - 1), lambda v: float(Fraction(sum(v), len(v)))
    ),
    "average of decimals": Case(AverageOfDecimals(14, 2, what="avg('x')"), DECIMALS, average_of_decimals),
    "average of doubles": Case(
        AverageOfDoubles(what="avg('x')"), DOUBLES, lambda v: sum_of_doubles(v) / len(v)
    ),
}  # fmt: skip
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def stored(kind: TypeInformation, accumulator: Any) -> Any:
    """An accumulator as it comes back from storage."""
    normal = kind.normalise(accumulator)
    return kind.from_arrow(kind.to_arrow([normal], storage=True))[0]


def added(accumulator: Accumulator, values: list[Any]) -> Any:
    made = accumulator.create_accumulator()
    for value in values:
        made = accumulator.add(value, made)
    return made


@EVERY
@given(data=st.data())
def test_any_history_leaves_the_accumulator_of_the_values_left(case: Case, data: st.DataObject) -> None:
    values, seed = data.draw(st.lists(case.values, max_size=20)), data.draw(st.integers())
    accumulator, randomness = case.accumulator, random.Random(seed)
    left: list[Any] = []
    made = accumulator.create_accumulator()
    for value in values:
        left.append(value)
        made = accumulator.add(value, made)
        while left and randomness.random() < 0.45:
            made = accumulator.retract(left.pop(randomness.randrange(len(left))), made)
        made = stored(accumulator.accumulator_type, made)
        assert repr(made) == repr(stored(accumulator.accumulator_type, added(accumulator, left)))
        result = accumulator.get_result(made)
        if left or isinstance(accumulator, CountValues):
            expected = case.expected(left)
            assert repr(result) == repr(accumulator.result_type.normalise(expected))
        else:
            assert result is None
    for value in left:
        made = accumulator.retract(value, made)
    assert repr(made) == repr(accumulator.create_accumulator()), "no trace is left"


@EVERY
@given(data=st.data())
def test_merged_accumulators_are_that_of_all_values(case: Case, data: st.DataObject) -> None:
    first, second = (data.draw(st.lists(case.values, max_size=8)) for _ in range(2))
    accumulator = case.accumulator
    merged = accumulator.merge(added(accumulator, first), added(accumulator, second))
    assert repr(merged) == repr(added(accumulator, first + second))


@EVERY
def test_what_was_never_added_cannot_be_taken_back(case: Case) -> None:
    accumulator, value = case.accumulator, CENTS.normalise(1) if case.values is DECIMALS else 1
    with pytest.raises(RetractionError, match=r"never added to this key.*read the rows of the table first"):
        accumulator.retract(value, accumulator.create_accumulator())


@pytest.mark.parametrize(
    ("accumulator", "value", "other"),
    [
        (SumNumbers(BIGINT, what="sum_('x')"), 5, 6),
        (SumNumbers(CENTS, what="sum_('x')"), Decimal("5.00"), Decimal("5.01")),
        (SumDoubles(what="sum_('x')"), 0.1, 0.2),
        (SumDoubles(what="sum_('x')"), 0.1, math.nan),
        (SumDoubles(what="sum_('x')"), math.inf, -math.inf),
        (CountOrderedValues(what="min_('x')"), 1.0, math.nan),
        (CountOrderedValues(what="min_('x')"), math.nan, 1.0),
    ],
)
def test_another_value_than_the_last_one_cannot_be_taken_back(
    accumulator: Accumulator, value: Any, other: Any
) -> None:
    with pytest.raises(RetractionError, match="never added"):
        accumulator.retract(other, added(accumulator, [value]))


def test_a_sum_that_does_not_fit_is_an_error_that_says_what_to_do() -> None:
    total = SumNumbers(BIGINT, what="sum_('x')")
    largest = added(total, [2**63 - 1])
    with pytest.raises(ValueTypeError, match=r"sum_\('x'\) is 9223372036854775808, which does not fit into"):
        total.add(1, largest)
    assert total.get_result(total.add(-1, largest)) == 2**63 - 2
    decimals = SumNumbers(DecimalType(38, 37), what="sum_('x')")
    with pytest.raises(ValueTypeError, match=r"which does not fit into decimal128\(38, 37\): make the field"):
        added(decimals, [Decimal("9.5")] * 2)


def test_the_average_of_wide_decimals_has_room_for_their_digits() -> None:
    widest = AverageOfDecimals(38, 18, what="avg('x')")
    assert str(widest.result_type) == "decimal128(38, 18)"
    value = Decimal("99999999999999999999.000000000000000001")
    assert widest.result_type.normalise(widest.get_result(added(widest, [value]))) == value
    assert str(AverageOfDecimals(10, 2, what="avg('x')").result_type) == "decimal128(38, 6)"


@given(st.lists(st.floats(allow_nan=True), max_size=12), st.sampled_from(["min", "max"]))
def test_extremes_of_doubles_are_those_of_sql(values: list[float], end: Any) -> None:
    """NaN is greater than every number, and zero has no sign."""
    accumulator = Extreme(end, DOUBLE, what=f"{end}_('x')")
    made = added(accumulator, values)
    half = len(values) // 2
    assert repr(
        accumulator.merge(added(accumulator, values[:half]), added(accumulator, values[half:]))
    ) == repr(made)
    ordered = sorted((v + 0.0 for v in values), key=lambda v: (math.isnan(v), v))
    expected = None if not ordered else ordered[0 if end == "min" else -1]
    assert repr(accumulator.get_result(stored(accumulator.accumulator_type, made))) == repr(expected)


@pytest.mark.parametrize("end", ["min", "max"])
@pytest.mark.parametrize("values", [[-0.0], [-0.0, 0.0], [0.0, -0.0]])
def test_an_extreme_that_is_zero_has_no_sign(end: Any, values: list[float]) -> None:
    """It is stored so, too: the state does not say which of two zeros came first."""
    extreme = Extreme(end, DOUBLE, what=f"{end}_('x')")
    made = added(extreme, values)
    assert repr(made) == "(0.0, 0)"
    assert repr(extreme.merge(extreme.create_accumulator(), made)) == "(0.0, 0)"


def test_extremes_of_records_with_nulls_go_by_the_order_of_keys() -> None:
    pair = to_type(tuple[int, str], parameter="pair")
    least = Extreme("min", pair, what="min_('x')")
    assert least.get_result(added(least, [(1, "b"), (1, None), (2, "a")])) == (1, None)
    text = Extreme("max", StringType(), what="max_('x')")
    assert text.get_result(added(text, ["a", "ä", "b"])) == "ä"
    assert pa.types.is_string(text.result_type.arrow)
