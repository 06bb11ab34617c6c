"""Operator state that a job begins with: elements that a user gives, as one subtask would have left them.

A copy of the function is opened on the driver; what it asks for then gives scheme and type of every state. Broadcast
state, which functions ask for as they run, is given by its descriptor. All elements are written as the lists of one
subtask, and the first micro-batch hands them out as after a restore: even-split lists are dealt out, union lists and
broadcast state go to every subtask whole. Plays the part of ``StateBootstrapFunction`` and
``BroadcastStateBootstrapFunction`` of Flink's State Processor API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from state_engine.core.checkpoints.checkpoint import (
    MAIN,
    CheckpointRow,
    DataFile,
    OperatorStateRef,
    SourceProgress,
)
from state_engine.core.checkpoints.checkpoint_kind import CheckpointKind
from state_engine.core.checkpoints.write_ids import WriteAttempt
from state_engine.core.errors import ConfigurationError, StatelakeError, ValueTypeError
from state_engine.core.functions.checkpointed import ListCheckpointed
from state_engine.core.functions.runtime_context import TaskInfo
from state_engine.core.operator.trial_open import on_trial
from state_engine.core.operator_state.operator_snapshot import SubtaskSnapshot
from state_engine.core.operator_state.operator_state_ref import build_ref
from state_engine.core.operator_state.store import OperatorStateStore
from state_engine.core.state.descriptors import MapStateDescriptor, StateDescriptor
from state_engine.core.state.keyed_state import KeyedStateStore
from state_engine.core.state.state_table import KeyContext
from state_engine.job.graph import OperatorNode
from state_engine.job.job import StatefulJob
from state_engine.job.job_tables import JobTables
from state_engine.sources.base import Element
from state_engine.sources.source_positions import SourcePositions
from state_engine.storage.state.operator_state_files import write_subtask_state

Elements = Mapping[Any, Any]
"""By name or descriptor of a state: a sequence of elements, or of broadcast state a dict or (key, value) pairs."""


@dataclass(frozen=True)
class GivenOperatorState:
    """Checked elements of one operator."""

    uid: str
    snapshot: SubtaskSnapshot

    @property
    def counts(self) -> dict[str, int]:
        return {state.name: len(state.elements) for state in self.snapshot.states}

    def write(self, *, uri: str, write_id: str) -> tuple[OperatorStateRef, list[DataFile]]:
        """Write the elements as a file of the table of operator state, which no reader sees yet; where they lie."""
        file, declared = write_subtask_state(
            self.snapshot, uri=uri, operator=self.uid, write_id=write_id, subtask=0, attempt=0, parent=None
        )
        ref = build_ref(self.uid, [declared], write_id=write_id, parent=None)
        ref = replace(ref, asked_late=[state.name for state in ref.states])
        # no run left them: the first one gets them as after a restore
        return replace(ref, last_run=""), [file] if file is not None else []


def given_operator_state(job: StatefulJob, operators: Mapping[str, Elements]) -> list[GivenOperatorState]:
    """What a user gives, as it is stored."""
    unknown = sorted(set(operators) - set(job.operators))
    if unknown:
        raise ConfigurationError(
            f"job '{job.name}': operator state is given for operators {unknown}; the job has {sorted(job.operators)}"
        )
    return [_given(job, job.operators[uid], elements) for uid, elements in operators.items()]


def _given(job: StatefulJob, operator: OperatorNode, given: Elements) -> GivenOperatorState:
    where = f"job '{job.name}', operator '{operator.uid}'"
    store, problem = _opened(job, operator)
    names = set()
    for state, elements in given.items():
        name = state.name if isinstance(state, StateDescriptor) else state
        if isinstance(state, MapStateDescriptor):
            store.get_broadcast_state(state)
        known = store.get_registered_state_names() | store.get_registered_broadcast_state_names()
        if name not in known:
            seen = f"its function asks for {sorted(known)} when it is opened"
            raise ConfigurationError(
                f"{where}: there is no operator state '{name}'; {problem or seen}. Correct the name, or give the "
                "MapStateDescriptor of broadcast state instead of it"
            )
        try:
            store.fill(name, elements)
        except (TypeError, ValueError, ValueTypeError) as error:
            raise ValueTypeError(f"{where}, operator state '{name}': {error}") from None
        names.add(name)
    return GivenOperatorState(
        operator.uid, SubtaskSnapshot(tuple(s for s in store.snapshot() if s.name in names))
    )


def _opened(job: StatefulJob, operator: OperatorNode) -> tuple[OperatorStateStore, str]:
    """The operator state that a copy of the function asks for, and why that may be less than there is."""
    info = TaskInfo(operator.uid, 0, job.parallelism_of(operator), job.max_parallelism)
    keyed = KeyedStateStore(operator.uid, KeyContext(), loader=lambda _: {}) if operator.keyed else None
    problem = ""
    with on_trial(operator.function, info, keyed_store=keyed) as run:
        try:
            run.initialize()
            if isinstance(run.function, ListCheckpointed):
                run.list_state()
        except StatelakeError:
            raise
        except Exception as error:  # the user's code, which may need what only a task has
            problem = f"its function cannot be initialized here ({type(error).__name__}: {error})"
    return run.store, problem


def first_row(
    job: StatefulJob,
    attempt: WriteAttempt,
    *,
    clock_ms: int,
    operator_state: Sequence[GivenOperatorState],
    consumed: Mapping[str, list[Element]],
    tables: JobTables,
    positions: SourcePositions,
    requested_by: str,
) -> CheckpointRow:
    """The row without keyed state; the files that it lists are in place and in the log of their table.

    Args:
        consumed: by source, what the state holds of it already.
    """
    refs, files = list[OperatorStateRef](), list[DataFile]()
    for state in operator_state:
        ref, written = state.write(uri=tables.layout.operator_state, write_id=attempt.write_id)
        refs.append(ref)
        files += written
    if any(consumed.values()):
        files.append(positions.write(attempt.write_id, consumed))
        refs += [OperatorStateRef(name, attempt.write_id, len(e)) for name, e in consumed.items() if e]
    if files:
        tables.list_operator_state(files, attempt.write_id)
    return CheckpointRow(
        checkpoint_id=1,
        parent_id=None,
        branch=MAIN,
        kind=CheckpointKind.BOOTSTRAP,
        write_id=attempt.write_id,
        created_at=attempt.created_at,
        clock_ms=clock_ms,
        watermark_ms=None,
        rows_in=0,
        rows_refused=0,
        operators=[],
        operator_state=refs,
        operator_state_files=files,
        sources=[_progress(job, name, consumed.get(name, [])) for name in job.sources],
        sinks=[],
        dead_letters=[],
        job=job.name,
        code_version=job.code_version,
        requested_by=requested_by,
    )


def _progress(job: StatefulJob, name: str, elements: list[Element]) -> SourceProgress:
    source = job.sources[name].source
    return SourceProgress(name, source.empty_position(), source.position_text(elements), 0, None)
