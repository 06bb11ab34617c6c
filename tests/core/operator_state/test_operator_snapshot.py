"""Redistribution of operator state: Flink's vectors, the rules of batches, rescales and restores, and a model."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import chain, count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.errors import RescaleError, StateAccessError
from state_engine.core.functions.checkpointed import CheckpointedFunction
from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.operator.operator_lifecycle import OperatorLifecycle, Resumption
from state_engine.core.operator_state.operator_snapshot import (
    BROADCAST,
    EVEN_SPLIT,
    UNION,
    StateElements,
    SubtaskSnapshot,
    assign,
    declared_states,
)
from state_engine.core.state.descriptors import ListStateDescriptor, MapStateDescriptor

Lists = list[list[int]]
SEVEN = [[0, 1, 2, 3], [10, 11, 12]]


def snapshots(scheme: str, per_subtask: Sequence[Sequence[int]], *, name: str = "s") -> list[SubtaskSnapshot]:
    return [
        SubtaskSnapshot((StateElements(name, scheme, "bigint", tuple(map(str, own))),)) for own in per_subtask
    ]


def given_out(
    old: list[SubtaskSnapshot], parallelism: int, *, restored: bool = False
) -> list[SubtaskSnapshot]:
    return assign(old, parallelism, operator="sink", max_parallelism=8, restored=restored)


def lists(new: list[SubtaskSnapshot], name: str = "s") -> Lists:
    return [[int(e) for e in (s.state(name) or StateElements(name, "", "")).elements] for s in new]


def flat(lists: Lists) -> list[int]:
    return list(chain.from_iterable(lists))


# -- vectors of Flink --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [
        (2, SEVEN),
        (3, [[0, 1, 2], [3, 10], [11, 12]]),
        (4, [[0, 1], [2, 3], [10, 11], [12]]),
        (5, [[0, 1], [2, 3], [10], [11], [12]]),
    ],
)
@pytest.mark.parametrize("restored", [False, True])
def test_even_split(parallelism: int, expected: Lists, restored: bool) -> None:
    """Where the parallelism stays, every subtask keeps its own list, skew included, also after a restore."""
    assert lists(given_out(snapshots(EVEN_SPLIT, SEVEN), parallelism, restored=restored)) == expected


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("others", [[], [8, 9], [7]])
def test_broadcast_is_one_copy_for_everyone(parallelism: int, restored: bool, others: list[int]) -> None:
    """Also where the parallelism stays; what the other subtasks hold does not count."""
    old = snapshots(BROADCAST, [[7, 8], others])
    assert lists(given_out(old, parallelism, restored=restored)) == [[7, 8]] * parallelism


def test_broadcast_that_subtask_0_emptied_is_empty_everywhere() -> None:
    assert lists(given_out(snapshots(BROADCAST, [[], [1]]), 2)) == [[], []]
    assert lists(given_out(snapshots(BROADCAST, [[], [1]]), 3)) == [[], [], []]


def test_several_states_start_at_different_subtasks_by_name() -> None:
    old = SubtaskSnapshot(
        tuple(StateElements(name, EVEN_SPLIT, "bigint", ("1",)) for name in ("a", "b", "c", "d"))
    )
    new = given_out([old], 3)
    assert [[s.name for s in one.states if s.elements] for one in new] == [["a", "d"], ["b"], ["c"]]


@given(
    st.lists(st.lists(st.lists(st.integers(0, 9), max_size=7), min_size=3, max_size=3), max_size=5),
    st.sampled_from([1, 2, 4, 5, 8]),
)
def test_the_load_is_level_over_all_states(states: list[Lists], parallelism: int) -> None:
    old = [
        SubtaskSnapshot(
            tuple(
                StateElements(f"s{n}", EVEN_SPLIT, "bigint", tuple(map(str, own[i])))
                for n, own in enumerate(states)
            )
        )
        for i in range(3)
    ]
    loads = [sum(len(s.elements) for s in one.states) for one in given_out(old, parallelism)]
    assert max(loads) - min(loads) <= 1
    assert sum(loads) == sum(len(own) for state in states for own in state)


# -- raw state ---------------------------------------------------------------------------------------------------------


def test_raw_operator_state_refuses_a_rescale() -> None:
    old = [SubtaskSnapshot(raw_operator=b"x"), SubtaskSnapshot()]
    for parallelism in (1, 3):
        with pytest.raises(
            RescaleError,
            match=rf"operator 'sink' has raw operator state in 1 of 2 subtasks.*cannot become {parallelism}.*"
            "Keep parallelism 2",
        ):
            given_out(old, parallelism)
    for restored in (False, True):
        assert [s.raw_operator for s in given_out(old, 2, restored=restored)] == [b"x", b""]


def test_no_raw_operator_state_is_no_reason_to_refuse() -> None:
    assert given_out([SubtaskSnapshot(), SubtaskSnapshot()], 3) == [SubtaskSnapshot()] * 3


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [
        (1, [[0, 3, 4, 7]]),
        (2, [[0, 3], [4, 7]]),
        (3, [[0], [3, 4], [7]]),
        (8, [[0], [], [], [3], [4], [], [], [7]]),
    ],
)
@pytest.mark.parametrize("restored", [False, True])
def test_raw_keyed_state_goes_with_its_key_groups(parallelism: int, expected: Lists, restored: bool) -> None:
    old = [
        SubtaskSnapshot(raw_keyed=((0, b"0"), (3, b"3"))),
        SubtaskSnapshot(raw_keyed=((4, b"4"), (7, b"7"))),
    ]
    new = given_out(old, parallelism, restored=restored)
    assert [[g for g, _ in s.raw_keyed] for s in new] == expected
    assert {pair for s in new for pair in s.raw_keyed} == {(g, str(g).encode()) for g in (0, 3, 4, 7)}


# -- states that not all subtasks have ---------------------------------------------------------------------------------


def test_a_state_that_only_some_subtasks_have_is_dealt_out_to_all() -> None:
    old = [SubtaskSnapshot(), *snapshots(EVEN_SPLIT, [[1, 2, 3]])]
    assert lists(given_out(old, 3)) == [[1], [2], [3]]
    assert given_out(old, 2)[0].state("s") is None


def test_subtasks_must_agree_on_a_state() -> None:
    one, other = snapshots(EVEN_SPLIT, [[1]])[0], snapshots(UNION, [[1]])[0]
    with pytest.raises(StateAccessError, match="'s' is even_split of bigint in subtask 0 and union of"):
        given_out([one, other], 2)
    with pytest.raises(StateAccessError, match=r"in subtask 3 and .* in subtask 5"):
        declared_states("sink", {3: one, 5: other})


def test_an_operator_without_snapshots_starts_empty() -> None:
    assert given_out([], 2) == [SubtaskSnapshot(), SubtaskSnapshot()]


# -- a model -----------------------------------------------------------------------------------------------------------


class Buffer(CheckpointedFunction):
    """Adds the given elements to each of its states."""

    def __init__(self, to_add: dict[str, list[int]], rules: dict[str, int]) -> None:
        self.to_add, self.rules = to_add, rules

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.lists = {
            "a": store.get_list_state(ListStateDescriptor("a", int)),
            "b": store.get_list_state(ListStateDescriptor("b", int)),
            "u": store.get_union_list_state(ListStateDescriptor("u", int)),
        }
        self.map = store.get_broadcast_state(MapStateDescriptor("m", str, int))
        self.seen = {name: state.get() for name, state in self.lists.items()}, dict(self.map.items())

    def snapshot_state(self, context: Any) -> None:
        for name, state in self.lists.items():
            state.add_all(self.to_add[name])
        self.map.put_all(self.rules)


BATCH = st.fixed_dictionaries(
    {name: st.lists(st.integers(0, 5), max_size=5) for name in ("a", "b", "u")}
    | {"m": st.dictionaries(st.sampled_from("xyz"), st.integers(0, 5), max_size=2)}
)
STEPS = st.lists(
    st.tuples(st.just("batch"), BATCH)
    | st.tuples(st.just("rescale"), st.integers(1, 4))
    | st.tuples(st.just("restore"), st.integers(0, 3)),
    max_size=10,
)


class Model:
    """The state of the subtasks in plain lists, written from the rules and not from the code."""

    def __init__(self, parallelism: int) -> None:
        self.lists: dict[str, Lists] = {n: [[] for _ in range(parallelism)] for n in ("a", "b", "u")}
        self.rules: dict[str, int] = {}

    def start(self, parallelism: int, *, restored: bool) -> None:
        old = len(self.lists["a"])
        if old != parallelism or restored:
            self.lists["u"] = [flat(self.lists["u"]) for _ in range(parallelism)]
        if old != parallelism:
            turn = 0
            for name in ("a", "b"):
                elements = flat(self.lists[name])
                sizes = [len(elements) // parallelism] * parallelism
                for _ in range(len(elements) % parallelism):
                    sizes[turn % parallelism] += 1
                    turn += 1
                rest = iter(elements)
                self.lists[name] = [[next(rest) for _ in range(size)] for size in sizes]

    def seen(self, subtask: int) -> tuple[dict[str, list[int]], dict[str, int]]:
        return {name: own[subtask] for name, own in self.lists.items()}, self.rules

    def batch(self, added: dict[str, Any]) -> None:
        for name, own in self.lists.items():
            for i, one in enumerate(own):
                one.extend(added[name][i :: len(own)])
        self.rules.update(added["m"])


def run_batch(
    now: list[SubtaskSnapshot] | None, parallelism: int, added: dict[str, Any], *, restored: bool, number: int
) -> tuple[list[SubtaskSnapshot], list[tuple[dict[str, list[int]], dict[str, int]]]]:
    starts: Sequence[SubtaskSnapshot | None] = [None] * parallelism
    if now is not None:
        starts = given_out(now, parallelism, restored=restored)
    left, reads = [], []
    for i, start in enumerate(starts):
        function = Buffer({n: added[n][i::parallelism] for n in ("a", "b", "u")}, added["m"])
        info = TaskInfo("sink", i, parallelism, 8)
        run = OperatorLifecycle(function, info=info, clock_ms=0, resumption=Resumption(number, start))
        run.initialize()
        left.append(run.snapshot())
        reads.append(function.seen)
    # one copy of broadcast state is stored
    others = [replace(s, states=tuple(e for e in s.states if e.scheme != BROADCAST)) for s in left[1:]]
    return [left[0], *others], reads


@given(st.integers(1, 4), STEPS)
def test_any_history_of_batches_rescales_and_restores_equals_a_model(
    parallelism: int, steps: list[tuple[str, Any]]
) -> None:
    model, now, restored, numbers = Model(parallelism), None, False, count(1)
    history: list[tuple[Any, Model]] = []
    for what, arg in steps:
        if what == "rescale":
            parallelism = arg
        elif what == "restore" and history:
            now, kept = history[arg % len(history)]
            model, restored = deepcopy(kept), True
        elif what == "batch":
            if now is None:
                model = Model(parallelism)
            before = {name: sum(flat(model.lists[name])) for name in ("a", "b")}
            model.start(parallelism, restored=restored)
            now, reads = run_batch(now, parallelism, arg, restored=restored, number=next(numbers))

            assert reads == [model.seen(i) for i in range(parallelism)]
            assert {name: sum(sum(own[name]) for own, _ in reads) for name in before} == before
            model.batch(arg)
            assert {name: lists(now, name) for name in model.lists} == model.lists
            restored = False
            history.append((now, deepcopy(model)))
