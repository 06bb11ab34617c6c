"""``PlanOverColumns``: the accumulators of declared aggregates by whole columns, a struct of all of them for each key.

The counterpart of ``AggregatePlan`` for functions over columns, which stand for those per element. Decision 0075.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from state_engine.core.types.columns import one_chunk
from state_engine.operators.aggregates.column_accumulators import Merge, Running, merging_form, running_form
from state_engine.operators.aggregates.plan import AggregatePlan, AggregateStep
from state_engine.operators.aggregates.segments import Column, Segments


class PlanOverColumns:
    """See the module docstring. ``of`` makes one.

    Accumulators are structs: the number of rows, and those of the steps. Null stands for a key without any; a field is
    null where an aggregate missed rows of the key.
    """

    def __init__(self, plan: AggregatePlan, running: Sequence[Running], merges: Sequence[Merge]) -> None:
        self._plan, self._running, self._merges = plan, running, merges
        self._kind = plan.state.value_type.arrow

    @classmethod
    def of(cls, plan: AggregatePlan) -> PlanOverColumns | None:
        """The plan over columns; None where a step has no form over columns."""
        running, merges = [], []
        for step in plan.steps:
            form = None if step.beside is not None else running_form(step.accumulator, step.value_type)
            merge = merging_form(step.accumulator, step.value_type)
            if form is None or merge is None:
                return None
            running.append(form)
            merges.append(merge)
        return cls(plan, running, merges)

    @property
    def kind(self) -> pa.DataType:
        return self._kind

    @property
    def names(self) -> list[str]:
        return [result.name for result in self._plan.results]

    def added(self, rows: pa.Table, kept: pa.Array, segments: Segments) -> tuple[pa.Array, list[pa.Array]]:
        """The accumulators of keys after their rows, and the results after each row, key by key.

        Args:
            rows: of the segments; the columns of the stream come first.
            kept: the accumulators before, a struct or null for each key.

        Raises:
            PerElement: columns cannot compute it exactly.
        """
        stored = kept.is_valid().to_numpy(zero_copy_only=False)
        start = np.where(stored, kept.field(0).fill_null(0).to_numpy(zero_copy_only=False), 0)
        counts = segments.running(np.ones(len(segments.keys), np.int64), start)
        values = [segments.taken(one_chunk(rows.column(step.position))) for step in self._plan.steps]
        ended, shown = self._after(values, kept, stored, segments)
        after = self._struct([pa.array(counts[segments.ends]), *ended])
        return after, self._results(pa.array(counts), shown)

    def merged(self, kept: pa.Array, segments: Segments) -> pa.Array:
        """The accumulators of several keys together; ``kept`` has one for each row of the segments.

        Raises:
            PerElement: columns cannot compute it exactly.
        """
        kept = segments.taken(kept)
        rows = np.add.reduceat(kept.field(0).to_numpy(), segments.starts)
        together = [pa.array(rows)]
        for place, merge in enumerate(self._merges):
            column = kept.field(1 + place)
            missed = column.is_null().to_numpy(zero_copy_only=False)
            whole = merge(_filled(column, self._plan.steps[place], missed), segments)
            lost = np.logical_or.reduceat(missed, segments.starts)
            together.append(
                whole if not lost.any() else whole.take(pa.array(np.arange(len(whole)), mask=lost))
            )
        return self._struct(together)

    def results(self, kept: pa.Array) -> list[pa.Array]:
        """The columns of results of accumulators, which are not null."""
        number = len(kept)
        segments, stored = Segments(np.arange(number)), np.ones(number, bool)
        values = [pa.nulls(number, step.value_type.arrow) for step in self._plan.steps]
        return self._results(kept.field(0), self._after(values, kept, stored, segments)[1])

    def _after(
        self, values: Sequence[pa.Array], kept: pa.Array, stored: Column, segments: Segments
    ) -> tuple[list[pa.Array], list[pa.Array]]:
        """The accumulators of the steps after values, key by key, and their results after each of them."""
        ended, shown = [], []
        for place, (step, running) in enumerate(zip(self._plan.steps, self._running, strict=True)):
            column = kept.field(1 + place)
            missed = column.is_null().to_numpy(zero_copy_only=False) & stored
            start = _filled(column, step, ~stored | missed)
            after, results = running(values[place], start, segments)
            if missed.any():
                after = after.take(pa.array(np.arange(len(after)), mask=missed))
                results = results.take(pa.array(np.arange(len(results)), mask=missed[segments.keys]))
            ended.append(after)
            shown.append(results)
        return ended, shown

    def _results(self, counts: pa.Array, shown: Sequence[pa.Array]) -> list[pa.Array]:
        return [counts if result.step is None else shown[result.step] for result in self._plan.results]

    def _struct(self, columns: list[pa.Array]) -> pa.Array:
        return pa.StructArray.from_arrays(columns, fields=list(self._kind))


def _filled(column: pa.Array, step: AggregateStep, missing: np.ndarray[Any, Any]) -> pa.Array:
    """Accumulators of a step, with empty ones in some places."""
    if not missing.any():
        return column
    accumulator = step.accumulator
    empty = accumulator.accumulator_type.to_arrow([accumulator.create_accumulator()], storage=False)
    places = np.where(missing, len(column), np.arange(len(column)))
    return pa.concat_arrays([column, empty]).take(pa.array(places))
