"""Finds the states that a function declares, by opening a copy of it on the driver, and what they are recorded as.

A function that makes its handles elsewhere than in ``open`` and ``initialize_state`` declares them only as it runs: its
states are then given as descriptors, as all of them are in Flink's State Processor API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from state_engine.core.errors import ConfigurationError, StatelakeError
from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.operator.trial_open import trial_open
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.evolution import recorded_schema
from state_engine.core.state.state_schema import StateSchema
from state_engine.job.graph import OperatorNode, function_for
from state_engine.job.job import StatefulJob


def declared_states(
    job: StatefulJob, operator: OperatorNode, given: Mapping[Any, Any]
) -> dict[str, StateSchema]:
    """The states of an operator by name: those that its function declares, and those that are given as descriptors."""
    where = f"job '{job.name}', operator '{operator.uid}'"
    as_given = {d.name: recorded_schema(d) for d in given if isinstance(d, StateDescriptor)}
    unknown = [d for d in given if not isinstance(d, StateDescriptor | str)]
    if unknown:
        raise ConfigurationError(
            f"{where}: states are named by text or a StateDescriptor, not by {unknown[0]!r}"
        )
    opened, problem = _opened(job, operator)
    for name, schema in as_given.items():
        if name in opened and (opened[name].kind, opened[name].type) != (schema.kind, schema.type):
            raise ConfigurationError(
                f"{where}: state '{name}' is declared as {opened[name].kind} of {opened[name].type}, and given as "
                f"{schema.kind} of {schema.type}: use the declaration of the function"
            )
    states = as_given | opened
    missing = sorted(n for n in given if isinstance(n, str) and n not in states)
    if missing:
        seen = f"its function declares {sorted(opened)} when it is opened"
        raise ConfigurationError(
            f"{where}: there is no state {missing}; {problem or seen}. Correct the name, or give the state's "
            "descriptor instead of its name: {ValueStateDescriptor(…): dataframe}"
        )
    return states


def _opened(job: StatefulJob, operator: OperatorNode) -> tuple[dict[str, StateSchema], str]:
    """What a copy of the function declares when it is opened, and why that may be less than there is."""
    function = function_for(operator)
    if function is None:
        return {}, "its state has the type of its input, which only rows show"
    info = TaskInfo(operator.uid, 0, job.parallelism_of(operator), job.max_parallelism)
    trial = trial_open(function, info)
    if isinstance(trial.problem, StatelakeError):
        raise trial.problem
    problem = (
        trial.problem
        and f"its function cannot be opened here ({type(trial.problem).__name__}: {trial.problem})"
    )
    return {state.name: recorded_schema(state) for state in trial.states}, problem or ""
