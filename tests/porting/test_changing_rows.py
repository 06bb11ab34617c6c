"""Programs over changelog streams: PyFlink's row kinds, and a function that takes rows back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from state_engine import (
    AggregateFunction,
    KeyedProcessFunction,
    Row,
    RowKind,
    RuntimeContext,
    StatefulJob,
    Types,
    ValueStateDescriptor,
)
from state_engine.testing import CollectSink, run_in_memory

SCORE = Types.ROW_NAMED(["name", "score"], [Types.STRING(), Types.LONG()])
FEED = [
    Row.of_kind(RowKind.INSERT, "ada", 12),
    Row.of_kind(RowKind.INSERT, "bob", 5),
    Row.of_kind(RowKind.UPDATE_BEFORE, "ada", 12),
    Row.of_kind(RowKind.UPDATE_AFTER, "ada", 100),
    Row.of_kind(RowKind.DELETE, "bob", 5),
]


class Newest(KeyedProcessFunction):
    """What is in the table of a changelog: a row that goes into a state is an insert there."""

    accepts_changes = True
    emits_changes = True

    def open(self, runtime_context: RuntimeContext) -> None:
        self.row = runtime_context.get_state(ValueStateDescriptor("row", SCORE))

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        kind = value.get_row_kind()
        if kind in (RowKind.UPDATE_BEFORE, RowKind.DELETE):
            self.row.clear()
        else:
            value.set_row_kind(RowKind.INSERT)
            self.row.update(value)
            value.set_row_kind(kind)
        yield value


class Sum(AggregateFunction):
    """As a sum with retraction in the Table API."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + int(value.score)

    def retract(self, value: Any, accumulator: int) -> int:
        return accumulator - int(value.score)

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


def test_a_changelog_is_read_and_put_out_with_its_kinds() -> None:
    job = StatefulJob("scores")
    scores = job.from_collection(FEED, SCORE, changing=True).key_by("name")
    newest = scores.process(Newest(), output_type=SCORE, uid="newest")
    newest.sink("changelog", CollectSink())
    scores.aggregate(Sum(), Types.LONG(), Types.LONG(), uid="sums").sink("sums", CollectSink())
    with run_in_memory(job) as run:
        run.run()
        shown = [(str(row.get_row_kind()), tuple(row)) for row in run.sink("changelog")]
        assert shown == [(str(row.get_row_kind()), tuple(row)) for row in FEED]
        assert run.state("newest", "row") == {"ada": ("ada", 100)}
        assert run.sink("sums")[-1] == (RowKind.DELETE, 5)
        assert (RowKind.INSERT, 100) in run.sink("sums")
