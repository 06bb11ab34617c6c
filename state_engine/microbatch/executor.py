"""Runs the graph of a job over one batch: reads slices, chains operators, writes sinks. Steps 2 to 4 of a micro-batch.

One Spark job per operator. A chained operator reads the files that its predecessor wrote in this attempt; a sink on
an operator's stream gets its files from the operator's own subtasks; to any other sink rows pass through in one more
job, which shuffles nothing. Nothing is visible to readers afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from state_engine.core.checkpoints.checkpoint import DataFile, OperatorCheckpoint
from state_engine.core.checkpoints.dead_letters import LETTERS
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_parsing import to_type
from state_engine.job.changing_streams import is_changing
from state_engine.job.code_version import code_of
from state_engine.job.graph import (
    MAIN_OUTPUT,
    Node,
    OperatorNode,
    SideOutputNode,
    SinkNode,
    SourceNode,
    TransformNode,
    UnionNode,
    declared_columns,
    is_scalar,
    merged_ends,
    output_of,
    parents,
)
from state_engine.job.job import StatefulJob
from state_engine.microbatch.attempt_outputs import AttemptSinks
from state_engine.microbatch.batch import BatchContext
from state_engine.microbatch.batch_result import Execution
from state_engine.microbatch.dead_letters import LettersSlice
from state_engine.microbatch.declarations import check_key_names, checked_key
from state_engine.microbatch.judged_outputs import set_broken_aside
from state_engine.microbatch.operator_run import (
    are_types_recorded,
    input_types,
    main_output_type,
    recorded_text,
    run_operator,
    run_subtasks,
    sink_spec,
    subtask_spec,
)
from state_engine.microbatch.operator_watermarks import Watermarks, reached_ms
from state_engine.microbatch.quiet_time import runs_without_input
from state_engine.microbatch.routing.assigned_time import with_assigned_time
from state_engine.microbatch.routing.origins import origin_of, that_need_watermarks
from state_engine.microbatch.routing.routed import RoutedInput, RoutedLayout
from state_engine.microbatch.routing.routing import KeyRows, Routed, Router, nothing_new
from state_engine.microbatch.subtask.expectation_run import counted_rows
from state_engine.microbatch.subtask.refusals import bad_file, letters_table
from state_engine.microbatch.subtask.subtask_outputs import exchange_rows, order_fields, read_exchange
from state_engine.microbatch.subtask.subtask_spec import OutputSpec, SubtaskReport, SubtaskSpec
from state_engine.operators.row_expectation import RowExpectation
from state_engine.sinks.base import SinkTarget
from state_engine.sources.base import ROW_COLUMN, naming_source
from state_engine.sources.frames import (
    EVENT_TIME,
    HIDDEN,
    PLACE_COLUMNS,
    RANK,
    REFUSED,
    WATERMARK,
    StreamFrame,
    from_source,
    order_name,
    united,
)
from state_engine.sources.output_type import OutputType
from state_engine.sources.rows import Given, rows_of
from state_engine.sources.stream_columns import KIND_FIELD, ROW_KIND
from state_engine.spark.no_spark import has_spark
from state_engine.spark.placement import Placement, limits_of, placement_of
from state_engine.spark.read_failures import reading
from state_engine.spark.shipped_code import Attempt, attempts
from state_engine.spark.tasks import DriverTables, described
from state_engine.storage.layout import JobLayout, file_name, partition_path
from state_engine.storage.stores.files import join, write_parquet

Frames = dict[int | tuple[str, str], StreamFrame | None]
"""Rows of streams: of an operator's output by uid and tag, of another node by the node."""
Taken = TypeVar("Taken")
_DRIVER = 99_999
"""In names of files, in place of a subtask: the driver wrote it."""


