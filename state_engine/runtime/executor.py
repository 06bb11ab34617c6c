"""Runs the graph of a job over one batch: reads slices, chains operators, writes sinks. Steps 2 to 4 of a micro-batch.

One Spark job per operator. A chained operator reads the files that its predecessor wrote in this attempt; a sink on
an operator's stream gets its files from the operator's own subtasks; a sink behind DataFrame code, or on a stateless
stream, takes one more job that writes and shuffles nothing. Nothing is visible to readers afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType as SparkStruct

from state_engine.backends.delta.layout import JobLayout, file_name
from state_engine.backends.delta.operator_state_files import files_of
from state_engine.core import errors
from state_engine.core.checkpoint import DataFile, OperatorStateRef, StateSchema
from state_engine.core.errors import StatelakeError, StateMigrationError, UserFunctionError
from state_engine.core.function import Function
from state_engine.core.key_schema import KeySchema
from state_engine.core.resumption import completed_since_last_run, restored_since_last_run
from state_engine.core.spark_types import spark_schema
from state_engine.core.type_parsing import to_type
from state_engine.core.types import StructType
from state_engine.runtime.batch import BatchContext
from state_engine.runtime.execution import execution
from state_engine.runtime.frames import EVENT_TIME, StreamFrame, from_source, order_name, united
from state_engine.runtime.graph import (
    Node,
    OperatorNode,
    SideOutputNode,
    SinkNode,
    SourceNode,
    TransformNode,
    UnionNode,
    is_scalar,
    parents,
    upstream,
)
from state_engine.runtime.job import StatefulJob
from state_engine.runtime.output_files import exchange_reader, order_fields, write_sink_file
from state_engine.runtime.output_type import OutputType
from state_engine.runtime.reports import OperatorReport
from state_engine.runtime.routing import RoutedInput, RoutedLayout, Router
from state_engine.runtime.run_always import runs_without_input
from state_engine.runtime.sinks.base import SinkTarget
from state_engine.runtime.sources.failures import reading
from state_engine.runtime.state_files import state_files
from state_engine.runtime.subtask import subtask_runner
from state_engine.runtime.subtask_spec import (
    REPORT_SCHEMA,
    OutputSpec,
    RestoredOperatorState,
    SubtaskReport,
    SubtaskSpec,
)
from state_engine.runtime.typed_by_input import TypedByInput
from state_engine.runtime.watermarks import Watermarks

Frames = dict[int, StreamFrame | None]
PrepareSink = Callable[[SinkNode, pa.Schema, str], SinkTarget]


@dataclass
class Execution:
    """What the subtasks of all operators wrote."""

    operators: dict[str, OperatorReport] = field(default_factory=dict)
    key_schemas: dict[str, KeySchema] = field(default_factory=dict)
    states: dict[str, list[StateSchema]] = field(default_factory=dict)
    sinks: dict[str, list[DataFile]] = field(default_factory=dict)
    targets: dict[str, SinkTarget] = field(default_factory=dict)
    dead_letters: list[DataFile] = field(default_factory=list)
    rows_by_source: dict[str, int] = field(default_factory=dict)
    max_event_ms: dict[str, int] = field(default_factory=dict)
    refused: int = 0


class GraphExecutor:
    """Runs one batch of one job.

    Args:
        spark: session.
        job: graph.
        layout: where tables are.
        router: routes rows; may serve several runs.
        prepare_sink: makes sure that a sink can take columns, and says where its files go.
    """

    def __init__(
        self,
        spark: SparkSession,
        job: StatefulJob,
        *,
        layout: JobLayout,
        router: Router,
        prepare_sink: PrepareSink,
    ) -> None:
        self._spark, self._job, self._layout, self._prepare_sink = spark, job, layout, prepare_sink
        self._router = router

    def execute(self, batch: BatchContext) -> Execution:
        """Run all operators, then the sinks that need a job of their own.

        Raises:
            UserFunctionError: a row or function failed under ``on_error='fail'``.
            StatelakeError: the job, the state or a source is not right.
        """
        done, frames = Execution(), Frames()
        for operator in self._job.operators.values():
            self._run_operator(operator, batch, done, frames)
        for sink in self._job.sinks.values():
            if not isinstance(sink.parent, OperatorNode | SideOutputNode):
                self._write_sink(sink, batch, done, frames)
        return done

    # -- streams ---------------------------------------------------------------------------------------------------

    def _frame(self, node: Node, batch: BatchContext, frames: Frames) -> StreamFrame | None:
        """The rows of a stream in this batch; None where there is nothing new."""
        if id(node) not in frames:
            found: StreamFrame | None = None
            if isinstance(node, SourceNode):
                found = self._read_source(node, batch)
            elif isinstance(node, TransformNode):
                parent = self._frame(node.parent, batch, frames)
                found = parent.transformed(node) if parent is not None else None
            elif isinstance(node, UnionNode):
                parts = [f for p in node.parents if (f := self._frame(p, batch, frames)) is not None]
                found = united(parts) if parts else None
            frames[id(node)] = found
        return frames[id(node)]

    def _read_source(self, node: SourceNode, batch: BatchContext) -> StreamFrame | None:
        part = batch.slices.get(node.name)
        if part is None:
            return None
        read = node.source.read(self._spark, part, keep_refused=self._job.on_error == "dead_letter")
        return from_source(
            read.rows, order_by=node.order_by, event_time=node.event_time, source=node.name,
            labels=tuple(part.labels), refused=read.refused,
        )  # fmt: skip

    # -- operators -------------------------------------------------------------------------------------------------

    def _run_operator(
        self, operator: OperatorNode, batch: BatchContext, done: Execution, frames: Frames
    ) -> None:
        job, uid, parallelism = self._job, operator.uid, self._job.parallelism_of(operator)
        inputs = []
        for place, one in enumerate(operator.inputs):
            frame = self._frame(one.parent, batch, frames)
            if frame is not None:
                # only the first reader of a source sets its bad rows aside
                fresh = tuple(r for r in frame.refused if r[0] not in done.rows_by_source)
                inputs.append(RoutedInput(place, replace(frame, refused=fresh), is_scalar(one.parent)))
        watermarks = Watermarks(job, operator, batch, done.max_event_ms)
        if not inputs and not runs_without_input(operator, batch, watermarks.end()):
            return
        into = f"operator '{uid}'"
        watermarks.look_ahead([one.frame for one in inputs], self._labelled(batch, into))
        layout: RoutedLayout | None = None
        if inputs:
            routed, layout = self._router.route(inputs, operator, parallelism=parallelism)
        else:
            routed = self._router.markers(parallelism)
        key_schema = self._key_schema(operator, layout, batch)
        if key_schema is not None:
            done.key_schemas[uid] = key_schema
        recorded = batch.parent.operator(uid) if batch.parent else None
        outputs = self._outputs(operator, inputs, batch, done)
        sources = dict(one for i in inputs for one in i.frame.labels)
        spec = SubtaskSpec(
            layout=self._layout,
            write_id=batch.write_id,
            uid=uid,
            parallelism=parallelism,
            max_parallelism=job.max_parallelism,
            function=_function(operator, outputs),
            routed=layout,
            keyed=operator.keyed,
            key_schema=key_schema,
            outputs=outputs,
            state_files=state_files(self._layout, batch.path, uid),
            recorded_states={s.name: s for s in recorded.states} if recorded else {},
            operator_state=_restored_state(uid, batch, known=recorded is not None),
            dead_letters=job.on_error == "dead_letter",
            clocks=watermarks.clocks(),
            checkpoint_id=batch.checkpoint_id,
            parent_id=batch.parent.checkpoint_id if batch.parent else None,
            labels=sources,
            source=inputs[0].frame.source if len(inputs) == 1 else None,
            parameters=dict(batch.parameters),
            backend=job.state_backend,
        )
        reports = self._run_subtasks(routed, spec, batch)
        self._collect(operator, reports, done)
        self._output_frames(operator, layout, outputs, reports, frames)

    def _outputs(
        self, operator: OperatorNode, inputs: Sequence[RoutedInput], batch: BatchContext, done: Execution
    ) -> list[OutputSpec]:
        """The main output and the side outputs, with the sinks that take them as they are."""
        tags = [None, *operator.side_outputs.values()]
        found = []
        for tag in tags:
            kind = _output_type(operator, inputs) if tag is None else OutputType.of(tag.type_info)
            sinks = [s for s in self._job.sinks.values() if _is_output(s.parent, operator, tag)]
            schema = pa.schema(list(kind.columns.arrow))
            for sink in sinks:
                done.targets[sink.name] = self._prepare_sink(sink, schema, batch.write_id)
            found.append(
                OutputSpec(tag, kind, [done.targets[s.name] for s in sinks], self._is_read(operator, tag))
            )
        return found

    def _run_subtasks(self, routed: DataFrame, spec: SubtaskSpec, batch: BatchContext) -> list[SubtaskReport]:
        label = f"{self._job.name}: checkpoint {batch.checkpoint_id}, operator {spec.uid}"
        into = f"operator '{spec.uid}'"
        with execution(self._spark, label), reading(spec.source, job=self._job.name, into=into):
            rows = routed.mapInArrow(subtask_runner(spec), REPORT_SCHEMA).collect()
        reports = sorted((SubtaskReport.from_json(r["report"]) for r in rows), key=lambda r: r.subtask)
        for report in reports:
            if report.error is not None:
                raise self._error(spec.uid, report.error)
        if [r.subtask for r in reports] != list(range(spec.parallelism)):
            raise StatelakeError(
                f"operator '{spec.uid}': {spec.parallelism} subtasks were planned, {[r.subtask for r in reports]} "
                "reported; nothing was committed, run again"
            )
        return reports

    def _labelled(self, batch: BatchContext, into: str) -> Callable[[DataFrame], list[object]]:
        """Collects a small frame with the engine's options, and with errors that name the source."""

        def collect(rows: DataFrame) -> list[object]:
            label = f"{self._job.name}: checkpoint {batch.checkpoint_id}, watermark for {into}"
            with execution(self._spark, label), reading(None, job=self._job.name, into=into):
                return list(rows.collect())

        return collect

    def _error(self, uid: str, error: dict[str, str | None]) -> StatelakeError:
        if error["class"] == "UserFunctionError":
            row = f" (row {error['row']})" if error.get("row") else ""
            return UserFunctionError(
                job=self._job.name, operator=uid, cause=f"{error['cause']}{row}", key=error["key"],
                position=error["position"], traceback_text=error["traceback"] or "",
            )  # fmt: skip
        kind = getattr(errors, str(error["class"]), StatelakeError)
        made: StatelakeError = kind(f"job '{self._job.name}': {error['message']}")
        return made

    def _key_schema(
        self, operator: OperatorNode, layout: RoutedLayout | None, batch: BatchContext
    ) -> KeySchema | None:
        """Of the key: from the rows, or where none came, as recorded; raises StateMigrationError."""
        recorded = batch.parent.operator(operator.uid) if batch.parent else None
        found = layout.key_schema if layout is not None else None
        if recorded is None:
            return found
        where = f"job '{self._job.name}', operator '{operator.uid}'"
        if found is not None and recorded.key_schema != str(found):
            raise StateMigrationError(
                f"{where}: its state is stored by key {recorded.key_schema}, the job keys by {found}. "
                "Restore the old key_by, or give the operator another uid to start empty"
            )
        if recorded.max_parallelism != self._job.max_parallelism:
            raise StateMigrationError(
                f"{where}: its state has {recorded.max_parallelism} key groups, the job declares "
                f"max_parallelism={self._job.max_parallelism}. Declare the old number"
            )
        return KeySchema.declared(recorded.key_type) if found is None and recorded.key_type else found

    def _collect(self, operator: OperatorNode, reports: list[SubtaskReport], done: Execution) -> None:
        report = done.operators[operator.uid] = OperatorReport.of(operator.uid, reports)
        declared = {s.name: s for one in reports for s in one.states}
        done.states[operator.uid] = list(declared.values())
        rows: dict[str, int] = {}
        for one in reports:
            for name, files in one.sinks.items():
                done.sinks.setdefault(name, []).extend(files)
            done.dead_letters.extend(one.dead_letters)
            for source, count in one.rows_by_source.items():
                rows[source] = rows.get(source, 0) + count
            for source, newest in one.max_event_ms.items():
                done.max_event_ms[source] = max(newest, done.max_event_ms.get(source, newest))
        done.refused += report.rows_refused
        for source, count in rows.items():
            done.rows_by_source.setdefault(source, count)

    # -- between operators -----------------------------------------------------------------------------------------

    def _is_read(self, operator: OperatorNode, tag: object) -> bool:
        """Whether anything but plain sinks reads an output."""
        ends: list[Node] = [*self._job.operators.values(), *(s.parent for s in self._job.sinks.values())]
        readers = [node for end in ends for node in upstream(end) if not isinstance(node, SideOutputNode)]
        return any(_is_output(parent, operator, tag) for reader in readers for parent in parents(reader))

    def _output_frames(
        self,
        operator: OperatorNode,
        layout: RoutedLayout | None,
        outputs: Sequence[OutputSpec],
        reports: list[SubtaskReport],
        frames: Frames,
    ) -> None:
        """Make the frames of what chained steps read."""
        ends: list[Node] = [*self._job.operators.values(), *(s.parent for s in self._job.sinks.values())]
        for output in outputs:
            if output.exchange:
                frame = self._output_frame(output, layout, reports)
                nodes = [n for end in ends for n in upstream(end) if _is_output(n, operator, output.tag)]
                for node in nodes:
                    frames[id(node)] = frame

    def _output_frame(
        self, output: OutputSpec, layout: RoutedLayout | None, reports: list[SubtaskReport]
    ) -> StreamFrame:
        written = [r.exchange[output.name] for r in reports if output.name in r.exchange]
        pairs = [tuple(f.path for f in files) for files in written]
        hidden = tuple(order_name(i) for i in range(len(layout.order if layout else "12") + 1))
        timed = layout is None or layout.event_time
        fields = list(output.kind.columns.arrow)
        types = order_fields(pairs, [*hidden, *([EVENT_TIME] if timed else [])])
        rows = self._spark.range(0, len(pairs), 1, max(len(pairs), 1)).mapInArrow(
            exchange_reader(pairs), SparkStruct.fromJson(spark_schema(pa.schema([*fields, *types])))
        )
        return StreamFrame(
            rows=rows,
            order_by=(),
            hidden_order=hidden,
            named=layout.named if layout else 1,
            event_time=EVENT_TIME if timed else None,
            timed_order=layout is None or layout.timed_order,
        )

    # -- sinks behind DataFrame code -------------------------------------------------------------------------------

    def _write_sink(self, sink: SinkNode, batch: BatchContext, done: Execution, frames: Frames) -> None:
        frame = self._frame(sink.parent, batch, frames)
        if frame is None:
            return
        rows = frame.rows.select([F.col(f"`{c}`") for c in frame.user_columns])
        declared = to_type(rows.schema, parameter=f"columns of sink '{sink.name}'")
        assert isinstance(declared, StructType)
        target = done.targets[sink.name] = self._prepare_sink(
            sink, pa.schema(list(declared.arrow)), batch.write_id
        )
        label = f"{self._job.name}: checkpoint {batch.checkpoint_id}, sink {sink.name}"
        into = f"sink '{sink.name}'"
        with execution(self._spark, label), reading(frame.source, job=self._job.name, into=into):
            found = rows.mapInArrow(_sink_writer(target, batch.write_id), REPORT_SCHEMA).collect()
        files = [DataFile(**json.loads(r["report"])) for r in found]
        done.sinks.setdefault(sink.name, []).extend(files)
        if frame.source is not None and frame.source not in done.rows_by_source:
            done.rows_by_source[frame.source] = sum(f.rows for f in files)


