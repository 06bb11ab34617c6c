"""Compares what the job and its functions declare with what the checkpoint holds, before anything is read or written.

States are declared in ``open``, so a copy of every function whose operator has stored state is opened once a run on
the driver, with a context that hands out empty states. Only a ``StateMigrationError`` counts: other
errors (it may want what only workers have) are those of the real ``open``. States that are asked for later than in
``open`` are compared when they are asked for, in the subtask, where nothing is committed yet either. Stored states that
are not asked for are judged by :mod:`.unasked_states`.

The key that an operator's state is stored by is compared twice: before a run with what the code shows, the columns and
their types where they are declared; and with the types that its rows have. Other columns are another key, even if they
hold values of the same type: no cast makes one of the other.

Everything here yields findings: a run raises the first one, a plan shows them all. Plays the part of the compatibility
checks, of states and of key serializers, that Flink makes when it restores a backend.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from state_engine.core.checkpoints.checkpoint import CheckpointRow, OperatorCheckpoint
from state_engine.core.checkpoints.dead_letters import LETTERS
from state_engine.core.checkpoints.resumption import earlier_states
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import ConfigurationError, StatelakeError, StateMigrationError
from state_engine.core.function import Function
from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.keys.key_schema import KeySchema
from state_engine.core.operator.trial_open import TrialOpen, trial_open
from state_engine.core.operator_state.store import DeclaredOwnState
from state_engine.core.state.descriptors import StateDescriptor
from state_engine.core.state.evolution import column_type_of, recorded_schema
from state_engine.core.state.stored_states import StoredStates
from state_engine.job.graph import (
    OperatorNode,
    PublishedNode,
    SelectedKey,
    declared_key,
    function_for,
    type_in_code,
)
from state_engine.job.job import StatefulJob
from state_engine.microbatch.batch import BatchContext
from state_engine.microbatch.findings import Finding, Part
from state_engine.microbatch.routing.routed import RoutedLayout
from state_engine.microbatch.unasked_states import UnaskedStates
from state_engine.state_tables.states import published_on
from state_engine.state_tables.table_form import TableForm

_LOG = logging.getLogger(__name__)


def gone_operators(job: StatefulJob, path: Sequence[CheckpointRow]) -> Iterator[Finding]:
    """State of operators and sources that the job no longer has: it would be lost silently."""
    parent = path[-1] if path else None
    known = {*job.operators, *job.sources, LETTERS}
    # a keyed sink may be taken out as any other: its table stays as it is
    known |= {one.operator for one in published_on(path) if one.sink_key}
    held = [o.uid for o in parent.operators] + [r.operator for r in parent.operator_state] if parent else []
    gone = sorted(set(held) - known)
    if not (gone and parent):
        return
    error = StateMigrationError(
        f"job '{job.name}': checkpoint {parent.checkpoint_id} holds state of operators {gone}, which the job does not "
        f"have. Give the operators their old uid; or give their state up: "
        f"engine.state_processor(job).drop_operators({', '.join(map(repr, gone))}), or `statelake drop-operators "
        f"{job.name} {' '.join(f'--operator {uid}' for uid in gone)}`, first with a dry run"
    )
    for name in gone:
        yield Finding(Part("operator" if parent.source(name) is None else "source", name), error)


class Declarations:
    """What a job and its functions declare, beside the last row of a path.

    Args:
        unasked: finds what is stored and not asked for.

    Attributes:
        not_opened: after the findings, the operators whose states only their subtasks know.
        opened: after the findings, what a trial of ``open`` declared, by uid.
        table_columns: after the findings, the columns of published tables, as far as code shows them.
    """

    def __init__(
        self,
        job: StatefulJob,
        path: Sequence[CheckpointRow],
        unasked: UnaskedStates,
        *,
        parameters: Mapping[str, str],
    ) -> None:
        self._job, self._path, self._unasked, self._parameters = job, path, unasked, parameters
        self.not_opened: set[str] = set()
        self.opened: dict[str, OpenedStates] = {}
        self.table_columns: dict[str, pa.Schema] = {}

    def findings(self) -> Iterator[Finding]:
        job, path = self._job, self._path
        for node in job.published.values():
            yield from _of_part(Part("table", node.name), self._published(node))
        for operator in job.operators.values():
            part = Part("operator", operator.uid)
            recorded = path[-1].operator(operator.uid) if path else None
            if recorded is not None:
                yield from _of_part(part, key_refusal(job, operator, recorded))
                yield from _of_part(part, _key_groups_refusal(job, operator, recorded))
                yield from _of_part(part, _shape_refusal(job, operator, recorded))
            if self._unasked.holds(operator.uid):
                yield from self._states(operator)

    def _published(self, node: PublishedNode) -> StatelakeError | None:
        """Why a published state does not belong to its operator, before a micro-batch commits without it."""
        job, operator = self._job, node.operator
        trial = self._trial(operator, function_for(operator))
        if trial is None or trial.problem is not None or not trial.states:
            return None
        state = next((one for one in trial.states if one.name == node.state), None)
        if state is None:
            return ConfigurationError(
                f"job '{job.name}', table '{node.name}': operator '{operator.uid}' has no state '{node.state}'; its "
                f"function declares {sorted(one.name for one in trial.states)} in open. Correct the name in "
                "publish_state, or declare the state in open"
            )
        key, fields = declared_key(operator, type_in_code), [pa.field("value", column_type_of(state).arrow)]
        try:
            if key is not None:
                form = TableForm(key.schema, recorded_schema(state), node.map_key).checked(operator.uid)
                fields = list(form.columns.schema)
                self.table_columns[node.name] = form.columns.schema
            node.table.check_names(fields, what=f"job '{job.name}', table '{node.name}'")
        except StatelakeError as error:
            return error
        return None

    def _states(self, operator: OperatorNode) -> Iterator[Finding]:
        """Findings about the states that a trial of ``open`` asks for, or does not ask for."""
        function, uid = function_for(operator, type_in_code), operator.uid
        opened = OpenedStates(uid, self._path, dropped=operator.dropped_states)
        trial = self._trial(operator, function, opened)
        if trial is not None:
            self.opened[uid] = opened
            opened.compare_own(trial.own)
            for part, error in opened.refused:
                yield Finding(part, StateMigrationError(f"job '{self._job.name}': {error}"))
            if opened.refused:
                return
            if isinstance(trial.problem, StateMigrationError):
                error = StateMigrationError(f"job '{self._job.name}': {trial.problem}")
                yield Finding(Part("operator", uid), error)
                return
        if trial is None or trial.problem is not None:
            if trial is not None:
                _LOG.debug("a trial of open failed; the subtasks will report it", exc_info=trial.problem)
            self.not_opened.add(uid)
            return
        yield from self._unasked.opened_findings(operator, opened.asked | trial.operator_states)

    def _trial(
        self, operator: OperatorNode, function: Function | None, opened: OpenedStates | None = None
    ) -> TrialOpen | None:
        """What came of opening a function; None where only rows show which one it is."""
        job = self._job
        if function is None:
            return None
        info = TaskInfo(
            operator.uid,
            0,
            job.parallelism_of(operator),
            job.max_parallelism,
            parameters=dict(self._parameters),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the real open gives them
            if opened is None:
                return trial_open(function, info)
            states = [state for one in operator.inputs for state in one.states]
            return trial_open(function, info, loader=opened.empty, keyed=operator.keyed, broadcast=states)


@dataclass(frozen=True)
class ComparedState:
    """A state that a trial of ``open`` asked for, and that fits what is stored.

    Attributes:
        former: the name that it is recorded with; None where it is new.
        ttl: its time to live now, as rows record it.
    """

    former: str | None = None
    changes: tuple[str, ...] = ()
    ttl: str = ""


@dataclass
class OpenedStates:
    """The states that a trial of ``open`` asks for, beside those that the last row of a path holds.

    Attributes:
        compared: those that fit, by name.
        refused: those that do not.
    """

    uid: str
    path: Sequence[CheckpointRow]
    dropped: Sequence[str] = ()
    compared: dict[str, ComparedState] = field(default_factory=dict)
    refused: list[tuple[Part, StateMigrationError]] = field(default_factory=list)

    def __post_init__(self) -> None:
        recorded = self.path[-1].operator(self.uid) if self.path else None
        self._recorded = {schema.name: schema for schema in recorded.states} if recorded is not None else {}
        earlier = earlier_states(self.uid, self.path)
        self._stored = StoredStates(self.uid, self._recorded, earlier, dropped=self.dropped)

    @property
    def asked(self) -> set[str]:
        """The names of storage of the keyed states that were asked for and fit."""
        return self._stored.asked

    def empty(self, descriptor: StateDescriptor) -> dict[Any, Any]:
        """The entries of a keyed state for a trial: none."""
        try:
            stored = self._stored.of(descriptor)
        except StateMigrationError as error:
            self.refused.append((Part("state", descriptor.name, self.uid), error))
            return {}
        column = stored.descriptor.stored_as
        former = next((name for name, one in self._recorded.items() if one.column_name == column), None)
        ttl = recorded_schema(descriptor).ttl
        self.compared[descriptor.name] = ComparedState(former, stored.changes, ttl)
        return {}

    def compare_own(self, declared: Sequence[DeclaredOwnState]) -> None:
        """Compare the states of the operator itself, which belong to subtasks and not to keys."""
        refs = [
            ref for ref in (self.path[-1].operator_state if self.path else []) if ref.operator == self.uid
        ]
        stored = {state.name: state for ref in refs for state in ref.states}
        for one in declared:
            known = stored.get(one.name) or stored.get(one.former_name or "")
            try:
                changes = () if known is None else one.changes_since(known.scheme, known.type)
            except StateMigrationError as error:
                self.refused.append((Part("state", one.name, self.uid), error))
                continue
            if known is not None and known.name != one.name:
                changes = (f"state '{known.name}' is renamed to '{one.name}'", *changes)
            self.compared[one.name] = ComparedState(None if known is None else known.name, changes)


def _of_part(part: Part, error: StatelakeError | None) -> Iterator[Finding]:
    if error is not None:
        yield Finding(part, error)


def check_key_names(job: StatefulJob, operator: OperatorNode, key: KeySchema) -> None:
    """Refuse names of a key that a published table of the operator's cannot have."""
    fields = [pa.field(name, kind) for name, kind in zip(key.names, key.types, strict=True)]
    for node in job.published.values():
        if node.operator is operator:
            node.table.check_names(fields, what=f"job '{job.name}', table '{node.name}'")


