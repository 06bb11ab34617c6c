"""``PassThroughRun``: rows on their way to a sink, with no operator in between.

They are neither shuffled nor sorted, and no Python object is made of them. So only text that is not UTF-8 is refused,
and what the sink does not take.
"""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa

from state_engine.core.operator.outputs import ElementOutputs
from state_engine.microbatch.subtask.function_run import FunctionRun
from state_engine.microbatch.subtask.subtask_outputs import SubtaskOutputs
from state_engine.sources.frames import REFUSED
from state_engine.sources.row_kinds import KIND_FIELD, column_of_kinds
from state_engine.sources.stream_columns import ROW_KIND
from state_engine.storage.stores.files import put_file


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
