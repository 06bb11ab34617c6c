"""``Timeline``: the rows of a batch on one line with those that are kept and that wait, by key and time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from state_engine.core.functions.vectorized_functions import KEY, MAP_KEY, VALUE, PerElement
from state_engine.core.types.columns import one_chunk
from state_engine.operators.aggregates.segments import Column
from state_engine.operators.timed_rows import KeyTimes, TimedRows, pairs_within

_PAIRS = 2**20
"""So many rows of spans, or those of one row, are in memory at once."""
_SEEN = 500
"""Rows that a row sees, on the average, from which on it is less work to add each once."""


@dataclass(frozen=True)
class Timeline:
    """Rows that are kept, that wait, and of a batch: by key and time, those of one time in their order.

    Attributes:
        keys, at: of each.
        place: their number among all of them, as they came: kept ones, waiting ones, the batch.
        codes: numbers that rise with key and time.
        begins: the place of the first one of the key.
        number: in the map key: what is stored, or the number of those before of one key and time.
        kept, before: how many are kept; and are kept or wait.
        stored: tables of those.
        given: the batch.
    """

    keys: Column
    at: Column
    place: Column
    codes: Column
    begins: Column
    number: Column
    kept: int
    before: int
    stored: tuple[pa.Table, pa.Table]
    given: pa.Table

    @classmethod
    def of(cls, kept: pa.Table, waiting: pa.Table, given: TimedRows) -> Timeline:
        """Raises PerElement where times and keys do not fit into one number."""
        stored = [one_chunk(one[MAP_KEY]) for one in (kept, waiting)]
        stored_at, numbers = (
            [one.field(of).to_numpy(zero_copy_only=False) for one in stored] for of in ("at", "n")
        )
        at = np.concatenate([*stored_at, given.at])
        keys = np.concatenate([kept[KEY].to_numpy(), waiting[KEY].to_numpy(), given.keys])
        codes = KeyTimes.covering([keys], [at]).of(keys, at)
        order = np.argsort(codes, kind="stable")
        codes, keys, at = codes[order], keys[order], at[order]
        begins, peers = (np.searchsorted(column, column) for column in (keys, codes))
        number = np.arange(len(order)) - peers
        known = order < len(at) - len(given.at)
        number[known] = np.concatenate(numbers)[order[known]]
        return cls(
            keys, at, order, codes, begins, number, kept.num_rows, kept.num_rows + waiting.num_rows,
            (kept, waiting), given.rows,
        )  # fmt: skip

    @property
    def in_order(self) -> bool:
        """Whether the rows of the batch came by time, key by key."""
        own = self.place >= self.before
        keys, place = self.keys[own], self.place[own]
        return bool(((place[1:] > place[:-1]) | (keys[1:] != keys[:-1])).all())

    def first_at(self, places: Column, span_ms: int | Column) -> Column:
        """The first rows that are at most this span before those at some places."""
        behind = np.minimum(self.at[places] - self.at[self.begins[places]], span_ms)
        first: Column = np.searchsorted(self.codes, self.codes[places] - behind)
        return first

    def last_peer(self, places: Column) -> Column:
        """The last rows of the same key and time."""
        last: Column = np.searchsorted(self.codes, self.codes[places], side="right") - 1
        return last

    def seen(self, begins: Column, ends: Column, places: Column, *, at_once: bool) -> tuple[Column, Column]:
        """Pairs of rows and the places that they see.

        Args:
            begins, ends: the first and the last of these, for each row.
            places: of the rows.
            at_once: without those that come later.
        """
        of_row, within = pairs_within(begins, ends)
        if not at_once:
            return of_row, within
        before = self.place[within] <= self.place[places][of_row]
        return of_row[before], within[before]

    def fields(self, names: Sequence[str]) -> pa.Table:
        """Some columns of all rows."""
        return pa.table({name: self._of_all(name) for name in names})

    def _of_all(self, name: str) -> pa.Array:
        parts = [one_chunk(one[VALUE]).field(name) for one in self.stored]
        return pa.concat_arrays([*parts, self._of_given(name, parts[0].type)]).take(pa.array(self.place))

    def of_rows(self, name: str, places: Column) -> pa.Array:
        """A column of rows that are not kept, at some places."""
        waiting = one_chunk(self.stored[1][VALUE]).field(name)
        both = pa.concat_arrays([waiting, self._of_given(name, waiting.type)])
        return both.take(pa.array(self.place[places] - self.kept))

    def _of_given(self, name: str, kind: pa.DataType) -> pa.Array:
        return one_chunk(self.given[name]).cast(kind) if self.given.num_rows else pa.nulls(0, kind)

    def entries(self, put: Column, removed: Column, values: pa.Array) -> pa.Table:
        """Changes of a map: values at some places, and those at others are gone."""
        places = np.concatenate([put, removed])
        kind = one_chunk(self.stored[0][MAP_KEY]).type
        map_key = [pa.array(self.at[places]), pa.array(self.number[places])]
        return pa.table(
            {
                KEY: self.keys[places],
                MAP_KEY: pa.StructArray.from_arrays(map_key, fields=list(kind)),
                VALUE: pa.concat_arrays([values, pa.nulls(len(removed), values.type)]),
            }
        )


def firsts(keys: Column) -> Column:
    """Which of some keys, which rise, are the first ones of their kind."""
    first: Column = np.append(True, keys[1:] != keys[:-1])[: len(keys)]
    return first


def check_few(begins: Column, ends: Column) -> None:
    """Raises PerElement where rows see too many others, from the first to the last place of each."""
    if int((ends - begins).sum()) > _SEEN * len(begins):
        raise PerElement


def blocks(lengths: Column) -> Iterator[slice]:
    """Parts of rows that see so many others together as fit into memory."""
    ends, begin = np.cumsum(lengths), 0
    while begin < len(lengths):
        before = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, before + _PAIRS, side="right")), begin + 1)
        yield slice(begin, end)
        begin = end
