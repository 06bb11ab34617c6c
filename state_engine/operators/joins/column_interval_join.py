"""Interval joins by whole columns: ``IntervalJoin`` as a function over columns, for pairs and for left rows with one.

The same rows, late rows, state and timers: the form per element is the definition, and gets each batch that columns
cannot compute. A row in time has all of its partners in the state or in the batch, so no pair depends on which rows the
watermark has passed. Decision 0117.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.vectorized_functions import (
    EVENT_TIME,
    KEY,
    MAP_KEY,
    ROW,
    TIME,
    VALUE,
    PerElement,
    StandsForElements,
    VectorizedKeyedFunction,
    VectorizedResult,
)
from state_engine.core.state.descriptors import SortedMapStateDescriptor
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.operators.aggregates.segments import Column
from state_engine.operators.joins.joined_rows import JoinedRows
from state_engine.operators.key_values import keys_without_nulls
from state_engine.operators.lateness import TOO_LATE, Lateness
from state_engine.operators.timed_rows import (
    KeyTimes,
    TimedRows,
    pairs_within,
    plus,
    stored_and_given,
    times_are_timestamps,
)

_NEVER = MAX_TIMESTAMP
"""The place of the first partner of a row that has none."""
_FAR_MS = 2**60
"""More than lies between two timestamps, and sums of it fit into 64 bits."""


@dataclass(frozen=True)
class ColumnSide:
    """One of the two streams.

    Attributes:
        state: of its rows, by time and number.
        last_ms: how much later than a row its last partner may be.
    """

    state: SortedMapStateDescriptor
    lateness: Lateness
    last_ms: int

    def goes(self, at: Column) -> Column:
        """The watermark at which rows can have no further partner."""
        return plus(at + min(max(self.last_ms, -_FAR_MS), _FAR_MS), self.lateness.ms)


class ColumnIntervalJoin(StandsForElements):
    """Pairs rows of two streams, or puts out each left row that has a partner.

    Args:
        pairs: the columns of pairs, and which row gives them their time; None for left rows.
        record_key: whether parts of the key may be null, which then equals no other.
    """

    uses_timers = True
    two_inputs = True

    def __init__(
        self, left: ColumnSide, right: ColumnSide, pairs: JoinedRows | None, *, record_key: bool
    ) -> None:
        self._left, self._right, self._pairs, self._record_key = left, right, pairs, record_key

    def open(self, runtime_context: RuntimeContext) -> None:
        self._too_late = runtime_context.get_metrics_group().counter(TOO_LATE)
        for side in (self._left, self._right):
            runtime_context.get_sorted_map_state(side.state)

    def process_batch(
        self, rows: pa.Table, state: pa.Table, ctx: VectorizedKeyedFunction.Context
    ) -> VectorizedResult:
        late: dict[OutputTag, pa.Table] = {}
        stored = [ctx.maps[side.state.name] for side in (self._left, self._right)]
        given = [
            self._in_time(side, TimedRows.of(of_input, ctx), state, late)
            for side, of_input in zip((self._left, self._right), ctx.inputs or (rows, rows), strict=True)
        ]
        left, right = SideRows.both(stored, given)
        pairs = left.pairs(right, -self._right.last_ms, self._left.last_ms)
        gone = np.zeros(len(left.at), bool), np.zeros(len(right.at), bool)
        waited = left.place >= 0, right.place >= 0
        if self._pairs is None:
            first = np.full(len(left.at), _NEVER)
            np.minimum.at(first, pairs.left, pairs.place)
            outputs = self._left_rows(left, first)
            gone, waited = (first != _NEVER, gone[1]), (waited[0] & (first != left.place), waited[1])
        else:
            outputs = _columns_of_pairs(self._pairs, left, right, pairs)
        sides = list(zip((self._left, self._right), (left, right), gone, waited, strict=True))
        return VectorizedResult(
            outputs=outputs,
            maps={side.state.name: of.changes(side, out, ctx.end_watermark_ms) for side, of, out, _ in sides},
            timers=_timers(
                [(of, side.goes(of.at), which) for side, of, _, which in sides], ctx.end_watermark_ms
            ),
            side=late,
        )

    def _in_time(
        self, side: ColumnSide, given: TimedRows, state: pa.Table, late: dict[OutputTag, pa.Table]
    ) -> TimedRows:
        """The rows that may have partners; those that come too late are counted, and added to the side outputs."""
        if not times_are_timestamps(given.at):
            raise PerElement
        over = plus(given.at, side.lateness.ms) <= given.watermarks
        self._too_late.inc(int(over.sum()))
        for tag, of_tag in given.late(over, side.lateness.late_to).items():
            late[tag] = pa.concat_tables([late[tag], of_tag]) if tag in late else of_tag
        return given.those(~over & keys_without_nulls(state, record=self._record_key)[given.keys])

    def _left_rows(self, left: SideRows, first: Column) -> pa.Table:
        """The left rows that have a partner, at the place where the first one came, or was there."""
        rows = np.flatnonzero(first != _NEVER)
        names = [field.name for field in self._left.state.value_type.arrow]
        columns = {name: left.column(name, rows) for name in names}
        return pa.table(columns | {ROW: first[rows], EVENT_TIME: left.at[rows]})


@dataclass(frozen=True)
class Pairs:
    """Pairs of rows, as places among those of each side, and the place in the batch of the later row."""

    left: Column
    right: Column
    place: Column


@dataclass(frozen=True)
class SideRows:
    """Rows of a stream that are stored, and those of the batch behind them; by key and time, in their order.

    Attributes:
        keys, at: of each.
        codes: numbers that rise with key and time, for both sides alike.
        step: between the codes of two keys.
        number: of those of one key and time.
        place: the row of the batch; -1 of a stored one.
        order: their places among stored rows and those of the batch.
    """

    keys: Column
    at: Column
    codes: Column
    step: int
    number: Column
    place: Column
    order: Column
    stored: pa.Array
    given: pa.Table

    @classmethod
    def both(cls, stored: Sequence[pa.Table], given: Sequence[TimedRows]) -> list[SideRows]:
        """Raises PerElement where times and keys do not fit into one number."""
        places = [one_chunk(one[MAP_KEY]) for one in stored]
        at = [
            np.concatenate([place.field("at").to_numpy(zero_copy_only=False), rows.at])
            for place, rows in zip(places, given, strict=True)
        ]
        keys = [
            np.concatenate([one[KEY].to_numpy(), rows.keys]) for one, rows in zip(stored, given, strict=True)
        ]
        times = np.concatenate(at)
        if not times_are_timestamps(times):
            raise PerElement
        of_both = KeyTimes.covering(keys, at)
        made = []
        for of_keys, of_at, place, one, rows in zip(keys, at, places, stored, given, strict=True):
            codes = of_both.of(of_keys, of_at)
            order = np.argsort(codes, kind="stable")
            codes = codes[order]
            number = np.arange(len(order)) - np.searchsorted(codes, codes)
            known = order < len(place)
            number[known] = place.field("n").to_numpy(zero_copy_only=False)[order[known]]
            where = (
                np.concatenate([np.full(len(place), -1), rows.rows[ROW].to_numpy()])
                if len(rows.at)
                else (np.full(len(place), -1))
            )
            made.append(
                cls(
                    of_keys[order],
                    of_at[order],
                    codes,
                    of_both.step,
                    number,
                    where[order],
                    order,
                    one_chunk(one[VALUE]),
                    rows.rows,
                )
            )
        return made

    def pairs(self, right: SideRows, least_ms: int, most_ms: int) -> Pairs:
        """All pairs of which a row is of the batch; those of one place in the order in which they come out."""
        everywhere = np.arange(len(right.at))
        parts = [
            self._within(np.flatnonzero(self.place >= 0), right, everywhere, least_ms, most_ms),
            self._within(
                np.flatnonzero(self.place < 0), right, everywhere[right.place >= 0], least_ms, most_ms
            ),
        ]
        rows, others = (np.concatenate([part[at] for part in parts]) for at in (0, 1))
        order = np.argsort(rows, kind="stable")
        rows, others = rows[order], others[order]
        return Pairs(rows, others, np.maximum(self.place[rows], right.place[others]))

    def _within(
        self, rows: Column, right: SideRows, others: Column, least_ms: int, most_ms: int
    ) -> tuple[Column, Column]:
        """Each of some rows with each of some right rows in the interval around it."""
        base, offset = self.keys[rows] * self.step, self.codes[rows] - self.keys[rows] * self.step
        codes = right.codes[others]
        least, most = (min(max(ms, -_FAR_MS), _FAR_MS) for ms in (least_ms, most_ms))
        begins = np.searchsorted(codes, base + np.clip(offset + least, 0, self.step - 1))
        ends = np.searchsorted(codes, base + np.clip(offset + most, -1, self.step - 1), side="right")
        of_row, within = pairs_within(begins, ends - 1)
        return rows[of_row], others[within]

    def column(self, name: str, rows: Column) -> pa.Array:
        """A column of some rows."""
        return stored_and_given(self.stored, self.given, name).take(pa.array(self.order[rows]))

    def changes(self, side: ColumnSide, gone: Column, end_ms: int) -> pa.Table:
        """Changes of the state: rows of the batch that stay, and stored ones that go.

        Args:
            gone: rows that wait for no further partner, whatever the time.
        """
        out = gone | (side.goes(self.at) <= end_ms)
        put, removed = np.flatnonzero((self.place >= 0) & ~out), np.flatnonzero((self.place < 0) & out)
        rows, kind = np.concatenate([put, removed]), side.state.value_type.arrow
        columns = [self.column(field.name, put) for field in kind]
        place = [pa.array(self.at[rows]), pa.array(self.number[rows])]
        return pa.table(
            {
                KEY: self.keys[rows],
                MAP_KEY: pa.StructArray.from_arrays(place, fields=list(side.state.key_type.arrow)),
                VALUE: pa.concat_arrays(
                    [pa.StructArray.from_arrays(columns, fields=list(kind)), pa.nulls(len(removed), kind)]
                ),
            }
        )


def _columns_of_pairs(joined: JoinedRows, left: SideRows, right: SideRows, pairs: Pairs) -> pa.Table:
    columns = joined.by_name(
        lambda name: left.column(name, pairs.left), lambda name: right.column(name, pairs.right)
    )
    times = {"left": left.at[pairs.left], "right": right.at[pairs.right]}
    times["later"] = np.maximum(times["left"], times["right"])
    return pa.table(columns | {ROW: pairs.place, EVENT_TIME: times[joined.time]})


def _timers(sides: Sequence[tuple[SideRows, Column, Column]], end_ms: int) -> pa.Table:
    """Timers for the rows of the batch that waited, each time of a key once."""
    keys = np.concatenate([of.keys[which & (goes > end_ms)] for of, goes, which in sides])
    times = np.concatenate([goes[which & (goes > end_ms)] for _, goes, which in sides])
    order = np.lexsort((times, keys))
    keys, times = keys[order], times[order]
    first = np.append(True, (keys[1:] != keys[:-1]) | (times[1:] != times[:-1]))[: len(keys)]
    return pa.table({KEY: keys[first], TIME: times[first]})
