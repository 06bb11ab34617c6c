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
from state_engine.core.functions.vectorized_functions import KEY, MAP_KEY, VALUE, PerElement
from state_engine.core.state.descriptors import SortedMapStateDescriptor
from state_engine.core.types.columns import one_chunk
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.operators.aggregates.column_plan import PlanOverColumns
from state_engine.operators.aggregates.segments import Column, Segments
from state_engine.operators.over.column_over import NEVER, Reach
from state_engine.operators.over.levels import Level, level_of
from state_engine.operators.over.timeline import Timeline, blocks
from state_engine.operators.timed_rows import distinct, pairs_within

_SEEN = 500
"""Rows outside of tiles that a row sees, on the average, from which on it is faster to put each into its tile."""


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
        if int((ends - begins).sum()) > _SEEN * len(places):
            raise PerElement
        keys = line.keys[places]
        codes = Codes.of(
            self._keys, self._level, self._start, keys=keys, starts=first, levels=len(self.form.levels)
        )
        tiles_from = np.searchsorted(codes.stored, codes.at(keys, number, first))
        tiles_to = np.searchsorted(codes.stored, codes.at(keys, number, codes.most), side="right") - 1
        tiles_from = np.minimum(tiles_from, tiles_to + 1)
        rows, kept, plan, parts = (
            line.fields(self.form.fields),
            one_chunk(self.stored[VALUE]),
            self.form.plan,
            [],
        )
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
        places, number = np.flatnonzero(flushed), len(self.form.levels)
        firsts = np.stack([level.firsts(reached) for level in self.form.levels])
        starts = np.stack([level.start(line.at[places]) for level in self.form.levels])
        keys = np.tile(line.keys[places], number)
        levels, starts, places = (
            np.repeat(np.arange(number), len(places)),
            starts.ravel(),
            np.tile(places, number),
        )
        stays = starts >= firsts[levels, keys]  # those with rows have a time that was reached
        keys, levels, starts, places = (one[stays] for one in (keys, levels, starts, places))
        codes = Codes.of(self._keys, self._level, self._start, keys=keys, starts=starts, levels=number)
        of_tiles, of_rows = distinct(codes.at(keys, levels, starts))
        at = np.searchsorted(codes.stored, of_tiles)
        known = np.append(codes.stored, -1)[at] == of_tiles
        kept = one_chunk(self.stored[VALUE])
        before = kept.take(pa.array(at, mask=~known))
        rows = line.fields(self.form.fields).take(pa.array(places))
        after = self.form.plan.added(rows, before, Segments(of_rows))[0] if len(of_tiles) else before
        one_row = np.zeros(len(of_tiles), np.int64)
        one_row[of_rows] = np.arange(len(of_rows))
        gone = np.flatnonzero(
            (reached[self._keys] != NEVER) & (self._start < firsts[self._level, self._keys])
        )
        own_levels = np.array(self.form.numbers, np.int64)
        map_key = [
            np.concatenate([own_levels[levels[one_row]], own_levels[self._level[gone]]]),
            np.concatenate([starts[one_row], self._start[gone]]),
        ]
        return {
            self.form.stored.name: pa.table(
                {
                    KEY: np.concatenate([keys[one_row], self._keys[gone]]),
                    MAP_KEY: pa.StructArray.from_arrays(
                        [pa.array(one) for one in map_key], fields=list(self._map_keys.type)
                    ),
                    VALUE: pa.concat_arrays([after, pa.nulls(len(gone), after.type)]),
                }
            )
        }


@dataclass(frozen=True)
class Codes:
    """Numbers for key, level and begin that rise with them.

    Attributes:
        stored: of stored tiles.
        most: the newest begin.
    """

    stored: Column
    least: int
    most: int
    levels: int

    @classmethod
    def of(
        cls,
        keys_of_stored: Column,
        level: Column,
        start: Column,
        *,
        keys: Column,
        starts: Column,
        levels: int,
    ) -> Codes:
        """Raises PerElement where they do not fit into 64 bits."""
        least = min(int(one.min()) for one in (start, starts) if len(one)) if len(start) + len(starts) else 0
        most = max((int(one.max()) for one in (start, starts) if len(one)), default=0)
        number = max(int(keys_of_stored.max(initial=0)), int(keys.max(initial=0))) + 1
        if number * levels * (most - least + 1) > MAX_TIMESTAMP:
            raise PerElement
        codes = cls(np.zeros(0, np.int64), least, most, levels)
        return cls(codes.at(keys_of_stored, level, start), least, most, levels)

    def at(self, keys: Column, level: Column | int, start: Column | int) -> Column:
        codes: Column = (keys * self.levels + level) * (self.most - self.least + 1) + (start - self.least)
        return codes
