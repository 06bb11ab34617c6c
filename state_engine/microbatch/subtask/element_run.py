"""``ElementRun``: a function that is called for each element, with the state of its key."""

from __future__ import annotations

from state_engine.core.operator.outputs import ElementOutputs
from state_engine.core.operator.stream_operator import StreamOperator
from state_engine.core.state.descriptors import TIMERS
from state_engine.core.state.keyed_state import KeyedStateStore
from state_engine.core.time.timer_service import TimerService
from state_engine.microbatch.subtask.function_run import FunctionRun
from state_engine.microbatch.subtask.subtask_input import (
    broadcast_values,
    keys_of,
    row_kinds_of,
    timestamps_of,
    values_of,
    watermarks_of,
    with_late,
)
from state_engine.microbatch.subtask.subtask_state import SubtaskKeyedState
from state_engine.state_backends.state_backend import KeyedStateBackend
from state_engine.storage.stores.files import PutFile, side_by_side


class ElementRun(FunctionRun):
    """Elements one by one, in total order, then the timers that are due."""

    def run(self) -> None:
        """Run the function, with the state of the keys that the rows and due timers touch.

        Raises:
            ElementRefused: an element failed under ``on_error='fail'``.
        """
        spec = self._spec
        if not spec.keyed:
            self._run(None, None)
            return
        keys = keys_of(self._rows.events, spec, self._work.report, without=self._rows.without_key)
        keyed = SubtaskKeyedState(spec, self._work.index, keys)
        keyed.with_due_timers()
        with spec.backend.create_keyed_backend(
            spec.uid, key_groups=keyed.key_groups, context=self._context, load=keyed.load
        ) as backend:
            self._run(keyed, backend)

    def _run(self, keyed: SubtaskKeyedState | None, backend: KeyedStateBackend | None) -> None:
        spec, clocks = self._spec, self._spec.clocks
        values = with_late(values_of(self._rows.events, spec.routed), self._rows.late, spec.routed)
        timestamps = timestamps_of(self._rows.events, spec.routed)
        self._work.lap("decode")
        operator = self._operator(None if backend is None else backend.store)
        out = ElementOutputs()
        operator.open()
        self._work.report.asked_in_open = sorted(operator.asked)
        self.notify_completed(operator.function)
        self._work.lap("open")
        try:
            if self._rows.broadcast.num_rows:
                times = timestamps_of(self._rows.broadcast, spec.routed)
                before = watermarks_of(self._rows.broadcast, spec.routed)
                operator.process_broadcast(
                    broadcast_values(self._rows.broadcast, spec.routed), times, out,
                    watermarks=before, kinds=row_kinds_of(self._rows.broadcast, spec.routed),
                )  # fmt: skip
            keys = None if keyed is None else keyed.keys.of_rows
            before = watermarks_of(self._rows.events, spec.routed)
            diverts, kinds = bool(self._rows.late), row_kinds_of(self._rows.events, spec.routed)
            if self._rows.of_broadcast is None:
                operator.process(
                    keys, values, timestamps, out, watermarks=before, kinds=kinds, diverts=diverts
                )
            else:
                assert before is not None  # both streams have event time
                operator.process_in_order(
                    keys, values, list(timestamps), out, watermarks=before, kinds=kinds, diverts=diverts
                )
            operator.fire_rest(clocks.end_watermark_ms, out, drain=clocks.drain)
            self._work.report.asked_late = sorted(operator.asked.difference(self._work.report.asked_in_open))
            snapshot = operator.snapshot()
        finally:
            operator.close()
        self._work.report.metrics = operator.metrics()
        self._work.lap("process")
        with side_by_side() as put:
            if keyed is not None and backend is not None:
                self._write_keyed_state(keyed, backend, put)
            self.write(out, snapshot, put)
        self._work.lap("write")

    def _operator(self, store: KeyedStateStore | None) -> StreamOperator:
        spec, clocks = self._spec, self._spec.clocks
        return StreamOperator(
            spec.function,
            info=self._work.info,
            store=store,
            context=self._context,
            timers=TimerService(clocks.clock_ms, clocks.watermark_ms),
            output_type=spec.outputs[0].kind.element,
            dead_letters=spec.dead_letters,
            side_outputs={o.name: o.tag for o in spec.outputs if o.tag is not None},
            changing=spec.has_kinds,
            resumption=self.resumption(),
        )

    def _write_keyed_state(self, keyed: SubtaskKeyedState, backend: KeyedStateBackend, put: PutFile) -> None:
        if self._spec.key_schema is None:  # no row with a key ever came, so there is no entry either
            return
        tables = backend.store.tables
        self._work.report.states = [keyed.schema(t.descriptor) for t in tables.values()]
        added = (table.added() for table in tables.values())
        self._work.report.entries_added = {
            state.column_name: number for state, number in zip(self._work.report.states, added, strict=True)
        }
        changes = backend.snapshot(self._spec.checkpoint_id).result()
        self._work.report.changelog = keyed.write(
            changes,
            subtask=self._work.index,
            attempt=self._work.attempt_id,
            key_type=self._spec.key_schema.storage,
            put=put,
        )
        self._work.report.next_timers_ms = keyed.next_timers_ms(tables.get(TIMERS))
