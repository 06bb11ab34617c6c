"""Redistribution of operator state: Flink's vectors; no element is lost, duplicated or reordered."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_engine.core.operator_state.redistribution import broadcast, even_split, even_split_states, union

Lists = list[list[int]]

per_subtask = st.lists(st.lists(st.integers(), max_size=12), max_size=8)
parallelism = st.integers(1, 20)
SEVEN = [[0, 1, 2, 3], [10, 11, 12]]


def flat(lists: Lists) -> list[int]:
    return list(chain.from_iterable(lists))


@st.composite
def operators(draw: st.DrawFn) -> dict[str, Lists]:
    """The states of one operator: any names, all from the same number of subtasks."""
    subtasks = draw(st.integers(1, 6))
    own = st.lists(st.lists(st.integers(), max_size=9), min_size=subtasks, max_size=subtasks)
    return draw(st.dictionaries(st.text("abc", min_size=1, max_size=3), own, max_size=6))


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (1, [[0, 1, 2, 3, 10, 11, 12]]),
        (2, SEVEN),
        (3, [[0, 1, 2], [3, 10], [11, 12]]),
        (4, [[0, 1], [2, 3], [10, 11], [12]]),
        (5, [[0, 1], [2, 3], [10], [11], [12]]),
        (9, [[0], [1], [2], [3], [10], [11], [12], [], []]),
    ],
)
def test_even_split_is_flinks(new: int, expected: Lists) -> None:
    assert even_split(SEVEN, new) == expected


@given(per_subtask, parallelism)
def test_even_split_keeps_elements_and_order(old: Lists, new: int) -> None:
    result = even_split(old, new)
    assert len(result) == new
    assert flat(result) == flat(old)
    if len(old) == new:
        assert result == old
    else:
        count = len(flat(old))
        assert [len(own) for own in result] == [count // new + (i < count % new) for i in range(new)]


@given(operators(), parallelism)
def test_several_states_stay_level_together(states: dict[str, Lists], new: int) -> None:
    result = even_split_states(states, new)
    assert list(result) == sorted(states)
    loads = [0] * new
    for name, lists in result.items():
        assert len(lists) == new
        assert flat(lists) == flat(states[name])
        if len(states[name]) == new:
            assert lists == states[name]
            continue
        sizes = [len(own) for own in lists]
        assert max(sizes) - min(sizes) <= 1
        loads = [load + size for load, size in zip(loads, sizes, strict=True)]
        assert max(loads) - min(loads) <= 1


def test_the_surplus_goes_round_by_state_name() -> None:
    states = {"c": [[1]], "a": [[2]], "b": [[3]]}
    assert even_split_states(states, 2) == {"a": [[2], []], "b": [[], [3]], "c": [[1], []]}


def test_states_of_one_operator_come_from_as_many_subtasks() -> None:
    with pytest.raises(ValueError, match="a: 1, b: 2"):
        even_split_states({"b": [[1], [2]], "a": [[1]]}, 3)


@given(per_subtask, parallelism)
def test_union_gives_everything_to_everyone(old: Lists, new: int) -> None:
    assert union(old, new) == [flat(old)] * new


@given(st.lists(st.integers()), st.integers(0, 3), st.integers(0, 3), parallelism)
def test_broadcast_gives_one_copy_to_everyone(copy: list[int], before: int, after: int, new: int) -> None:
    assert broadcast([[]] * before + [copy] + [copy] * after, new) == [copy] * new


def test_broadcast_of_nothing() -> None:
    assert broadcast([], 2) == [[], []]


@pytest.mark.parametrize("scheme", [even_split, union, broadcast])
def test_lists_are_copies(scheme: object) -> None:
    for new in (2, 3):
        old = [[1, 2], [3]]
        result = scheme(old, new)  # type: ignore[operator]
        assert len({id(own) for own in [*old, *result]}) == 2 + new


@pytest.mark.parametrize("scheme", [even_split, union, broadcast])
@pytest.mark.parametrize("bad", [0, -1])
def test_parallelism_below_one_is_refused(scheme: object, bad: int) -> None:
    with pytest.raises(ValueError, match=f"parallelism must be at least 1, got {bad}"):
        scheme([[1]], bad)  # type: ignore[operator]
