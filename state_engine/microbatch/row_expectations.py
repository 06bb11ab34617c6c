"""What the subtasks of a rule by row reported: counts of the whole micro-batch, or the error that ends it.

The verdict falls before the operator or sink behind the rule runs, and so before anything is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from state_engine.core.checkpoints.checkpoint import ExpectationCount
from state_engine.core.counted_nouns import counted
from state_engine.core.errors import GateError
from state_engine.microbatch.subtask.expectation_run import MOST_SHOWN
from state_engine.microbatch.subtask.subtask_spec import SubtaskReport
from state_engine.operators.row_expectation import RowExpectation


def counted_rows(
    job: str, expectation: RowExpectation, reports: Sequence[SubtaskReport]
) -> Iterator[ExpectationCount]:
    """What was counted of a rule; nothing where it judged no row. Raises GateError where rows end the micro-batch."""
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
