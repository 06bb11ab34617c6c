"""As-of joins by whole columns: ``AsOfJoin`` as a function over columns, where left rows come out at once.

The same rows, late rows and state: the form per element is the definition, and gets each batch that columns cannot
compute. Decision 0117.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.vectorized_functions import (
    EVENT_TIME,
    KEY,
    MAP_KEY,
    ROW,
    VALUE,
    PerElement,
    StandsForElements,
    VectorizedKeyedFunction,
    VectorizedResult,
)
from state_engine.core.state.descriptors import SortedMapStateDescriptor
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.timestamps import MIN_TIMESTAMP
from state_engine.operators.aggregates.segments import Column
from state_engine.operators.joins.joined_rows import JoinedRows
from state_engine.operators.key_values import keys_without_nulls
from state_engine.operators.lateness import TOO_LATE, Lateness
from state_engine.operators.timed_rows import (
    KeyTimes,
    TimedRows,
    plus,
    stored_and_given,
    times_are_timestamps,
)


class ColumnAsOfJoin(StandsForElements):
    """Puts beside each left row the newest version that came before it; arguments as of ``AsOfSettings``."""

    accepts_changes = True
    two_inputs = True

    def __init__(
        self,
        versions: SortedMapStateDescriptor,
        joined: JoinedRows,
        lateness: Lateness,
        *,
        tolerance_ms: int | None,
        exact: bool,
        inner: bool,
        record_key: bool,
    ) -> None:
        self._versions, self._joined, self._lateness, self._record_key = (
            versions,
            joined,
            lateness,
            record_key,
        )
        self._tolerance_ms, self._exact, self._inner = tolerance_ms, exact, inner

    def open(self, runtime_context: RuntimeContext) -> None:
        self._too_late = runtime_context.get_metrics_group().counter(TOO_LATE)
        runtime_context.get_sorted_map_state(self._versions)

    def process_batch(
        self, rows: pa.Table, state: pa.Table, ctx: VectorizedKeyedFunction.Context
    ) -> VectorizedResult:
        left, right = (TimedRows.of(one, ctx, changing=True) for one in ctx.inputs)
        kinds = np.full(len(right.at), "+I")
        if ctx.kinds is not None:
            kinds = ctx.kinds.take(right.rows[ROW]).to_numpy(zero_copy_only=False)
        late = [plus(one.at, self._lateness.ms) <= one.watermarks for one in (left, right)]
        self._too_late.inc(int(late[0].sum() + (late[1] & (kinds != "-U")).sum()))
        touched = np.full(state.num_rows, MIN_TIMESTAMP)
        for one in (left, right):
            np.maximum.at(touched, one.keys, one.watermarks)
        given = left.those(~late[0])
        versions = Versions.of(ctx.maps[self._versions.name], right, kinds, given.at)
        whole = keys_without_nulls(state, record=self._record_key)
        chosen = versions.before(given, exact=self._exact, tolerance_ms=self._tolerance_ms)
        chosen[~whole[given.keys]] = -1
        return VectorizedResult(
            outputs=self._outputs(given, versions, chosen),
            maps={self._versions.name: self._changes(versions, touched)},
            side=left.late(late[0], self._lateness.late_to),
        )

    def _outputs(self, given: TimedRows, versions: Versions, chosen: Column) -> pa.Table | None:
        if self._inner:
            given, chosen = given.those(chosen >= 0), chosen[chosen >= 0]
        if not len(chosen):
            return None
        columns = self._joined.by_name(given.rows.column, lambda name: versions.column(name, chosen))
        return pa.table(columns | {ROW: given.rows[ROW], EVENT_TIME: given.at})

    def _changes(self, versions: Versions, touched: Column) -> pa.Table:
        """Versions that came, and those that no left row can be given from the last row of their key on."""
        last = np.append(versions.codes[1:] != versions.codes[:-1], True)[: len(versions.at)]
        first_row = np.where(touched == MIN_TIMESTAMP, MIN_TIMESTAMP, touched - self._lateness.ms + 1)[
            versions.keys
        ]
        older = versions.at < first_row
        other_key = np.append(versions.keys[1:] != versions.keys[:-1], True)[: len(versions.at)]
        newest = older & (other_key | ~np.append(older[1:], False)[: len(versions.at)])
        if self._tolerance_ms is not None:
            newest &= first_row - versions.at <= self._tolerance_ms
        gone = older & ~np.isin(versions.codes, versions.codes[newest])
        put = np.flatnonzero((versions.place >= 0) & last & ~gone)
        removed = np.flatnonzero((versions.place < 0) & gone)
        return versions.entries(put, removed, self._versions.value_type.arrow)


@dataclass(frozen=True)
class Versions:
    """Versions that are stored, and those of a batch; by key and time, and those of one time as they came.

    Attributes:
        codes: numbers that rise with key and time, by ``key_times``.
        place: the row of the batch; -1 of a stored one.
        ends: which end a version.
        order: their places among the stored ones and those of the batch.
    """

    keys: Column
    at: Column
    codes: Column
    key_times: KeyTimes
    place: Column
    ends: Column
    order: Column
    stored: pa.StructArray
    given: pa.Table

    @classmethod
    def of(cls, stored: pa.Table, right: TimedRows, kinds: Column, others: Column) -> Versions:
        """Raises PerElement where times and keys do not fit into one number.

        Args:
            kinds: of the right rows. The old row of an update is an end, unless there is a version of its time.
            others: times that are looked for.
        """
        values = one_chunk(stored[VALUE]).field("row")
        keys = np.concatenate([stored[KEY].to_numpy(), right.keys])
        at = np.concatenate([stored[MAP_KEY].to_numpy(), right.at])
        times = np.concatenate([at, others])
        if not times_are_timestamps(times):
            raise PerElement
        key_times = KeyTimes.covering([keys], [times])
        codes = key_times.of(keys, at)
        order = np.argsort(codes, kind="stable")
        first = np.append(True, np.diff(codes[order]) != 0)[: len(order)]
        old = np.append(np.zeros(stored.num_rows, bool), kinds == "-U")[order]
        order = order[first | ~old]
        place = np.full(len(keys), -1)
        if len(right.at):
            place[stored.num_rows :] = right.rows[ROW].to_numpy()
        ended = (kinds == "-U") | (kinds == "-D")
        ends = np.concatenate([values.is_null().to_numpy(zero_copy_only=False), ended])
        return cls(
            keys[order],
            at[order],
            codes[order],
            key_times,
            place[order],
            ends[order],
            order,
            values,
            right.rows,
        )

    def before(self, given: TimedRows, *, exact: bool, tolerance_ms: int | None) -> Column:
        """For each row the newest version that came before it; -1 where there is none, or it is too old or an end."""
        if not len(self.at):
            return np.full(len(given.at), -1)
        place = given.rows[ROW].to_numpy() if len(given.at) else np.zeros(0, np.int64)
        codes = self.key_times.of(given.keys, given.at)
        chosen: Column = np.searchsorted(self.codes, codes, side="right" if exact else "left") - 1
        chosen[self.keys[chosen] != given.keys] = -1
        came_later = (chosen >= 0) & (self.place[chosen] > place)
        if came_later.any():
            self._look_behind(np.flatnonzero(came_later), given.keys, place, chosen)
        there = (chosen >= 0) & ~self.ends[chosen]
        if tolerance_ms is not None:
            there &= given.at - self.at[chosen] <= tolerance_ms
        return np.where(there, chosen, -1)

    def _look_behind(self, rows: Column, keys: Column, place: Column, chosen: Column) -> None:
        """Choose again for rows whose version came after them: one by one, from those that came before."""
        own = np.flatnonzero(np.isin(self.keys, keys[rows]))
        came: dict[int, list[int]] = {}
        own = own[np.argsort(self.place[own], kind="stable")]
        versions = list(zip(own.tolist(), self.keys[own].tolist(), self.place[own].tolist(), strict=True))
        versions.reverse()
        rows = rows[np.argsort(place[rows])]
        given = zip(
            rows.tolist(), keys[rows].tolist(), place[rows].tolist(), chosen[rows].tolist(), strict=True
        )
        for row, key, before, newest in given:
            while versions and versions[-1][2] < before:
                version, of_key, _ = versions.pop()
                insort(came.setdefault(of_key, []), version)
            known = came.get(key, [])
            number = bisect_right(known, newest)
            chosen[row] = known[number - 1] if number else -1

    def column(self, name: str, places: Column) -> pa.Array:
        """A column of some versions; null where a place is below 0."""
        rows = (
            pa.array(self.order[places], mask=places < 0)
            if len(self.at)
            else pa.nulls(len(places), pa.int64())
        )
        return stored_and_given(self.stored, self.given, name).take(rows)

    def entries(self, put: Column, removed: Column, kind: pa.StructType) -> pa.Table:
        """Changes of the state: some versions, and others that are gone."""
        of_row = kind.field("row").type
        columns = [self.column(field.name, put) for field in of_row]
        rows = pa.StructArray.from_arrays(columns, fields=list(of_row), mask=pa.array(self.ends[put]))
        places = np.concatenate([put, removed])
        values = [pa.StructArray.from_arrays([rows], fields=list(kind)), pa.nulls(len(removed), kind)]
        return pa.table({KEY: self.keys[places], MAP_KEY: self.at[places], VALUE: pa.concat_arrays(values)})
