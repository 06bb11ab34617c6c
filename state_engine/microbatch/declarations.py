"""Compares what the job and its functions declare with what the checkpoint holds, before anything is read or written.

States are declared in ``open``, so a copy of every function whose operator has stored state is opened once a run on
the driver, with a context that hands out empty states. Only a ``StateMigrationError`` counts: whatever else such an
``open`` meets (it may want what only workers have) is for the real one to say. States that are asked for later than in
``open`` are compared when they are asked for, in the subtask, where nothing is committed yet either. What is stored and
not asked for is the matter of :mod:`.unasked_states`.

The key that an operator's state is stored by is compared twice: before a run with what the code shows, the columns and
their types where they are declared; and with the types that its rows have. Other columns are another key, even if they
hold values of the same type: no cast makes one of the other.

Plays the part of the compatibility checks, of states and of key serializers, that Flink makes when it restores a
backend.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorCheckpoint
from state_engine.core.checkpoints.resumption import earlier_states
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError, StateMigrationError
from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.operator.trial_open import trial_open
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.evolution import column_type_of, recorded_schema
from state_engine.core.state.stored_states import StoredStates
from state_engine.job.graph import (
    OperatorNode,
    PublishedNode,
    SelectedKey,
    declared_key,
    function_for,
    type_in_code,
)
from state_engine.job.job import StatefulJob
from state_engine.microbatch.batch import BatchContext
from state_engine.microbatch.routing.routed import RoutedLayout
from state_engine.microbatch.unasked_states import UnaskedStates
from state_engine.state_tables.table_form import TableForm

_LOG = logging.getLogger(__name__)


def check_declarations(
    job: StatefulJob, path: Sequence[CheckpointRow], unasked: UnaskedStates, *, parameters: Mapping[str, str]
) -> frozenset[str]:
    """Compare keys and states that the job declares with those of the last row of a path.

    Args:
        unasked: refuses what is stored and not asked for.

    Returns:
        The operators of which only their subtasks can say what they ask for.
    """
    for node in job.published.values():
        _check_published(job, node, parameters)
    not_opened = set()
    for operator in job.operators.values():
        recorded = path[-1].operator(operator.uid) if path else None
        if recorded is not None:
            check_stored_key(job, operator, recorded)
            _check_shape(job, operator, recorded)
        if unasked.holds(operator.uid) and not _check(job, operator, path, unasked, parameters):
            not_opened.add(operator.uid)
    return frozenset(not_opened)


def check_key_names(job: StatefulJob, operator: OperatorNode, key: KeySchema) -> None:
    """Refuse names of a key that a published table of the operator's cannot have."""
    fields = [pa.field(name, kind) for name, kind in zip(key.names, key.types, strict=True)]
    for node in job.published.values():
        if node.operator is operator:
            node.table.check_names(fields, what=f"job '{job.name}', table '{node.name}'")


