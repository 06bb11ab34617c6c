"""One operator in one micro-batch, as the driver sees it: what its subtasks are given, and their answers.

Rows that are shuffled are a query. Where there is nothing to plan and nothing to shuffle, subtasks run in a job of
Spark without a query: those of a few rows are given a table each, as it is; others read their rows themselves. The same
Python processes run all of them, one micro-batch after the other.

Plays the part of Flink's ``Execution`` of a vertex: deploys the subtasks, gathers their acknowledgements.
Decisions 0003 and 0040.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from state_engine.core.checkpoints.checkpoint import OperatorStateRef
from state_engine.core.checkpoints.resumption import (
    completed_since_last_run,
    earlier_states,
    restored_checkpoint_id,
    restored_since_last_run,
)
from state_engine.core.checkpoints.state_files import operator_state_files
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import StatelakeError, from_wire
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.types.columns import in_one_chunk
from state_engine.core.types.every_type import StructType
from state_engine.core.types.type_parsing import to_type
from state_engine.job.graph import OperatorNode, declared_key, output_type_of
from state_engine.job.job import StatefulJob
from state_engine.job.late_outputs import late_outputs
from state_engine.job.typed_by_input import TypedByInput
from state_engine.microbatch.batch import BatchContext
from state_engine.microbatch.routing.blocks import packed, unpacked
from state_engine.microbatch.routing.origins import timed_sources
from state_engine.microbatch.routing.own_rows import OwnRows
from state_engine.microbatch.routing.routed import RoutedInput
from state_engine.microbatch.routing.routing import Routed
from state_engine.microbatch.subtask.subtask import SubtaskFunction, in_task, subtask_function
from state_engine.microbatch.subtask.subtask_spec import (
    REPORT_SCHEMA,
    BatchClocks,
    OutputSpec,
    RestoredOperatorState,
    SubtaskReport,
    SubtaskSpec,
)
from state_engine.sources.output_type import OutputType
from state_engine.spark.execution import collected, described
from state_engine.spark.lost_subtasks import translating_worker_loss
from state_engine.spark.read_failures import reading
from state_engine.spark.task_attempts import attempt_here, runs_in_this_process, this_task
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.copy_directory import NO_COPIES, local_copies
from state_engine.storage.state.located_files import state_files


def subtask_spec(
    job: StatefulJob,
    operator: OperatorNode,
    batch: BatchContext,
    *,
    layout: JobLayout,
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
        function=function.bound(_input_type(inputs)) if isinstance(function, TypedByInput) else function,
        routed=routed.layout,
        watermark_steps=routed.steps,
        key_form=None if key is None else key.form,
        keyed=operator.keyed,
        key_schema=key_schema,
        outputs=outputs,
        state_files=state_files(layout, batch.path, operator.uid),
        recorded_states={s.name: s for s in recorded.states} if recorded else {},
        earlier_states=earlier_states(operator.uid, batch.path),
        dropped_states=operator.dropped_states,
        operator_state=_restored_state(operator, batch, known=recorded is not None),
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
        local_copies=local_copies() or NO_COPIES,
        **_rules_of_table(job, operator, inputs),
        late_to={} if batch.letters else {s: tag.tag_id for s, tag in late_outputs(operator).items()},
        letters=batch.letters.labels
        if batch.letters is not None and batch.letters.operator == operator.uid
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
    rules = tuple(node.table.row_rules(_input_type(inputs).columns.arrow))
    return {"table_rules": rules, "table_name": f"sink '{node.name}', {node.table.shown}"}


def main_output_type(operator: OperatorNode, inputs: Sequence[RoutedInput]) -> OutputType:
    """What an operator emits: what it declares, or what follows from what comes in."""
    if operator.output_type is not None:
        return operator.output_type
    return output_type_of(operator, _input_type(inputs)) if inputs else _NOTHING


_NOTHING = OutputType.of(to_type(int, parameter="output_type"))
"""Stands for the kind of elements where none came in, so that none goes out."""


def _input_type(inputs: Sequence[RoutedInput]) -> OutputType:
    """The kind of the elements of an operator's first input."""
    first = next((one for one in inputs if one.place == 0), None)
    if first is None:
        return _NOTHING
    if first.fitting is not None:
        return OutputType(first.fitting, scalar=first.scalar)
    columns = to_type(first.frame.user_schema, parameter="input")
    assert isinstance(columns, StructType)
    return OutputType(columns, scalar=first.scalar)


