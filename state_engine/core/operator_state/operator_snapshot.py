"""What a checkpoint holds of an operator's state that belongs to subtasks and not to keys, and who gets it back.

A ``SubtaskSnapshot`` is what one subtask hands over at the end of a micro-batch: the list of every managed state, as
JSON texts (:mod:`.json_values`), and raw bytes. It is immutable, so what the function does later cannot change it, and
two are equal exactly where nothing changed. :func:`assign` gives the snapshots of one parallelism to the subtasks of
another. Mirrors Flink's ``OperatorSubtaskState``, and ``RoundRobinOperatorStateRepartitioner`` with the modes of
``OperatorStateHandle.Mode``: no element is lost, repeated or out of its order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from state_engine.core.counted_nouns import counted
from state_engine.core.errors import RescaleError, StateAccessError
from state_engine.core.keys.key_groups import subtask_for_key_group

EVEN_SPLIT, UNION, BROADCAST = "even_split", "union", "broadcast"
RAW_OPERATOR, RAW_KEYED = "raw_operator", "raw_keyed"
"""Schemes: what becomes of a state when the parallelism changes."""

Lists = list[list[str]]


@dataclass(frozen=True)
class StateElements:
    """The list of one managed state in one subtask.

    Attributes:
        scheme: even_split, union or broadcast.
        elements: in order, each as JSON; for broadcast state the entries, as objects with ``key`` and ``value``.
    """

    name: str
    scheme: str
    type: str
    elements: tuple[str, ...] = ()


@dataclass(frozen=True)
class SubtaskSnapshot:
    """The operator state of one subtask.

    Attributes:
        states: managed states by name, also those without elements.
        raw_operator: what the function wrote for the subtask; empty where it wrote nothing.
        raw_keyed: (key group, bytes) in key group order, for the groups that the function started.
    """

    states: tuple[StateElements, ...] = ()
    raw_operator: bytes = b""
    raw_keyed: tuple[tuple[int, bytes], ...] = ()

    def state(self, name: str) -> StateElements | None:
        """One managed state; None where the subtask has none of this name."""
        return next((s for s in self.states if s.name == name), None)


def assign(
    snapshots: Sequence[SubtaskSnapshot],
    parallelism: int,
    *,
    operator: str,
    max_parallelism: int,
    restored: bool,
) -> list[SubtaskSnapshot]:
    """What each of `parallelism` subtasks starts with, from the snapshots of all the subtasks before.

    A micro-batch boundary is not a restore: where the parallelism stays and nothing was restored, every subtask gets
    its own lists back, whatever the scheme, and one copy of broadcast state. Where the parallelism changes, the scheme
    of each state decides; union also acts at a restore or import. Raw keyed state goes with its key groups.

    Args:
        snapshots: by subtask; only the copy of subtask 0 counts for broadcast state.
        parallelism, max_parallelism: of the operator now; max parallelism is the one the snapshots were made with.
        restored: whether the job was restored or imported since the snapshots were made.
    """
    declared = declared_states(operator, dict(enumerate(snapshots)))
    one_copy = {s.name: s for s in snapshots[0].states if s.scheme == BROADCAST} if snapshots else {}
    if len(snapshots) == parallelism and not restored:
        return [_with_own_lists(snapshot, one_copy) for snapshot in snapshots]
    raw = _raw_operator(operator, snapshots, parallelism)
    groups = _raw_keyed(snapshots, parallelism, max_parallelism)
    lists = _redistributed(snapshots, declared, parallelism)
    return [
        SubtaskSnapshot(
            tuple(replace(declared[name], elements=tuple(lists[name][i])) for name in sorted(declared)),
            raw[i],
            tuple(groups[i]),
        )
        for i in range(parallelism)
    ]


def declared_states(operator: str, snapshots: dict[int, SubtaskSnapshot]) -> dict[str, StateElements]:
    """The managed states of an operator by name, without elements."""
    by_name: dict[str, tuple[int, StateElements]] = {}
    for subtask, snapshot in snapshots.items():
        for state in snapshot.states:
            first, known = by_name.setdefault(state.name, (subtask, replace(state, elements=())))
            if (known.scheme, known.type) != (state.scheme, state.type):
                raise StateAccessError(
                    f"operator '{operator}': state '{state.name}' is {known.scheme} of {known.type} in subtask "
                    f"{first} and {state.scheme} of {state.type} in subtask {subtask}; declare it the same way in "
                    "all of them"
                )
    return {name: state for name, (_, state) in by_name.items()}


def _with_own_lists(own: SubtaskSnapshot, copies: dict[str, StateElements]) -> SubtaskSnapshot:
    lists = [s for s in own.states if s.scheme != BROADCAST]
    return replace(own, states=tuple(sorted([*lists, *copies.values()], key=lambda s: s.name)))


def _redistributed(
    snapshots: Sequence[SubtaskSnapshot], declared: dict[str, StateElements], parallelism: int
) -> dict[str, Lists]:
    """Per state, the list of every new subtask."""
    old = {
        name: [list(elements.elements) if (elements := s.state(name)) else [] for s in snapshots]
        for name in declared
    }
    by_scheme: dict[str, dict[str, Lists]] = {scheme: {} for scheme in (EVEN_SPLIT, UNION, BROADCAST)}
    for name, state in declared.items():
        by_scheme[state.scheme][name] = old[name]
    new = _even_split(by_scheme[EVEN_SPLIT], parallelism)
    for name, lists in by_scheme[UNION].items():
        new[name] = [list(chain.from_iterable(lists))] * parallelism
    for name, lists in by_scheme[BROADCAST].items():
        new[name] = [lists[0]] * parallelism
    return new


def _even_split(states: dict[str, Lists], parallelism: int) -> dict[str, Lists]:
    """The elements of each state in order, in runs of equal length; where the parallelism stays, as they were.

    The surplus elements of a state go to the subtasks after those that got the surplus of the one before, by name and
    round and round: so the loads of two subtasks differ by at most one element over all the states.

    >>> _even_split({"a": [["0", "1", "2", "3"], ["10"]], "b": [["4"], []]}, 3)
    {'a': [['0', '1'], ['2', '3'], ['10']], 'b': [[], [], ['4']]}
    """
    new: dict[str, Lists] = {}
    next_surplus = 0  # the subtask that the next surplus element goes to
    for name in sorted(states):
        if len(states[name]) == parallelism:
            new[name] = states[name]
            continue
        elements = list(chain.from_iterable(states[name]))
        share, surplus = divmod(len(elements), parallelism)
        new[name], taken = [], 0
        for subtask in range(parallelism):
            size = share + ((subtask - next_surplus) % parallelism < surplus)
            new[name].append(elements[taken : taken + size])
            taken += size
        next_surplus = (next_surplus + surplus) % parallelism
    return new


def _raw_operator(operator: str, snapshots: Sequence[SubtaskSnapshot], parallelism: int) -> list[bytes]:
    raw = [s.raw_operator for s in snapshots]
    if len(raw) == parallelism:
        return raw
    if any(raw):
        raise RescaleError(raw_operator_refusal(operator, sum(map(bool, raw)), len(raw), parallelism))
    return [b""] * parallelism


def raw_operator_refusal(operator: str, holders: int, old: int, new: int) -> str:
    """Why raw operator state, which some of ``old`` subtasks hold, cannot go to ``new`` ones."""
    return (
        f"operator '{operator}' has raw operator state in {holders} of {counted(old, 'subtask')}, which only "
        f"its function can take apart: its parallelism cannot become {new}. Keep parallelism {old}, "
        "or first run a version that moves the state into a list state of get_operator_state_store()"
    )


def _raw_keyed(
    snapshots: Sequence[SubtaskSnapshot], parallelism: int, max_parallelism: int
) -> list[list[tuple[int, bytes]]]:
    new: list[list[tuple[int, bytes]]] = [[] for _ in range(parallelism)]
    for group, data in sorted(pair for snapshot in snapshots for pair in snapshot.raw_keyed):
        new[subtask_for_key_group(max_parallelism, parallelism, group)].append((group, data))
    return new
