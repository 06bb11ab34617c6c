"""``ExpectationRun``: a rule by row, judged over the columns of all rows of a subtask."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from state_engine.core.checkpoints.checkpoint import ExpectationCount
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import GateError, StatelakeError
from state_engine.core.operator.outputs import ElementOutputs, ElementRefused, Refusal
from state_engine.core.operator_state.operator_snapshot import SubtaskSnapshot
from state_engine.microbatch.subtask.function_run import FunctionRun
from state_engine.microbatch.subtask.subtask_spec import SubtaskReport
from state_engine.operators.row_expectation import RowExpectation
from state_engine.sources.stream_columns import column_of_kinds
from state_engine.storage.stores.files import side_by_side

MOST_SHOWN = 5
"""Rows that an error shows."""
_LONGEST_ROW = 300


class ExpectationRun(FunctionRun):
    """All rows in one call; late ones that a side output takes pass by.

    A rule that ends the micro-batch does so where the reports of all subtasks are: see ``counted_rows``.
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


def counted_rows(
    job: str, expectation: RowExpectation, reports: Sequence[SubtaskReport]
) -> Iterator[ExpectationCount]:
    """What all subtasks counted of a rule; nothing where it judged no row.

    It is called before the operator or sink behind the rule runs, and so before anything is committed.

    Raises:
        GateError: rows end the micro-batch.
    """
    rows, broken = sum(one.judged for one in reports), sum(one.broken for one in reports)
    if broken and expectation.otherwise == "fail":
        shown = [row for one in reports for row in one.broken_rows][:MOST_SHOWN]
        raise GateError(
            f"job '{job}': {counted(broken, 'row breaks', 'rows break')} the expectation '{expectation.name}' "
            f"({expectation.text}), of {rows:,}: {'; '.join(shown)}{'; …' if broken > len(shown) else ''}. Nothing of "
            "this micro-batch was committed. Repair the input and run again; or correct the rule; or set such rows "
            f"aside: expect('{expectation.name}', …, otherwise='dead_letter'), or 'drop', or 'warn'",
            rule=expectation.name,
        )
    if rows:
        yield ExpectationCount(expectation.name, expectation.text, expectation.otherwise, rows, broken)
