"""``TilesOverColumns``: the tiles of time that ``ColumnOver`` keeps, and aggregates of those that a row sees.

A row sees tiles of the level of its span, and beside them the rows that are in none yet: of its batch, and those that
wait. Both are merged, as a tile is with rows per element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import pyarrow as pa

from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.vectorized_functions import KEY, MAP_KEY, VALUE
from state_engine.core.state.descriptors import SortedMapStateDescriptor
from state_engine.core.types.columns import one_chunk
from state_engine.operators.aggregates.column_plan import PlanOverColumns
from state_engine.operators.aggregates.segments import Column, Segments
from state_engine.operators.over.column_over import NEVER, Reach
from state_engine.operators.over.levels import Level, level_of
from state_engine.operators.over.timeline import Timeline, blocks, check_few
from state_engine.operators.timed_rows import KeyTimes, distinct, pairs_within


@dataclass(frozen=True)
class TilesOverColumns:
    """Keeps accumulators of tiles.

    Attributes:
        plan: of all aggregates.
        levels: lowest first.
        fields: of a row that aggregates are of.
    """

    plan: PlanOverColumns
    levels: Sequence[Level]
    tile_ms: int
    fields: Sequence[str]
    at_once: bool
    stored: SortedMapStateDescriptor

    @property
    def numbers(self) -> list[int]:
        return [level.number for level in self.levels]

    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_sorted_map_state(self.stored)

    def of(self, maps: Mapping[str, pa.Table]) -> _KeptTiles:
        return _KeptTiles(self, maps[self.stored.name])


@dataclass(frozen=True)
class _KeptTiles:
    """The tiles of a batch: by key, level and begin."""

    form: TilesOverColumns
    stored: pa.Table

    def rows(self, waiting: pa.Table) -> pa.Table:
        return waiting.slice(0, 0)

    @cached_property
    def _keys(self) -> Column:
        return cast(Column, self.stored[KEY].to_numpy())

    @cached_property
    def _map_keys(self) -> pa.StructArray:
        return one_chunk(self.stored[MAP_KEY])

    @cached_property
    def _level(self) -> Column:
        """The place of the level of each tile among all levels."""
        levels: Column = np.searchsorted(self.form.numbers, self._map_keys.field("level").to_numpy())
        return levels

    @cached_property
    def _start(self) -> Column:
        return cast(Column, self._map_keys.field("start").to_numpy())

    def _by_level(self, keys: Column, level: Column | int) -> Column:
        """A number for each key and level."""
        return cast(Column, keys * len(self.form.levels) + level)

    def newest(self, key: int, line: Timeline) -> list[int]:
        begin, end = np.searchsorted(self._keys, [key, key + 1])
        newest = np.full(len(self.form.levels), NEVER)
        np.maximum.at(newest, self._level[begin:end], self._start[begin:end])
        return cast(list[int], newest.tolist())

    def results(self, reach: Reach, places: Column, line: Timeline) -> list[pa.Array]:
        span_ms, _ = reach
        assert span_ms is not None
        number = self.form.numbers.index(level_of(span_ms, self.form.tile_ms))
        level = replace(self.form.levels[number], span_ms=span_ms)
        first = level.firsts(line.at[places])
        ends = places if self.form.at_once else line.last_peer(places)
        begins = line.first_at(places, line.at[places] - first)
        check_few(begins, ends)  # per element each is put into its tile once
        stored, wanted = self._by_level(self._keys, self._level), self._by_level(line.keys[places], number)
        codes = KeyTimes.covering([stored, wanted], [self._start, first])
        there = codes.of(stored, self._start)
        tiles_from = np.searchsorted(there, codes.of(wanted, first))
        tiles_to = np.searchsorted(there, codes.of(wanted, codes.end)) - 1
        rows, kept = line.fields(self.form.fields), one_chunk(self.stored[VALUE])
        plan, parts = self.form.plan, []
        for block in blocks(ends - begins + tiles_to - tiles_from + 2):
            of_row, within = line.seen(begins[block], ends[block], places[block], at_once=self.form.at_once)
            number_of = len(begins[block])
            alone, _ = plan.added(
                rows.take(pa.array(within)), pa.nulls(number_of, plan.kind), Segments(of_row)
            )
            of_tile, tiles = pairs_within(tiles_from[block], tiles_to[block])
            both = pa.concat_arrays([alone, kept.take(pa.array(tiles))])
            whole = plan.merged(both, Segments(np.concatenate([np.arange(number_of), of_tile])))
            parts.append(plan.results(whole))
        return [pa.concat_arrays(columns) for columns in zip(*parts, strict=True)]

    def after(self, line: Timeline, flushed: Column, reached: Column) -> dict[str, pa.Table]:
        """Rows whose time is over are added to their tiles; those that no later row has in reach go."""
        firsts = np.stack([level.firsts(reached) for level in self.form.levels])
        keys, levels, starts, values = self._added(line, np.flatnonzero(flushed), firsts)
        gone = np.flatnonzero(
            (reached[self._keys] != NEVER) & (self._start < firsts[self._level, self._keys])
        )
        numbers = np.array(self.form.numbers)[np.concatenate([levels, self._level[gone]])]
        map_key = [pa.array(numbers), pa.array(np.concatenate([starts, self._start[gone]]))]
        changes = {
            KEY: np.concatenate([keys, self._keys[gone]]),
            MAP_KEY: pa.StructArray.from_arrays(map_key, fields=list(self._map_keys.type)),
            VALUE: pa.concat_arrays([values, pa.nulls(len(gone), values.type)]),
        }
        return {self.form.stored.name: pa.table(changes)}

    def _added(
        self, line: Timeline, places: Column, firsts: np.ndarray
    ) -> tuple[Column, Column, Column, pa.Array]:
        """Key, level, begin and accumulators of each tile that rows at some places lie in.

        Args:
            firsts: by level and key, the begin of the first tile that stays.
        """
        levels = np.repeat(np.arange(len(self.form.levels)), len(places))
        starts = np.concatenate([level.start(line.at[places]) for level in self.form.levels])
        places = np.tile(places, len(self.form.levels))
        stays = starts >= firsts[levels, line.keys[places]]
        levels, starts, places = levels[stays], starts[stays], places[stays]
        stored, wanted = self._by_level(self._keys, self._level), self._by_level(line.keys[places], levels)
        codes = KeyTimes.covering([stored, wanted], [self._start, starts])
        there = codes.of(stored, self._start)
        tiles, of_rows = distinct(codes.of(wanted, starts))
        at = np.searchsorted(there, tiles)
        known = np.append(there, -1)[at] == tiles
        values = one_chunk(self.stored[VALUE]).take(pa.array(at, mask=~known))
        if len(tiles):
            rows = line.fields(self.form.fields).take(pa.array(places))
            values, _ = self.form.plan.added(rows, values, Segments(of_rows))
        row = np.zeros(len(tiles), np.int64)
        row[of_rows] = np.arange(len(of_rows))
        return line.keys[places[row]], levels[row], starts[row], values
