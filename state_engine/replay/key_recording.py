"""What is recorded of one key of one operator: the input of a micro-batch, states at the end of a path, outputs.

    input    slices are read from the sources again; the operators before this one run again, in a directory of their
             own; then the rows of the key stay, in the order and with the watermarks that they had among all
    states   the entries of the key, with the files of its key group, in the form that today's function declares
    outputs  rows that the key's subtask staged for sinks straight behind the operator

Neither Spark nor Java is needed where sources can be read without; else the session is asked for.
"""

from __future__ import annotations

import copy
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from state_engine.core.checkpoints.checkpoint import CheckpointRow, StagedSink
from state_engine.core.checkpoints.history import History
from state_engine.core.checkpoints.resumption import earlier_states
from state_engine.core.checkpoints.state_files import operator_state_files
from state_engine.core.errors import ConfigurationError
from state_engine.core.harness.key_run import KeyBatch, KeyElement
from state_engine.core.harness.subtask_elements import HarnessOperator
from state_engine.core.keys.key_arrays import canonical_array, hash_columns, key_groups_of
from state_engine.core.keys.key_groups import subtask_for_key_group
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.operator.outputs import ElementRefused
from state_engine.core.operator_state.operator_snapshot import SubtaskSnapshot
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.memory_state import MemoryState
from state_engine.core.state.state_table import KeyContext
from state_engine.core.state.stored_states import StoredStates
from state_engine.core.types.columns import from_bytes, in_one_chunk, one_chunk, to_bytes
from state_engine.core.types.every_type import StructType
from state_engine.core.types.row import RowKind
from state_engine.core.types.type_parsing import arrow_type
from state_engine.job.graph import OperatorNode, SourceNode, declared_columns, type_in_code, upstream
from state_engine.job.job import StatefulJob
from state_engine.microbatch.attempt import batch_after, rescaled_path
from state_engine.microbatch.attempt_outputs import AttemptSinks
from state_engine.microbatch.batch import BatchContext
from state_engine.microbatch.executor import GraphExecutor
from state_engine.microbatch.planning import InputPlanner, PlannedStep, RecordedInput
from state_engine.microbatch.routing.routed import HASH, INPUT
from state_engine.microbatch.routing.routing import Routed, Router
from state_engine.microbatch.subtask.function_run import FunctionRun
from state_engine.microbatch.subtask.received_rows import ReceivedRows
from state_engine.microbatch.subtask.subtask_input import (
    broadcast_values,
    keys_of,
    row_kinds_of,
    timestamps_of,
    values_of,
    watermarks_of,
)
from state_engine.microbatch.subtask.subtask_spec import OutputSpec, SubtaskSpec
from state_engine.microbatch.subtask.subtask_work import SubtaskWork
from state_engine.publishing.output_reader import OutputReader
from state_engine.replay.replay import was_drained
from state_engine.sources.source_positions import SourcePositions
from state_engine.spark.no_spark import NO_SPARK, NeedsSparkError
from state_engine.spark.tasks import TaskAttempt, attempt_here, run
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.changelog import TouchedState
from state_engine.storage.state.located_files import files_holding, state_files
from state_engine.storage.state.operator_state_files import read_subtask_state
from state_engine.storage.stores.files import normal_uri


@dataclass(frozen=True)
class RecordedKey:
    """A key of an operator.

    Attributes:
        key: as it is stored.
    """

    node: OperatorNode
    schema: KeySchema
    key: Any
    hash: int

    @property
    def uid(self) -> str:
        return self.node.uid


@dataclass(frozen=True)
class RecordedBatch:
    """The input of the key in one micro-batch.

    Attributes:
        path: to the checkpoint before it.
        restored: what the key's subtask had of its own.
        outputs: of the operator.
        inputs: the columns of its inputs; empty where none had a row.
    """

    row: CheckpointRow
    path: Sequence[CheckpointRow]
    operator: HarnessOperator
    batch: KeyBatch
    restored: SubtaskSnapshot | None
    outputs: list[OutputSpec]
    inputs: list[StructType]


def keyed_like(
    key: Any, schemas: Mapping[str, KeySchema], only: str | None, *, job: str, known: str
) -> dict[str, KeySchema]:
    """The operators, of all or of one, whose keys have as many columns as a key, or those that it names.

    Args:
        known: what the operators are, for the message.

    Raises:
        ConfigurationError: there is none.
    """
    columns = set(key) if isinstance(key, Mapping) else None
    width = len(key) if isinstance(key, tuple) else 1
    fitting = {
        uid: one
        for uid, one in schemas.items()
        if only in (None, uid) and (len(one.names) == width if columns is None else set(one.names) == columns)
    }
    if not fitting:
        names = {uid: list(one.names) for uid, one in schemas.items()}
        raise ConfigurationError(
            f"job '{job}': {only or 'no operator'} is {'not ' if only else ''}keyed like {key!r}; {known}: {names}"
        )
    return fitting


