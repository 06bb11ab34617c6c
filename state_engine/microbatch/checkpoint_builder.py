"""Builds the row of ``checkpoints`` that a micro-batch commits, from what was planned and what the subtasks wrote.

Pure: the same attempt gives the same row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from state_engine.core.checkpoints.checkpoint import (
    CheckpointRow,
    FirstTimers,
    OperatorCheckpoint,
    OperatorStateRef,
    OperatorStateSchema,
    SourceProgress,
)
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.dead_letters import LETTERS
from state_engine.core.checkpoints.entry_counts import entries_after
from state_engine.core.functions.checkpointed import has_checkpoint_hooks
from state_engine.core.functions.metrics import metric_scope
from state_engine.core.keys.key_groups import key_group_range
from state_engine.core.operator_state.operator_state_ref import build_ref
from state_engine.core.state.descriptors import TIMERS
from state_engine.core.state.state_schema import StateSchema
from state_engine.core.state.stored_states import kept_states
from state_engine.core.time.watermarks import slowest
from state_engine.job.job import StatefulJob
from state_engine.job.parallelism import rescaled_in_force
from state_engine.microbatch.attempt import Executed, Listed
from state_engine.microbatch.batch_result import Execution
from state_engine.microbatch.operator_watermarks import operators_reached_ms
from state_engine.microbatch.reports import OperatorReport


def build_row(
    job: StatefulJob, attempt: Listed, *, created_at: datetime, requested_by: str, declared: str
) -> CheckpointRow:
    """The row to commit; ``Outputs.stage`` adds what sinks get, and the commit adds durations.

    Args:
        declared: by the code of the job, see ``declared_parts``.
    """
    batch, done = attempt.batch, attempt.done
    sources = [_progress(attempt, name) for name in job.sources]
    sources += _letters_sent(attempt)
    refs = {r.operator: r for r in batch.parent.operator_state} if batch.parent else {}
    refs |= {n: OperatorStateRef(n, batch.write_id, len(p.elements)) for n, p in batch.moved.items()}
    refs |= _operator_state(job, attempt, refs)
    row = CheckpointRow(
        checkpoint_id=batch.checkpoint_id,
        parent_id=batch.parent.checkpoint_id if batch.parent else None,
        branch=batch.branch,
        kind=CheckpointKind.CHECKPOINT,
        write_id=batch.write_id,
        created_at=created_at,
        clock_ms=batch.clock_ms,
        watermark_ms=slowest(done.watermarks_ms.values()),
        rows_in=sum(done.rows_by_source.values()),
        rows_refused=done.refused,
        operators=[o for uid in job.operators if (o := _operator(job, attempt, uid)) is not None],
        operator_state=list(refs.values()),
        operator_state_files=attempt.operator_state_files,
        sources=sources,
        sinks=[],
        dead_letters=[],
        metrics={
            f"{metric_scope(uid)}.{name}": value
            for uid, o in done.operators.items()
            for name, value in o.metrics.items()
        },
        delta_versions=dict(attempt.versions),
        job=job.name,
        code_version=job.code_version,
        requested_by=requested_by,
        rescaled=rescaled_in_force(job, batch.parent),
        partition=batch.partition.key if batch.partition else "",
        partition_start_ms=batch.partition.start_ms if batch.partition else None,
        partition_end_ms=batch.partition.end_ms if batch.partition else None,
        late_rows=batch.late_rows,
        backfill=batch.backfill,
        drained=batch.drain,
        operator_watermarks_ms=operators_reached_ms(job, batch, done.watermarks_ms),
        expectations=done.expectations,
        gates=done.gates,
        declared=declared,
    )
    return replace(row, kept_states=_kept_for_later(job, done, row))


def _kept_for_later(job: StatefulJob, done: Execution, row: CheckpointRow) -> dict[str, list[str]]:
    """By uid, the states that the job keeps by name and its functions did not ask for."""
    kept = {}
    for uid, operator in job.operators.items():
        asked = done.asked_in_open.get(uid, set()) | done.asked_late.get(uid, set())
        if names := row.state_names(uid).intersection(operator.kept_states) - asked:
            kept[uid] = sorted(names)
    return kept


def _operator(job: StatefulJob, attempt: Executed, uid: str) -> OperatorCheckpoint | None:
    parent = attempt.batch.parent.operator(uid) if attempt.batch.parent else None
    report, dropped = attempt.done.operators.get(uid), job.operators[uid].dropped_states
    key = attempt.done.key_schemas.get(uid)
    if (
        report is None or key is None
    ):  # nothing came, or never any key: the state, if there is any, is what it was
        return parent.unwritten() if parent else None
    states = kept_states(parent.states if parent else [], attempt.done.states[uid], dropped=dropped)
    return OperatorCheckpoint(
        uid=uid,
        parallelism=attempt.batch.parallelism[uid],
        max_parallelism=job.max_parallelism,
        key_schema=str(key),
        states=states,
        changelog=[f for r in report.subtasks for f in r.changelog],
        bases=parent.bases if parent else [],
        changed_entries=report.changed_entries,
        key_type=key.declared_text,
        next_timers_ms=report.next_timers_ms,
        first_timers=_first_timers(report, job.max_parallelism, attempt.batch.parallelism[uid], states),
        entries=entries_after(attempt.batch.path, uid, states, report.entries_added),
        asked_late=_asked_late(attempt, uid, parent, states),
        second_key=list(job.operators[uid].second_key),
        shape=job.operators[uid].function.shape or "",
        input_type=attempt.done.input_types.get(uid, parent.input_type if parent else ""),
    )


def _asked_late(
    attempt: Executed,
    uid: str,
    parent: OperatorCheckpoint | OperatorStateRef | None,
    states: Iterable[StateSchema | OperatorStateSchema],
) -> list[str]:
    """Of these states, the names of those that the operator was seen to ask for later than in ``open``."""
    before = set(parent.asked_late) if parent is not None else set()
    late = (before - attempt.done.asked_in_open[uid]) | attempt.done.asked_late[uid]
    return sorted(late.intersection(state.name for state in states))


def _first_timers(
    report: OperatorReport, max_parallelism: int, parallelism: int, states: Sequence[StateSchema]
) -> list[FirstTimers]:
    if all(state.name != TIMERS for state in states):
        return []
    groups = [key_group_range(max_parallelism, parallelism, one.subtask) for one in report.subtasks]
    return [
        FirstTimers(own.start, own.end, one.next_timers_ms)
        for own, one in zip(groups, report.subtasks, strict=True)
    ]


def _operator_state(
    job: StatefulJob, attempt: Executed, known: Mapping[str, OperatorStateRef]
) -> dict[str, OperatorStateRef]:
    """Of the operators that ran and have state of their own, or hooks that want to know when they ran last."""
    refs = {}
    for uid, report in attempt.done.operators.items():
        declared = [one.operator_state for one in report.subtasks]
        if uid in known or any(declared) or has_checkpoint_hooks(job.operators[uid].function):
            ref = build_ref(uid, declared, write_id=attempt.batch.write_id, parent=known.get(uid))
            refs[uid] = replace(ref, asked_late=_asked_late(attempt, uid, known.get(uid), ref.states))
    return refs


def _progress(attempt: Executed, name: str) -> SourceProgress:
    batch, rows = attempt.batch, attempt.done.rows_by_source.get(name, 0)
    part = batch.moved.get(name)
    before = batch.parent.source(name) if batch.parent else None
    had_rows_ms = before.last_rows_ms if before else None
    return SourceProgress(
        name=name,
        position_from=part.position_from if part else attempt.positions[name],
        position_to=part.position_to if part else attempt.positions[name],
        rows=rows,
        # event time that is taken away begins anew where it comes back
        watermark_ms=attempt.done.watermarks_ms.get(name),
        floor_ms=batch.time.floors_ms.get(name),
        idle=name in batch.time.idle,
        last_rows_ms=batch.clock_ms if rows or had_rows_ms is None else had_rows_ms,
        behind_watermark=attempt.done.behind_watermark.get(name, 0),
    )


def _letters_sent(attempt: Executed) -> list[SourceProgress]:
    """Which dead letters were sent again, this batch's included; none where none ever were."""
    parent, part = attempt.batch.parent, attempt.batch.letters
    before = parent.source(LETTERS) if parent else None
    if part is not None:
        rows = attempt.done.rows_by_source.get(LETTERS, 0)
        return [SourceProgress(LETTERS, part.slice.position_from, part.slice.position_to, rows, None)]
    return [replace(before, position_from=before.position_to, rows=0)] if before else []
