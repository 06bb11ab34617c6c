"""State that a checkpoint holds and that the code of today does not ask for: left behind in silence, it would be lost.

    asked for by the end of ``open``    what a trial of ``open`` does not ask for is refused, before anything is read
    asked for later                     not asking for it says nothing by itself; where a micro-batch asks for a new
                                        state of the same form and not for this one, it looks like a rename

Entries that are deleted or have expired do not count, nor do states that the job drops or keeps by name. Timers are
left behind by a function without ``on_timer``. Flink leaves such state in the checkpoint without a word. Decision 0015.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorCheckpoint
from state_engine.core.checkpoints.entry_counts import entry_counts
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import StateMigrationError
from state_engine.core.functions.checkpointed import CheckpointedFunction, ListCheckpointed
from state_engine.core.functions.function_calls import has_timers
from state_engine.core.keys.key_groups import KeyGroupRange
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.operator_state.operator_state_ref import RAW
from state_engine.core.operator_state.store import LIST_CHECKPOINTED
from state_engine.core.state.descriptors import TIMERS
from state_engine.core.state.state_schema import StateSchema
from state_engine.job.graph import OperatorNode
from state_engine.job.job import StatefulJob
from state_engine.microbatch.batch_result import Execution
from state_engine.microbatch.findings import Finding, Part, raise_first
from state_engine.storage.layout import JobLayout
from state_engine.storage.state.base import BaseSpec, read_entries
from state_engine.storage.state.listed_files import KeyGroups
from state_engine.storage.state.located_files import state_files

_PARTS = 16
"""Parts of the key groups that are read one after the other, where nothing says how many entries there are."""

_NOT_IN_OPEN = "and the function does not ask for it when it is opened"

Form = tuple[str, str]
"""Of a state: its primitive or scheme, and its type."""


@dataclass(frozen=True)
class _Held:
    """A state that a checkpoint holds.

    Attributes:
        asked_as: by which it is asked for: the name that it is stored under.
        late: whether it was asked for later than in ``open``.
        size: how many entries live, as text; empty where none does.
    """

    name: str
    asked_as: str
    form: Form
    late: bool
    size: Callable[[], str]


class UnaskedStates:
    """The stored states of a job's operators, which the code must ask for.

    Args:
        clock: gives the processing time in milliseconds, by which entries expire.
    """

    def __init__(
        self, job: StatefulJob, path: Sequence[CheckpointRow], layout: JobLayout, clock: Callable[[], int]
    ) -> None:
        self._job, self._path, self._layout, self._clock = job, path, layout, clock

    def holds(self, uid: str) -> bool:
        """Whether a checkpoint holds any state of an operator, timers included."""
        recorded = self._recorded(uid)
        return (recorded is not None and bool(recorded.states)) or bool(self._own(uid))

    def of(self, operator: OperatorNode) -> list[_Held]:
        """The states that a checkpoint holds of an operator and the job neither drops nor keeps by name."""
        settled = {*operator.dropped_states, *operator.kept_states}
        return [one for one in self._held(operator.uid) if one.name not in settled]

    def opened_findings(self, operator: OperatorNode, asked: Iterable[str]) -> Iterator[Finding]:
        """What a function does not ask for when it is opened, though it did, and timers that it cannot handle.

        Args:
            asked: names of storage of keyed states, and names of others.
        """
        yield from self._unhandled_timers(operator)
        asked = {*asked, *_by_class(operator.function)}
        for one in self.of(operator):
            if one.asked_as not in asked and not one.late and (size := one.size()):
                yield Finding(Part("state", one.name, operator.uid), self._refusal(operator, one.name, size))

    def check_asked(self, done: Execution, not_opened: Iterable[str]) -> None:
        """Refuse what functions did not ask for in a micro-batch, where that shows that it would be left behind.

        Args:
            not_opened: uids of operators of which no trial of ``open`` said what they ask for.
        """
        for uid, report in done.operators.items():
            operator, asked = self._job.operators[uid], {*done.asked_in_open[uid], *done.asked_late[uid]}
            own = [state for one in report.subtasks for state in one.operator_state]
            dropped = asked.intersection(operator.dropped_states)
            if dropped:
                raise StateMigrationError(
                    f"{self._where(operator)}: state '{min(dropped)}' is asked for by the function and dropped by "
                    "drop_states: leave one of them out"
                )
            asked |= {state.column_name for state in done.states[uid]}
            if uid in not_opened:
                raise_first(self.opened_findings(operator, asked))
            known = {one.asked_as for one in self._held(uid)}
            new = {(s.kind, s.type): s.name for s in done.states[uid] if s.column_name not in known}
            new |= {(s.scheme, s.type): s.name for s in own if s.name in asked and s.name not in known}
            for one in self.of(operator):
                if one.late and one.asked_as not in asked and one.form in new and (size := one.size()):
                    beside = f"and the function asks for '{new[one.form]}', a new one of the same type, in its place"
                    raise self._refusal(operator, one.name, size, beside)

    # -- what is stored --------------------------------------------------------------------------------------------

    def _recorded(self, uid: str) -> OperatorCheckpoint | None:
        return self._path[-1].operator(uid) if self._path else None

    def _held(self, uid: str) -> list[_Held]:
        return [*self._keyed(uid), *self._own(uid)]

    def _keyed(self, uid: str) -> list[_Held]:
        recorded = self._recorded(uid)
        if recorded is None:
            return []
        return [
            _Held(
                s.name,
                s.column_name,
                (s.kind, s.type),
                s.name in recorded.asked_late,
                self._entries(recorded, s),
            )
            for s in recorded.states
            if s.name != TIMERS
        ]

    def _own(self, uid: str) -> list[_Held]:
        refs = [ref for ref in (self._path[-1].operator_state if self._path else []) if ref.operator == uid]

        def size(elements: int) -> Callable[[], str]:
            return lambda: counted(elements, "element") if elements else ""

        return [
            _Held(
                s.name,
                s.name,
                (s.scheme, s.type),
                s.name in ref.asked_late,
                size(sum(p.elements for p in s.parts)),
            )
            for ref in refs
            for s in ref.states
        ]

    def _entries(self, recorded: OperatorCheckpoint, state: StateSchema) -> Callable[[], str]:
        def size() -> str:
            known = entry_counts(self._path, recorded.uid).get(state.name)
            if known is not None and known.checkpoint_id == self._path[-1].checkpoint_id and not state.ttl:
                return counted(known.entries, "entry", "entries") if known.entries else ""
            return "entries" if self._any_lives(recorded, state) else ""

        return size

    def _any_lives(self, recorded: OperatorCheckpoint, state: StateSchema) -> bool:
        """Whether the files hold an entry that is neither deleted nor expired."""
        files, most = state_files(self._layout, self._path, recorded.uid), recorded.max_parallelism
        spec = BaseSpec(
            key_type=KeySchema.recorded(recorded.key_schema, recorded.key_type).storage,
            states=(_without_exception(state),),
            max_parallelism=most,
            clock_ms=max(self._clock(), self._path[-1].clock_ms),
            watermark_ms=self._path[-1].watermark_of(recorded.uid),
        )
        step = max(most // _PARTS, 1)
        for start in range(0, most, step):
            groups = KeyGroupRange(start, min(start + step, most) - 1)
            inside = [
                f.listed for f in files if f.key_group_min <= groups.end and f.key_group_max >= groups.start
            ]
            if read_entries(spec, inside, KeyGroups(most, (groups,))):
                return True
        return False

    def _unhandled_timers(self, operator: OperatorNode) -> Iterator[Finding]:
        recorded = self._recorded(operator.uid)
        if recorded is None or not recorded.next_timers_ms or has_timers(operator.function):
            return
        error = StateMigrationError(
            f"{self._where(operator)}: checkpoint {self._path[-1].checkpoint_id} holds timers, and "
            f"{type(operator.function).__name__} has no on_timer, so they would never fire. Give it on_timer again "
            "(of a function over columns: say uses_timers = True); one that does nothing gives the timers up, each at "
            "its time"
        )
        yield Finding(Part("operator", operator.uid), error)

    def _where(self, operator: OperatorNode) -> str:
        return f"job '{self._job.name}', operator '{operator.uid}'"

    def _refusal(
        self, operator: OperatorNode, state: str, size: str, beside: str = _NOT_IN_OPEN
    ) -> StateMigrationError:
        sink = next(
            (n.name for n in self._job.published.values() if n.operator is operator and n.sink_key), None
        )
        if sink is not None:
            return StateMigrationError(
                f"job '{self._job.name}', sink '{sink}': state '{state}' holds {size} that sequence= needed. Give the "
                "sink its sequence again; or give it another name and another table"
            )
        return StateMigrationError(
            f"{self._where(operator)}: state '{state}' holds {size}, {beside}: they would be left behind. If the state "
            f"has another name now, declare it with .renamed_from('{state}'); to give it up, add "
            f".drop_states('{state}') behind the operator; to keep it for later, or where the function asks for it "
            f"later than in open, .keep_states('{state}')"
        )


def _by_class(function: Any) -> set[str]:
    """Names of states that the class of a function asks for, whatever it does when it is opened."""
    asked = set(RAW) if isinstance(function, CheckpointedFunction) else set()
    return asked | ({LIST_CHECKPOINTED} if isinstance(function, ListCheckpointed) else set())


def _without_exception(state: StateSchema) -> StateSchema:
    """The state as if compactions left out all that has expired."""
    return (
        replace(state, ttl=json.dumps(json.loads(state.ttl) | {"compaction": True})) if state.ttl else state
    )


def kept_for_later(head: CheckpointRow | None) -> list[str]:
    """The states of a checkpoint that its code keeps by name, with their operators; as sentences."""
    return [
        f"state '{name}' of operator '{uid}' is kept for later: keep_states names it"
        for uid, names in (head.kept_states if head else {}).items()
        for name in names
    ]