class StoredKey:
    """The keyed states of a key at the end of a path."""

    def __init__(self, layout: JobLayout, path: Sequence[CheckpointRow], key: RecordedKey) -> None:
        self._layout, self._path, self._key = layout, path, key
        self._recorded = path[-1].operator(key.uid) if path else None
        schemas = {s.name: s for s in self._recorded.states} if self._recorded else {}
        dropped = key.node.dropped_states
        self._states = StoredStates(key.uid, schemas, earlier_states(key.uid, path), dropped=dropped)

    def load(self, descriptor: StateDescriptor) -> dict[Any, Any]:
        """The entries of a state, by key; empty where the key has none. Raises MissingFilesError."""
        stored = self._states.of(descriptor)
        if stored.read is None:
            return {}
        entries = self._touched.load(stored.descriptor, stored.read)
        return {key: held for key, held in entries.items() if key == self._key.key}

    @cached_property
    def _touched(self) -> TouchedState:
        assert self._recorded is not None
        hashes = np.array([self._key.hash], np.int64)
        files = state_files(self._layout, self._path, self._key.uid)
        recorded = KeySchema.recorded(self._recorded.key_schema, self._recorded.key_type)
        held = files_holding(files, hashes, self._recorded.max_parallelism)
        return TouchedState(held, hashes, recorded)


@dataclass
class KeyState(MemoryState):
    """The state of a key in memory, read when a function asks for it.

    Attributes:
        first: what was read, by state; copies of this state have it in common.
    """

    stored: StoredKey | None = None
    first: dict[str, dict[Any, Any]] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict[int, Any]) -> KeyState:
        return KeyState(copy.deepcopy(self.entries, memo), dict(self.descriptors), self.stored, self.first)

    def load(self, descriptor: StateDescriptor, keys: Any, *, operator: str) -> dict[Any, Any]:
        if self.stored is not None and descriptor.name not in self.descriptors:
            self.entries[descriptor.name] = self.stored.load(descriptor)
            self.first[descriptor.name] = copy.deepcopy(self.entries[descriptor.name])
            self.descriptors[descriptor.name] = descriptor
        return super().load(descriptor, keys, operator=operator)


class _NoSinks(AttemptSinks):
    """Of operators that run again for their outputs to the next one alone."""

    def __init__(self) -> None:
        self.write_id, self.targets, self.files, self.dead_letters = SCRATCH_WRITE_ID, {}, {}, []


SCRATCH_WRITE_ID = "00000000T000000-debug"
"""Of files in a directory of their own, which no checkpoint lists."""


@dataclass
class KeyRecorder:
    """Reads what is recorded of keys of one job.

    Args:
        session: gives a session with Spark.
        parameters: of the job, which are not recorded.

    Attributes:
        with_spark: whether an input was read with Spark.
    """

    job: StatefulJob
    layout: JobLayout
    history: History
    session: Callable[[], SparkSession]
    parameters: Mapping[str, str]
    with_spark: bool = field(default=False, init=False)

    def batch(self, path: Sequence[CheckpointRow], key: RecordedKey) -> RecordedBatch | None:
        """The input of a key in the micro-batch at the end of a path; None where its operator did not run.

        Raises:
            StatelakeError: a slice is gone or cannot be read, or a file of state is gone.
        """
        with TemporaryDirectory(prefix="statelake-debug-") as directory:
            scratch = JobLayout(normal_uri(directory), self.layout.job)
            if not self.with_spark:
                try:
                    return self._batch(NO_SPARK, path, key, scratch)
                except (NeedsSparkError, PySparkException):
                    self.with_spark = True
            return self._batch(self.session(), path, key, scratch)

    def subtask_state(self, path: Sequence[CheckpointRow], recorded: RecordedBatch) -> SubtaskSnapshot | None:
        """What the key's subtask had of its own at the end of a path."""
        uid, parallelism = recorded.operator.uid, recorded.operator.parallelism
        ref = next((r for r in path[-1].operator_state if r.operator == uid), None)
        files = [] if ref is None else operator_state_files(path, ref)
        return read_subtask_state(
            ref, files, uri=self.layout.operator_state, subtask=recorded.operator.subtask,
            parallelism=parallelism, max_parallelism=recorded.operator.max_parallelism, restored=False,
        )  # fmt: skip

    def staged(self, sink: StagedSink, subtask: int) -> pa.Table | None:
        """The rows that a subtask staged for a sink; None where it staged none. Raises StatelakeError."""
        files = [file for file in sink.files if file.subtask == subtask]
        return OutputReader(NO_SPARK, self.layout).table(sink, files) if files else None

    def _batch(
        self, spark: SparkSession, path: Sequence[CheckpointRow], key: RecordedKey, scratch: JobLayout
    ) -> RecordedBatch | None:
        row, before = path[-1], list(path[:-1])
        job = _up_to(self.job, key.node)
        batch = recorded_batch(
            job, self.history, path, layout=self.layout, spark=spark, parameters=self.parameters
        )
        router = Router(spark, max_parallelism=job.max_parallelism)
        executor = GraphExecutor(spark, job, layout=scratch, reads=self.layout, router=router)
        taken = executor.input_of(key.node, batch, _NoSinks(), partial(_rows_of_key, spark, key))
        if taken is None:
            return None
        spec, table = taken
        return _recorded(row, before, key, spec, table)


