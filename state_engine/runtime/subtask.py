"""One subtask of an operator in one micro-batch: what runs inside a Spark task.

Receives its routed rows as Arrow, reads the touched keys' state from the files of the path, runs the function, and
writes changes, outputs and dead letters as files that no reader sees yet. Only a report of these files goes back. A
row or function that fails is reported, not raised: Spark would only run it again. Plays the part of Flink's
``StreamTask``.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from state_engine.backends.delta.changelog import TouchedState, changelog_table
from state_engine.backends.delta.layout import file_name, partition_path
from state_engine.backends.files import join, write_parquet
from state_engine.core.checkpoint import DataFile, StateSchema
from state_engine.core.ddl import ddl_text
from state_engine.core.descriptors import StateDescriptor
from state_engine.core.errors import StatelakeError, StateMigrationError
from state_engine.core.functions import MIN_TIMESTAMP, TimerService
from state_engine.core.key_groups import key_group_range
from state_engine.core.keyed_operator import ElementRefused, KeyedProcessOperator, Outputs, Refusal
from state_engine.core.keyed_state import KeyedStateStore
from state_engine.core.row import rows_from_columns
from state_engine.core.runtime_context import TaskInfo
from state_engine.core.state_table import KeyContext
from state_engine.core.type_parsing import arrow_type
from state_engine.runtime.frames import EVENT_TIME
from state_engine.runtime.output_files import order_of, write_exchange_files, write_sink_file
from state_engine.runtime.refusals import RefusedRows
from state_engine.runtime.routing import HASH, KEY_REFUSAL, SUBTASK
from state_engine.runtime.subtask_spec import SubtaskReport, SubtaskSpec


def subtask_runner(spec: SubtaskSpec) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that Spark's ``mapInArrow`` runs once a subtask."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        tables = list(batches)
        subtask = Subtask(spec, context.partitionId(), int(context.taskAttemptId()), context.attemptNumber())
        gc.disable()  # a batch makes millions of tuples and no cycles: collecting costs half of the run
        try:
            report = subtask.run(pa.Table.from_batches(tables) if tables else None)
        finally:
            gc.enable()
        yield pa.record_batch({"report": pa.array([report.to_json()])})

    return run


class Subtask:
    """One subtask; see the module docstring."""

    def __init__(self, spec: SubtaskSpec, index: int, attempt_id: int, attempt: int = 0) -> None:
        self.spec, self.index, self.attempt_id, self.attempt = spec, index, attempt_id, attempt
        self.report = SubtaskReport(subtask=index)
        self._refused = RefusedRows(spec, index)
        self._clock = time.perf_counter()

    def run(self, table: pa.Table | None) -> SubtaskReport:
        """Do all of it; errors of rows and functions are in the report."""
        try:
            if table is None:
                raise StatelakeError(
                    f"subtask {self.index} got no marker row: Spark planned the shuffle away"
                )
            self._run(self._events(table))
        except ElementRefused as refused:
            self.report.error = self._refused.explain(refused.refusal, self._table)
        except StatelakeError as error:
            self.report.error = {"class": type(error).__name__, "message": str(error)}
        return self.report

    def _events(self, table: pa.Table) -> pa.Table:
        """The rows with a key, in total order; checks that they belong here."""
        routed = self.spec.routed
        if pc.any(pc.not_equal(table[SUBTASK], self.index)).as_py():
            raise StatelakeError(f"rows of another subtask reached subtask {self.index}")
        if routed.refused:
            self.report.rows_in += self._refused.add_unparsable(table)
        events = table.filter(pc.is_valid(table[HASH])) if table[HASH].null_count else table
        self._lap("receive")
        events = _sorted(events, routed.order)
        self._lap("sort")
        self.report.rows_in += events.num_rows
        return self._without_bad_keys(events)

    def _run(self, events: pa.Table) -> None:
        spec, routed = self.spec, self.spec.routed
        self._table = events
        key_columns = [_whole(events[c]) for c in routed.keys]
        hashes = events[HASH].to_numpy()
        keys = routed.key_schema.decode(key_columns)
        index_of = dict(zip(keys, range(len(keys)), strict=True))
        touched = hashes[np.fromiter(index_of.values(), np.int64, len(index_of))]
        self._check_groups(hashes)
        self.report.keys = len(index_of)
        values = self._values(events)
        timestamps = self._timestamps(events)
        self._lap("decode")

        context = KeyContext(
            clock_ms=spec.clock_ms,
            watermark_ms=None if spec.watermark_ms == MIN_TIMESTAMP else spec.watermark_ms,
            has_event_time=routed.event_time,
        )
        store = KeyedStateStore(spec.uid, context, self._loader(touched, index_of))
        info = TaskInfo(
            spec.uid, self.index, spec.parallelism, spec.max_parallelism, self.attempt, spec.parameters
        )
        operator = KeyedProcessOperator(
            spec.function,
            info=info,
            store=store,
            context=context,
            timers=TimerService(spec.clock_ms, spec.watermark_ms),
            output_type=spec.output_type.types[0] if spec.scalar else spec.output_type,
            dead_letters=spec.dead_letters,
        )
        out = Outputs()
        operator.open()
        self._lap("open")
        try:
            operator.process(keys, values, timestamps, out)
        finally:
            operator.close()
        self._lap("process")
        self._write_changes(store, index_of, key_columns, hashes)
        self._lap("changelog")
        self._write_outputs(out, events)
        for refusal in out.refused:
            self._refused.add(refusal, events)
        self._write_dead_letters()
        self._lap("write")

    # -- input -----------------------------------------------------------------------------------------------------

    def _values(self, events: pa.Table) -> list[Any]:
        payload = self.spec.routed.payload
        columns = [arrow_type(events.schema.field(c).type).from_arrow(_whole(events[c])) for c in payload]
        return columns[0] if self.spec.routed.scalar else rows_from_columns(payload, columns)

    def _timestamps(self, events: pa.Table) -> Iterable[int | None]:
        if not self.spec.routed.event_time:
            return repeat(None, events.num_rows)
        column = events[EVENT_TIME]
        self.report.max_event_ms = pc.max(column).as_py()
        found: list[int | None] = column.to_pylist()
        return found

    def _check_groups(self, hashes: np.ndarray[Any, Any]) -> None:
        """Every key in its own key group, every key group on its own subtask."""
        spec = self.spec
        own = key_group_range(spec.max_parallelism, spec.parallelism, self.index)
        groups = np.mod(hashes, spec.max_parallelism)
        if len(groups) and (groups.min() < own.start or groups.max() > own.end):
            raise StatelakeError(f"operator '{spec.uid}': subtask {self.index} got keys of another key group")
        present, counts = np.unique(groups, return_counts=True)
        self.report.group_rows = dict(zip(present.tolist(), counts.tolist(), strict=True))

    def _without_bad_keys(self, events: pa.Table) -> pa.Table:
        routed = self.spec.routed
        if routed.key_refusals:
            why = events[KEY_REFUSAL]
        elif len(routed.keys) == 1 and events[routed.keys[0]].null_count:
            text = f"the key '{routed.key_schema.names[0]}' is null"
            why = pc.if_else(pc.is_null(events[routed.keys[0]]), text, pa.scalar(None, pa.string()))
        else:
            return events
        bad = pc.is_valid(why)
        self._table = events
        for index in np.flatnonzero(bad.to_numpy(zero_copy_only=False)).tolist():
            refusal = Refusal(index, None, f"InvalidKeyError: {why[index].as_py()}", "")
            if not self.spec.dead_letters:
                raise ElementRefused(refusal)
            self._refused.add(refusal, events)
        return events.filter(pc.invert(bad)).combine_chunks()

    # -- state -----------------------------------------------------------------------------------------------------

    def _loader(
        self, touched: np.ndarray[Any, Any], index_of: dict[Any, int]
    ) -> Callable[[StateDescriptor], Any]:
        spec = self.spec
        own = key_group_range(spec.max_parallelism, spec.parallelism, self.index)
        files = [
            f.listed for f in spec.state_files if f.key_group_max >= own.start and f.key_group_min <= own.end
        ]
        found: list[TouchedState] = []

        def load(descriptor: StateDescriptor) -> dict[Any, Any]:
            recorded = spec.recorded_states.get(descriptor.name)
            now = state_schema(descriptor)
            if recorded is not None and (recorded.kind, recorded.type) != (now.kind, now.type):
                raise StateMigrationError(
                    f"operator '{spec.uid}': state '{descriptor.name}' is stored as {recorded.kind} of "
                    f"{recorded.type}, the function declares {now.kind} of {now.type}. Restore the old declaration, "
                    "or give the new state another name"
                )
            if recorded is None:
                return {}
            if not found:
                found.append(TouchedState(files, touched, spec.routed.key_schema, index_of.__contains__))
            return found[0].load(descriptor)

        return load

    def _write_changes(
        self,
        store: KeyedStateStore,
        index_of: dict[Any, int],
        key_columns: list[pa.Array],
        hashes: np.ndarray[Any, Any],
    ) -> None:
        spec, key_type = self.spec, self.spec.routed.key_schema.storage
        self.report.states = [state_schema(t.descriptor) for t in store.tables.values()]
        table = changelog_table(
            list(store.changes()),
            key_type=key_type,
            index_of=index_of,
            keys=pa.StructArray.from_arrays(
                [c.cast(f.type) for c, f in zip(key_columns, key_type, strict=True)], fields=list(key_type)
            ),
            hashes=hashes,
            max_parallelism=spec.max_parallelism,
        )
        if table is None:
            return
        path = partition_path(spec.write_id, self._file_name())
        size = write_parquet(table, join(spec.layout.changelog(spec.uid), path))
        groups, file_hashes = table["key_group"].to_numpy(), table["key_hash"].to_numpy()
        self.report.changelog = [
            DataFile(
                path=path,
                bytes=size,
                rows=table.num_rows,
                subtask=self.index,
                key_group_min=int(groups[0]),
                key_group_max=int(groups[-1]),
                key_hash_min=int(file_hashes.min()),
                key_hash_max=int(file_hashes.max()),
            )
        ]

    # -- output ----------------------------------------------------------------------------------------------------

    def _write_outputs(self, out: Outputs, events: pa.Table) -> None:
        spec = self.spec
        self.report.rows_out = len(out.values)
        if not out.values or not (spec.sinks or spec.exchange):
            return
        values = [(v,) for v in out.values] if spec.scalar else out.values
        array = spec.output_type.to_arrow(values, storage=False)
        table = pa.Table.from_arrays(array.flatten(), schema=pa.schema(list(spec.output_type.arrow)))
        for sink in spec.sinks:
            self.report.sinks[sink.name] = [
                write_sink_file(table, sink, self._file_name(sink.format), self.index)
            ]
        if not spec.exchange:
            return
        shared = next((s for s in spec.sinks if s.format == "parquet"), None)
        self.report.exchange = write_exchange_files(
            table,
            order_of(events, out.origins, spec.routed),
            directory=join(spec.layout.exchange, spec.write_id),
            name=f"{spec.uid}-{self._file_name()}",
            subtask=self.index,
            written=join(shared.uri, self.report.sinks[shared.name][0].path) if shared else None,
        )

    def _write_dead_letters(self) -> None:
        self.report.rows_refused = len(self._refused)
        if not len(self._refused):
            return
        path = partition_path(self.spec.write_id, self._file_name())
        table = self._refused.table()
        size = write_parquet(table, join(self.spec.layout.dead_letters, path))
        self.report.dead_letters = [DataFile(path=path, bytes=size, rows=table.num_rows, subtask=self.index)]

    def _file_name(self, suffix: str = "parquet") -> str:
        return file_name(self.spec.write_id, self.index, self.attempt_id, suffix=suffix)

    def _lap(self, name: str) -> None:
        now = time.perf_counter()
        self.report.seconds[name] = self.report.seconds.get(name, 0.0) + round(now - self._clock, 4)
        self._clock = now


def state_schema(descriptor: StateDescriptor) -> StateSchema:
    """How a state is recorded in checkpoints."""
    ttl = descriptor.ttl.to_json() if descriptor.ttl else ""
    return StateSchema(descriptor.name, descriptor.kind, ddl_text(descriptor.column_type), ttl)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _sorted(events: pa.Table, order: tuple[str, ...]) -> pa.Table:
    """Rows in total order, as one chunk; left alone where they are in order already."""
    columns = [events[c] for c in order]
    if all(pa.types.is_integer(c.type) and not c.null_count for c in columns):
        arrays = [c.to_numpy() for c in columns]
        later, tie = np.zeros(max(len(events) - 1, 0), bool), np.ones(max(len(events) - 1, 0), bool)
        for array in arrays:
            later |= tie & (array[1:] > array[:-1])
            tie &= array[1:] == array[:-1]
        if bool((later | tie).all()):
            return events.combine_chunks()
        return events.take(pa.array(np.lexsort(arrays[::-1]))).combine_chunks()
    keys = [(c, "ascending", "at_start") for c in order]
    return events.take(pc.sort_indices(events, sort_keys=keys)).combine_chunks()
