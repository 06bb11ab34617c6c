"""One planner for runs, time partitions, replays and backfills: what is read, in which order, at which time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from state_engine.core.checkpoints.checkpoint import CheckpointRow, RescaledOperator
from state_engine.core.errors import SourceError
from state_engine.core.time.partitions import Partition, TimePartitions
from state_engine.core.time.time_plan import ROWS_ALONE, TimePolicy
from state_engine.microbatch import planning
from state_engine.microbatch.batch import PlannedInput
from state_engine.microbatch.planning import (
    InputPlanner,
    NewInput,
    PartitionInput,
    PlannedStep,
    RecordedInput,
    Steps,
    new_input,
)
from state_engine.replay.backfill import BackfillPlan, BackfillRequest, BackfillSteps
from state_engine.replay.replay import Recording, ReplaySteps
from state_engine.sources.base import Slice
from tests.core.checkpoints.rows import checkpoint, progress, tree

DAYS = TimePartitions("at", start="2013-01-01")
FIRST, SECOND, THIRD = DAYS.between("2013-01-01", "2013-01-03")


class FakeSource:
    """Records its arguments."""

    def __init__(self, fresh: int = 9, *, endless: bool = False) -> None:
        self.fresh, self.endless = fresh, endless

    def for_run(self) -> FakeSource:
        return self

    def plan(self, spark: Any, elements: Sequence[Any]) -> Slice | None:
        self.fresh -= 1
        return self._slice("new", elements) if self.fresh >= 0 else None

    def replan(self, spark: Any, before: Sequence[Any], appended: Sequence[Any]) -> Slice:
        if appended == ["gone"]:
            raise SourceError("the file is gone")
        return self._slice("again", before, appended)

    def rebatch(self, spark: Any, before: Sequence[Any], recorded: Sequence[Any]) -> Slice | None:
        left = recorded[len(before) :]
        return self._slice("anew", before, left) if left else None

    def plan_partition(self, spark: Any, elements: Sequence[Any], partition: Partition) -> Slice:
        return self._slice(partition.key, elements)

    def empty_position(self) -> str:
        return "0"

    def _slice(self, *asked: Any) -> Slice:
        return Slice([], "", "", [], detail=asked, endless=self.endless)


class FakePositions:
    """Every micro-batch appended its own id, where it read anything."""

    def elements(self, path: Sequence[CheckpointRow], name: str, source: object) -> list[Any]:
        return [row.write_id for row in path for s in row.sources if s.position_from != s.position_to]


def planned(
    steps: Steps, path: list[CheckpointRow], source: FakeSource | None = None, **options: Any
) -> PlannedInput | None:
    return planner(steps, source, **options)(path)


def planner(steps: Steps, source: FakeSource | None = None, **options: Any) -> InputPlanner:
    job: Any = SimpleNamespace(
        name="job",
        sources={"events": SimpleNamespace(source=source or FakeSource(), timed=False)},
        operators={},
    )
    positions: Any = FakePositions()
    given = {"clock": lambda: 500} | options
    return InputPlanner(job, steps, positions=positions, spark=None, **given)  # type: ignore[arg-type]


def always(step: PlannedStep | None) -> Steps:
    return lambda path, now: step


def asked(plan: PlannedInput | None) -> Any:
    return plan and {name: part.detail for name, part in plan.slices.items()}


def batch(number: int, clock_ms: int = 0, *, reads: bool = True, **facts: Any) -> CheckpointRow:
    before, after = str(number - 1), str(number if reads else number - 1)
    return checkpoint(
        number, number - 1 or None, clock_ms=clock_ms, sources=[progress(before, after)], **facts
    )


def test_a_run_reads_what_is_new_until_there_is_nothing() -> None:
    run = planner(new_input(drain=False, bounded=False), FakeSource(2))
    path = [batch(1)]
    assert asked(run(path)) == {"events": ("new", ["w1"])}
    assert run(path) is not None
    assert run(path) is None


@pytest.mark.parametrize(("bounded", "batches"), [(False, 1), (True, 3)])
def test_a_source_without_end_gives_one_slice_to_a_run_without_bounds(bounded: bool, batches: int) -> None:
    run = planner(new_input(drain=False, bounded=bounded), FakeSource(3, endless=True))
    assert [run([]) is not None for _ in range(4)] == [True] * batches + [False] * (4 - batches)


@pytest.mark.parametrize(("endless", "floors_ms"), [(False, {"events": 499}), (True, {})])
def test_the_clock_does_not_pass_the_rows_of_a_source_without_end(
    endless: bool, floors_ms: dict[str, int]
) -> None:
    timed: Any = SimpleNamespace(
        source=FakeSource(3, endless=endless), timed=True, time_policy=TimePolicy(clock_delay_ms=0)
    )
    job: Any = SimpleNamespace(name="job", sources={"events": timed}, operators={})
    positions: Any = FakePositions()
    steps = new_input(drain=False, bounded=True)
    plan = InputPlanner(job, steps, positions=positions, spark=None, clock=lambda: 500)([])  # type: ignore[arg-type]
    assert plan is not None
    assert plan.time.floors_ms == floors_ms


def test_a_run_fires_timers_in_one_micro_batch_without_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would never end where the clock reaches, each time, what the last one set."""
    monkeypatch.setattr(planning, "any_timer_due", lambda *_, **__: True)
    steps = new_input(drain=False, bounded=False)
    run, fired = planner(steps, FakeSource(0)), batch(2, reads=False)
    assert run([batch(1)]) is not None
    assert run([batch(1), fired]) is None
    assert planner(steps, FakeSource(0))([batch(1), fired]) is not None
    again = planner(steps, FakeSource(1))
    assert asked(again([batch(1), fired]))
    assert again([batch(1), fired, batch(3)]) is not None


