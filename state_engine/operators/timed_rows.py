"""Rows of a batch with their times, for functions over columns, and numbers of parts of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import pyarrow as pa

from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.vectorized_functions import (
    KEY,
    ROW,
    PerElement,
    VectorizedKeyedFunction,
)
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.every_type import StructType
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.operators.aggregates.segments import Column

_FIRST_MS, _END_MS = -62_135_596_800_000, 253_402_300_800_000
"""The years 1 to 9999."""
_DENSE = 2**20
"""Numbers up to which, or up to four times as many as are given, a table of all of them finds those that are there."""


@dataclass(frozen=True)
class TimedRows:
    """Rows of a batch with their keys, event times and the watermarks before them."""

    rows: pa.Table
    keys: Column
    at: Column
    watermarks: Column

    @classmethod
    def of(cls, rows: pa.Table, ctx: VectorizedKeyedFunction.Context, *, changing: bool = False) -> TimedRows:
        """Raises PerElement where a row has no event time, or another kind than an insert, unless they may."""
        if not rows.num_rows:
            return cls(rows, *[np.zeros(0, np.int64)] * 3)
        times, watermarks = ctx.timestamps, ctx.watermarks
        if (
            (ctx.kinds is not None and not changing)
            or times is None
            or watermarks is None
            or times.null_count
        ):
            raise PerElement
        own = rows[ROW].to_numpy() if ctx.inputs else slice(None)  # those of one of two streams
        return cls(rows, rows[KEY].to_numpy(), times.to_numpy()[own], watermarks.to_numpy()[own])

    def those(self, which: Column) -> TimedRows:
        if which.all():
            return self
        columns = (column[which] for column in (self.keys, self.at, self.watermarks))
        return TimedRows(self.rows.filter(pa.array(which)), *columns)

    def late(self, which: Column, tag: OutputTag | None) -> dict[OutputTag, pa.Table]:
        """The side output of rows that come too late. Raises PerElement where its type is not that of the rows."""
        if tag is None or not which.any():
            return {}
        names = [name for name in self.rows.column_names if name not in (ROW, KEY)]
        kind = tag.type_info
        if not isinstance(kind, StructType) or list(kind.names) != names:
            raise PerElement
        return {tag: self.rows.filter(pa.array(which)).select([*names, ROW])}


def bounds_are_timestamps(start: int, end: int) -> bool:
    """Whether both bounds of a window are timestamps: in the years 1 to 9999."""
    return start >= _FIRST_MS and end < _END_MS


def times_are_timestamps(at: Column) -> bool:
    """Whether all times are timestamps, so that differences of them fit into 64 bits."""
    return not len(at) or bounds_are_timestamps(int(at.min()), int(at.max()))


@dataclass(frozen=True)
class KeyTimes:
    """Numbers for keys and times that rise with both, so that one search finds a time of a key.

    Attributes:
        least: the first time.
        step: between two keys: one more than the times, so the last number of a key is behind all of its times.

    Example:
        >>> codes = KeyTimes.covering([np.array([0, 1])], [np.array([30, 10])])
        >>> codes.of(np.array([0, 0, 1]), np.array([10, 30, 10])).tolist()
        [0, 20, 22]
    """

    least: int
    step: int

    @classmethod
    def covering(cls, keys: Sequence[Column], times: Sequence[Column]) -> KeyTimes:
        """Raises PerElement where they do not fit into 64 bits."""
        there = [one for one in times if len(one)]
        least = min((int(one.min()) for one in there), default=0)
        step = max((int(one.max()) for one in there), default=0) - least + 2
        if (max(int(one.max(initial=0)) for one in keys) + 1) * step > MAX_TIMESTAMP:
            raise PerElement
        return cls(least, step)

    @property
    def end(self) -> int:
        """A time behind all others."""
        return self.least + self.step - 1

    def of(self, keys: Column, at: Column | int) -> Column:
        codes: Column = keys * self.step + (at - self.least)
        return codes


def plus(at: Column, span_ms: int) -> Column:
    """``lateness.plus`` of a column.

    Example:
        >>> plus(np.array([1, 2**63 - 2]), 5).tolist() == [6, 2**63 - 1]
        True
    """
    return cast(Column, np.minimum(at, MAX_TIMESTAMP - span_ms) + span_ms)


def distinct(*columns: Column) -> tuple[Column, ...]:
    """Different numbers of columns, smallest first; and for each column the places of its numbers among them.

    Example:
        >>> [column.tolist() for column in distinct(np.array([30, 10, 30]), np.array([20]))]
        [[10, 20, 30], [2, 0, 2], [1]]
    """
    given = np.concatenate(columns)
    if not len(given):
        return given, *columns
    least, span = int(given.min()), int(given.max()) - int(given.min()) + 1
    if span <= max(4 * len(given), _DENSE):
        there = np.zeros(span, bool)
        there[given - least] = True
        numbers, place = np.flatnonzero(there) + least, np.cumsum(there) - 1
        return numbers, *(place[column - least] for column in columns)
    encoded = pa.array(given).dictionary_encode()
    numbers = encoded.dictionary.to_numpy()
    order = np.argsort(numbers)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    places, start, of_columns = place[encoded.indices.to_numpy()], 0, []
    for column in columns:
        of_columns.append(places[start : start + len(column)])
        start += len(column)
    return numbers[order], *of_columns


def prefix_largest(keys: Column, values: Column, begins: Column) -> np.ndarray:
    """For each row the largest value of its key before it, and with it: two rows of an array.

    Args:
        keys: numbers that rise.
        values: whole numbers, 0 or more.
        begins: the value of each key before its first row.

    Example:
        >>> prefix_largest(np.array([0, 0, 1]), np.array([2, 1, 5]), np.array([0, 3])).tolist()
        [[0, 2, 3], [2, 2, 5]]
    """
    step = max(int(values.max(initial=0)), int(begins.max(initial=0))) + 1
    offset = keys * step
    with_row = np.maximum(np.maximum.accumulate(values + offset) - offset, begins[keys])
    first = np.append(True, keys[1:] != keys[:-1])[: len(keys)]
    before = np.where(first, begins[keys], np.append(0, with_row[:-1])[: len(keys)])
    return np.stack([before, with_row])


def at_moments(
    keys: Column, places: Column, stays: Column, least: Column, most: Column, end: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first place that stays beyond the batch, and the last one that does not, before each row and after it.

    Args:
        keys: numbers that rise; rows of a key stand as they come.
        places: of rows among their times.
        stays: whether they stay.
        least, most: of what each key has stored, the first that stays and the last that does not.
        end: behind all places.

    Returns:
        Two rows of an array each: ``end`` where none stays, and -1 where none goes.

    Example:
        >>> places, stays = np.array([2, 0, 1]), np.array([True, False, True])
        >>> first, last = at_moments(np.zeros(3, int), places, stays, np.array([3]), np.array([-1]), 3)
        >>> first.tolist(), last.tolist()
        ([[3, 2, 2], [2, 2, 1]], [[-1, -1, 0], [-1, 0, 0]])
    """
    firsts = end - prefix_largest(keys, np.where(stays, end - places, 0), end - least)
    return firsts, prefix_largest(keys, np.where(stays, 0, places + 1), most + 1) - 1


def pairs_within(begins: Column, ends: Column) -> tuple[Column, Column]:
    """Each row with each place from its first to its last: the numbers of rows, and the places.

    Example:
        >>> [column.tolist() for column in pairs_within(np.array([0, 1]), np.array([1, 1]))]
        [[0, 0, 1], [0, 1, 1]]
    """
    lengths = ends - begins + 1
    of_row = np.repeat(np.arange(len(begins)), lengths)
    offsets = np.cumsum(lengths) - lengths
    return of_row, np.arange(len(of_row)) - offsets[of_row] + begins[of_row]


def stored_and_given(stored: pa.StructArray, given: pa.Table, name: str) -> pa.Array:
    """A column of stored rows, and behind them of those of a batch, which may have no columns where there are none."""
    column = stored.field(name)
    behind = one_chunk(given[name]).cast(column.type) if given.num_rows else pa.nulls(0, column.type)
    return pa.concat_arrays([column, behind])
