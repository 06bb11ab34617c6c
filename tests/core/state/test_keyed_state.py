"""The states of an operator: one handle a name, one type a name, and no state without a key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from state_engine.core.errors import StateAccessError
from state_engine.core.functions.runtime_context import RuntimeContext, TaskInfo
from state_engine.core.state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tests.core.state.handles import Bench

USES: list[Callable[[Bench], Any]] = [
    lambda b: b.value().value(),
    lambda b: b.value().update(1),
    lambda b: b.value().clear(),
    lambda b: b.list().get(),
    lambda b: b.list().add(1),
    lambda b: b.list().update([]),
    lambda b: b.list().clear(),
    lambda b: b.map().get("a"),
    lambda b: b.map().put("a", 1),
    lambda b: b.map().remove("a"),
    lambda b: list(b.map().items()),
    lambda b: b.map().is_empty(),
    lambda b: "a" in b.map(),
    lambda b: b.map().clear(),
]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("recording", [False, True])
def test_without_a_key_there_is_no_state(use: Callable[[Bench], Any], recording: bool) -> None:
    bench = Bench()
    bench.context.undo = [] if recording else None
    with pytest.raises(StateAccessError, match="state 's' was used without a current key"):
        use(bench)
    assert bench.entries() == {}


def test_a_handle_asked_for_twice_is_the_same_state() -> None:
    bench = Bench().at(1)
    bench.value().update(1)
    assert bench.value().value() == 1
    assert bench.value() is bench.value()


def test_two_names_are_two_states() -> None:
    bench = Bench().at(1)
    bench.value(name="a").update(1)
    assert bench.value(name="b").value() is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda b: b.value(int), lambda b: b.value(str)),
        (lambda b: b.value(int), lambda b: b.list(int)),
        (lambda b: b.map(str, int), lambda b: b.map(int, int)),
        (lambda b: b.map(str, int), lambda b: b.value(int)),
    ],
)
def test_one_name_for_two_states_is_refused(
    first: Callable[[Bench], Any], second: Callable[[Bench], Any]
) -> None:
    bench = Bench()
    first(bench)
    with pytest.raises(StateAccessError, match="operator 'counter': state 's' is declared twice"):
        second(bench)


def test_the_wrong_descriptor_is_refused_by_name() -> None:
    runtime: Any = Bench().runtime
    with pytest.raises(StateAccessError, match="use a ValueStateDescriptor"):
        runtime.get_state(ListStateDescriptor("s", int))
    with pytest.raises(StateAccessError, match="use a ListStateDescriptor"):
        runtime.get_list_state(ValueStateDescriptor("s", int))
    with pytest.raises(StateAccessError, match="use a MapStateDescriptor"):
        runtime.get_map_state("s")


def test_a_stream_without_keys_has_no_keyed_state() -> None:
    runtime = RuntimeContext(TaskInfo("counter"), None)
    calls: list[Callable[[], Any]] = [
        lambda: runtime.get_state(ValueStateDescriptor("s", int)),
        lambda: runtime.get_list_state(ListStateDescriptor("s", int)),
        lambda: runtime.get_map_state(MapStateDescriptor("s", int, int)),
    ]
    for call in calls:
        with pytest.raises(StateAccessError, match="operator 'counter' is not on a keyed stream"):
            call()


def test_facts_about_the_subtask() -> None:
    info = TaskInfo("counter", 1, 3, 64, 2, {"mode": "fast"})
    runtime = RuntimeContext(info, None)
    assert runtime.get_task_name() == "counter"
    assert runtime.get_index_of_this_subtask() == 1
    assert runtime.get_number_of_parallel_subtasks() == 3
    assert runtime.get_max_number_of_parallel_subtasks() == 64
    assert runtime.get_attempt_number() == 2
    assert runtime.get_job_parameter("mode") == "fast"
    assert runtime.get_job_parameter("other") is None
    assert runtime.get_job_parameter("other", "slow") == "slow"
