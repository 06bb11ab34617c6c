"""One operator in one micro-batch, as the driver sees it: what its subtasks are given, and their reports.

Plays the part of Flink's ``Execution`` of a vertex: deploys the subtasks, gathers their acknowledgements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from state_engine.core.checkpoints.checkpoint import OperatorCheckpoint, OperatorStateRef
from state_engine.core.checkpoints.resumption import (
    completed_since_last_run,
    earlier_states,
    restored_checkpoint_id,
    restored_since_last_run,
)
from state_engine.core.checkpoints.state_files import operator_state_files
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError, SinkError, StatelakeError
from state_engine.core.functions.function_calls import has_timers
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.types.ddl import ddl_text, quoted
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_parsing import to_type
from state_engine.job.graph import (
    Node,
    OperatorNode,
    declared_key,
    declared_type,
    is_scalar,
    output_type_of,
    type_in_code,
    typing_inputs,
)
from state_engine.job.job import StatefulJob
from state_engine.job.late_outputs import late_outputs
from state_engine.job.typed_by_input import Typed, TypedByInputs
from state_engine.microbatch.batch import BatchContext
from state_engine.microbatch.routing.origins import timed_sources
from state_engine.microbatch.routing.routed import RoutedInput
from state_engine.microbatch.routing.routing import Routed, not_routed
from state_engine.microbatch.subtask.subtask import subtask_function
from state_engine.microbatch.subtask.subtask_spec import (
    BatchClocks,
    OutputSpec,
    RestoredOperatorState,
    SubtaskReport,
    SubtaskSpec,
)
from state_engine.sinks.base import SinkTarget
from state_engine.sources.output_type import OutputType
from state_engine.spark.failures import translating_worker_loss
from state_engine.spark.read_failures import reading
from state_engine.spark.tasks import TaskInput, run
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.located_files import state_files


def subtask_spec(
    job: StatefulJob,
    operator: OperatorNode,
    batch: BatchContext,
    *,
    layout: JobLayout,
    reads: JobLayout,
    routed: Routed,
    key_schema: KeySchema | None,
    inputs: Sequence[RoutedInput],
    outputs: list[OutputSpec],
    clocks: BatchClocks,
    judges_lateness: bool,
) -> SubtaskSpec:
    """What all subtasks of an operator are given; ``key_schema`` comes from ``checked_key``.

    Dead letters that are sent again reach the function, however late they are.
    """
    recorded = batch.parent.operator(operator.uid) if batch.parent else None
    function, key = operator.function, declared_key(operator)
    return SubtaskSpec(
        layout=layout,
        write_id=batch.write_id,
        uid=operator.uid,
        parallelism=batch.parallelism[operator.uid],
        max_parallelism=job.max_parallelism,
        function=function.bound(*input_types(operator, inputs, recorded))
        if isinstance(function, Typed)
        else function,
        routed=routed.layout,
        watermark_steps=routed.steps,
        key_form=None if key is None else key.form,
        keyed=operator.keyed,
        key_schema=key_schema,
        outputs=outputs,
        state_files=state_files(reads, batch.path, operator.uid),
        recorded_states={s.name: s for s in recorded.states} if recorded else {},
        earlier_states=earlier_states(operator.uid, batch.path),
        dropped_states=operator.dropped_states,
        operator_state=_restored_state(operator, batch, reads, known=recorded is not None),
        dead_letters=job.on_error == "dead_letter",
        clocks=clocks,
        checkpoint_id=batch.checkpoint_id,
        parent_id=restored_checkpoint_id(batch.path),
        labels=dict(one for i in inputs for one in i.frame.labels),
        source=inputs[0].frame.source if len(inputs) == 1 else None,
        event_times=_event_times(operator),
        parameters=dict(batch.parameters),
        backend=job.state_backend,
        judges_lateness=judges_lateness,
        first_timers=tuple(recorded.first_timers) if recorded else (),
        local_copies=batch.local_copies,
        **_rules_of_table(job, operator, inputs),
        late_to={} if batch.letters else {s: tag.tag_id for s, tag in late_outputs(operator).items()},
        letters=batch.letters.labels
        if batch.letters is not None and batch.letters.place.operator == operator.uid
        else (),
    )


def _event_times(operator: OperatorNode) -> dict[str, str]:
    """By source, the column of the event time."""
    timed = [timed_sources(one.parent) for one in operator.inputs]
    nodes = [node for sources in timed for node in sources.values()]
    return {node.name: node.event_time for node in nodes if node.event_time and node.timestamps is None}


def _rules_of_table(
    job: StatefulJob, operator: OperatorNode, inputs: Sequence[RoutedInput]
) -> dict[str, Any]:
    """What the table of a keyed sink demands of rows, for its operator; nothing for other operators."""
    node = next((one for one in job.published.values() if one.operator is operator and one.sink_key), None)
    if node is None or not inputs:
        return {}
    schema = pa.schema(list(input_types(operator, inputs, None)[0].columns.arrow))
    try:
        rules = tuple(node.table.row_rules(schema, partial(_offered, job, operator, inputs, schema)))
    except SinkError as error:
        error.args = (f"job '{job.name}', sink '{node.name}': {error}", *error.args[1:])
        raise
    return {"table_rules": rules, "table_name": f"sink '{node.name}', {node.table.shown}"}


def _offered(
    job: StatefulJob, operator: OperatorNode, inputs: Sequence[RoutedInput], schema: pa.Schema
) -> pa.Table:
    """All rows that come into an operator, read to the driver."""
    parts = []
    for frame in (one.frame for one in inputs):
        if frame.table is not None:
            part = frame.table.select(frame.user_columns)
        else:
            with reading(frame.source, job=job.name, into=f"operator '{operator.uid}'"):
                part = frame.rows.select([F.col(quoted(name)) for name in frame.user_columns]).toArrow()
        parts.append(part.cast(schema))
    return pa.concat_tables(parts)


def main_output_type(
    operator: OperatorNode, inputs: Sequence[RoutedInput], recorded: OperatorCheckpoint | None
) -> OutputType:
    """What an operator emits: what it declares, or what follows from what comes in."""
    if operator.output_type is not None:
        return operator.output_type
    return output_type_of(operator, input_types(operator, inputs, recorded))


_NOTHING = OutputType.of(to_type(int, parameter="output_type"))
"""Stands for the kind of elements where none goes out."""


def input_types(
    operator: OperatorNode, inputs: Sequence[RoutedInput], recorded: OperatorCheckpoint | None
) -> list[OutputType]:
    """The kinds of elements of an operator, of each input that says what it emits.

    They are those of the rows, or where none came, as declared or as recorded.
    """
    known = recorded_types(operator, recorded)
    return [
        _input_type(operator, inputs, place, known[place] if known else None)
        for place in range(len(typing_inputs(operator)))
    ]


def _input_type(
    operator: OperatorNode, inputs: Sequence[RoutedInput], place: int, known: StructType | None
) -> OutputType:
    given = next((one for one in inputs if one.place == place), None)
    if given is None:
        parent = operator.inputs[place].parent
        declared = declared_type(parent)
        if declared is None and known is not None:
            return OutputType(known, scalar=is_scalar(parent))
        return declared or _without_rows(operator, parent, place)
    if given.fitting is not None:
        return OutputType(given.fitting, scalar=given.scalar)
    columns = to_type(given.frame.user_schema, parameter="input")
    assert isinstance(columns, StructType)
    return OutputType(columns, scalar=given.scalar)


def _without_rows(operator: OperatorNode, parent: Node, place: int) -> OutputType:
    """The kind of elements of an input that never had one."""
    if len(typing_inputs(operator)) == 1:
        return _NOTHING
    in_code = declared_type(parent, type_in_code)
    if in_code is None:
        stream = ("first", "second")[place]
        raise ConfigurationError(
            f"operator '{operator.uid}': its {stream} stream had no row yet, and nothing says which columns that will "
            "have, which its results need: declare them, as schema= of the source, or as output_type of the transform "
            "or operator before it"
        )
    return in_code


def recorded_text(kinds: Sequence[OutputType]) -> str:
    """The columns of elements as checkpoints record them: as DDL, of two inputs those of each in a struct."""
    structs = [pa.struct(list(kind.columns.arrow)) for kind in kinds]
    if len(structs) == 1:
        return ddl_text(structs[0])
    return ddl_text(pa.struct([(f"input{place}", one) for place, one in enumerate(structs, 1)]))


def are_types_recorded(operator: OperatorNode) -> bool:
    """Whether types of elements may be needed where no row comes: by timers, and by rows of another input."""
    function = operator.function
    return isinstance(function, TypedByInputs) or (isinstance(function, Typed) and has_timers(function))


def recorded_types(operator: OperatorNode, recorded: OperatorCheckpoint | None) -> list[StructType] | None:
    """What ``recorded_text`` says; None where nothing is recorded."""
    if recorded is None or not recorded.input_type:
        return None
    columns = to_type(recorded.input_type, parameter="recorded input")
    assert isinstance(columns, StructType)
    kinds = columns.types if isinstance(operator.function, TypedByInputs) else [columns]
    return [kind for kind in kinds if isinstance(kind, StructType)]


def sink_spec(
    job: StatefulJob,
    target: SinkTarget,
    batch: BatchContext,
    columns: Sequence[str],
    *,
    layout: JobLayout,
    places: Sequence[str],
    **origin: Any,
) -> SubtaskSpec:
    """What all subtasks are given through which rows pass to a sink.

    Args:
        columns: that the sink is given.
        places: hidden columns that say where each row came from.
        origin: what else is known of that, see ``SubtaskSpec``.
    """
    return SubtaskSpec(
        layout=layout,
        write_id=batch.write_id,
        uid=target.name,
        routed=not_routed(columns, places),
        outputs=[OutputSpec(None, _NOTHING, [target], exchange=False)],
        dead_letters=job.on_error == "dead_letter",
        clocks=BatchClocks(batch.clock_ms, batch.clock_ms, batch.clock_ms),
        checkpoint_id=batch.checkpoint_id,
        **origin,
    )


def run_operator(spark: SparkSession, routed: Routed, spec: SubtaskSpec) -> list[SubtaskReport]:
    """Run all subtasks of an operator in one Spark job; their reports, by subtask.

    Raises:
        StatelakeError: as for ``run_subtasks``; or broadcast elements were refused by some subtasks only.
    """
    reports = run_subtasks(spark, routed.rows, spec)
    if [r.subtask for r in reports] != list(range(spec.parallelism)):
        raise StatelakeError(
            f"operator '{spec.uid}': {counted(spec.parallelism, 'subtask was', 'subtasks were')} planned, "
            f"{[r.subtask for r in reports]} "
            "reported; nothing was committed, run again"
        )
    if any(r.broadcast_refused != reports[0].broadcast_refused for r in reports):
        raise StatelakeError(
            f"job '{spec.layout.job}', operator '{spec.uid}': a broadcast element was refused by some subtasks and "
            "taken by others "
            f"({[len(r.broadcast_refused) for r in reports]} refused, by subtask), so their copies of the state would "
            "differ. Nothing of this micro-batch was committed. The function must do the same with a broadcast "
            "element in every subtask"
        )
    return reports


def run_subtasks(
    spark: SparkSession, rows: TaskInput[pa.Table | None], spec: SubtaskSpec
) -> list[SubtaskReport]:
    """Run a subtask over each part of rows; their reports, in the order of the parts.

    Raises:
        UserFunctionError: a row or function failed.
        SubtaskLostError: a process that ran a subtask died.
        StatelakeError: of the class that a subtask raised.
    """
    job = spec.layout.job
    label = f"{job}: checkpoint {spec.checkpoint_id}, {spec.kind} {spec.uid}"
    with (
        translating_worker_loss(job=job, operator=spec.uid),
        reading(spec.source, job=job, into=f"{spec.kind} '{spec.uid}'"),
    ):
        reports = run(spark, rows, subtask_function(spec), label=label, prefix=f"job '{job}': ")
    return [SubtaskReport.of(one) for one in reports]


def _restored_state(
    operator: OperatorNode, batch: BatchContext, reads: JobLayout, *, known: bool
) -> RestoredOperatorState:
    refs: Mapping[str, OperatorStateRef] = (
        {r.operator: r for r in batch.parent.operator_state} if batch.parent else {}
    )
    ref = refs.get(operator.uid)
    left = ref and replace(ref, states=[s for s in ref.states if s.name not in operator.dropped_states])
    return RestoredOperatorState(
        uri=reads.operator_state,
        ref=left,
        files=[] if ref is None else operator_state_files(batch.path, ref),
        restored=ref is not None and restored_since_last_run(batch.path, ref),
        known=known or ref is not None,
        completed=completed_since_last_run(batch.path, ref),
    )
