"""One subtask of an operator in one micro-batch: what runs inside a Spark task.

Receives its routed rows as Arrow, reads the touched keys' state from the files of the path, runs the function, and
writes changes, operator state, outputs and dead letters as files that no reader sees yet. Only a report of these files
goes back. A row or function that fails is reported, not raised: Spark would only run it again. Plays the part of
Flink's ``StreamTask``.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.core.checkpoints.checkpoint import DataFile
from state_engine.core.errors import CodeVersionError, MemoryLimitError, StatelakeError
from state_engine.core.functions.output_tag import OutputTag
from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.functions.vectorized_functions import (
    PerElement,
    StandsForElements,
    VectorizedKeyedFunction,
    vectorized_form,
)
from state_engine.core.names import stored_name
from state_engine.core.operator.element_kinds import split
from state_engine.core.operator.outputs import ElementRefused, Outputs, Refusal
from state_engine.core.operator.side_outputs import SideOutputWriter
from state_engine.core.operator.stream_operator import StreamOperator
from state_engine.core.operator.vectorized_operator import ChangedColumn, VectorizedOperator
from state_engine.core.operator_state.checkpointed import CheckpointListener
from state_engine.core.operator_state.operator_snapshot import SubtaskSnapshot
from state_engine.core.state.keyed_state import KeyedStateStore
from state_engine.core.state.state_table import KeyContext
from state_engine.core.time.timer_service import TimerService
from state_engine.core.time.timers import TIMERS
from state_engine.core.time.watermarks import MIN_TIMESTAMP
from state_engine.core.types.columns import to_table
from state_engine.core.types.invalid_text import invalid_text
from state_engine.microbatch.routing.blocks import BLOCK, unpacked
from state_engine.microbatch.routing.routed import HASH, KEY_REFUSAL, SUBTASK
from state_engine.microbatch.subtask.order_columns import order_of
from state_engine.microbatch.subtask.output_files import write_exchange_files, write_sink_file
from state_engine.microbatch.subtask.refusals import RefusedRows
from state_engine.microbatch.subtask.subtask_input import (
    Flags,
    among_broadcast,
    broadcast_rows,
    broadcast_values,
    count_sources,
    counted_rows,
    in_total_order,
    keys_of,
    late_tags,
    row_kinds_of,
    timestamps_of,
    values_of,
    watermarks_of,
    with_late,
    with_watermarks,
)
from state_engine.microbatch.subtask.subtask_spec import OutputSpec, SubtaskReport, SubtaskSpec
from state_engine.microbatch.subtask.subtask_state import SubtaskKeyedState
from state_engine.microbatch.subtask.vectorized_state import (
    NO_KEYS,
    VectorizedKeyedState,
    VectorizedKeys,
    vectorized_rows,
)
from state_engine.sources.frames import TIME_REFUSAL
from state_engine.sources.row_kinds import KIND_FIELD, kind_column
from state_engine.spark.execution import ArrowFunction
from state_engine.spark.lost_subtasks import MORE_MEMORY
from state_engine.spark.shipped_code import shipped
from state_engine.spark.task_attempts import TaskAttempt, this_task
from state_engine.state_backends.state_backend import KeyedStateBackend
from state_engine.storage.files import join, side_by_side, write_parquet
from state_engine.storage.layout import file_name, partition_path
from state_engine.storage.state.operator_state_files import read_subtask_state, write_subtask_state

SubtaskFunction = Callable[[pa.Table | None, TaskAttempt], str]
"""Runs one subtask over its routed rows; its report, as JSON."""


def subtask_function(spec: SubtaskSpec) -> SubtaskFunction:
    """What runs each subtask of an operator, with the code that this process has."""
    outputs = [o.kind for o in spec.outputs] + [o.tag for o in spec.outputs]
    inputs = [one.declared for one in spec.routed.inputs]
    sent = shipped(spec, [spec.function, spec.backend, *outputs, *inputs, spec.key_form])

    def run(rows: pa.Table | None, attempt: TaskAttempt) -> str:
        try:
            own = sent.unpacked()
        except CodeVersionError as error:
            return SubtaskReport(attempt.task, error=_described(error)).to_json()
        with _without_gc():
            return Subtask(own, *attempt).run(rows).to_json()

    return run


def in_task(run: SubtaskFunction) -> ArrowFunction:
    """The same as a Spark task over shuffled blocks: the subtask is that of the partition."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = unpacked(block for batch in batches for block in batch[BLOCK].to_pylist())
        yield pa.record_batch({"report": pa.array([run(rows, this_task())])})

    return task


