"""What runs a function in a subtask: what it gets before it runs, and where its state and outputs go afterwards.

Two kinds of functions run, each in its own way: those called for each element (``element_run``), and those called once
with columns (``column_run``). Rows for a sink pass through without a function (``PassThroughRun``).
"""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa

from state_engine.core.errors import ConfigurationError
from state_engine.core.functions.checkpointed import CheckpointListener
from state_engine.core.operator.element_kinds import own_kind
from state_engine.core.operator.operator_lifecycle import Resumption
from state_engine.core.operator.outputs import ElementOutputs
from state_engine.core.operator.side_outputs import SideOutputWriter
from state_engine.core.operator_state.operator_snapshot import SubtaskSnapshot
from state_engine.core.state.state_table import KeyContext
from state_engine.microbatch.subtask.received_rows import ReceivedRows
from state_engine.microbatch.subtask.subtask_input import values_of
from state_engine.microbatch.subtask.subtask_outputs import SubtaskOutputs
from state_engine.microbatch.subtask.subtask_work import SubtaskWork
from state_engine.sources.frames import REFUSED
from state_engine.sources.stream_columns import KIND_FIELD, ROW_KIND, column_of_kinds
from state_engine.storage.state.operator_state_files import read_subtask_state, write_subtask_state
from state_engine.storage.stores.files import PutFile, put_file


class FunctionRun:
    """The run of one subtask's function in one micro-batch."""

    def __init__(self, work: SubtaskWork, rows: ReceivedRows, context: KeyContext) -> None:
        self._work, self._rows, self._context, self._spec = work, rows, context, work.spec

    def resumption(self) -> Resumption:
        return Resumption(self._spec.checkpoint_id, self._restored(), self._spec.parent_id)

    def _restored(self) -> SubtaskSnapshot | None:
        spec, held = self._spec, self._spec.operator_state
        restored = read_subtask_state(
            held.ref,
            held.files,
            uri=held.uri,
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

    def write(self, out: ElementOutputs, snapshot: Any, put: PutFile) -> None:
        """Write operator state and outputs, after keyed state."""
        self._write_operator_state(snapshot, put)
        self._work.lap("changelog")
        SubtaskOutputs(self._work, self._rows, put).write(out)

    def divert_late(self, out: ElementOutputs) -> None:
        """Late rows, which pass by the function, to the side outputs that somebody reads."""
        spec = self._spec
        writer = SideOutputWriter(
            spec.uid,
            {o.name: o.tag for o in spec.outputs if o.tag is not None},
            kind_of=own_kind if spec.has_kinds else None,
        )
        rows = sorted(row for row, tag in self._rows.late.items() if tag is not None)
        values = values_of(self._rows.events.take(pa.array(rows, pa.int64())), spec.routed)
        for row, value in zip(rows, values, strict=True):
            tag = self._rows.late[row]
            assert tag is not None
            if tag.tag_id in out.side and out.side[tag.tag_id].table is not None:
                raise ConfigurationError(
                    f"operator '{spec.uid}': the side output '{tag.tag_id}' has the late rows of a source, and a "
                    "function over columns gave rows for it, too: use a tag for each"
                )
            writer.write(tag, value, row, out)

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


class PassThroughRun(FunctionRun):
    """All rows as they are, or rows that could not be parsed, which become letters."""

    def run(self, table: pa.Table | None) -> None:
        """Write the rows, if there are any, as one file of the sink, and those that are refused as dead letters.

        Raises:
            ElementRefused: a row holds bad text under ``on_error='fail'``.
            UserFunctionError: the sink refuses a row under ``on_error='fail'``.
        """
        if table is None:
            return
        if self._spec.source is not None:
            self._work.report.rows_by_source = {self._spec.source: table.num_rows}
        out = ElementOutputs()
        if REFUSED in table.column_names:
            self._work.refused.add_unparsable(table)
        else:
            self._rows.pass_through(table)
            out = self._outputs(self._rows.events)
        SubtaskOutputs(self._work, self._rows, put_file).write(out)

    def _outputs(self, rows: pa.Table) -> ElementOutputs:
        table = rows.select(list(self._spec.routed.inputs[0].names))
        if ROW_KIND in self._spec.outputs[0].sinks[0].schema.names:
            table = table.append_column(KIND_FIELD, column_of_kinds(rows))
        return ElementOutputs(origins=cast(Any, range(rows.num_rows)), table=table)