def test_what_is_optional_needs_input_or_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    due: list[dict[str, Any]] = []

    def timers(job: Any, parent: Any, **how: Any) -> bool:
        due.append(how)
        return bool(how["drain"])

    monkeypatch.setattr(planning, "any_timer_due", timers)
    nothing = FakeSource(0)
    assert planned(new_input(drain=False, bounded=False), [batch(1, 700)], nothing) is None
    drained = planned(new_input(drain=True, bounded=False), [batch(1, 700)], nothing)
    assert drained == PlannedInput({}, 700, drain=True)
    plan = {"clock_ms": 700, "time": ROWS_ALONE}
    assert due == [{**plan, "drain": False}, {**plan, "drain": True}]
    fed = planned(new_input(drain=True, bounded=False), [batch(1)])
    assert fed is not None
    assert not fed.drain


def test_what_is_repeated_has_its_own_time_and_parallelism() -> None:
    rescaled = [RescaledOperator("sums", 4, 2)]
    row = batch(2, 300, rescaled=rescaled)
    again = always(PlannedStep(RecordedInput([row]), repeats=row))
    plan = planned(again, [batch(1)])
    assert plan is not None
    assert asked(plan) == {"events": ("again", ["w1"], ["w2"])}
    assert (plan.clock_ms, plan.rescaled) == (300, rescaled)
    other = planned(again, [batch(1)], repeats_times=False)
    assert other is not None
    assert (other.clock_ms, other.rescaled) == (500, rescaled)
    assert planned(always(PlannedStep(NewInput())), []).rescaled is None  # type: ignore[union-attr]


def test_the_clock_is_asked_once_and_never_goes_back() -> None:
    ticks = count(100)

    def twice(path: list[CheckpointRow], now: Callable[[], int]) -> PlannedStep:
        assert now() == now()
        return PlannedStep(NewInput())

    run = planner(twice, clock=lambda: next(ticks))
    assert [run([batch(1, 101)]).clock_ms for _ in range(3)] == [101, 101, 102]  # type: ignore[union-attr]


def test_a_partition_is_read_as_recorded_only_where_its_source_stands_as_then() -> None:
    row = batch(2, 300)
    step = always(PlannedStep(PartitionInput(SECOND, row), repeats=row))
    assert asked(planned(step, [batch(1)])) == {"events": ("again", ["w1"], ["w2"])}
    elsewhere = replace(batch(1), sources=[progress("0", "7")])
    assert asked(planned(step, [elsewhere])) == {"events": (SECOND.key, ["w1"])}
    now = always(PlannedStep(PartitionInput(SECOND)))
    assert asked(planned(now, [batch(1)])) == {"events": (SECOND.key, ["w1"])}


def test_an_input_that_cannot_be_read_again_is_named() -> None:
    row = batch(2, write_id="gone")
    for reads in (RecordedInput([row]), PartitionInput(SECOND, row)):
        with pytest.raises(SourceError, match="job 'job', source 'events', replay of checkpoint 2: the file"):
            planned(always(PlannedStep(reads)), [batch(1)])


def test_a_replay_and_a_backfill_of_the_same_micro_batches_plan_the_same() -> None:
    # the second partition ran in two micro-batches: one for its rows, one for timers of a drained input
    of = [(FIRST, True), (SECOND, True), (SECOND, False), (THIRD, True)]
    facts = [
        {"partition": p.key, "partition_start_ms": p.start_ms, "partition_end_ms": p.end_ms} for p, _ in of
    ]
    at = [0, 0, 0, 1]
    main = [
        checkpoint(
            n + 1,
            n or None,
            clock_ms=10 * n,
            drained=not reads,
            sources=[progress(str(n - at[n]), str(n - at[n] + reads))],
            **facts[n],
        )
        for n, (_, reads) in enumerate(of)
    ]
    rows = tree(main)
    recording = Recording("job", "again", None, 4, main, 4, rows)
    request = BackfillRequest(FIRST, THIRD, "roll_forward", rebatch=False, code_version="")
    recorded: dict[str, list[CheckpointRow]] = {}
    for row in main:
        recorded.setdefault(row.partition, []).append(row)
    plan = BackfillPlan(request, main[-1], "again", None, [FIRST, SECOND, THIRD], recorded, {}, rows)

    def plans_of(steps: Steps) -> list[PlannedInput]:
        run, path, plans = planner(steps), list[CheckpointRow](), list[PlannedInput]()
        while (one := run(path)) is not None:
            plans.append(one)
            path.append(replace(main[len(path)], branch="again"))
        return plans

    replayed, backfilled = plans_of(ReplaySteps(recording)), plans_of(BackfillSteps(plan))
    assert replayed == backfilled
    assert [(bool(p.slices), p.clock_ms, p.drain) for p in replayed] == [
        (True, 0, False), (True, 10, False), (False, 20, True), (True, 30, False),
    ]  # fmt: skip