class GraphExecutor:
    """Runs one batch of one job.

    Args:
        reads: where state is read; None for where files go.
    """

    def __init__(
        self,
        spark: SparkSession,
        job: StatefulJob,
        *,
        layout: JobLayout,
        router: Router,
        reads: JobLayout | None = None,
    ) -> None:
        self._spark, self._job, self._layout = spark, job, layout
        self._router, self._reads = router, reads or layout
        # outputs that anything but plain sinks reads
        chained = (p for n in job.nodes() if not isinstance(n, SideOutputNode) for p in parents(n))
        self._exchanged = {place for node in chained if (place := output_of(node)) is not None}
        self._merged = {output_of(end) for n in job.nodes() for end in merged_ends(n)}
        self._need_watermarks = that_need_watermarks(job.operators.values())

    @property
    def has_exchange(self) -> bool:
        """Whether an operator hands outputs on to another one, in files."""
        return bool(self._exchanged)

    def execute(self, batch: BatchContext, outputs: AttemptSinks) -> Execution:
        """Run all operators, then the sinks that need a job of their own.

        Args:
            outputs: of the attempt; the sinks are prepared in it, and get what the tasks write.
        """
        if not has_spark(self._spark):
            return self._execute(batch, outputs)
        for attempt in self._attempts():
            with attempt:
                done = self._execute(batch, outputs)
        return done

    def rows_of_key(
        self, operator: OperatorNode, place: int, batch: BatchContext, key_hash: int, *, limit: int
    ) -> KeyRows:
        """The rows of one key among those that one input of an operator has of the slices of a batch.

        Args:
            place: of the input. Its stream comes from sources; what other operators put out is not made again.
        """
        node = operator.inputs[place].parent
        for attempt in self._attempts():
            with attempt:
                frame = self._frame(node, batch, {})
                if frame is None:
                    return KeyRows(0, pa.table({}))
                given = _input(node, place, replace(frame, refused=()))
                rows = self._router.rows_of_key(given, operator, key_hash, limit=limit)
        return rows

    def input_of(
        self,
        operator: OperatorNode,
        batch: BatchContext,
        outputs: AttemptSinks,
        take: Callable[[Routed, SubtaskSpec], Taken],
    ) -> Taken | None:
        """What is made of an operator's input, after the operators before it have run; None where it would not run."""
        if not has_spark(self._spark):
            return self._input_of(operator, batch, outputs, take)
        for attempt in self._attempts():
            with attempt:
                taken = self._input_of(operator, batch, outputs, take)
        return taken

    def _input_of(
        self,
        operator: OperatorNode,
        batch: BatchContext,
        outputs: AttemptSinks,
        take: Callable[[Routed, SubtaskSpec], Taken],
    ) -> Taken | None:
        done, frames = Execution(outputs), Frames()
        for before in takewhile(lambda one: one is not operator, self._job.operators.values()):
            self._run_operator(before, batch, done, frames)
        prepared = self._prepared(operator, batch, done, frames)
        return None if prepared is None else take(*prepared)

    def _attempts(self) -> Iterator[Attempt]:
        frames = [n.function for n in self._job.nodes() if isinstance(n, TransformNode)]
        return attempts(self._spark, list(code_of(self._job)), job=self._job.name, frames=frames)

    def _execute(self, batch: BatchContext, outputs: AttemptSinks) -> Execution:
        done, frames = Execution(outputs), Frames()
        for operator in self._job.operators.values():
            self._run_operator(operator, batch, done, frames)
        for sink in self._job.sinks.values():
            if output_of(sink.parent) is None:
                self._write_sink(sink, batch, done, frames)
        if batch.letters is not None and (name := batch.letters.place.sink) is not None:
            self._send_to_sink(self._job.sinks[name], batch.letters, batch, done)
        set_broken_aside(self._job, done, kernel=outputs.kernel, layout=self._layout)
        self._set_bad_files_aside(batch, done)
        timed = {name: node for name, node in self._job.sources.items() if node.timed}
        done.watermarks_ms = reached_ms(timed, batch, done.max_event_ms)
        return done

    def _set_bad_files_aside(self, batch: BatchContext, done: Execution) -> None:
        letters = [bad_file(name, one) for name, part in batch.moved.items() for one in part.bad_files]
        if letters:
            path = partition_path(batch.write_id, file_name(batch.write_id, _DRIVER, 0))
            file = write_parquet(letters_table(letters), join(self._layout.dead_letters, path))
            done.outputs.dead_letters.append(DataFile(path, file.bytes, len(letters), 0, footer=file.footer))
            done.refused += len(letters)

    # -- streams ---------------------------------------------------------------------------------------------------

    def _frame(self, node: Node, batch: BatchContext, frames: Frames) -> StreamFrame | None:
        """The rows of a stream in this batch; None where there is nothing new."""
        place = output_of(node) or id(node)
        if place not in frames:
            frame: StreamFrame | None = None
            if isinstance(node, SourceNode):
                with naming_source(self._job.name, node.name):
                    frame = self._read_source(node, batch)
            elif isinstance(node, TransformNode):
                parent = self._frame(node.parent, batch, frames)
                if parent is not None:  # rows that tasks read become a DataFrame here
                    with naming_source(self._job.name, parent.source or "unknown"):
                        frame = parent.transformed(node)
            elif isinstance(node, UnionNode):
                parts = [f for p in node.parents if (f := self._frame(p, batch, frames)) is not None]
                frame = united(parts) if parts else None
            frames[place] = frame
        return frames[place]

    def _read_source(self, node: SourceNode, batch: BatchContext) -> StreamFrame | None:
        part, letters, keep = batch.slices.get(node.name), batch.letters, self._job.on_error == "dead_letter"
        with reading(node.name, job=self._job.name, into="the driver"):
            if letters is not None and letters.place.source == node.name:
                rows = node.source.parse(self._spark, letters.records, keep_refused=keep)
                labels = letters.labels
            elif part is not None:
                rows = node.source.read(self._spark, part, keep_refused=keep)
                labels = tuple(part.labels)
            else:
                return None
        frame = from_source(
            self._spark, rows, order_by=node.order_by, event_time=node.event_time, source=node.name,
            labels=labels, changing=node.source.changing,
        )  # fmt: skip
        return frame if node.timestamps is None else with_assigned_time(frame, node)

    # -- operators -------------------------------------------------------------------------------------------------

    def _run_operator(
        self, operator: OperatorNode, batch: BatchContext, done: Execution, frames: Frames
    ) -> None:
        prepared = self._prepared(operator, batch, done, frames)
        if prepared is None:
            return
        routed, spec = prepared
        reports = run_operator(self._spark, routed, spec)
        done.add(operator.uid, reports)
        if isinstance(operator.function, RowExpectation):
            done.expectations += counted_rows(self._job.name, operator.function, reports)
        for output in spec.outputs:
            if output.exchange:
                place = (operator.uid, output.name)
                frames[place] = self._output_frame(operator, output, routed.layout, reports)

    def _prepared(
        self, operator: OperatorNode, batch: BatchContext, done: Execution, frames: Frames
    ) -> tuple[Routed, SubtaskSpec] | None:
        """The input of an operator and what its subtasks are given; None where it does not run."""
        job, uid = self._job, operator.uid
        inputs = []
        for place, one in enumerate(operator.inputs):
            frame = self._frame(one.parent, batch, frames)
            if frame is not None:
                # only the first reader of a source sets its bad rows aside
                fresh = tuple(r for r in frame.refused if r[0] not in done.rows_by_source)
                inputs.append(_input(one.parent, place, replace(frame, refused=fresh)))
        watermarks = Watermarks(operator, batch, done.max_event_ms)
        letters = batch.letters
        if letters is not None and letters.place.operator == uid:
            frame = letters.frame(self._spark, operator, timed=watermarks.timed)
            inputs.append(_input(operator.inputs[letters.input].parent, letters.input, frame))
            done.rows_by_source[LETTERS] = len(letters.letters)
        if not inputs and not runs_without_input(operator, batch, watermarks.end()):
            return None
        watermarks.look_ahead([one.frame for one in inputs if one.frame.event_time is not None])
        parallelism = batch.parallelism[uid]
        if inputs:
            collect = self._collected(batch, uid) if uid in self._need_watermarks else None
            routed = self._router.route(
                inputs, operator, parallelism=parallelism, origins=watermarks.origins, collect=collect
            )
            watermarks.learn(routed.newest_ms)
        else:
            here = limits_of(self._spark).in_process
            routed = nothing_new(parallelism, event_time=watermarks.timed, here=here)
        layout = routed.layout
        key_schema = checked_key(job, operator, layout, batch)
        if key_schema is not None:
            check_key_names(job, operator, key_schema)
            done.key_schemas[uid] = key_schema
        recorded = batch.parent.operator(uid) if batch.parent else None
        if inputs and are_types_recorded(operator):
            done.input_types[uid] = recorded_text(input_types(operator, inputs, recorded))
        outputs = self._outputs(operator, inputs, recorded, done)
        spec = subtask_spec(
            job, operator, batch, layout=self._layout, reads=self._reads, routed=routed, key_schema=key_schema,
            inputs=inputs, outputs=outputs, clocks=watermarks.clocks(),
            judges_lateness=uid in self._need_watermarks,
        )  # fmt: skip
        return routed, spec

    def _outputs(
        self,
        operator: OperatorNode,
        inputs: Sequence[RoutedInput],
        recorded: OperatorCheckpoint | None,
        done: Execution,
    ) -> list[OutputSpec]:
        """The main output and the side outputs, with the sinks that take them as they are."""
        specs = []
        for tag in (None, *operator.side_outputs.values()):
            changing = is_changing(operator if tag is None else SideOutputNode(operator, tag))
            place = (operator.uid, MAIN_OUTPUT if tag is None else tag.tag_id)
            kind = (
                main_output_type(operator, inputs, recorded) if tag is None else OutputType.of(tag.type_info)
            )
            sinks = [s for s in self._job.sinks.values() if output_of(s.parent) == place]
            schema = pa.schema([*kind.columns.arrow, *([KIND_FIELD] if changing else [])])
            targets = [done.outputs.prepare(sink, schema) for sink in sinks]
            exchange, merged = place in self._exchanged, place in self._merged
            specs.append(OutputSpec(tag, kind, targets, exchange=exchange, merged=merged, changing=changing))
        return specs

    def _output_frame(
        self,
        operator: OperatorNode,
        output: OutputSpec,
        layout: RoutedLayout,
        reports: list[SubtaskReport],
    ) -> StreamFrame:
        pairs = [r.exchange[output.name] for r in reports if output.name in r.exchange]
        hidden = tuple(order_name(i) for i in range(len(layout.order) + 1))
        lead = (WATERMARK, RANK) if layout.event_time else ()
        types = order_fields(pairs, [*hidden, *([EVENT_TIME, *lead] if layout.event_time else [])])
        schema = pa.schema([*output.kind.columns.arrow, *types, *([KIND_FIELD] if output.changing else [])])
        count = sum(files[0].rows for files in pairs)
        rows: Given = exchange_rows(pairs, schema)
        if placement_of(limits_of(self._spark), rows=count) is Placement.DRIVER:
            rows = pa.concat_tables([schema.empty_table(), *[read_exchange(p, schema) for p in pairs]])
        return StreamFrame(
            spark=self._spark,
            given=rows_of(rows, self._spark),
            order_by=(),
            hidden_order=hidden,
            named=layout.named,
            event_time=EVENT_TIME if layout.event_time else None,
            timed_order=layout.timed_order,
            origin=origin_of(operator),
            lead=lead,
            changing=output.changing,
        )

    def _collected(self, batch: BatchContext, uid: str) -> Callable[[DataFrame], Sequence[object]]:
        label = f"{self._job.name}: checkpoint {batch.checkpoint_id}, watermark for operator '{uid}'"

        def collect(rows: DataFrame) -> Sequence[object]:
            with described(self._spark, label), reading(None, job=self._job.name, into=f"operator '{uid}'"):
                return rows.collect()

        return collect

    # -- sinks behind no operator ----------------------------------------------------------------------------------

    def _write_sink(self, sink: SinkNode, batch: BatchContext, done: Execution, frames: Frames) -> None:
        frame = self._frame(sink.parent, batch, frames)
        if frame is None:
            return
        places = [c for c in PLACE_COLUMNS if c in frame.schema.names and frame.source is not None]
        hidden = [*places, *([ROW_KIND] if ROW_KIND in frame.schema.names else [])]
        columns = to_type(frame.user_schema, parameter=f"columns of sink '{sink.name}'")
        assert isinstance(columns, StructType)
        known = set(done.rows_by_source) | done.letters_from
        spec = sink_spec(
            self._job, self._target(sink, columns.arrow, is_changing(sink.parent), done), batch, columns.names,
            layout=self._layout, places=places, source=frame.source, labels=dict(frame.labels),
            first_reader=not set(frame.sources) & known,
        )  # fmt: skip
        with naming_source(self._job.name, frame.source or "unknown"):
            inputs = [frame.given.by_task(self._spark, [*columns.names, *hidden])]
        refused = [rows for name, rows in frame.refused if name not in known]
        inputs += [rows.by_task(self._spark, [REFUSED]) for rows in refused]
        done.take([report for one in inputs for report in run_subtasks(self._spark, one, spec)])
        done.letters_from.update(frame.sources)

    def _send_to_sink(
        self, sink: SinkNode, letters: LettersSlice, batch: BatchContext, done: Execution
    ) -> None:
        """Rows that a sink refused before, once more."""
        rows = letters.rows()
        fields = [field for field in rows.schema if not field.name.startswith(HIDDEN)]
        spec = sink_spec(
            self._job, self._target(sink, fields, ROW_KIND in rows.column_names, done), batch,
            [field.name for field in fields], layout=self._layout, places=[ROW_COLUMN], letters=letters.labels,
        )  # fmt: skip
        done.take(run_subtasks(self._spark, DriverTables([rows], here=True), spec))
        done.rows_by_source[LETTERS] = rows.num_rows

    def _target(
        self, sink: SinkNode, fields: Iterable[pa.Field], changing: bool, done: Execution
    ) -> SinkTarget:
        return done.outputs.prepare(sink, pa.schema([*fields, *([KIND_FIELD] if changing else [])]))


def _input(node: Node, place: int, frame: StreamFrame) -> RoutedInput:
    return RoutedInput(place, frame, is_scalar(node), declared=declared_columns(node))
