"""``ColumnRun``: a function that is called once with the columns of all rows, and of the state of their keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from state_engine.core.functions.vectorized_functions import VectorizedKeyedFunction
from state_engine.core.operator.outputs import ElementOutputs
from state_engine.core.operator.side_outputs import SideOutputWriter
from state_engine.core.operator.vectorized_operator import ChangedColumn, VectorizedOperator
from state_engine.microbatch.subtask.function_run import FunctionRun
from state_engine.microbatch.subtask.subtask_input import values_of
from state_engine.microbatch.subtask.vectorized_state import (
    NO_KEYS,
    VectorizedKeyedState,
    VectorizedKeys,
    vectorized_rows,
)
from state_engine.storage.stores.files import PutFile, side_by_side


class ColumnRun(FunctionRun):
    """All rows in one call, in total order; late ones pass by."""

    def run(self, function: VectorizedKeyedFunction) -> None:
        """Run the function with all rows at once, and the state of their keys.

        Raises:
            PerElement: the function can only be run for each element; nothing was written.
        """
        spec, out = self._spec, ElementOutputs()
        places = np.delete(np.arange(self._rows.events.num_rows), list(self._rows.late))
        events = (
            self._rows.events.take(pa.array(places)).combine_chunks()
            if self._rows.late
            else self._rows.events
        )
        keys = (
            VectorizedKeys.of(events, spec, self._work.report) if spec.key_schema and len(events) else NO_KEYS
        )
        keyed = VectorizedKeyedState(spec, self._work.index, keys)
        operator = VectorizedOperator(
            function,
            info=self._work.info,
            context=self._context,
            columns=spec.outputs[0].kind.columns,
            load=keyed.load,
            dead_letters=spec.dead_letters,
            resumption=self.resumption(),
        )
        changes: list[ChangedColumn] = []
        operator.open()
        self._work.report.asked_in_open = sorted(operator.asked)
        self.notify_completed(operator.function)
        self._work.lap("open")
        try:
            if events.num_rows:
                batch = vectorized_rows(events, keys, spec)
                self._work.lap("decode")
                made = operator.process(batch)
                out.table, changes = made.outputs, made.changes
                out.origins = cast(Any, places[made.origins])
                out.refused = [replace(r, index=int(places[r.index])) for r in made.refused]
            self._divert_late(out)
            self._work.report.asked_late = sorted(operator.asked.difference(self._work.report.asked_in_open))
            snapshot = operator.snapshot()
        finally:
            operator.close()
        self._work.report.metrics = operator.metrics()
        self._work.lap("process")
        with side_by_side() as put:
            self._write_keyed_state(keyed, operator, changes, put)
            self.write(out, snapshot, put)
        self._work.lap("write")

    def _write_keyed_state(
        self,
        keyed: VectorizedKeyedState,
        operator: VectorizedOperator,
        changes: list[ChangedColumn],
        put: PutFile,
    ) -> None:
        report = self._work.report
        if self._spec.key_schema is None:  # no row with a key ever came
            return
        report.states = [keyed.schema(d) for d in operator.descriptors]
        added = {c.descriptor.name: None if c.at_ms is not None else c.added for c in changes}
        report.entries_added = {state.column_name: added.get(state.name, 0) for state in report.states}
        report.changelog = keyed.write(
            changes, subtask=self._work.index, attempt=self._work.attempt_id, put=put
        )
        report.next_timers_ms = keyed.next_timers_ms()

    def _divert_late(self, out: ElementOutputs) -> None:
        """Late rows, which pass by the function, to the side outputs that somebody reads."""
        spec = self._spec
        writer = SideOutputWriter(spec.uid, {o.name: o.tag for o in spec.outputs if o.tag is not None})
        rows = sorted(row for row, tag in self._rows.late.items() if tag is not None)
        values = values_of(self._rows.events.take(pa.array(rows, pa.int64())), spec.routed)
        for row, value in zip(rows, values, strict=True):
            tag = self._rows.late[row]
            assert tag is not None
            writer.write(tag, value, row, out)
