"""A sample: today's code over the last recorded micro-batches, beside what they recorded; nothing is committed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from state_engine import (
    KeyedProcessFunction,
    MapStateDescriptor,
    RuntimeContext,
    StatefulJob,
    Types,
    ValueStateDescriptor,
)
from state_engine.replay.sample import Sample, SampledRows, sample_of
from state_engine.storage.layout import JobLayout
from state_engine.testing import CollectSink, MemoryRun, run_in_memory

ROWS = [("ann", 1), ("bob", 2), ("ann", 3), ("cid", 40), ("ann", 5), ("bob", 6)]


class Totals(KeyedProcessFunction):
    """Sums, all amounts, and a timer; amounts above a limit count as that."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int, default=0))
        self.seen = runtime_context.get_map_state(MapStateDescriptor("seen", int, int))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update(self.total.value() + min(value.n, self.limit))
        self.seen.put(value.n, self.total.value())
        yield value.user, self.total.value()


def job_of(limit: int = 100, factor: int = 1) -> StatefulJob:
    job = StatefulJob("sums", parallelism=2, max_parallelism=8)
    kind = Types.ROW_NAMED(["user", "n"], [Types.STRING(), Types.LONG()])
    rows = job.from_collection(ROWS, type_info=kind, max_rows_per_batch=2)
    totals = rows.key_by("user").process(Totals(limit), uid="totals", output_type="user string, total bigint")
    totals.sink("totals", CollectSink())
    doubled = totals.map(lambda row: row.total * factor, Types.LONG(), uid="doubled")
    doubled.sink("doubled", CollectSink())
    return job


def sampled(run: MemoryRun, job: StatefulJob, rows: int) -> Sample:
    run.restart(job)
    context = run._engine.context
    history, layout = context.history(job.name), JobLayout(context.root, job.name)
    before = len(history)
    made = sample_of(run._made.job, history, layout, rows=rows, parameters={})
    assert len(context.history(job.name)) == before
    return made


@pytest.fixture
def run() -> Iterator[MemoryRun]:
    with run_in_memory(job_of()) as run:
        run.run()
        assert [row.rows_in for row in run.checkpoints()] == [2, 2, 2]
        yield run


def test_the_same_code_makes_the_same(run: MemoryRun) -> None:
    sample = sampled(run, job_of(), 100)
    assert (sample.batches, sample.rows, sample.notes, sample.is_same) == ((1, 2, 3), 6, (), True)
    counts = {(one.kind, one.name): (one.same, one.only_old, one.only_new) for one in sample.compared}
    assert counts == {
        ("sink", "doubled"): (6, 0, 0),
        ("sink", "totals"): (6, 0, 0),
        ("state", "totals.seen"): (6, 0, 0),
        ("state", "totals.total"): (6, 0, 0),
    }


def test_other_code_is_compared_with_examples(run: MemoryRun) -> None:
    sample = sampled(run, job_of(limit=10), 100)
    assert not sample.is_same
    (_, totals, seen, total) = sample.compared
    assert (totals.same, totals.only_old, totals.only_new) == (5, 1, 1)
    assert totals.old == ["{'user': 'cid', 'total': 40}"]
    assert totals.new == ["{'user': 'cid', 'total': 10}"]
    assert "'cid'" in total.old[0]
    assert "10" in total.new[0]
    assert (seen.same, seen.only_old, seen.only_new) == (5, 1, 1)


def test_each_micro_batch_starts_with_the_state_that_it_had(run: MemoryRun) -> None:
    sample = sampled(run, job_of(limit=0), 2)
    assert (sample.batches, sample.rows) == ((3,), 2)
    (_, totals, *_) = sample.compared
    assert totals == SampledRows(
        "sink", "totals", 0, 2, 2,
        ["{'user': 'ann', 'total': 9}", "{'user': 'bob', 'total': 8}"],
        ["{'user': 'ann', 'total': 4}", "{'user': 'bob', 'total': 2}"],
    )  # fmt: skip
    assert sample.notes == (
        "checkpoint 2 read 2 rows, and 0 of 2 are left: it and older ones were not run; a sample of 4 has it",
    )


def test_what_cannot_be_run_is_said(run: MemoryRun) -> None:
    sample = sampled(run, job_of(), 1)
    assert (sample.batches, sample.compared) == ((), ())
    assert "read 2 rows, and 1 of 1 are left" in sample.notes[0]


def test_at_most_five_examples_a_side(run: MemoryRun) -> None:
    sample = sampled(run, job_of(factor=3), 100)
    (doubled, *others) = sample.compared
    assert (doubled.only_old, doubled.only_new, len(doubled.old), len(doubled.new)) == (6, 6, 5, 5)
    assert not any(one.only_old or one.only_new for one in others)
