"""``ColumnTopRows``: the greatest rows of tumbling windows by whole columns.

The same as ``AlignedWindows`` of ``TopRows``: lists, rows that come too late, state and timers. That form is the
definition, and gets each batch that columns cannot compute. Decision 0117.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.vectorized_functions import KEY, MAP_KEY, TIMER, VALUE
from state_engine.core.state.descriptors import SortedMapStateDescriptor
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.every_type import StructType
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.operators.aggregates.column_plan import PlanOverColumns
from state_engine.operators.aggregates.declarations import count
from state_engine.operators.aggregates.plan import plan
from state_engine.operators.aggregates.segments import Column
from state_engine.operators.column_order import dense_ranks
from state_engine.operators.keyed_rows import ROW_TIME
from state_engine.operators.ranking import RANK
from state_engine.operators.timed_rows import TimedRows
from state_engine.operators.windows.assigners import Tumbling
from state_engine.operators.windows.column_windows import ColumnWindows, Entries, Parts
from state_engine.operators.windows.window_columns import WindowColumns
from state_engine.operators.windows.window_results import WindowSettings


@dataclass(frozen=True)
class ListOrder:
    """How lists are made.

    Attributes:
        ties: whether rows equal to the last one are in the list, too.
        shows_rank, shows_key: whether these come out.
    """

    n: int
    by: tuple[str, ...]
    ascending: bool
    ties: bool
    shows_rank: bool
    shows_key: bool


class ColumnTopRows(ColumnWindows):
    """Emits the greatest rows of each key and window, once it is closed.

    Args:
        windows, parts: the windows, and the descriptor of what they count.
    """

    def __init__(
        self,
        windows: Tumbling,
        settings: WindowSettings,
        parts: SortedMapStateDescriptor,
        top: SortedMapStateDescriptor,
        order: ListOrder,
    ) -> None:
        assert isinstance(top.value_type, StructType)
        counts = PlanOverColumns.of(plan({"n": count()}, top.value_type))
        assert counts is not None
        super().__init__(windows, counts, settings, parts)
        self._top, self._order = top, order

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        runtime_context.get_sorted_map_state(self._top)

    def _results(
        self, given: TimedRows, part_of: Column, entries: Entries, parts: Parts, state: pa.Table, ctx: Any
    ) -> tuple[pa.Table, dict[str, pa.Table]]:
        """The lists of windows that are closed now, and the changes of the others."""
        lists = Lists.of(given, part_of, ctx.maps[self._top.name], parts.starts, self._order)
        ended = parts.following[lists.parts] == MAX_TIMESTAMP
        return self._shown(lists, ended, parts, state), {self._top.name: lists.changes(ended, parts.starts)}

    def _shown(self, lists: Lists, ended: Column, parts: Parts, state: pa.Table) -> pa.Table:
        keys, part = lists.keys[ended], lists.parts[ended]
        columns: dict[str, Any] = {RANK: lists.ranks[ended]} if self._order.shows_rank else {}
        fields = zip(lists.names, lists.columns, strict=True)
        columns |= {name: column.filter(pa.array(ended)) for name, column in fields if name != ROW_TIME}
        of_keys = state.drop_columns([KEY]) if self._order.shows_key else pa.table({})
        closes = parts.closed[part]
        bounds = WindowColumns(keys, parts.starts[part], closes + 1 - self._settings.lateness_ms)
        return bounds.with_columns(of_keys, columns, **{KEY: keys, TIMER: closes})


@dataclass(frozen=True)
class Lists:
    """The lists of all windows of a batch, by key and window, and then in their order.

    Attributes:
        keys, parts: of each row of a list.
        places: of rows in their list; the first is 1.
        ranks: that come out.
        kind, columns: of what is kept of rows.
        as_stored: whether a row stands at its place in the state already.
        stored: the entries of the state.
    """

    keys: Column
    parts: Column
    places: Column
    ranks: Column
    kind: pa.StructType
    columns: list[pa.Array]
    as_stored: Column
    stored: pa.Table

    @property
    def names(self) -> list[str]:
        return [field.name for field in self.kind]

    @classmethod
    def of(
        cls, given: TimedRows, part_of: Column, stored: pa.Table, starts: Column, order: ListOrder
    ) -> Lists:
        """Of what is stored, and of rows."""
        values, place = one_chunk(stored[VALUE]), one_chunk(stored[MAP_KEY])
        before = len(values)
        stored_starts, stored_places = (column.to_numpy(zero_copy_only=False) for column in place.flatten())
        columns = [
            pa.concat_arrays([of_stored, _of_rows(given, field)])
            for field, of_stored in zip(values.type, values.flatten(), strict=True)
        ]
        keys = np.concatenate([stored[KEY].to_numpy(), given.keys])
        parts = np.concatenate([np.searchsorted(starts, stored_starts), part_of])
        ranks = dense_ranks([columns[values.type.get_field_index(name)] for name in order.by])
        ranks = ranks if order.ascending else -ranks
        at = columns[values.type.get_field_index(ROW_TIME)].to_numpy(zero_copy_only=False)
        group = keys * max(len(starts), 1) + parts
        sorting = np.lexsort((at, ranks, group))
        kept, places, shown = _cut(group[sorting], ranks[sorting], order)
        sorting = sorting[kept]
        was = np.append(stored_places, np.zeros(len(given.keys), np.int64))[sorting]
        return cls(
            keys[sorting],
            parts[sorting],
            places,
            shown,
            values.type,
            [column.take(pa.array(sorting)) for column in columns],
            (sorting < before) & (was == places),
            stored,
        )

    def changes(self, ended: Column, starts: Column) -> pa.Table:
        """Entries that change, and null for those that are no longer there."""
        put = ~ended & ~self.as_stored
        columns = [column.filter(pa.array(put)) for column in self.columns]
        value = pa.StructArray.from_arrays(columns, fields=list(self.kind))
        map_key = one_chunk(self.stored[MAP_KEY])
        puts = pa.StructArray.from_arrays(
            [pa.array(starts[self.parts[put]]), pa.array(self.places[put])], fields=list(map_key.type)
        )
        gone = self._gone(ended, starts)
        return pa.table(
            {
                KEY: np.concatenate([self.keys[put], self.stored[KEY].to_numpy()[gone]]),
                MAP_KEY: pa.concat_arrays([puts, map_key.filter(pa.array(gone))]),
                VALUE: pa.concat_arrays([value, pa.nulls(int(gone.sum()), self.kind)]),
            }
        )

    def _gone(self, ended: Column, starts: Column) -> Column:
        """Which stored entries are not in a list that stays."""
        stored_starts, places = (
            c.to_numpy(zero_copy_only=False) for c in one_chunk(self.stored[MAP_KEY]).flatten()
        )
        size = max(len(starts), 1)
        group = self.stored[KEY].to_numpy() * size + np.searchsorted(starts, stored_starts)
        in_lists = (self.keys * size + self.parts)[~ended]
        begin, end = (np.searchsorted(in_lists, group, side=side) for side in ("left", "right"))
        gone: Column = places > end - begin
        return gone


def _of_rows(given: TimedRows, field: pa.Field) -> pa.Array:
    if not len(given.at):  # a batch of timers has no columns
        return pa.nulls(0, field.type)
    column = pa.array(given.at) if field.name == ROW_TIME else one_chunk(given.rows[field.name])
    return column.cast(field.type)


def _cut(group: Column, ranks: Column, order: ListOrder) -> tuple[Column, Column, Column]:
    """Which rows are in the lists; and of these their places, and the ranks that come out. By group and rank."""
    number = len(group)
    first = np.append(True, group[1:] != group[:-1])[:number]
    starts = np.flatnonzero(first)
    start = starts[np.cumsum(first) - 1]
    place, n = np.arange(number) - start, min(order.n, number)
    kept = place < n
    equal = np.append(False, (ranks[1:] == ranks[:-1]) & ~first[1:])[:number]
    first_equal = np.maximum.accumulate(np.where(equal, 0, np.arange(number))) if number else place
    if order.ties:
        kept = first_equal - start < n
        return kept, place[kept] + 1, (first_equal - start)[kept] + 1
    return kept, place[kept] + 1, place[kept] + 1
