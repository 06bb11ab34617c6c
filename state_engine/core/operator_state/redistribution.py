"""How operator state is handed out again when the number of subtasks changes.

Operator state is one list per subtask of elements that can be redistributed one by one. Every function here takes and
returns such lists of lists, old subtasks in, new subtasks out; it copies the lists, not their elements, and no two
subtasks ever share one list. Nothing is lost, nothing is invented, and the order of the elements is kept.

Mirrors Flink's ``RoundRobinOperatorStateRepartitioner`` and the modes of ``OperatorStateHandle.Mode``
(SPLIT_DISTRIBUTE, UNION, BROADCAST).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TypeVar

T = TypeVar("T")


def even_split(per_subtask: Sequence[Sequence[T]], parallelism: int) -> list[list[T]]:
    """Deal one state's elements out over `parallelism` subtasks, in order, in runs of equal length.

    With n elements the first n mod `parallelism` subtasks get one more. Where the parallelism does not change, every
    subtask keeps its own list, however skewed. Raises :class:`ValueError` for a parallelism below 1.
    Mirrors Flink's SPLIT_DISTRIBUTE (``OperatorStateStore.getListState``).

    >>> even_split([[0, 1, 2, 3], [10, 11, 12]], 3)
    [[0, 1, 2], [3, 10], [11, 12]]
    >>> even_split([[0, 1, 2, 3], []], 2)
    [[0, 1, 2, 3], []]
    """
    return even_split_states({"": per_subtask}, parallelism)[""]


def even_split_states(
    states: Mapping[str, Sequence[Sequence[T]]], parallelism: int
) -> dict[str, list[list[T]]]:
    """:func:`even_split` for all the states of one operator at once: each one even, and their sum too.

    States are taken by name; the surplus elements of each go to the subtasks after those that got the surplus of the
    one before, round and round, so the loads of any two subtasks differ by at most one element over all the states.
    Where the parallelism does not change, every subtask keeps its own lists. Raises :class:`ValueError` for a
    parallelism below 1, or for states that come from different numbers of subtasks.

    >>> even_split_states({"a": [[1, 2, 3]], "b": [[4, 5, 6]]}, 2)
    {'a': [[1, 2], [3]], 'b': [[4], [5, 6]]}
    """
    _check_parallelism(parallelism)
    old = {len(per_subtask) for per_subtask in states.values()}
    if len(old) > 1:
        counts = ", ".join(f"{name}: {len(states[name])}" for name in sorted(states))
        raise ValueError(f"The states of one operator come from one number of subtasks, got {counts}")
    if old == {parallelism}:
        return {name: [list(own) for own in states[name]] for name in sorted(states)}

    result: dict[str, list[list[T]]] = {}
    next_surplus = 0  # the subtask that the next surplus element goes to
    for name in sorted(states):
        elements = list(chain.from_iterable(states[name]))
        share, surplus = divmod(len(elements), parallelism)
        result[name], taken = [], 0
        for subtask in range(parallelism):
            gets_surplus = (subtask - next_surplus) % parallelism < surplus
            size = share + gets_surplus
            result[name].append(elements[taken : taken + size])
            taken += size
        next_surplus = (next_surplus + surplus) % parallelism
    return result


def union(per_subtask: Sequence[Sequence[T]], parallelism: int) -> list[list[T]]:
    """Give every subtask all the elements, in subtask order, also where the parallelism does not change.

    Raises :class:`ValueError` for a parallelism below 1. Mirrors Flink's UNION
    (``OperatorStateStore.getUnionListState``).

    >>> union([[1, 2], [3]], 3)
    [[1, 2, 3], [1, 2, 3], [1, 2, 3]]
    """
    _check_parallelism(parallelism)
    return [list(chain.from_iterable(per_subtask)) for _ in range(parallelism)]


def broadcast(per_subtask: Sequence[Sequence[T]], parallelism: int) -> list[list[T]]:
    """Give every subtask one copy of a state that is the same on all of them.

    The first list that is not empty is that copy, since only one is stored; also filled in where the parallelism does
    not change. Raises :class:`ValueError` for a parallelism below 1. Mirrors Flink's BROADCAST
    (``OperatorStateStore.getBroadcastState``).

    >>> broadcast([[], ["rule"]], 3)
    [['rule'], ['rule'], ['rule']]
    """
    _check_parallelism(parallelism)
    stored: Sequence[T] = next((own for own in per_subtask if own), [])
    return [list(stored) for _ in range(parallelism)]


def _check_parallelism(parallelism: int) -> None:
    if parallelism < 1:
        raise ValueError(f"parallelism must be at least 1, got {parallelism}")
