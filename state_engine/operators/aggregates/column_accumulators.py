"""The accumulators of declared aggregates by whole columns: what ``accumulators`` does value by value.

A running form gets the values of the batch key by key and the accumulators that the keys begin with, and gives the
accumulators that they end with and the result after each row. ``accumulators`` is the definition; a test compares both,
value by value. Where columns would have to round or overflow, it raises ``PerElement``. Decision 0075.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import pyarrow as pa

from state_engine.core.functions.vectorized_functions import PerElement
from state_engine.core.types.every_type import (
    DateType,
    FloatType,
    IntegerType,
    TimestampType,
    TypeInformation,
)
from state_engine.operators.aggregates.accumulators import (
    Accumulator,
    AverageOfDecimals,
    AverageOfDoubles,
    AverageOfIntegers,
    CountValues,
    Extreme,
    SumDoubles,
    SumNumbers,
)
from state_engine.operators.aggregates.exact_columns import merged_sums, running_sums
from state_engine.operators.aggregates.segments import Column, Segments

_SAFE = 2.0**62
"""Sums of magnitudes below it fit into 64 bits, though this bound of them is rounded."""
_EXACT_DOUBLES = 2**53

Running = Callable[[pa.Array, pa.Array, Segments], tuple[pa.Array, pa.Array]]
"""From the values, key by key, and the accumulators that keys begin with, none of them null, to those that they end
with and the results after each row, key by key."""


Merge = Callable[[pa.Array, Segments], pa.Array]
"""From accumulators, key by key, none of them null, to one for each key that has the values of all of them."""


_SUMS_OF_NUMBERS = (SumNumbers, AverageOfIntegers, AverageOfDecimals)


def running_form(accumulator: Accumulator, value_type: TypeInformation) -> Running | None:
    """The running form of an accumulator for values of a type; None where it has none.

    A subclass has none before it is named here: the form of its base would give the results of the base.
    """
    if type(accumulator) is CountValues:
        return _count
    if type(accumulator) in (SumDoubles, AverageOfDoubles):
        average = isinstance(accumulator, AverageOfDoubles)
        return lambda *given: _sum_doubles(*given, average=average)
    if isinstance(accumulator, SumNumbers) and type(accumulator) in _SUMS_OF_NUMBERS:
        return lambda *given: _sum_numbers(accumulator, *given)
    if type(accumulator) is Extreme and type(value_type) in (IntegerType, FloatType, DateType, TimestampType):
        return lambda *given: _extreme(accumulator, *given)
    return None


def merging_form(accumulator: Accumulator, value_type: TypeInformation) -> Merge | None:
    """The form of ``merge`` over columns; None for an accumulator without a running form."""
    if running_form(accumulator, value_type) is None:
        return None
    if isinstance(accumulator, CountValues):
        return lambda kept, segments: pa.array(segments.sums(_numbers(kept)))
    if isinstance(accumulator, SumDoubles):
        return _merged_doubles
    if isinstance(accumulator, SumNumbers):
        return lambda *given: _merged_numbers(accumulator, *given)
    assert isinstance(accumulator, Extreme)
    return lambda *given: _merged_extremes(accumulator, *given)


def _merged_numbers(accumulator: SumNumbers, kept: pa.Array, segments: Segments) -> pa.Array:
    kind, totals = accumulator.accumulator_type.arrow, _whole(kept.field("total"))
    if segments.largest(totals) >= _SAFE:
        raise PerElement
    values = segments.sums(_numbers(kept.field("values")))
    merged = [_as(kind.field("total").type, segments.sums(totals)), pa.array(values)]
    return pa.StructArray.from_arrays(merged, fields=list(kind))


def _merged_doubles(kept: pa.Array, segments: Segments) -> pa.Array:
    numbers = [pa.array(segments.sums(_numbers(kept.field(place)))) for place in (1, 2, 3, 4)]
    parts = merged_sums(kept.field(0), segments)
    return pa.StructArray.from_arrays([parts, *numbers], fields=list(kept.type))


def _merged_extremes(accumulator: Extreme, kept: pa.Array, segments: Segments) -> pa.Array:
    number = len(segments.starts)
    none = pa.StructArray.from_arrays(
        [pa.nulls(number, kept.type.field("value").type), pa.array(np.zeros(number, np.int64))],
        fields=list(kept.type),
    )
    best = _extreme(accumulator, kept.field("value"), none, segments)[0]
    nans = pa.array(segments.sums(_numbers(kept.field("nans"))))
    return pa.StructArray.from_arrays([best.field("value"), nans], fields=list(kept.type))


def _count(values: pa.Array, kept: pa.Array, segments: Segments) -> tuple[pa.Array, pa.Array]:
    counts = segments.running(_valid(values), _numbers(kept))
    return pa.array(counts[segments.ends]), pa.array(counts)


def _sum_numbers(
    accumulator: SumNumbers, values: pa.Array, kept: pa.Array, segments: Segments
) -> tuple[pa.Array, pa.Array]:
    kind = accumulator.accumulator_type.arrow
    added, start = _whole(values), _whole(kept.field("total"))
    if segments.largest(added) + np.abs(start.astype(np.float64)).max(initial=0.0) >= _SAFE:
        raise PerElement
    totals = segments.running(added, start)
    counts = segments.running(_valid(values), _numbers(kept.field("values")))
    last = segments.ends
    ended = [_as(kind.field("total").type, totals[last]), pa.array(counts[last])]
    return pa.StructArray.from_arrays(ended, fields=list(kind)), _shown(accumulator, totals, counts)


def _shown(accumulator: SumNumbers, totals: Column, counts: Column) -> pa.Array:
    none, divisors = counts == 0, np.maximum(counts, 1)
    if isinstance(accumulator, AverageOfIntegers):
        means = totals / divisors
        for place in np.flatnonzero(np.abs(totals) > _EXACT_DOUBLES).tolist():
            means[place] = int(totals[place]) / int(divisors[place])
        return pa.array(means, mask=none)
    shown = accumulator.result_type.arrow
    if not isinstance(accumulator, AverageOfDecimals):
        return _as(shown, totals, none)
    factor = 10 ** (shown.scale - accumulator.total_type.arrow.scale)
    if np.abs(totals.astype(np.float64)).max(initial=0.0) * factor * 2 + 2.0 * counts.max(initial=0) >= _SAFE:
        raise PerElement
    units = totals * factor
    rounded = (2 * np.abs(units) + divisors) // (2 * divisors)
    return _as(shown, np.where(units >= 0, rounded, -rounded), none)


def _sum_doubles(
    values: pa.Array, kept: pa.Array, segments: Segments, *, average: bool
) -> tuple[pa.Array, pa.Array]:
    column, there = _doubles(values), _valid(values)
    marks = (np.isnan(column), column == np.inf, column == -np.inf)
    special = [
        _running_marks(mark, there, kept.field(place), segments)
        for place, mark in zip((2, 3, 4), marks, strict=True)
    ]
    counts = segments.running(there, _numbers(kept.field(1)))
    finite = np.where((there == 1) & np.isfinite(column), column, 0.0)
    sums, parts = running_sums(finite, segments, kept.field(0))
    nans, infinities, minus = special
    if any(numbers.any() for numbers in special):
        sums = np.where(infinities > 0, np.inf, np.where(minus > 0, -np.inf, sums))
        sums = np.where((nans > 0) | ((infinities > 0) & (minus > 0)), np.nan, sums)
    if average:
        sums = sums / np.maximum(counts, 1)
    last = segments.ends
    ended = [parts, *(pa.array(numbers[last]) for numbers in (counts, *special))]
    return pa.StructArray.from_arrays(ended, fields=list(kept.type)), pa.array(sums, mask=counts == 0)


def _extreme(
    accumulator: Extreme, values: pa.Array, kept: pa.Array, segments: Segments
) -> tuple[pa.Array, pa.Array]:
    kind, least = values.type, accumulator.end == "min"
    start, floating = kept.field("value"), pa.types.is_floating(kind)
    both = pa.concat_arrays([values, start])
    there = _valid(both) == 1
    if floating:
        column = _doubles(both) + 0.0  # zero without a sign
        nan = np.isnan(column) & there
    else:
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        view = both if pa.types.is_integer(kind) else both.view(width)
        column, nan = _numbers(view.cast(pa.int64())), np.zeros(len(both), bool)
    orderly = there & ~nan
    different, ranks = np.unique(column[orderly], return_inverse=True)
    ranked = np.zeros(len(both), np.int64)
    ranked[orderly] = (
        len(different) - ranks if least else ranks + 1
    )  # the best value has the largest rank, none has 0
    number = len(values)
    best = np.maximum(segments.best(ranked[:number]), ranked[number:][segments.keys])
    nans = segments.running(nan[:number].astype(np.int64), _numbers(kept.field("nans")))
    place = np.maximum(len(different) - best if least else best - 1, 0)
    extremes = (
        different[np.minimum(place, max(len(different) - 1, 0))]
        if len(different)
        else np.zeros(number, column.dtype)
    )
    none = best == 0
    last = segments.ends
    ended = [_typed(extremes[last], none[last], kind), pa.array(nans[last])]
    shows_nan = (nans > 0) & (none if least else True)
    results = _typed(np.where(shows_nan, np.nan, extremes) if floating else extremes, none & ~shows_nan, kind)
    return pa.StructArray.from_arrays(ended, fields=list(kept.type)), results


def _typed(column: Column, none: Column, kind: pa.DataType) -> pa.Array:
    array = pa.array(column, mask=none)
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        return array.cast(kind)
    return array.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).view(kind)


def _running_marks(marks: Column, there: Column, start: pa.Array, segments: Segments) -> Column:
    begins = _numbers(start)
    if not marks.any():
        return cast(Column, begins[segments.keys])
    return segments.running((marks & (there == 1)).astype(np.int64), begins)


def _valid(column: pa.Array) -> Column:
    if not column.null_count:
        return np.ones(len(column), np.int64)
    return cast(Column, column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64))


def _numbers(column: pa.Array) -> Column:
    column = column.fill_null(0) if column.null_count else column
    return cast(Column, column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False))


def _doubles(column: pa.Array) -> Column:
    column = column.fill_null(0.0) if column.null_count else column
    return cast(Column, column.cast(pa.float64()).to_numpy(zero_copy_only=False))


def _whole(column: pa.Array) -> Column:
    """Whole numbers, or decimals as those of their last digit, with 0 for null. Raises PerElement beyond 64 bits."""
    if not pa.types.is_decimal(column.type):
        return _numbers(column)
    wide = column.cast(pa.decimal128(38, column.type.scale))
    halves = np.frombuffer(wide.buffers()[1], np.int64)[2 * wide.offset : 2 * (wide.offset + len(wide))]
    low, high = halves[0::2].copy(), halves[1::2]
    null = wide.is_null().to_numpy(zero_copy_only=False)
    if (~null & (high != low >> 63)).any():
        raise PerElement
    low[null] = 0
    return cast(Column, low)


def _as(kind: pa.DataType, numbers: Column, none: Column | None = None) -> pa.Array:
    """Whole numbers, of the last digit where it is a decimal type, as a column."""
    if not pa.types.is_decimal(kind):
        return pa.array(numbers, kind, mask=none)
    halves = np.empty(2 * len(numbers), np.int64)
    halves[0::2], halves[1::2] = numbers, numbers >> 63
    made = pa.Array.from_buffers(pa.decimal128(38, kind.scale), len(numbers), [None, pa.py_buffer(halves)])
    if none is not None and none.any():
        made = made.take(pa.array(np.arange(len(numbers)), mask=none))
    return made if made.type == kind else made.cast(kind)