def _is_output(node: Node, operator: OperatorNode, tag: object) -> bool:
    """Whether a node is the main output (no tag) or a side output of an operator."""
    if isinstance(node, SideOutputNode):
        return node.operator is operator and tag is not None and node.tag == tag
    return node is operator and tag is None


def _output_type(operator: OperatorNode, inputs: Sequence[RoutedInput]) -> OutputType:
    """What an operator puts out: what it declares, or what comes in."""
    if operator.output_type is not None:
        return operator.output_type
    first = next((one for one in inputs if one.place == 0), None)
    if first is None:  # nothing came in, so nothing goes out
        return OutputType.of(to_type(int, parameter="output_type"))
    columns = to_type(
        first.frame.rows.select(*[F.col(f"`{c}`") for c in first.frame.user_columns]).schema,
        parameter="input",
    )
    assert isinstance(columns, StructType)
    return OutputType(StructType(columns.names, columns.types), scalar=first.scalar)


def _function(operator: OperatorNode, outputs: Sequence[OutputSpec]) -> Function:
    function = operator.function
    return function.bound(outputs[0].kind) if isinstance(function, TypedByInput) else function


def _restored_state(uid: str, batch: BatchContext, *, known: bool) -> RestoredOperatorState:
    refs: Mapping[str, OperatorStateRef] = (
        {r.operator: r for r in batch.parent.operator_state} if batch.parent else {}
    )
    ref = refs.get(uid)
    return RestoredOperatorState(
        ref=ref,
        files=[] if ref is None else files_of(ref, batch.path),
        restored=ref is not None and restored_since_last_run(batch.path, ref),
        known=known or ref is not None,
        completed=completed_since_last_run(batch.path, ref),
    )


def _sink_writer(
    target: SinkTarget, write_id: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Every task writes its rows as one file of the sink."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        found = [b for b in batches if b.num_rows]
        context = TaskContext.get()
        if not found or context is None:
            return
        index = context.partitionId()
        name = file_name(write_id, index, int(context.taskAttemptId()), suffix=target.format)
        file = write_sink_file(pa.Table.from_batches(found), target, name, index)
        yield pa.record_batch({"report": pa.array([json.dumps(asdict(file))])})

    return write
