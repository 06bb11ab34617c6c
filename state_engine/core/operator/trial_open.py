"""``trial_open``: which keyed states a function declares, asked of a copy of it that never sees an element.

States are declared in ``open`` and ``initialize_state``, so both are called, on empty state. A function may want there
what only a task has (a model file, say): what it declared until then is returned, with what stopped it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.operator.operator_lifecycle import OperatorLifecycle
from state_engine.core.operator_state.store import DeclaredOwnState
from state_engine.core.state.descriptors import TIMERS, MapStateDescriptor, StateDescriptor
from state_engine.core.state.keyed_state import KeyedStateStore
from state_engine.core.state.state_table import KeyContext


@dataclass(frozen=True)
class TrialOpen:
    """What came of opening a copy of a function.

    Attributes:
        states: keyed ones that it declared, timers left out.
        problem: what kept it from being opened whole; None where nothing did.
        own: states of its own that it declared, which belong to subtasks.
    """

    states: list[StateDescriptor]
    problem: Exception | None = None
    own: tuple[DeclaredOwnState, ...] = ()

    @property
    def operator_states(self) -> frozenset[str]:
        """Names of the states of its own, also those from before a rename."""
        former = {one.former_name for one in self.own}
        return frozenset(one.name for one in self.own) | {name for name in former if name is not None}


def trial_open(
    function: Any,
    info: TaskInfo,
    *,
    loader: Callable[[StateDescriptor], dict[Any, Any]] = lambda _: {},
    keyed: bool = True,
    broadcast: Sequence[MapStateDescriptor] = (),
) -> TrialOpen:
    """Open a copy of a function on empty state, and close it.

    Args:
        loader: asked for the entries of each state that the function declares; what it raises is the problem.
        keyed: whether its stream has a key, so that there is keyed state.
        broadcast: states that it is going to ask for with its elements.
    """
    store = KeyedStateStore(info.task_name, KeyContext(), loader)
    problem: Exception | None = None
    own: tuple[DeclaredOwnState, ...] = ()
    try:
        with on_trial(function, info, keyed_store=store if keyed else None) as run:
            try:
                run.initialize()
                run.open()
                for descriptor in broadcast:
                    run.store.get_broadcast_state(descriptor)
            finally:
                own = run.store.declared
    except Exception as error:
        problem = error
    return TrialOpen([t.descriptor for name, t in store.tables.items() if name != TIMERS], problem, own)


@contextmanager
def on_trial(
    function: Any, info: TaskInfo, *, keyed_store: KeyedStateStore | None
) -> Iterator[OperatorLifecycle]:
    """A copy of a function as a task would have it before its first element; it is closed in the end.

    Args:
        keyed_store: hands out keyed states; None outside of keyed streams.
    """
    run = OperatorLifecycle(
        copy.deepcopy(function),
        info=info,
        clock_ms=0,
        keyed_store=keyed_store,
    )
    try:
        yield run
    finally:
        with suppress(Exception):  # nothing is wanted of it any more
            run.close()
