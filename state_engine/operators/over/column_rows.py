"""``RowsOverColumns``: the rows that ``ColumnOver`` keeps, and aggregates of those that a row sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.core.functions.vectorized_functions import KEY, VALUE, PerElement
from state_engine.core.state.descriptors import MapStateDescriptor, SortedMapStateDescriptor
from state_engine.operators.aggregates.column_plan import PlanOverColumns
from state_engine.operators.aggregates.segments import Column, Segments
from state_engine.operators.over.column_over import NEVER, Reach
from state_engine.operators.over.levels import Level
from state_engine.operators.over.timeline import Timeline, blocks, check_few


@dataclass(frozen=True)
class RowsOverColumns:
    """Keeps the rows of the longest span, or the last ones.

    Attributes:
        plan: of all aggregates.
        levels: one of rows; none where last rows are kept.
        last_rows: how many; 0 where rows are kept by time.
        fields: of a row that aggregates are of.
        stored_rows, stored_sums: the states of the rows, and of accumulators of spans, which the form per element has.
    """

    plan: PlanOverColumns
    levels: Sequence[Level]
    last_rows: int
    fields: Sequence[str]
    at_once: bool
    stored_rows: SortedMapStateDescriptor
    stored_sums: MapStateDescriptor | None

    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_sorted_map_state(self.stored_rows)
        if self.stored_sums is not None:
            runtime_context.get_map_state(self.stored_sums)

    def of(self, maps: Mapping[str, pa.Table]) -> _KeptRows:
        return _KeptRows(self, maps)


@dataclass(frozen=True)
class _KeptRows:
    form: RowsOverColumns
    maps: Mapping[str, pa.Table]

    def rows(self, waiting: pa.Table) -> pa.Table:
        return self.maps[self.form.stored_rows.name]

    def newest(self, key: int, line: Timeline) -> list[int]:
        begin, end = np.searchsorted(line.keys, [key, key + 1])
        stored = line.at[begin:end][line.place[begin:end] < line.kept]
        return [int(stored.max()) if len(stored) else NEVER]

    def results(self, reach: Reach, places: Column, line: Timeline) -> list[pa.Array]:
        begins, ends = self._seen(reach, places, line)
        if self.form.stored_sums is not None:  # per element rows are added and taken back once
            check_few(begins, ends)
        plan, parts = self.form.plan, []
        rows = line.fields(self.form.fields)
        for block in blocks(ends - begins + 1):
            of_row, within = line.seen(begins[block], ends[block], places[block], at_once=self.form.at_once)
            after, _ = plan.added(
                rows.take(pa.array(within)), pa.nulls(len(begins[block]), plan.kind), Segments(of_row)
            )
            parts.append(plan.results(after))
        return [pa.concat_arrays(columns) for columns in zip(*parts, strict=True)]

    def _seen(self, reach: Reach, places: Column, line: Timeline) -> tuple[Column, Column]:
        """The first and the last place of the rows that rows at some places see."""
        span_ms, last_rows = reach
        if span_ms is not None:
            return line.first_at(places, span_ms), places if self.form.at_once else line.last_peer(places)
        assert last_rows is not None
        if self.form.at_once and not line.in_order:
            raise PerElement
        return np.maximum(places - min(last_rows, len(line.at)) + 1, line.begins[places]), places

    def after(self, line: Timeline, flushed: Column, reached: Column) -> dict[str, pa.Table]:
        """Rows whose time is over, without those that no later row has in reach."""
        there, of_key = (line.place < line.kept) | flushed, reached[line.keys]
        if self.form.levels:
            gone = there & (of_key != NEVER) & (line.at < self.form.levels[0].firsts(of_key))
        else:
            places = np.flatnonzero(there)
            keys = line.keys[places]
            ends = np.searchsorted(keys, keys, side="right")
            gone = np.zeros(len(there), bool)
            gone[places] = (of_key[places] != NEVER) & (ends - np.arange(len(keys)) > self.form.last_rows)
        put, removed = np.flatnonzero(flushed & ~gone), np.flatnonzero((line.place < line.kept) & gone)
        kind = self.form.stored_rows.value_type
        fields = [one.take(pa.array(put)) for one in line.fields(self.form.fields).itercolumns()]
        values = pa.StructArray.from_arrays([one.combine_chunks() for one in fields], fields=list(kind.arrow))
        return {self.form.stored_rows.name: line.entries(put, removed, values), **self._sums_after(reached)}

    def _sums_after(self, reached: Column) -> dict[str, pa.Table]:
        """Accumulators of spans go where rows came or went: the form per element makes them again of the rows."""
        if self.form.stored_sums is None:
            return {}
        stored = self.maps[self.form.stored_sums.name]
        stored = stored.filter(pa.array(reached[stored[KEY].to_numpy()] != NEVER))
        gone = pa.nulls(stored.num_rows, self.form.stored_sums.value_type.arrow)
        return {self.form.stored_sums.name: stored.set_column(2, VALUE, gone)}
