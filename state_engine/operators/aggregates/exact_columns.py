"""Exact running sums of doubles by whole columns: the parts of ``exact_sum``, bit for bit.

All doubles of a batch become whole numbers of one unit, the largest power of two that divides all of them, and these
are summed in limbs of 32 bits, which carry over at the end. Doubles whose magnitudes lie too far apart for that are
left to ``exact_sum``, which is the definition. Decision 0075.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa

from state_engine.core.functions.vectorized_functions import PerElement
from state_engine.operators.aggregates.segments import Segments

Column = np.ndarray[Any, Any]
_BITS, _MASK = 32, 2**32 - 1
_MOST_LIMBS = 8
_LARGEST_EXPONENT = 1023
_EXACT = 2**53
"""Whole numbers up to this one are doubles."""


class ExactUnits:
    """Doubles as whole numbers of one unit, in limbs.

    Args:
        addends: all finite doubles that are to be summed, in several columns.

    Example:
        >>> units = ExactUnits(np.array([0.1, 0.2]))
        >>> sums = [limb.sum(keepdims=True) for limb in units.addends[0]]
        >>> units.parts(sums).to_pylist()
        [[0.30000000000000004, -2.7755575615628914e-17]]
    """

    def __init__(self, *addends: Column) -> None:
        lowest, highest, number = 0, 0, 1
        known, wholes = False, [_whole(column) for column in addends]
        for column, (mantissas, exponents) in zip(addends, wholes, strict=True):
            number += len(column)
            if not mantissas.any():
                continue
            low = int(exponents.min(where=mantissas != 0, initial=_LARGEST_EXPONENT))
            high = int(np.frexp(np.abs(column).max())[1])
            lowest, highest = (min(lowest, low), max(highest, high)) if known else (low, high)
            known = True
        bits = highest - lowest + number.bit_length() + 1
        if highest + number.bit_length() > _LARGEST_EXPONENT:
            raise PerElement
        self._unit, self._number = lowest, -(-bits // _BITS)
        self._one = bits <= 62
        if self._number > _MOST_LIMBS:
            raise PerElement
        self.addends = [self._limbs(*whole) for whole in wholes]

    def limbs(self, column: Column) -> list[Column]:
        """Doubles as whole numbers of the unit, low limbs first; limbs have the sign of the double."""
        return self._limbs(*_whole(column))

    def _limbs(self, mantissas: Column, exponents: Column) -> list[Column]:
        shift = np.where(mantissas == 0, 0, exponents - self._unit)
        if self._one:
            return [mantissas << shift]
        sign, size = np.sign(mantissas), np.abs(mantissas)
        first, rest = np.divmod(shift, _BITS)
        low, high = (size & _MASK) << rest, (size >> _BITS) << rest
        thirds = (low & _MASK, (low >> _BITS) + (high & _MASK), high >> _BITS)
        limbs = []
        for at in range(self._number):
            limb = np.zeros(len(mantissas), np.int64)
            for place, third in enumerate(thirds):
                limb += np.where(first + place == at, third, 0)
            limbs.append(limb * sign)
        return limbs

    def rounded(self, limbs: list[Column]) -> Column:
        """Whole numbers of the unit as the nearest doubles, ties to even."""
        if self._one:
            return cast(Column, np.ldexp(limbs[0].astype(np.float64), self._unit))
        negative = _carried(limbs)[-1] < 0
        carried = _carried([np.where(negative, -limb, limb) for limb in limbs])
        rows = np.arange(len(negative))
        top, below, any_below = np.zeros(len(rows), np.int64), [], np.zeros(len(rows), bool)
        for at, limb in enumerate(carried):
            top = np.where(limb != 0, at, top)
            below.append(any_below)
            any_below = any_below | (limb != 0)
        nothing = np.zeros(len(rows), np.int64)
        digits = np.stack(
            [nothing, nothing, *carried]
        )  # two limbs below the lowest one, so the top has two below
        under = np.stack([nothing.astype(bool), nothing.astype(bool), *below])
        first, second, third = (digits[top + place, rows] for place in (2, 1, 0))
        length = np.frexp(first.astype(np.float64))[1].astype(np.int64)
        whole = (
            (first.astype(np.uint64) << (64 - length).astype(np.uint64) % np.uint64(64))
            | (second.astype(np.uint64) << (32 - length).astype(np.uint64))
            | (third >> length).astype(np.uint64)
        )
        left_out = under[top, rows] | ((third & ((np.int64(1) << length) - 1)) != 0)
        kept, rest = (whole >> np.uint64(11)).astype(np.int64), (whole & np.uint64(0x7FF)).astype(np.int64)
        up = (rest > 0x400) | ((rest == 0x400) & (left_out | (kept & 1 == 1)))
        value = np.ldexp((kept + up).astype(np.float64), _BITS * top + length - 53 + self._unit)
        value = np.where(first == 0, 0.0, value)
        return cast(Column, np.where(negative, -value, value))

    def parts(self, limbs: list[Column]) -> pa.Array:
        """Whole numbers of the unit as the parts that ``exact_sum`` gives, a list for each."""
        left, made = limbs, []
        while any(limb.any() for limb in left):
            part = self.rounded(left)
            made.append(part)
            if self._one and np.abs(left[0]).max() <= _EXACT:  # nothing was rounded
                break
            left = [a - b for a, b in zip(left, self.limbs(part), strict=True)]
            left = left if self._one else _carried(left)
        table = np.array(made).reshape(len(made), len(limbs[0])).T
        lengths = (table != 0).sum(axis=1)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(table[table != 0], pa.float64()))


def running_sums(values: Column, segments: Segments, start: pa.Array) -> tuple[Column, pa.Array]:
    """The exact sum from the first row of each key on, rounded, row by row; and its parts after the last row of a key.

    Raises:
        PerElement: the doubles are too far apart.
    """
    parts = start.flatten().to_numpy(zero_copy_only=False)
    lengths = start.value_lengths().fill_null(0).to_numpy()
    units = ExactUnits(values, parts)
    begins = units.addends[1]
    if (lengths != 1).any():
        keys = np.repeat(np.arange(len(start)), lengths)
        begins = [np.zeros(len(start), np.int64) for _ in begins]
        for begin, of_parts in zip(begins, units.addends[1], strict=True):
            np.add.at(begin, keys, of_parts)
    sums = [segments.running(*both) for both in zip(units.addends[0], begins, strict=True)]
    return units.rounded(sums), units.parts([limb[segments.ends] for limb in sums])


def merged_sums(kept: pa.Array, segments: Segments) -> pa.Array:
    """The exact sums of several keys together, as parts; ``kept`` has parts for each row of the segments.

    Raises:
        PerElement: the doubles are too far apart.
    """
    parts = kept.flatten().to_numpy(zero_copy_only=False)
    keys = np.repeat(segments.keys, kept.value_lengths().fill_null(0).to_numpy())
    units, sums = ExactUnits(parts), []
    for limb in units.addends[0]:
        total = np.zeros(len(segments.starts), np.int64)
        np.add.at(total, keys, limb)
        sums.append(total)
    return units.parts(sums)


def _whole(column: Column) -> tuple[Column, Column]:
    """Finite doubles as odd whole numbers and the exponents of the powers of two that they are multiplied with."""
    bits = np.ascontiguousarray(column, np.float64).view(np.int64)
    exponents = _exponents(bits)
    mantissas = bits & (2**52 - 1)
    mantissas[exponents > 0] |= 2**52  # the smallest doubles have no leading bit
    lowest_bit = (mantissas & -mantissas).astype(np.float64)
    zeros = np.maximum(_exponents(lowest_bit.view(np.int64)) - 1023, 0)
    mantissas >>= zeros
    np.negative(mantissas, out=mantissas, where=bits < 0)
    return mantissas, np.maximum(exponents, 1) - 1075 + zeros


def _exponents(bits: Column) -> Column:
    """The bits of doubles between the sign and the fraction."""
    return cast(Column, bits >> 52 & 0x7FF)


def _carried(limbs: list[Column]) -> list[Column]:
    """The same number with limbs from 0 to 2**32 - 1, but for the highest, which has the sign."""
    made, carry = [], np.zeros(len(limbs[0]), np.int64)
    for limb in limbs[:-1]:
        total = limb + carry
        made.append(total & _MASK)
        carry = total >> _BITS
    return [*made, limbs[-1] + carry]