def recorded_batch(
    job: StatefulJob,
    history: History,
    path: Sequence[CheckpointRow],
    *,
    layout: JobLayout,
    spark: SparkSession,
    parameters: Mapping[str, str],
) -> BatchContext:
    """What an attempt at the micro-batch at the end of a path would work on again, with the state before it."""
    row, before = path[-1], list(path[:-1])
    step = PlannedStep(RecordedInput([row]), repeats=row, drain=was_drained(history, row))
    positions = SourcePositions(layout.operator_state)
    planner = InputPlanner(
        job, lambda path, now: step, positions=positions, spark=spark, clock=lambda: row.clock_ms
    )
    planned = planner(before)
    assert planned is not None
    batch = batch_after(
        rescaled_path(before, planned),
        planned,
        job,
        write_id=SCRATCH_WRITE_ID,
        checkpoint_id=row.checkpoint_id,
        parameters=parameters,
    )
    recorded = {o.uid: o.parallelism for o in row.operators if o.uid in job.operators}
    return replace(batch, parallelism={**batch.parallelism, **recorded})


def _up_to(job: StatefulJob, operator: OperatorNode) -> StatefulJob:
    """A job that ends with an operator, whose outputs nobody takes."""
    needed = {id(node) for node in upstream(operator)}
    part = copy.copy(job)
    part.sinks = {}
    part.operators = {uid: node for uid, node in job.operators.items() if id(node) in needed}
    part.sources = {
        name: node
        for name, node in job.sources.items()
        if isinstance(node, SourceNode) and id(node) in needed
    }
    return part


def subtask_of(key: RecordedKey, spec: SubtaskSpec) -> int:
    (group,) = key_groups_of(np.array([key.hash], np.int64), spec.max_parallelism).tolist()
    return subtask_for_key_group(spec.max_parallelism, spec.parallelism, group)


def _rows_of_key(
    spark: SparkSession, key: RecordedKey, routed: Routed, spec: SubtaskSpec
) -> tuple[SubtaskSpec, pa.Table]:
    own, everywhere = subtask_of(key, spec), _everywhere(spec)
    take = partial(_taken, own, key.hash, everywhere)
    label = f"{spec.layout.job}: input of one key of operator '{spec.uid}'"
    reports = run(spark, routed.rows, take, label=label, prefix=f"job '{spec.layout.job}': ")
    (rows,) = [from_bytes(b64decode(r["rows"])) for r in reports if r["rows"]]
    return spec, in_one_chunk(rows)


def _everywhere(spec: SubtaskSpec) -> list[int]:
    inputs = enumerate(spec.routed.inputs)
    return [place for place, one in inputs if one.broadcast or one.ordered or one.everywhere]


def _taken(
    subtask: int, key_hash: int, everywhere: Sequence[int], rows: pa.Table | None, attempt: TaskAttempt
) -> dict[str, str]:
    if rows is None or attempt.task != subtask:
        return {"rows": ""}
    of_key = pc.fill_null(pc.equal(rows[HASH], key_hash), False)
    if INPUT in rows.column_names and everywhere:
        of_all = pc.is_in(rows[INPUT], pa.array(everywhere, pa.int32()))
        of_key = pc.or_(pc.and_(of_key, pc.invert(of_all)), of_all)
    return {"rows": b64encode(to_bytes(rows.filter(of_key))).decode()}


def _recorded(
    row: CheckpointRow,
    path: Sequence[CheckpointRow],
    key: RecordedKey,
    spec: SubtaskSpec,
    table: pa.Table,
) -> RecordedBatch:
    work = SubtaskWork(spec, subtask_of(key, spec), attempt_here(0).attempt_id, 0)
    rows = ReceivedRows(work)
    try:
        rows.receive(table)
    except ElementRefused as refused:
        of_refused = rows.that_hold(refused.refusal)
        raise work.refused.raised(work.refused.described(refused.refusal, of_refused)) from None
    clocks = spec.clocks
    resumption = FunctionRun(work, rows, KeyContext()).resumption()
    batch = KeyBatch(
        elements=_elements(key, spec, work, rows),
        broadcast=_broadcast(spec, rows),
        checkpoint_id=row.checkpoint_id,
        clock_ms=clocks.clock_ms,
        watermark_ms=clocks.watermark_ms,
        end_watermark_ms=clocks.end_watermark_ms,
        checkpoint_watermark_ms=clocks.checkpoint_watermark_ms,
        drain=clocks.drain,
        parent_id=resumption.parent_id,
    )
    operator = _operator(key, spec, rows)
    inputs = [_columns_of_input(place, spec, rows) for place in range(len(spec.routed.inputs))]
    return RecordedBatch(row, path, operator, batch, resumption.restored, spec.outputs, inputs)


