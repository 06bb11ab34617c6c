"""What state means beyond its types is recorded with it: a function of another shape is refused before it misreads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from state_engine import FileSource, KeyedProcessFunction, RuntimeContext, StatefulJob, ValueStateDescriptor
from state_engine.core.errors import StateMigrationError
from state_engine.testing import CollectSink, run_in_memory

NOWHERE = FileSource("/nowhere", schema="k string")


class Totals(KeyedProcessFunction):
    """Counts in steps of a size; the state alone does not tell which."""

    def __init__(self, step: int, shape: str | None) -> None:
        self._step, self.shape = step, shape

    def open(self, runtime_context: RuntimeContext) -> None:
        self.steps = runtime_context.get_state(ValueStateDescriptor("steps", int, default=0))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        self.steps.update(self.steps.value() + 1)
        yield self.steps.value() * self._step


def job(*operators: tuple[int, str | None, str]) -> StatefulJob:
    """A job with these operators: of a step, a shape and a uid."""
    made = StatefulJob("shapes")
    rows = made.source("rows", NOWHERE).key_by("k")
    for step, shape, uid in operators:
        rows.process(Totals(step, shape), uid=uid, output_type=int).sink(uid, CollectSink())
    return made


@pytest.mark.parametrize(
    ("before", "after", "known", "now"),
    [
        ("steps of 5", "steps of 7", "'steps of 5'", "'steps of 7'"),
        ("steps of 5", None, "'steps of 5'", "a function without shape"),
        (None, "steps of 7", "a function without shape", "'steps of 7'"),
    ],
)
def test_another_shape_is_refused_before_a_row_is_read(
    before: str | None, after: str | None, known: str, now: str
) -> None:
    with run_in_memory(job((5, before, "totals"))) as run:
        run.process({"rows": [("a",)]})
        run.restart(job((7, after, "totals")))
        with pytest.raises(StateMigrationError, match=f"was written by {known}, and {now} would misread it"):
            run.process({"rows": [("a",)]})
        assert len(run.checkpoints()) == 1
        # as the message says: what it was goes on
        run.restart(job((5, before, "totals")))
        assert run.process({"rows": [("a",)]})["totals"] == [10]


def test_with_another_uid_it_starts_empty() -> None:
    before = (5, "steps of 5", "totals")
    with run_in_memory(job(before)) as run:
        run.process({"rows": [("a",)]})
        run.restart(job(before, (7, "steps of 7", "anew")))
        assert run.process({"rows": [("a",)]}) == {"totals": [10], "anew": [7]}
        assert {o.uid: o.shape for o in run.checkpoints()[-1].operators} == {
            "totals": "steps of 5", "anew": "steps of 7",
        }  # fmt: skip


def test_without_state_any_shape_will_do() -> None:
    with run_in_memory(job((5, "steps of 5", "totals"))) as run:
        run.process()
        run.restart(job((7, "steps of 7", "totals")))
        assert run.process({"rows": [("a",)]})["totals"] == [7]
