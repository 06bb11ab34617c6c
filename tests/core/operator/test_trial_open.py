"""A trial open lists the states that a function declares, without processing an element."""

from __future__ import annotations

from typing import Any

from state_engine import CheckpointedFunction, KeyedProcessFunction, ValueStateDescriptor
from state_engine.core.errors import StateMigrationError
from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.operator.trial_open import trial_open

INFO = TaskInfo("count")


class Two(KeyedProcessFunction, CheckpointedFunction):
    """Declares a state in each of its hooks, and notes what is called."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.called: list[str] = []

    def initialize_state(self, context: Any) -> None:
        self.called.append("initialize_state")
        context.get_keyed_state_store().get_state(ValueStateDescriptor("early", "bigint"))

    def open(self, context: Any) -> None:
        self.called.append("open")
        context.get_state(ValueStateDescriptor("late", "string"))
        if self.fails:
            raise FileNotFoundError("model.bin")
        context.get_state(ValueStateDescriptor("last", "string"))

    def snapshot_state(self, context: Any) -> None:
        raise AssertionError("no snapshot is taken")

    def close(self) -> None:
        self.called.append("close")
        raise ValueError("there is nothing to close")


def test_states_of_both_hooks_are_reported_and_the_function_is_left_alone() -> None:
    function = Two()
    trial = trial_open(function, INFO)
    assert [state.name for state in trial.states] == ["early", "late", "last"]
    assert trial.problem is None
    assert function.called == []


def test_what_was_declared_before_a_failure_is_reported_with_it() -> None:
    trial = trial_open(Two(fails=True), INFO)
    assert [state.name for state in trial.states] == ["early", "late"]
    assert isinstance(trial.problem, FileNotFoundError)


def test_the_loader_may_refuse_a_state() -> None:
    def refuse(descriptor: Any) -> dict[Any, Any]:
        raise StateMigrationError(f"not {descriptor.name}")

    trial = trial_open(Two(), INFO, loader=refuse)
    assert isinstance(trial.problem, StateMigrationError)
    assert str(trial.problem) == "not early"


def test_a_function_that_cannot_be_copied_is_a_problem_and_no_crash() -> None:
    function = Two()
    function.generator = (i for i in range(3))  # type: ignore[attr-defined]
    assert isinstance(trial_open(function, INFO).problem, TypeError)
