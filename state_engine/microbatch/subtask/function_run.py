"""``FunctionRun``: what a function gets before it runs in a subtask, and where its state and outputs go afterwards.

Two kinds of functions run, each in its own way: those called for each element (``element_run``), and those called once
with columns (``column_run``). Rows for a sink pass through without a function (``pass_through_run``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from state_engine.core.functions.checkpointed import CheckpointListener
from state_engine.core.operator.operator_lifecycle import Resumption
from state_engine.core.operator.outputs import ElementOutputs
from state_engine.core.operator_state.operator_snapshot import SubtaskSnapshot
from state_engine.core.state.state_table import KeyContext
from state_engine.microbatch.subtask.received_rows import ReceivedRows
from state_engine.microbatch.subtask.subtask_outputs import SubtaskOutputs
from state_engine.microbatch.subtask.subtask_work import SubtaskWork
from state_engine.storage.state.operator_state_files import read_subtask_state, write_subtask_state
from state_engine.storage.stores.files import PutFile, side_by_side


class FunctionRun:
    """The run of one subtask's function in one micro-batch."""

    def __init__(self, work: SubtaskWork, rows: ReceivedRows, context: KeyContext) -> None:
        self._work, self._rows, self._context, self._spec = work, rows, context, work.spec

    def resumption(self) -> Resumption:
        """Where the function continues."""
        return Resumption(self._spec.checkpoint_id, self._restored(), self._spec.parent_id)

    def _restored(self) -> SubtaskSnapshot | None:
        """The operator state that the subtask starts with."""
        spec, held = self._spec, self._spec.operator_state
        restored = read_subtask_state(
            held.ref,
            held.files,
            uri=spec.layout.operator_state,
            subtask=self._work.index,
            parallelism=spec.parallelism,
            max_parallelism=spec.max_parallelism,
            restored=held.restored,
        )
        if restored is None and held.known:
            return SubtaskSnapshot()  # there is keyed state, or none of its own: it continues all the same
        return restored

    def notify_completed(self, function: Any) -> None:
        """Notify a listener of the checkpoints since its operator ran last, and of that run's."""
        if isinstance(function, CheckpointListener):
            for checkpoint_id in self._spec.operator_state.completed:
                function.notify_checkpoint_complete(checkpoint_id)

    def write(self, out: ElementOutputs, snapshot: Any, write_keyed_state: Callable[[PutFile], None]) -> None:
        """Write keyed state, operator state and outputs."""
        with side_by_side() as put:
            write_keyed_state(put)
            self._write_operator_state(snapshot, put)
            self._work.lap("changelog")
            SubtaskOutputs(self._work, self._rows, put).write(out)
        self._work.lap("write")

    def _write_operator_state(self, snapshot: Any, put: PutFile) -> None:
        spec = self._spec
        file, self._work.report.operator_state = write_subtask_state(
            snapshot,
            uri=spec.layout.operator_state,
            operator=spec.uid,
            write_id=spec.write_id,
            subtask=self._work.index,
            attempt=self._work.attempt_id,
            parent=spec.operator_state.ref,
            put=put,
        )
        self._work.report.operator_state_files = [] if file is None else [file]