@contextmanager
def _without_gc() -> Iterator[None]:
    """A batch makes millions of tuples and no cycles: collecting costs half of the run."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Subtask:
    """One subtask; see the module docstring."""

    def __init__(self, spec: SubtaskSpec, index: int, attempt_id: int, attempt: int = 0) -> None:
        self.spec, self.index, self.attempt_id, self.attempt = spec, index, attempt_id, attempt
        self.report = SubtaskReport(subtask=index)
        self._refused = RefusedRows(spec, index)
        self._clock = time.perf_counter()
        self._events = self._broadcast = pa.table({})
        self._late: dict[int, OutputTag | None] = {}
        self._of_broadcast: Flags | None = None

    def run(self, table: pa.Table | None) -> SubtaskReport:
        """Do all of it; errors of rows and functions are in the report."""
        try:
            if table is None:
                raise StatelakeError(
                    f"subtask {self.index} got no marker row: Spark planned the shuffle away"
                )
            self._receive(table)
            self._run()
        except ElementRefused as refused:
            self.report.error = self._refused.explain(refused.refusal, self._rows_of(refused.refusal))
        except MemoryError:
            self.report.error = _described(self._without_memory())
        except StatelakeError as error:
            self.report.error = _described(error)
        return self.report

    def _without_memory(self) -> MemoryLimitError:
        report = self.report
        return MemoryLimitError(
            f"operator '{self.spec.uid}', subtask {self.index} had no memory left for its rows and the state of their "
            f"keys ({report.rows_in:,} rows, {report.keys:,} keys). Nothing of this micro-batch was committed. "
            f"{MORE_MEMORY}"
        )

    # -- input -----------------------------------------------------------------------------------------------------

    def _receive(self, table: pa.Table) -> None:
        """Take the rows in total order; checks that they belong here."""
        routed = self.spec.routed
        if pc.any(pc.not_equal(table[SUBTASK], self.index)).as_py():
            raise StatelakeError(f"rows of another subtask reached subtask {self.index}")
        if routed.refused:
            for source, rows in self._refused.add_unparsable(table).items():
                self.report.rows_in += rows
                self.report.rows_by_source[source] = self.report.rows_by_source.get(source, 0) + rows
        rows = table.filter(pc.is_valid(table[HASH])) if table[HASH].null_count else table
        self._lap("receive")
        rows = with_watermarks(in_total_order(rows, routed.whole_order), self.spec)
        self._events, self._broadcast = broadcast_rows(rows, routed)
        self._lap("sort")
        counted = counted_rows(self._events, routed, self.index)
        self.report.rows_in += counted.num_rows
        count_sources(counted, self.spec, self.report)
        if not self.index:  # all subtasks have the same
            self.report.rows_in += self._broadcast.num_rows
            count_sources(self._broadcast, self.spec, self.report)
        of_broadcast = np.ones(self._broadcast.num_rows, bool)
        self._broadcast = self._without_bad_rows(self._broadcast, of_broadcast)
        self._events = self._without_bad_rows(self._events, among_broadcast(self._events, routed))
        if routed.keys:
            self._events = self._without_bad_keys(self._events)
        self._late = late_tags(self._events, self.spec)
        self._of_broadcast = among_broadcast(self._events, routed)

    def _without_bad_rows(self, events: pa.Table, of_broadcast: Flags | None) -> pa.Table:
        """Without the rows that Python could not decode, and those that a strategy could give no event time."""
        columns = {
            c: n for one in self.spec.routed.inputs for c, n in zip(one.columns, one.names, strict=True)
        }
        bad = invalid_text({c: events[c] for c in columns if c in events.column_names})
        errors = {
            i: f"SourceError: the column '{columns[c]}' holds text that is not UTF-8" for i, c in bad.items()
        }
        if TIME_REFUSAL in events.column_names:
            why = events[TIME_REFUSAL].to_pylist()
            errors = {i: text for i, text in enumerate(why) if text is not None} | errors
        if not errors:
            return events
        for index, error in sorted(errors.items()):
            broadcast = of_broadcast is not None and bool(of_broadcast[index])
            refusal = Refusal(index, None, error, "", broadcast=broadcast)
            if not self.spec.dead_letters:
                raise ElementRefused(refusal)
            if not (broadcast and self.index):  # all subtasks have the same
                self._refused.add(refusal, events)
        good = np.ones(events.num_rows, bool)
        good[list(errors)] = False
        return events.filter(pa.array(good)).combine_chunks()

    def _without_bad_keys(self, events: pa.Table) -> pa.Table:
        routed, spec = self.spec.routed, self.spec
        assert spec.key_schema is not None
        if routed.key_refusals:
            why = events[KEY_REFUSAL]
        elif len(routed.keys) == 1 and events[routed.keys[0]].null_count:
            text = f"the key '{spec.key_schema.names[0]}' is null"
            missing = pc.is_null(events[routed.keys[0]])
            of_broadcast = among_broadcast(events, routed)
            if of_broadcast is not None:  # they have no key
                missing = pc.and_(missing, pa.array(~of_broadcast))
            why = pc.if_else(missing, text, pa.scalar(None, pa.string()))
        else:
            return events
        bad = pc.is_valid(why)
        for index in np.flatnonzero(bad.to_numpy(zero_copy_only=False)).tolist():
            refusal = Refusal(index, None, f"InvalidKeyError: {why[index].as_py()}", "")
            if not spec.dead_letters:
                raise ElementRefused(refusal)
            self._refused.add(refusal, events)
        return events.filter(pc.invert(bad)).combine_chunks()

    # -- running ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        spec, clocks = self.spec, self.spec.clocks
        context = KeyContext(
            clock_ms=clocks.clock_ms,
            watermark_ms=None if clocks.watermark_ms == MIN_TIMESTAMP else clocks.watermark_ms,
            has_event_time=spec.routed.event_time,
        )
        context.present = spec.key_form
        if not spec.keyed:
            self._run_function(None, None, context)
            return
        if (vectorized := self._vectorized()) is not None:
            try:
                self._run_vectorized(vectorized, context)
                return
            except PerElement:
                self.report.metrics = {}
        keys = keys_of(self._events, spec, self.report, without=self._without_key())
        keyed = SubtaskKeyedState(spec, self.index, keys)
        keyed.with_due_timers()
        with spec.backend.create_keyed_backend(
            spec.uid, key_groups=keyed.key_groups, context=context, load=keyed.load
        ) as backend:
            self._run_function(keyed, backend, context)

    def _without_key(self) -> set[int]:
        """The rows whose keys, if they have any, are not touched: late ones, and broadcast ones among the others."""
        broadcast = [] if self._of_broadcast is None else np.flatnonzero(self._of_broadcast).tolist()
        return {*self._late, *broadcast}

    def _run_function(
        self, keyed: SubtaskKeyedState | None, backend: KeyedStateBackend | None, context: KeyContext
    ) -> None:
        spec, clocks = self.spec, self.spec.clocks
        values = with_late(values_of(self._events, spec.routed), self._late, spec.routed)
        timestamps = timestamps_of(self._events, spec.routed)
        self._lap("decode")
        operator = self._operator(None if backend is None else backend.store, context)
        out = Outputs()
        operator.open()
        self._tell_completed(operator.function)
        self._lap("open")
        try:
            if self._broadcast.num_rows:
                times = timestamps_of(self._broadcast, spec.routed)
                before = watermarks_of(self._broadcast, spec.routed)
                operator.process_broadcast(
                    broadcast_values(self._broadcast, spec.routed), times, out,
                    watermarks=before, kinds=row_kinds_of(self._broadcast, spec.routed),
                )  # fmt: skip
            keys = None if keyed is None else keyed.keys.of_rows
            before = watermarks_of(self._events, spec.routed)
            diverts, kinds = bool(self._late), row_kinds_of(self._events, spec.routed)
            if self._of_broadcast is None:
                operator.process(
                    keys, values, timestamps, out, watermarks=before, kinds=kinds, diverts=diverts
                )
            else:
                assert before is not None  # both streams have event time
                operator.process_in_order(
                    keys, values, list(timestamps), out, watermarks=before, kinds=kinds, diverts=diverts
                )
            operator.fire_rest(clocks.end_watermark_ms, out, drain=clocks.drain)
            snapshot = operator.snapshot()
        finally:
            operator.close()
        self.report.metrics = operator.metrics()
        self._lap("process")
        with side_by_side():
            if keyed is not None and backend is not None:
                self._write_keyed_state(keyed, backend)
            self._write_operator_state(snapshot)
            self._lap("changelog")
            self._write_outputs(out)
        self._lap("write")

    def _vectorized(self) -> VectorizedKeyedFunction | None:
        """The function over columns to run; None where elements are handled one by one."""
        form = vectorized_form(self.spec.function)
        for_elements = self.spec.backend.spills or not self._events.num_rows
        return None if for_elements and isinstance(form, StandsForElements) else form

    def _run_vectorized(self, function: VectorizedKeyedFunction, context: KeyContext) -> None:
        """Run a function over columns: all rows at once, with the state of their keys."""
        spec, out = self.spec, Outputs()
        places = np.delete(np.arange(self._events.num_rows), list(self._late))
        events = self._events.take(pa.array(places)).combine_chunks() if self._late else self._events
        keys = VectorizedKeys.of(events, spec, self.report) if spec.key_schema and len(events) else NO_KEYS
        keyed = VectorizedKeyedState(spec, self.index, keys)
        restored = self._restored()
        operator = VectorizedOperator(
            function,
            info=self._info(),
            context=context,
            columns=spec.outputs[0].kind.columns,
            load=keyed.load,
            dead_letters=spec.dead_letters,
            restored=restored,
            restored_checkpoint_id=spec.parent_id if restored is not None else None,
            checkpoint_id=spec.checkpoint_id,
        )
        changes: list[ChangedColumn] = []
        operator.open()
        self._tell_completed(operator.function)
        self._lap("open")
        try:
            if events.num_rows:
                batch = vectorized_rows(events, keys, spec)
                self._lap("decode")
                made = operator.process(batch)
                out.table, changes = made.outputs, made.changes
                out.origins = cast(Any, places[made.origins])
                out.refused = [replace(r, index=int(places[r.index])) for r in made.refused]
            self._divert_late(out)
            snapshot = operator.snapshot()
        finally:
            operator.close()
        self.report.metrics = operator.metrics()
        self._lap("process")
        with side_by_side():
            if spec.key_schema is not None:
                self.report.states = [keyed.schema(d) for d in operator.descriptors]
                added = {c.descriptor.name: None if c.at_ms is not None else c.added for c in changes}
                self.report.entries_added = {
                    state.column_name: added.get(state.name, 0) for state in self.report.states
                }
                self.report.changelog = keyed.write(changes, subtask=self.index, attempt=self.attempt_id)
                self.report.next_timers_ms = keyed.next_timers_ms()
            self._write_operator_state(snapshot)
            self._lap("changelog")
            self._write_outputs(out)
        self._lap("write")

    def _divert_late(self, out: Outputs) -> None:
        """Late rows, which pass by the function, to the side outputs that somebody reads."""
        spec = self.spec
        writer = SideOutputWriter(spec.uid, {o.name: o.tag for o in spec.outputs if o.tag is not None})
        rows = sorted(row for row, tag in self._late.items() if tag is not None)
        values = values_of(self._events.take(pa.array(rows, pa.int64())), spec.routed)
        for row, value in zip(rows, values, strict=True):
            tag = self._late[row]
            assert tag is not None
            writer.write((tag, value), row, out)

    def _restored(self) -> SubtaskSnapshot | None:
        """The operator state that the subtask starts with."""
        spec, held = self.spec, self.spec.operator_state
        restored = read_subtask_state(
            held.ref,
            held.files,
            uri=spec.layout.operator_state,
            subtask=self.index,
            parallelism=spec.parallelism,
            max_parallelism=spec.max_parallelism,
            restored=held.restored,
        )
        if restored is None and held.known:
            return SubtaskSnapshot()  # there is keyed state, or none of its own: it continues all the same
        return restored

    def _info(self) -> TaskInfo:
        spec = self.spec
        return TaskInfo(
            spec.uid, self.index, spec.parallelism, spec.max_parallelism, self.attempt, spec.parameters
        )

    def _operator(self, store: KeyedStateStore | None, context: KeyContext) -> StreamOperator:
        spec, clocks, restored = self.spec, self.spec.clocks, self._restored()
        return StreamOperator(
            spec.function,
            info=self._info(),
            store=store,
            context=context,
            timers=TimerService(clocks.clock_ms, clocks.watermark_ms),
            output_type=spec.outputs[0].kind.element,
            dead_letters=spec.dead_letters,
            side_outputs={o.name: o.tag for o in spec.outputs if o.tag is not None},
            changing=spec.outputs[0].changing,
            restored=restored,
            restored_checkpoint_id=spec.parent_id if restored is not None else None,
            checkpoint_id=spec.checkpoint_id,
        )

    def _tell_completed(self, function: Any) -> None:
        """Notify a listener of the checkpoints since its operator ran last, and of that run's."""
        if isinstance(function, CheckpointListener):
            for checkpoint_id in self.spec.operator_state.completed:
                function.notify_checkpoint_complete(checkpoint_id)

    def _rows_of(self, refusal: Refusal) -> pa.Table:
        apart = refusal.broadcast and self.spec.routed.ordered_broadcast is None
        return self._broadcast if apart else self._events

    # -- state -----------------------------------------------------------------------------------------------------

    def _write_keyed_state(self, keyed: SubtaskKeyedState, backend: KeyedStateBackend) -> None:
        if self.spec.key_schema is None:  # no row with a key ever came, so there is no entry either
            return
        tables = backend.store.tables
        self.report.states = [keyed.schema(t.descriptor) for t in tables.values()]
        added = (table.added() for table in tables.values())
        self.report.entries_added = {
            state.column_name: number for state, number in zip(self.report.states, added, strict=True)
        }
        changes = backend.snapshot(self.spec.checkpoint_id).result()
        self.report.changelog = keyed.write(
            changes, subtask=self.index, attempt=self.attempt_id, key_type=self.spec.key_schema.storage
        )
        self.report.next_timers_ms = keyed.next_timers_ms(tables.get(TIMERS))

    def _write_operator_state(self, snapshot: Any) -> None:
        spec = self.spec
        file, self.report.operator_state = write_subtask_state(
            snapshot,
            uri=spec.layout.operator_state,
            operator=spec.uid,
            write_id=spec.write_id,
            subtask=self.index,
            attempt=self.attempt_id,
            parent=spec.operator_state.ref,
        )
        self.report.operator_state_files = [] if file is None else [file]

    # -- output ----------------------------------------------------------------------------------------------------

    def _write_outputs(self, out: Outputs) -> None:
        for output in self.spec.outputs:
            self._write_output(output, out)
        for refusal in out.refused:
            if refusal.broadcast and refusal.index is not None:
                self.report.broadcast_refused.append(self._number_of_broadcast(refusal.index))
                if self.index:  # all subtasks had it: the first keeps its letter
                    continue
            self._refused.add(refusal, self._rows_of(refusal))
        self._write_dead_letters()

    def _number_of_broadcast(self, index: int) -> int:
        """Which of the broadcast elements one is: the same on all subtasks."""
        return index if self._of_broadcast is None else int(np.count_nonzero(self._of_broadcast[:index]))

    def _write_output(self, output: OutputSpec, out: Outputs) -> None:
        part: Any = out if output.tag is None else out.side.get(output.name)
        if output.tag is None:
            self.report.rows_out = len(out.origins)
        if part is None or not len(part.origins) or not (output.sinks or output.exchange):
            return
        spec, kind = self.spec, output.kind
        kinds, values = split(part.values) if output.changing else (None, part.values)
        whole = out.table if output.tag is None else None
        table = to_table(values, kind.columns, scalar=kind.scalar) if whole is None else whole
        for sink in output.sinks:
            name = sink.file_name(spec.write_id, self.index, self.attempt_id)
            rows = table if kinds is None else table.append_column(KIND_FIELD, kind_column(kinds))
            self.report.sinks[sink.name] = [write_sink_file(rows, sink, name, self.index)]
        if not output.exchange:
            return
        order = self._order_of(part.origins, merged=output.merged)
        # a file that shows rows' attempts, or their kinds, has a column that the chained step must not see
        names = (spec.uid, output.name)
        plain = (s for s in output.sinks if s.format == "parquet" and s.lineage is None and kinds is None)
        shared = next(plain, None)
        written = None
        if shared is not None:
            file = self.report.sinks[shared.name][0]
            written = replace(file, path=join(shared.uri, file.path))
        self.report.exchange[output.name] = write_exchange_files(
            table,
            order if kinds is None else order.append_column(KIND_FIELD, kind_column(kinds)),
            directory=join(spec.layout.exchange, spec.write_id),
            name="-".join([*(stored_name(n, longest=62) for n in names if n), self._file_name()]),
            subtask=self.index,
            written=written,
        )

    def _order_of(self, origins: list[Any], *, merged: bool) -> pa.Table:
        spec, routed = self.spec, self.spec.routed
        return order_of(
            origins,
            self._events,
            self._broadcast,
            order=routed.order,
            event_time=routed.event_time,
            timed_order=routed.timed_order,
            clocks=spec.clocks,
            merged=merged,
            operator=spec.uid,
        )

    def _write_dead_letters(self) -> None:
        self.report.rows_refused = len(self._refused)
        if not len(self._refused):
            return
        path = partition_path(self.spec.write_id, self._file_name())
        table = self._refused.table()
        file = write_parquet(table, join(self.spec.layout.dead_letters, path))
        self.report.dead_letters = [
            DataFile(path, file.bytes, table.num_rows, self.index, footer=file.footer)
        ]

    def _file_name(self) -> str:
        return file_name(self.spec.write_id, self.index, self.attempt_id)

    def _lap(self, name: str) -> None:
        now = time.perf_counter()
        self.report.seconds[name] = self.report.seconds.get(name, 0.0) + round(now - self._clock, 4)
        self._clock = now


def _described(error: StatelakeError) -> dict[str, str | None]:
    return {"class": type(error).__name__, "message": str(error)}