def key_refusal(
    job: StatefulJob, operator: OperatorNode, recorded: OperatorCheckpoint
) -> StateMigrationError | None:
    """Why a stored key is not the operator's, as far as the code shows its key, before any row is read."""
    known = KeySchema.recorded(recorded.key_schema, recorded.key_type)
    if not operator.keyed:
        return _without_key(job, operator, recorded)
    if operator.key_columns != known.names:
        return _other_columns(job, operator, known, operator.key_columns)
    if (second := _second_key_refusal(job, operator, recorded.second_key)) is not None:
        return second
    declared = declared_key(operator, type_in_code)
    return None if declared is None else _types_refusal(job, operator, known, declared.schema, recorded)


def _shape_refusal(
    job: StatefulJob, operator: OperatorNode, recorded: OperatorCheckpoint
) -> StateMigrationError | None:
    """Why a function would misread what is stored, where the types do not say all of it."""
    today = operator.function.shape or ""
    if not recorded.states or today == recorded.shape:
        return None
    known, now = (f"'{shape}'" if shape else "a function without shape" for shape in (recorded.shape, today))
    return StateMigrationError(
        f"{_where(job, operator)}: its state was written by {known}, and {now} would misread it. "
        "Restore what it was; or give the operator another uid: it starts empty, and a replay from the first "
        "checkpoint fills it"
    )