def _check_published(job: StatefulJob, node: PublishedNode, parameters: Mapping[str, str]) -> None:
    """Raise if a published state does not belong to its operator, before a micro-batch commits without it."""
    operator = node.operator
    function = function_for(operator)
    info = TaskInfo(
        operator.uid, 0, job.parallelism_of(operator), job.max_parallelism, parameters=dict(parameters)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the real open gives them
        trial = None if function is None else trial_open(function, info)
    if trial is None or trial.problem is not None or not trial.states:
        return
    state = next((one for one in trial.states if one.name == node.state), None)
    if state is None:
        raise ConfigurationError(
            f"job '{job.name}', table '{node.name}': operator '{operator.uid}' has no state '{node.state}'; its "
            f"function declares {sorted(one.name for one in trial.states)} in open. Correct the name in publish_state, "
            "or declare the state in open"
        )
    key, fields = declared_key(operator), [pa.field("value", column_type_of(state).arrow)]
    if key is not None:
        form = TableForm(key.schema, recorded_schema(state), node.map_key).checked(operator.uid)
        fields = list(form.columns.schema)
    node.table.check_names(fields, what=f"job '{job.name}', table '{node.name}'")


def _check(
    job: StatefulJob,
    operator: OperatorNode,
    path: Sequence[CheckpointRow],
    unasked: UnaskedStates,
    parameters: Mapping[str, str],
) -> bool:
    """Whether a trial of ``open`` said what the function asks for. Raises where that does not fit what is stored."""
    function = function_for(operator)
    if function is None:
        return False
    recorded = path[-1].operator(operator.uid)
    states = StoredStates(
        operator.uid,
        {schema.name: schema for schema in recorded.states} if recorded is not None else {},
        earlier_states(operator.uid, path),
        dropped=operator.dropped_states,
    )

    def empty(descriptor: StateDescriptor) -> dict[Any, Any]:
        states.of(descriptor)
        return {}

    info = TaskInfo(
        operator.uid, 0, job.parallelism_of(operator), job.max_parallelism, parameters=dict(parameters)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the real open gives them
        trial = trial_open(function, info, loader=empty, keyed=operator.keyed)
    if isinstance(trial.problem, StateMigrationError):
        raise StateMigrationError(f"job '{job.name}': {trial.problem}")
    if trial.problem is not None:
        _LOG.debug("a trial of open failed; the subtasks will report it", exc_info=trial.problem)
        return False
    unasked.check_opened(operator, states.asked | trial.operator_states)
    return True


def check_stored_key(job: StatefulJob, operator: OperatorNode, recorded: OperatorCheckpoint) -> None:
    """Compare the key as the code shows it, before any row is read."""
    known = KeySchema.recorded(recorded.key_schema, recorded.key_type)
    _check_keyed(job, operator, recorded)
    if operator.key_columns != known.names:
        _refuse_columns(job, operator, known, operator.key_columns)
    _check_second_key(job, operator, recorded.second_key)
    declared = declared_key(operator, type_in_code)
    if declared is not None:
        _check_types(job, operator, known, declared.schema, recorded)
    _check_key_groups(job, operator, recorded)


def _check_shape(job: StatefulJob, operator: OperatorNode, recorded: OperatorCheckpoint) -> None:
    """Compare what states mean, where their types do not say all of it."""
    today = operator.function.shape or ""
    if recorded.states and today != recorded.shape:
        known, now = (
            f"'{shape}'" if shape else "a function without shape" for shape in (recorded.shape, today)
        )
        raise StateMigrationError(
            f"{_where(job, operator)}: its state was written by {known}, and {now} would misread it. "
            "Restore what it was; or give the operator another uid: it starts empty, and a replay from the first "
            "checkpoint fills it"
        )


def checked_key(
    job: StatefulJob, operator: OperatorNode, routed: RoutedLayout, batch: BatchContext
) -> KeySchema | None:
    """Names and types of the key: from the rows, or where none came, as recorded; None without one."""
    recorded, today = batch.parent.operator(operator.uid) if batch.parent else None, routed.key_schema
    declared = declared_key(operator)
    if today is not None and declared is not None:  # rows have times of day as numbers
        today = replace(today, times=declared.schema.times)
    if recorded is None:
        return today
    known = KeySchema.recorded(recorded.key_schema, recorded.key_type)
    _check_keyed(job, operator, recorded)
    if today is not None:
        _check_types(job, operator, known, today, recorded)
    _check_key_groups(job, operator, recorded)
    if today is None:
        return known if recorded.key_type else None
    return replace(today, stored=known.stored)


def other_columns(known: Sequence[str], today: Sequence[str]) -> str:
    """What to do where a key is of other columns."""
    renamed = f". If only their names are different, name them {list(known)} in a transform before key_by"
    may_be_renamed = len(known) == len(today) and set(known) != set(today)
    return (
        f"Other columns are another key. Key by {list(known)} again; or give the operator another uid: it starts "
        "empty, and a replay from the first checkpoint fills it" + (renamed if may_be_renamed else "")
    )


def _check_keyed(job: StatefulJob, operator: OperatorNode, recorded: OperatorCheckpoint) -> None:
    if not operator.keyed:
        raise StateMigrationError(
            f"{_where(job, operator)}: its state is stored by key {recorded.key_schema}, the job gives it a stream "
            "without key. Restore the old key_by, or give the operator another uid to start empty"
        )


def _check_second_key(job: StatefulJob, operator: OperatorNode, known: Sequence[str]) -> None:
    """Both streams share the state, so another key of the second one is another key as well."""
    today = operator.second_key
    if known and today and list(today) != list(known):
        raise StateMigrationError(
            f"{_where(job, operator)}: its second stream was keyed by {list(known)}, the job keys it by {list(today)}. "
            f"{other_columns(known, today)}"
        )


def _check_types(
    job: StatefulJob, operator: OperatorNode, known: KeySchema, today: KeySchema, recorded: OperatorCheckpoint
) -> None:
    """Where no more is known of the recorded keys than how they are stored, that decides."""
    if today.is_stored_like(known) if recorded.key_type else today.storage == known.storage:
        return
    if today.names != known.names:
        _refuse_columns(job, operator, known, today.names)
    rewrite = f"engine.state_processor(job).change_key_type('{operator.uid}'"
    if isinstance(operator.inputs[0].key, SelectedKey):  # nothing shows what the function takes its key from
        rewrite = f"say what becomes of an old key: {rewrite}, convert=…)"
    else:
        rewrite += (
            f"), or `statelake change-key-type {job.name} --operator {operator.uid}`, first with a dry run"
        )
    raise StateMigrationError(
        f"{_where(job, operator)}: its state is stored by key {known.declared_text}, the job keys by "
        f"{today.declared_text}. Restore the old key_by. If it is the same key in another type, such as a number as "
        f"text, rewrite the state: {rewrite}. If it is another key, give the operator another uid: it starts empty, "
        "and a replay from the first checkpoint fills it"
    )


def _check_key_groups(job: StatefulJob, operator: OperatorNode, recorded: OperatorCheckpoint) -> None:
    if recorded.max_parallelism != job.max_parallelism:
        raise StateMigrationError(
            f"{_where(job, operator)}: its state has {counted(recorded.max_parallelism, 'key group')}, the job "
            f"declares max_parallelism={job.max_parallelism}. Declare the old number; or rewrite the state: "
            f"engine.rescale(job, max_parallelism={job.max_parallelism}), or `statelake rescale {job.name} "
            f"--max-parallelism {job.max_parallelism}`"
        )


def _refuse_columns(job: StatefulJob, operator: OperatorNode, known: KeySchema, today: Sequence[str]) -> None:
    """Refuse another key; that of a keyed sink in the words of its author. Raises StateMigrationError."""
    sink = next((n.name for n in job.published.values() if n.operator is operator and n.sink_key), None)
    if sink is not None:
        raise StateMigrationError(
            f"job '{job.name}', sink '{sink}': its table holds a row for each {list(known.names)}, and key= says "
            f"{list(today)} now. Say key={list(known.names)} again; or give the sink another name and another "
            "table, which holds what comes from then on: a replay from the first checkpoint fills it with what came "
            "before"
        )
    raise StateMigrationError(
        f"{_where(job, operator)}: its state is stored by {list(known.names)}, the job keys by {list(today)}. "
        f"{other_columns(known.names, today)}"
    )


def _where(job: StatefulJob, operator: OperatorNode) -> str:
    return f"job '{job.name}', operator '{operator.uid}'"