def run_subtasks(
    spark: SparkSession,
    routed: DataFrame | OwnRows | list[pa.Table],
    spec: SubtaskSpec,
    *,
    job: str,
    small: bool = False,
) -> list[SubtaskReport]:
    """Run all subtasks in one Spark job; their reports, by subtask.

    Args:
        routed: rows by subtask, shuffled; or what each reads itself; or where they are few a table a subtask.
    """
    with translating_worker_loss(job=job, operator=spec.uid):
        unordered = map(SubtaskReport.from_json, _answers(spark, routed, spec, job=job, small=small))
    reports = sorted(unordered, key=lambda r: r.subtask)
    for report in reports:
        if report.error is not None:
            raise from_wire(report.error, prefix=f"job '{job}': ")
    if [r.subtask for r in reports] != list(range(spec.parallelism)):
        raise StatelakeError(
            f"operator '{spec.uid}': {counted(spec.parallelism, 'subtask was', 'subtasks were')} planned, "
            f"{[r.subtask for r in reports]} "
            "reported; nothing was committed, run again"
        )
    if any(r.broadcast_refused != reports[0].broadcast_refused for r in reports):
        raise StatelakeError(
            f"job '{job}', operator '{spec.uid}': a broadcast element was refused by some subtasks and taken by others "
            f"({[len(r.broadcast_refused) for r in reports]} refused, by subtask), so their copies of the state would "
            "differ. Nothing of this micro-batch was committed. The function must do the same with a broadcast "
            "element in every subtask"
        )
    return reports


def _answers(
    spark: SparkSession,
    routed: DataFrame | OwnRows | list[pa.Table],
    spec: SubtaskSpec,
    *,
    job: str,
    small: bool,
) -> list[str]:
    """The reports of all subtasks, as JSON, as they end."""
    label, run = f"{job}: checkpoint {spec.checkpoint_id}, operator {spec.uid}", subtask_function(spec)
    if isinstance(routed, list):
        return run_few(spark, routed, run, label)
    into = f"operator '{spec.uid}'"
    if isinstance(routed, OwnRows):
        with reading(spec.source, job=job, into=into):
            return run_reading(spark, routed, run, label)
    reports = routed.mapInArrow(in_task(run), REPORT_SCHEMA)
    rows = collected(reports, label=label, source=spec.source, job=job, into=into, small=small)
    return [row["report"] for row in rows]


def run_few(spark: SparkSession, tables: list[pa.Table], run: SubtaskFunction, label: str) -> list[str]:
    """Run a subtask over each table, in Spark tasks or in this process, see ``task_attempts``; reports, as JSON."""
    if runs_in_this_process(spark):
        return [run(in_one_chunk(table), attempt_here(n)) for n, table in enumerate(tables)]

    def tasks(blocks: Iterable[bytes]) -> Iterator[str]:
        yield run(unpacked(blocks), this_task())

    return _without_query(spark, [packed(table) for table in tables], tasks, label)


def run_reading(spark: SparkSession, rows: OwnRows, run: SubtaskFunction, label: str) -> list[str]:
    """Run all subtasks in Spark tasks, each over the rows that it reads; their reports, as JSON."""

    def tasks(subtasks: Iterable[int]) -> Iterator[str]:
        for subtask in subtasks:
            yield run(rows.of(subtask), this_task())

    return _without_query(spark, range(rows.parallelism), tasks, label)


def _without_query(
    spark: SparkSession, given: Sequence[Any], run: Callable[[Iterable[Any]], Iterator[str]], label: str
) -> list[str]:
    """What a function makes of each of these, in a task of its own."""
    with described(spark, label):
        return spark.sparkContext.parallelize(given, len(given)).mapPartitions(run).collect()


def _restored_state(operator: OperatorNode, batch: BatchContext, *, known: bool) -> RestoredOperatorState:
    refs: Mapping[str, OperatorStateRef] = (
        {r.operator: r for r in batch.parent.operator_state} if batch.parent else {}
    )
    ref = refs.get(operator.uid)
    left = ref and replace(ref, states=[s for s in ref.states if s.name not in operator.dropped_states])
    return RestoredOperatorState(
        ref=left,
        files=[] if ref is None else operator_state_files(batch.path, ref),
        restored=ref is not None and restored_since_last_run(batch.path, ref),
        known=known or ref is not None,
        completed=completed_since_last_run(batch.path, ref),
    )
