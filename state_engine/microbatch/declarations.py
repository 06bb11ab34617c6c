"""Compares what functions declare with what the checkpoint holds, before anything of a run is read or written.

States are declared in ``open``, so a copy of every function whose operator has stored state is opened once a run on
the driver, with a context that hands out empty states. Only a ``StateMigrationError`` counts: whatever else such an
``open`` meets (it may want what only workers have) is for the real one to say. States that are asked for later than in
``open`` are compared when they are asked for, in the subtask, where nothing is committed yet either. Plays the part of
the compatibility checks that Flink makes when it restores a backend.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorCheckpoint
from state_engine.core.errors import ConfigurationError, StateMigrationError
from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.operator.trial_open import trial_open
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.evolution import recorded_schema
from state_engine.core.state.stored_states import StoredStates, earlier_states
from state_engine.core.time.timers import TIMERS
from state_engine.job.graph import OperatorNode, PublishedNode, declared_key, declared_type
from state_engine.job.job import StatefulJob
from state_engine.job.typed_by_input import TypedByInput, function_for
from state_engine.published.table_form import TableForm

_LOG = logging.getLogger(__name__)


def check_declarations(
    job: StatefulJob, path: Sequence[CheckpointRow], *, parameters: Mapping[str, str]
) -> None:
    """Compare the keyed states that the job's functions declare in ``open`` with those of the last row of a path.

    Raises:
        StateMigrationError: a stored state cannot become what is declared.
        ConfigurationError: a state that is published is not declared, or a table cannot show it.
    """
    for node in job.published.values():
        _check_published(job, node, parameters)
    for operator in job.operators.values():
        recorded = path[-1].operator(operator.uid) if path else None
        if recorded is None or not operator.keyed or isinstance(operator.function, TypedByInput):
            continue
        if any(schema.name != TIMERS for schema in recorded.states):
            _check(job, operator, recorded, path, parameters)


def _check_published(job: StatefulJob, node: PublishedNode, parameters: Mapping[str, str]) -> None:
    """Refuse a table of a state that is none of its operator's, before a micro-batch is committed without it."""
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
    key = declared_key(operator)
    if key is not None:
        TableForm(key.schema, recorded_schema(state), node.map_key).checked(operator.uid)


def _check(
    job: StatefulJob,
    operator: OperatorNode,
    recorded: OperatorCheckpoint,
    path: Sequence[CheckpointRow],
    parameters: Mapping[str, str],
) -> None:
    states = StoredStates(
        operator.uid,
        {schema.name: schema for schema in recorded.states},
        earlier_states(operator.uid, path),
        dropped=operator.dropped_states,
    )

    def empty(descriptor: StateDescriptor) -> dict[Any, Any]:
        states.of(descriptor)
        return {}

    info = TaskInfo(
        operator.uid, 0, recorded.parallelism, recorded.max_parallelism, parameters=dict(parameters)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the real open gives them
        problem = trial_open(operator.function, info, loader=empty).problem
    if isinstance(problem, StateMigrationError):
        raise StateMigrationError(f"job '{job.name}': {problem}")
    if problem is not None:
        _LOG.debug("a trial of open failed; the subtasks will report it", exc_info=problem)
