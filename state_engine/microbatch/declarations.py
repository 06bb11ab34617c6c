"""Compares what functions declare with what the checkpoint holds, before anything of a run is read or written.

States are declared in ``open``, so a copy of every function whose operator has stored state is opened once a run on
the driver, with a context that hands out empty states. Only a ``StateMigrationError`` counts: whatever else such an
``open`` meets (it may want what only workers have) is for the real one to say. States that are asked for later than in
``open`` are compared when they are asked for, in the subtask, where nothing is committed yet either. What is stored and
not asked for is the matter of :mod:`.unasked_states`, keys are that of :mod:`.stored_keys`. Plays the part of the
compatibility checks that Flink makes when it restores a backend.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import CheckpointRow
from state_engine.core.checkpoints.resumption import earlier_states
from state_engine.core.errors import ConfigurationError, StateMigrationError
from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.operator.trial_open import trial_open
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.evolution import column_type_of, recorded_schema
from state_engine.core.state.stored_states import StoredStates
from state_engine.job.graph import OperatorNode, PublishedNode, declared_key, declared_type
from state_engine.job.job import StatefulJob
from state_engine.job.typed_by_input import function_for
from state_engine.microbatch.stored_keys import check_stored_key
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
    function = function_for(operator.function, declared_type(operator.inputs[0].parent))
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
    function = function_for(operator.function, declared_type(operator.inputs[0].parent))
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
