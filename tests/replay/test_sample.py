"""A sample: today's code over the last recorded micro-batches, beside what they recorded; nothing is committed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from state_engine import (
    KeyedProcessFunction,
    MapStateDescriptor,
    Row,
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
    assert sample.notes == ()


@pytest.mark.parametrize(("most", "batches"), [(1, (3,)), (3, (2, 3)), (5, (1, 2, 3))])
def test_a_micro_batch_with_more_rows_runs_whole_keys(
    run: MemoryRun, most: int, batches: tuple[int, ...]
) -> None:
    sample = sampled(run, job_of(), most)
    assert (sample.batches, sample.rows, sample.is_same) == (batches, most, True)
    assert {(one.name, one.same) for one in sample.compared} == {
        (name, most) for name in ("doubled", "totals", "totals.seen", "totals.total")
    }
    (note,) = sample.notes
    assert note.startswith(f"checkpoint {batches[0]} read 2 rows: it was run with 1 key of totals (1 row).")


def test_of_whole_keys_only_entries_of_states_are_known_to_be_old(run: MemoryRun) -> None:
    (doubled, totals, seen, total) = sampled(run, job_of(limit=2), 1).compared
    for rows in (doubled, totals):
        assert (rows.same, rows.only_old, rows.only_new) == (0, 0, 1)
    for entries in (seen, total):
        assert (entries.same, entries.only_old, entries.only_new) == (0, 1, 1)


def skewed(rows: list[tuple[str, int]]) -> StatefulJob:
    """Totals by user, and behind them totals of all."""
    job = StatefulJob("skewed", parallelism=2, max_parallelism=8)
    kind = Types.ROW_NAMED(["user", "n"], [Types.STRING(), Types.LONG()])
    columns = "user string, total bigint"
    keyed = job.from_collection(rows, type_info=kind).key_by("user")
    first = keyed.process(Totals(100), uid="first", output_type=columns)
    first.sink("first", CollectSink())
    renamed = first.map(lambda row: Row(user="all", n=row.total), kind, uid="renamed").key_by("user")
    renamed.process(Totals(100), uid="second", output_type=columns).sink("second", CollectSink())
    return job


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize(("frequent", "rare"), [("ann", "bob"), ("bob", "ann")])
def test_no_key_is_cut_and_what_stands_behind_a_second_one_is_left_out(
    frequent: str, rare: str, most: int
) -> None:
    rows = [(frequent, 1), (frequent, 2), (frequent, 3), (rare, 4)]
    with run_in_memory(skewed(rows)) as run:
        run.run()
        sample = sampled(run, skewed(rows), most)
        assert (sample.batches, sample.is_same) == ((1,), True)
        assert sample.rows in (1, 3)
        assert {one.name for one in sample.compared} == {"first", "first.seen", "first.total"}
        assert sampled(run, skewed(rows), 4).notes == ()


def test_keys_that_all_have_more_rows_are_named(run: MemoryRun) -> None:
    rows = [("ann", 1), ("ann", 2), ("bob", 3), ("bob", 4), ("bob", 5)]
    with run_in_memory(skewed(rows)) as run:
        run.run()
        sample = sampled(run, skewed(rows), 1)
    assert (sample.batches, sample.compared) == ((), ())
    assert "was not run: each key has more rows than are left: take a sample of 5 rows" in sample.notes[0]


def test_a_job_without_keys_cannot_run_in_part() -> None:
    def plain() -> StatefulJob:
        job = StatefulJob("plain")
        rows = job.from_collection([("ann", 1), ("bob", 2)], type_info="user string, n bigint")
        rows.sink("all", CollectSink())
        return job

    with run_in_memory(plain()) as given:
        given.run()
        sample = sampled(given, plain(), 1)
    assert "was not run: no operator has keys to choose: take a sample of 2 rows" in sample.notes[0]


def test_at_most_five_examples_a_side(run: MemoryRun) -> None:
    sample = sampled(run, job_of(factor=3), 100)
    (doubled, *others) = sample.compared
    assert (doubled.only_old, doubled.only_new, len(doubled.old), len(doubled.new)) == (6, 6, 5, 5)
    assert not any(one.only_old or one.only_new for one in others)
