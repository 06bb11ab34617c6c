"""Runs the graph of a job over one batch: reads slices, chains operators, writes sinks. Steps 2 to 4 of a micro-batch.

One Spark job per operator. A chained operator reads the files that its predecessor wrote in this attempt; a sink on
an operator's stream gets its files from the operator's own subtasks; a sink behind DataFrame code, or on a stateless
stream, takes one more job that writes and shuffles nothing. Nothing is visible to readers afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType as SparkStruct

from state_engine.backends.delta.changelog import ListedFile
from state_engine.backends.delta.layout import JobLayout, file_name
from state_engine.backends.files import join
from state_engine.core import errors
from state_engine.core.checkpoint import CheckpointRow, DataFile, StateSchema
from state_engine.core.errors import StatelakeError, StateMigrationError, UserFunctionError
from state_engine.core.functions import MIN_TIMESTAMP
from state_engine.core.spark_types import spark_schema
from state_engine.core.type_parsing import to_type
from state_engine.core.types import StructType
from state_engine.runtime.execution import execution
from state_engine.runtime.frames import EVENT_TIME, StreamFrame, from_source
from state_engine.runtime.job import Node, OperatorNode, SinkNode, SourceNode, StatefulJob, TransformNode
from state_engine.runtime.output_files import exchange_reader, order_fields, write_sink_file
from state_engine.runtime.reports import OperatorReport
from state_engine.runtime.routing import Router, order_name
from state_engine.runtime.sinks.base import SinkTarget
from state_engine.runtime.sources.base import Slice
from state_engine.runtime.sources.failures import reading
from state_engine.runtime.subtask import subtask_runner
from state_engine.runtime.subtask_spec import REPORT_SCHEMA, StateFile, SubtaskReport, SubtaskSpec


@dataclass(frozen=True)
class BatchContext:
    """What one attempt works on.

    Attributes:
        write_id: names the attempt.
        path: rows from the first checkpoint to the parent.
        slices: what each source gives to this batch; sources without news are absent.
        clock_ms: processing time of the batch.
        watermarks_ms: watermark of each source before the batch.
        parameters: of the job.
        checkpoint_id: that the attempt hopes to commit, for labels.
    """

    write_id: str
    path: list[CheckpointRow]
    slices: Mapping[str, Slice]
    clock_ms: int
    watermarks_ms: Mapping[str, int | None]
    parameters: Mapping[str, str]
    checkpoint_id: int

    @property
    def parent(self) -> CheckpointRow | None:
        """The checkpoint that the batch continues."""
        return self.path[-1] if self.path else None


@dataclass
class Execution:
    """What the subtasks of all operators wrote."""

    operators: dict[str, OperatorReport] = field(default_factory=dict)
    key_schemas: dict[str, str] = field(default_factory=dict)
    states: dict[str, list[StateSchema]] = field(default_factory=dict)
    sinks: dict[str, list[DataFile]] = field(default_factory=dict)
    targets: dict[str, SinkTarget] = field(default_factory=dict)
    dead_letters: list[DataFile] = field(default_factory=list)
    rows_by_source: dict[str, int] = field(default_factory=dict)
    max_event_ms: dict[str, int] = field(default_factory=dict)
    refused: int = 0


PrepareSink = Callable[[SinkNode, pa.Schema, str], SinkTarget]


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
        done = Execution()
        frames: dict[int, StreamFrame | None] = {}
        for operator in self._job.operators.values():
            self._run_operator(operator, batch, done, frames)
        for sink in self._job.sinks.values():
            if not isinstance(sink.parent, OperatorNode):
                self._write_sink(sink, batch, done, frames)
        return done

    # -- streams ---------------------------------------------------------------------------------------------------

    def _frame(
        self, node: Node, batch: BatchContext, frames: dict[int, StreamFrame | None]
    ) -> StreamFrame | None:
        """The rows of a stream in this batch; None where its source has nothing new."""
        if id(node) not in frames:
            if isinstance(node, SourceNode):
                frames[id(node)] = self._read_source(node, batch)
            elif isinstance(node, TransformNode):
                parent = self._frame(node.parent, batch, frames)
                frames[id(node)] = parent.transformed(node) if parent is not None else None
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
        self,
        operator: OperatorNode,
        batch: BatchContext,
        done: Execution,
        frames: dict[int, StreamFrame | None],
    ) -> None:
        job, uid = self._job, operator.uid
        frame = self._frame(operator.parent, batch, frames)
        if frame is None:
            return
        refused_by_other = frame.source is not None and frame.source in done.rows_by_source
        if (
            refused_by_other and frame.refused is not None
        ):  # only one reader of a source sets its bad rows aside
            frame = StreamFrame(**{**frame.__dict__, "refused": None})
        scalar = isinstance(operator.parent, OperatorNode) and operator.parent.scalar
        routed, columns = self._router.route(frame, operator, scalar=scalar)
        done.key_schemas[uid] = self._check_recorded(operator, str(columns.key_schema), batch)
        schema = pa.schema(list(operator.output_type.arrow))
        sinks = [s for s in job.sinks.values() if s.parent is operator]
        for sink in sinks:
            done.targets[sink.name] = self._prepare_sink(sink, schema, batch.write_id)
        recorded = batch.parent.operator(uid) if batch.parent else None
        spec = SubtaskSpec(
            layout=self._layout,
            write_id=batch.write_id,
            uid=uid,
            parallelism=job.parallelism,
            max_parallelism=job.max_parallelism,
            function=operator.function,
            routed=columns,
            output_type=operator.output_type,
            scalar=operator.scalar,
            state_files=state_files(self._layout, batch.path, uid),
            recorded_states={s.name: s for s in recorded.states} if recorded else {},
            sinks=[done.targets[s.name] for s in sinks],
            exchange=self._is_read(operator),
            dead_letters=job.on_error == "dead_letter",
            clock_ms=batch.clock_ms,
            watermark_ms=_watermark(batch),
            labels=frame.labels,
            source=frame.source,
            parameters=dict(batch.parameters),
        )
        reports = self._run_subtasks(routed, spec, batch)
        self._collect(operator, frame, reports, done)
        if spec.exchange:
            frames[id(operator)] = self._output_frame(operator, frame, columns.order, reports)

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

    def _check_recorded(self, operator: OperatorNode, key_schema: str, batch: BatchContext) -> str:
        recorded = batch.parent.operator(operator.uid) if batch.parent else None
        if recorded is None:
            return key_schema
        if recorded.key_schema != key_schema:
            raise StateMigrationError(
                f"job '{self._job.name}', operator '{operator.uid}': its state is stored by key {recorded.key_schema}, "
                f"the job keys by {key_schema}. Restore the old key_by, or give the operator another uid to start empty"
            )
        if recorded.max_parallelism != self._job.max_parallelism:
            raise StateMigrationError(
                f"job '{self._job.name}', operator '{operator.uid}': its state has {recorded.max_parallelism} key "
                f"groups, the job declares max_parallelism={self._job.max_parallelism}. Declare the old number"
            )
        return key_schema

    def _collect(
        self, operator: OperatorNode, frame: StreamFrame, reports: list[SubtaskReport], done: Execution
    ) -> None:
        report = done.operators[operator.uid] = OperatorReport.of(operator.uid, reports)
        declared = {s.name: s for one in reports for s in one.states}
        done.states[operator.uid] = list(declared.values())
        for one in reports:
            for name, files in one.sinks.items():
                done.sinks.setdefault(name, []).extend(files)
            done.dead_letters.extend(one.dead_letters)
        done.refused += report.rows_refused
        if frame.source is not None:
            done.rows_by_source.setdefault(frame.source, report.rows_in)
            seen = [r.max_event_ms for r in reports if r.max_event_ms is not None]
            if seen:
                done.max_event_ms[frame.source] = max(seen)

    # -- between operators -----------------------------------------------------------------------------------------

    def _is_read(self, operator: OperatorNode) -> bool:
        """Whether anything but plain sinks reads an operator's output."""
        readers = [o.parent for o in self._job.operators.values()] + [t.parent for t in self._transforms()]
        return any(parent is operator for parent in readers)

    def _transforms(self) -> list[TransformNode]:
        found: list[TransformNode] = []
        ends = [o.parent for o in self._job.operators.values()] + [s.parent for s in self._job.sinks.values()]
        for node in ends:
            while isinstance(node, TransformNode):
                found.append(node)
                node = node.parent
        return found

    def _output_frame(
        self, operator: OperatorNode, frame: StreamFrame, order: tuple[str, ...], reports: list[SubtaskReport]
    ) -> StreamFrame:
        pairs = [tuple(f.path for f in r.exchange) for r in reports if r.exchange]
        hidden = tuple(order_name(i) for i in range(len(order) + 1))
        fields = list(operator.output_type.arrow)
        types = order_fields(pairs, [*hidden, *([EVENT_TIME] if frame.event_time else [])])
        schema = pa.schema([*fields, *types])
        tasks = max(len(pairs), 1)
        rows = self._spark.range(0, len(pairs), 1, tasks).mapInArrow(
            exchange_reader(pairs), SparkStruct.fromJson(spark_schema(schema))
        )
        return StreamFrame(rows, (), hidden, EVENT_TIME if frame.event_time else None, None)

    # -- sinks behind DataFrame code -------------------------------------------------------------------------------

    def _write_sink(
        self, sink: SinkNode, batch: BatchContext, done: Execution, frames: dict[int, StreamFrame | None]
    ) -> None:
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


def state_files(layout: JobLayout, path: list[CheckpointRow], uid: str) -> list[StateFile]:
    """Changelog files of an operator along a path, oldest first."""
    found = []
    for row in path:
        operator = row.operator(uid)
        for file in operator.changelog if operator else []:
            assert file.key_group_min is not None
            assert file.key_group_max is not None
            listed = ListedFile(join(layout.changelog(uid), file.path), file.rows)
            found.append(StateFile(listed, file.key_group_min, file.key_group_max))
    return found


def _watermark(batch: BatchContext) -> int:
    known = [w for w in batch.watermarks_ms.values() if w is not None]
    return min(known) if known and len(known) == len(batch.watermarks_ms) else MIN_TIMESTAMP


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
