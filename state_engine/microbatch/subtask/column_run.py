"""``ColumnRun``: a function that is called once with the columns of all rows, and of the state of their keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from state_engine.core.functions.vectorized_functions import VectorizedKeyedFunction
from state_engine.core.operator.column_outputs import ColumnOutputs
from state_engine.core.operator.outputs import ElementOutputs, SideOutputs
from state_engine.core.operator.vectorized_operator import VectorizedOperator, VectorizedOutputs
from state_engine.core.types.timestamps import MAX_TIMESTAMP
from state_engine.microbatch.subtask.function_run import FunctionRun
from state_engine.microbatch.subtask.vectorized_state import VectorizedKeyedState, vectorized_rows
from state_engine.storage.stores.files import PutFile, side_by_side


class ColumnRun(FunctionRun):
    """All rows in one call, in total order; late ones pass by."""

    def run(self, function: VectorizedKeyedFunction) -> None:
        """Run the function with all rows at once, and the state of their keys and of those with due timers.

        Raises:
            PerElement: the function can only be run for each element; nothing was written.
        """
        spec, clocks, out, made = self._spec, self._spec.clocks, ElementOutputs(), None
        places = np.delete(np.arange(self._rows.events.num_rows), list(self._rows.late))
        events = (
            self._rows.events.take(pa.array(places)).combine_chunks()
            if self._rows.late
            else self._rows.events
        )
        keyed = VectorizedKeyedState(spec, events, self._work.report, timers=function.uses_timers)
        operator = VectorizedOperator(
            function,
            info=self._work.info,
            context=self._context,
            columns=spec.outputs[0].kind.columns,
            stored=keyed,
            end_ms=MAX_TIMESTAMP if clocks.drain else clocks.end_watermark_ms,
            dead_letters=spec.dead_letters,
            side_outputs={o.name: o.tag for o in spec.outputs if o.tag is not None},
            changing=spec.has_kinds,
            resumption=self.resumption(),
        )
        operator.open()
        self._work.report.asked_in_open = sorted(operator.asked)
        self.notify_completed(operator.function)
        self._work.lap("open")
        try:
            if len(keyed.keys.hashes):
                batch = vectorized_rows(events, keyed.keys, spec)
                self._work.lap("decode")
                made = operator.process(batch)
                self._take(made, places, out)
            self.divert_late(out)
            self._work.report.asked_late = sorted(operator.asked.difference(self._work.report.asked_in_open))
            snapshot = operator.snapshot()
        finally:
            operator.close()
        self._work.report.metrics = operator.metrics()
        self._work.lap("process")
        with side_by_side() as put:
            self._write_keyed_state(keyed, operator, made, put)
            self.write(out, snapshot, put)
        self._work.lap("write")

    def _take(self, made: VectorizedOutputs, places: np.ndarray[Any, Any], out: ElementOutputs) -> None:
        out.side = {tag: SideOutputs() for tag in made.side}
        parts: list[tuple[ElementOutputs | SideOutputs, ColumnOutputs]] = [(out, made.outputs)]
        parts += [(out.side[tag], of_tag) for tag, of_tag in made.side.items()]
        for part, given in parts:
            part.table, part.kinds, part.times_ms = given.table, given.kinds, given.times_ms
            part.origins = given.origins.among(places) if self._rows.late else given.origins
        out.refused = [replace(r, index=int(places[r.index])) for r in made.refused if r.index is not None]

    def _write_keyed_state(
        self,
        keyed: VectorizedKeyedState,
        operator: VectorizedOperator,
        made: VectorizedOutputs | None,
        put: PutFile,
    ) -> None:
        report = self._work.report
        if self._spec.key_schema is None:  # no row with a key ever came
            return
        changes = [] if made is None else made.changes
        report.states = [keyed.schema(d) for d in operator.descriptors]
        added = {c.descriptor.name: None if c.at_ms is not None else c.added for c in changes}
        report.entries_added = {state.column_name: added.get(state.name, 0) for state in report.states}
        report.changelog = keyed.write(
            changes, subtask=self._work.index, attempt=self._work.attempt_id, put=put
        )
        report.next_timers_ms = keyed.next_timers_ms(None if made is None else made.first_timers_ms)