def checked_key(
    job: StatefulJob, operator: OperatorNode, routed: RoutedLayout, batch: BatchContext
) -> KeySchema | None:
    """Names and types of the key: from the rows, or where none came, as recorded; None without one."""
    recorded, today = batch.parent.operator(operator.uid) if batch.parent else None, routed.key_schema
    declared = declared_key(operator)
    if today is not None and declared is not None:  # rows have times of day as numbers
        today = replace(today, times=declared.schema.times)
    if recorded is None:
        return today
    known = KeySchema.recorded(recorded.key_schema, recorded.key_type)
    of_types = None if today is None else _types_refusal(job, operator, known, today, recorded)
    keyed = None if operator.keyed else _without_key(job, operator, recorded)
    for refusal in (keyed, of_types, _key_groups_refusal(job, operator, recorded)):
        if refusal is not None:
            raise refusal
    if today is None:
        return known if recorded.key_type else None
    return replace(today, stored=known.stored)


def other_columns(known: Sequence[str], today: Sequence[str]) -> str:
    """What to do where a key is of other columns."""
    renamed = f". If only their names are different, name them {list(known)} in a transform before key_by"
    may_be_renamed = len(known) == len(today) and set(known) != set(today)
    return (
        f"Other columns are another key. Key by {list(known)} again; or give the operator another uid: it starts "
        "empty, and a replay from the first checkpoint fills it" + (renamed if may_be_renamed else "")
    )


