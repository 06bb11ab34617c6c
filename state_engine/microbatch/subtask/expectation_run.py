"""``ExpectationRun``: a rule by row, judged over the columns of all rows of a subtask."""

from __future__ import annotations

from typing import Any

import numpy as np

from state_engine.core.errors import StatelakeError
from state_engine.core.operator.outputs import ElementOutputs, ElementRefused, Refusal
from state_engine.core.operator_state.operator_snapshot import SubtaskSnapshot
from state_engine.microbatch.subtask.function_run import FunctionRun
from state_engine.operators.row_expectation import RowExpectation
from state_engine.sources.stream_columns import column_of_kinds
from state_engine.storage.stores.files import side_by_side

MOST_SHOWN = 5
"""Rows that an error shows."""
_LONGEST_ROW = 300


class ExpectationRun(FunctionRun):
    """All rows in one call; late ones that a side output takes pass by.

    A rule that ends the micro-batch does so where the reports of all subtasks are: see ``microbatch.row_expectations``.
    """

    def run(self, expectation: RowExpectation) -> None:
        """Judge the rows, and write those that go on and the dead letters.

        Raises:
            ElementRefused: the function of the rule raised.
        """
        report, events = self._work.report, self._rows.events
        places = np.delete(np.arange(events.num_rows), list(self._rows.late))
        met = self._met(expectation, places)
        broken = places[~met]
        report.judged, report.broken = len(places), len(broken)
        if expectation.otherwise == "fail" and len(broken):
            report.broken_rows = [self._shown(int(place)) for place in broken[:MOST_SHOWN]]
            return
        out = self._outputs(places[met] if expectation.removes else places)
        if self._rows.late:
            self.divert_late(out)
        if expectation.otherwise == "dead_letter":
            error = f"expectation '{expectation.name}' is not met: {expectation.text}"
            out.refused = [Refusal(int(place), None, error, "") for place in broken]
        self._work.lap("process")
        with side_by_side() as put:
            self.write(out, SubtaskSnapshot(), put)
        self._work.lap("write")

    def _met(self, expectation: RowExpectation, places: Any) -> Any:
        if not len(places):
            return np.zeros(0, bool)
        (one,) = self._spec.routed.inputs
        rows = self._rows.events.select(list(one.columns)).rename_columns(list(one.names)).take(places)
        try:
            return expectation.met(rows)
        except StatelakeError:
            raise
        except Exception as error:
            raise ElementRefused(Refusal(None, None, "", "").caused_by(error)) from error

    def _outputs(self, places: Any) -> ElementOutputs:
        """The rows at some places, as they came."""
        if not len(places):
            return ElementOutputs()
        (one,), kind = self._spec.routed.inputs, self._spec.outputs[0].kind.columns
        rows = self._rows.events.take(places)
        column_of = dict(zip(one.names, one.columns, strict=True))
        table = rows.select([column_of[name] for name in kind.names]).rename_columns(list(kind.names))
        kinds = column_of_kinds(rows) if self._spec.has_kinds else None
        return ElementOutputs(origins=places, table=table, kinds=kinds)

    def _shown(self, place: int) -> str:
        """A row that breaks the rule, and where it came from."""
        letter = self._work.refused.described(Refusal(place, None, "", ""), self._rows.events)
        row = str(letter["row"])
        return f"{letter['position']}: {row if len(row) <= _LONGEST_ROW else row[:_LONGEST_ROW] + '…'}"