def _operator(key: RecordedKey, spec: SubtaskSpec, rows: ReceivedRows) -> HarnessOperator:
    node = key.node
    ordered = any(one.ordered for one in node.inputs)
    return HarnessOperator(
        uid=spec.uid,
        function=spec.function,
        output_type=spec.outputs[0].kind.element,
        input_type=_input_columns(node, spec, rows),
        key_type=StructType(list(key.schema.names), list(key.schema.kinds)),
        key_form=spec.key_form,
        side_outputs={one.name: one.tag for one in spec.outputs if one.tag is not None},
        has_event_time=spec.routed.event_time,
        two_inputs=not ordered and sum(not one.broadcast for one in node.inputs) > 1,
        ordered=ordered,
        changing=spec.routed.changing,
        emits_changes=spec.has_kinds,
        dead_letters=spec.dead_letters,
        subtask=subtask_of(key, spec),
        parallelism=spec.parallelism,
        max_parallelism=spec.max_parallelism,
        parameters=spec.parameters,
    )


def _input_columns(node: OperatorNode, spec: SubtaskSpec, rows: ReceivedRows) -> StructType:
    """The columns of the first input, for functions over columns."""
    declared = spec.routed.inputs[0].declared if spec.routed.inputs else None
    declared = declared or declared_columns(node.inputs[0].parent, type_in_code)
    if declared is not None:
        return declared
    return _columns_of_input(0, spec, rows) if spec.routed.inputs else StructType([], [])


def _columns_of_input(place: int, spec: SubtaskSpec, rows: ReceivedRows) -> StructType:
    """The columns of an input, as declared or of its rows; none without either."""
    one = spec.routed.inputs[place]
    table = rows.broadcast if place == spec.routed.broadcast else rows.events
    if one.declared is not None:
        return one.declared
    if not set(one.columns) <= set(table.column_names):
        return StructType([], [])
    types = [arrow_type(table.schema.field(name).type) for name in one.columns]
    return StructType(list(one.names), types)


def _elements(key: RecordedKey, spec: SubtaskSpec, work: SubtaskWork, rows: ReceivedRows) -> list[KeyElement]:
    events, routed = rows.events, spec.routed
    keys = keys_of(events, spec, work.report, without=rows.without_key).of_rows
    values = values_of(events, routed)
    before = watermarks_of(events, routed) or [spec.clocks.watermark_ms] * len(values)
    kinds = row_kinds_of(events, routed) or [RowKind.INSERT] * len(values)
    paired = len(routed.inputs) - (routed.broadcast is not None) > 1
    given = []
    apart = rows.without_key
    for index, (value, timestamp, watermark, kind) in enumerate(
        zip(values, timestamps_of(events, routed), before, kinds, strict=True)
    ):
        if index not in apart and keys[index] != key.key:
            continue  # another key with the same hash
        place, plain = value if paired else (0, value)
        late, tag = index in rows.late, rows.late.get(index)
        late_to = None if tag is None else tag.tag_id
        given.append(KeyElement(plain, timestamp, watermark, place + 1, kind, late, late_to))
    return given


def _broadcast(spec: SubtaskSpec, rows: ReceivedRows) -> list[KeyElement]:
    table, routed = rows.broadcast, spec.routed
    if not table.num_rows:
        return []
    values = broadcast_values(table, routed)
    before = watermarks_of(table, routed) or [spec.clocks.watermark_ms] * len(values)
    kinds = row_kinds_of(table, routed) or [RowKind.INSERT] * len(values)
    parts = zip(values, timestamps_of(table, routed), before, kinds, strict=True)
    return [KeyElement(value, at, watermark, kind=kind) for value, at, watermark, kind in parts]


def has_key(rows: pa.Table, key: RecordedKey) -> pa.Array | None:
    """Which rows have the values of a key in its columns; None where they have no such columns."""
    if not set(key.schema.names) <= set(rows.column_names):
        return None
    try:
        columns = [
            one_chunk(rows[n]).cast(t) for n, t in zip(key.schema.names, key.schema.types, strict=True)
        ]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return pa.array(hash_columns([canonical_array(column) for column in columns]) == key.hash)