def _without_key(
    job: StatefulJob, operator: OperatorNode, recorded: OperatorCheckpoint
) -> StateMigrationError:
    return StateMigrationError(
        f"{_where(job, operator)}: its state is stored by key {recorded.key_schema}, the job gives it a stream "
        "without key. Restore the old key_by, or give the operator another uid to start empty"
    )


def _second_key_refusal(
    job: StatefulJob, operator: OperatorNode, known: Sequence[str]
) -> StateMigrationError | None:
    """Both streams share the state, so another key of the second one is another key as well."""
    today = operator.second_key
    if not (known and today) or list(today) == list(known):
        return None
    return StateMigrationError(
        f"{_where(job, operator)}: its second stream was keyed by {list(known)}, the job keys it by {list(today)}. "
        f"{other_columns(known, today)}"
    )


def _types_refusal(
    job: StatefulJob, operator: OperatorNode, known: KeySchema, today: KeySchema, recorded: OperatorCheckpoint
) -> StateMigrationError | None:
    """Where no more is known of the recorded keys than how they are stored, that decides."""
    if today.is_stored_like(known) if recorded.key_type else today.storage == known.storage:
        return None
    if today.names != known.names:
        return _other_columns(job, operator, known, today.names)
    rewrite = f"engine.state_processor(job).change_key_type('{operator.uid}'"
    if isinstance(operator.inputs[0].key, SelectedKey):  # nothing shows what the function takes its key from
        rewrite = f"say what becomes of an old key: {rewrite}, convert=…)"
    else:
        rewrite += (
            f"), or `statelake change-key-type {job.name} --operator {operator.uid}`, first with a dry run"
        )
    return StateMigrationError(
        f"{_where(job, operator)}: its state is stored by key {known.declared_text}, the job keys by "
        f"{today.declared_text}. Restore the old key_by. If it is the same key in another type, such as a number as "
        f"text, rewrite the state: {rewrite}. If it is another key, give the operator another uid: it starts empty, "
        "and a replay from the first checkpoint fills it"
    )


def _key_groups_refusal(
    job: StatefulJob, operator: OperatorNode, recorded: OperatorCheckpoint
) -> StateMigrationError | None:
    if recorded.max_parallelism == job.max_parallelism:
        return None
    return StateMigrationError(
        f"{_where(job, operator)}: its state has {counted(recorded.max_parallelism, 'key group')}, the job "
        f"declares max_parallelism={job.max_parallelism}. Declare the old number; or rewrite the state: "
        f"engine.rescale(job, max_parallelism={job.max_parallelism}), or `statelake rescale {job.name} "
        f"--max-parallelism {job.max_parallelism}`"
    )


def _other_columns(
    job: StatefulJob, operator: OperatorNode, known: KeySchema, today: Sequence[str]
) -> StateMigrationError:
    """The refusal of another key; that of a keyed sink in the words of its author."""
    sink = next((n.name for n in job.published.values() if n.operator is operator and n.sink_key), None)
    if sink is not None:
        return StateMigrationError(
            f"job '{job.name}', sink '{sink}': its table holds a row for each {list(known.names)}, and key= says "
            f"{list(today)} now. Say key={list(known.names)} again; or give the sink another name and another "
            "table, which holds what comes from then on: a replay from the first checkpoint fills it with what came "
            "before"
        )
    return StateMigrationError(
        f"{_where(job, operator)}: its state is stored by {list(known.names)}, the job keys by {list(today)}. "
        f"{other_columns(known.names, today)}"
    )


def _where(job: StatefulJob, operator: OperatorNode) -> str:
    return f"job '{job.name}', operator '{operator.uid}'"
