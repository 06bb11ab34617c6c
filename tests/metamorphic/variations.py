"""One way of running a case, by chance, and the plain way that all are compared with."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from state_engine import (
    DeltaSource,
    EmbeddedRocksDBStateBackend,
    KafkaSource,
    KeyedProcessFunction,
    PythonDataSource,
    StateEngine,
    StatefulJob,
    StateTtlConfig,
    Time,
)
from state_engine.core.functions.runtime_context import RuntimeContext
from state_engine.sources.collection import CollectionSource
from state_engine.sources.file import FileSource
from state_engine.sources.function import FunctionSource
from state_engine.state_backends.state_backend import StateBackend
from state_engine.testing import subtasks_in_process
from tests.faults.plane import STEPS, Fault, installed
from tests.metamorphic.files import Feed, Results, cut, plain, results, states
from tests.metamorphic.jobs import DEFAULT, Case, Rows, arrivals
from tests.metamorphic.sessions import (
    ZONES,
    Neighbour,
    Watcher,
    a_user,
    belongings,
    differences,
    options,
)
from tests.microbatch.ttl_jobs import CLEANUPS
from tests.state_backends.backends import BACKENDS

BACKENDS_OF_RUNS: dict[str, Callable[[], StateBackend]] = BACKENDS | {
    "rocksdb, compacting": lambda: EmbeddedRocksDBStateBackend(compact_after_writes=3)
}
POINTS = [f"{when} {step}" for step in STEPS for when in ("before", "after")]


@dataclass(frozen=True)
class Step:
    """One run of the engine."""

    parallelism: int = 1
    backend: str = "heap"
    cleanup: str = DEFAULT
    bound: int | None = None
    interrupt: str | None = None
    compact: bool = False
    options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Variation:
    """Runs of a case."""

    seed: int
    steps: list[Step]
    lasting: bool = False
    tasks: bool = False
    neighbour: str | None = None


def by_chance(case: Case, seed: int, options_of: Callable[[random.Random], dict[str, str]]) -> Variation:
    """A variation of everything."""
    rng = random.Random(seed)

    def step() -> Step:
        return Step(
            parallelism=rng.randrange(1, 6),
            backend=rng.choice(list(BACKENDS_OF_RUNS)),
            cleanup=rng.choice(list(CLEANUPS)),
            bound=rng.choice((None, None, 1, 3, 7)),
            interrupt=rng.choice((None, None, rng.choice(POINTS))),
            compact=rng.random() < 0.2,
            options=options_of(rng),
        )

    most = (4, 9) if case.span else (2, 6) if case.cut else (2, 3)
    steps = [step() for _ in range(rng.randrange(*most))]
    neighbour = rng.choice((None, rng.choice(ZONES)))
    return Variation(seed, steps, lasting=rng.random() < 0.4, tasks=rng.random() < 0.3, neighbour=neighbour)


def check_any_way(
    case: Case,
    seed: int,
    turned: dict[str, str],
    rows: Rows,
    directory: Path,
    spark: SparkSession,
    expected: Results,
) -> None:
    """A way by chance gives what a plain run of the same rows gave."""
    variation = by_chance(case, seed, lambda rng: options(spark, rng, turned))
    left = performed(case, variation, rows, directory, spark)
    assert left.keys() == expected.keys()
    by_arrival = {f"state {state} before the end" for state in case.by_arrival + case.left_by_arrival}
    by_arrival |= {f"state {state}" for state in case.left_by_arrival}
    compared = expected.keys() - by_arrival
    different = {part: (left[part], expected[part]) for part in compared if left[part] != expected[part]}
    assert not different, f"{variation}: {different}"
    assert left["late"] == 0


def rows_of(case: Case, seed: int) -> Rows:
    """The rows of a case, as they come."""
    rng = random.Random(seed)
    return arrivals(case, case.rows(rng), rng)


def plain_run(case: Case, rows: Rows, directory: Path, spark: SparkSession) -> Results:
    """All rows at once, in one subtask, in a session that has Spark's own options; a plain program gives the same."""
    left = performed(case, Variation(0, [Step()]), rows, directory, spark)
    for name, table in case.plainly(rows).items():
        assert left[f"table {name}"] == sorted(table, key=repr), name
    return left


def performed(case: Case, variation: Variation, rows: Rows, directory: Path, spark: SparkSession) -> Results:
    """The results of a variation; fails where the user of the session finds anything changed."""
    rng = random.Random(variation.seed)
    if case.any_arrival:
        rows = arrivals(case, rows, rng)
    clocks = _clocks(case, len(variation.steps))
    batches = cut(case, rows, rng, clocks)
    with ExitStack() as stack:
        if variation.neighbour:
            neighbour = stack.enter_context(Neighbour(directory / "beside", spark, variation.neighbour))
        feed = Feed(case, case.build(directory, DEFAULT))
        for clock, step, batch in zip(clocks, variation.steps, batches, strict=True):
            feed.write(batch, rng)
            last = step is variation.steps[-1]
            left = _run(case, variation, step, directory, spark, clock=clock, last=last)
    if variation.neighbour:
        assert not neighbour.wrong, neighbour.wrong
    return left


def _run(
    case: Case,
    variation: Variation,
    step: Step,
    directory: Path,
    spark: SparkSession,
    *,
    clock: datetime,
    last: bool,
) -> Results:
    with a_user(spark, step.options) as session, ExitStack() as stack:
        if not variation.tasks:
            stack.enter_context(subtasks_in_process(session))
        before, left = belongings(session), Results()
        with Watcher(session) as watcher, StateEngine(directory / "root", session) as engine:
            for options in _runs(case, clock, last=last):
                job = job_of(case, variation, step, directory)
                _interrupted(partial(engine.run, job, **options), step)
                job = job_of(case, variation, step, directory)
                engine.run(job, **options)
                if last and not left:  # all rows are there, and time goes on afterwards
                    left |= {f"{name} before the end": part for name, part in states(job, engine).items()}
            if step.compact and engine.checkpoints(job):
                engine.compact(job)
            if last:
                left |= results(case, job, engine)
                _asked_by_sql(job, engine, left)
        changed = differences(before, belongings(session))
        assert not changed, f"a run changed what is the user's: {changed}"
        assert all(len(seen) <= 1 for seen in watcher.seen.values()), watcher.seen
    return left


def _clocks(case: Case, steps: int) -> list[datetime]:
    """The clock of each step: it stands, or goes on by as much each time."""
    return [case.start + (case.span or timedelta(0)) * n / steps for n in range(1, steps + 1)]


def _runs(case: Case, clock: datetime, *, last: bool) -> Iterator[dict[str, Any]]:
    """Options of the runs of a step: the clock goes on when all rows are there."""
    yield {"clock": _ms(clock)}
    if last:
        yield {"clock": _ms(case.start + timedelta(days=case.days))}
        if case.drain:
            yield {"clock": _ms(case.start + timedelta(days=case.days)), "drain": True}


def _ms(at: datetime) -> int:
    return int(at.astimezone(UTC).timestamp() * 1000)


def _interrupted(run: Callable[[], Any], step: Step) -> None:
    """Run until the user presses Ctrl-C, if he does."""
    if step.interrupt:
        with installed([Fault(step.interrupt, action="interrupt")]), suppress(KeyboardInterrupt):
            run()


def _asked_by_sql(job: StatefulJob, engine: StateEngine, left: Results) -> None:
    """States as the user's session shows them: as a reader of the files has them."""
    for name in [name for name in left if name.startswith("state ") and not name.endswith(" end")][:2]:
        operator, _, state = name.removeprefix("state ").rpartition(".")
        shown = engine.read_state(job, operator, state).toArrow().to_pylist()
        assert plain(shown) == plain(left[name]), name
    if any(ref.operator in job.operators for ref in engine.checkpoints(job)[-1].operator_state):
        rows = engine.sql(job, "SELECT operator, state, value FROM operator_state").collect()
        left["operator state"] = sorted(tuple(row) for row in rows if row.operator in job.operators)


# -- the job of a step -------------------------------------------------------------------------------------------------


def job_of(case: Case, variation: Variation, step: Step, directory: Path) -> StatefulJob:
    """The job, built anew, as a step has it."""
    job = case.build(directory, step.cleanup)
    job.parallelism = case.parallelism or step.parallelism
    job.state_backend = BACKENDS_OF_RUNS[step.backend]()
    if step.bound and not (case.in_order and len(job.sources) > 1) and job.partitions is None:
        for node in job.sources.values():
            node.source = _bounded(node.source, step.bound, first=case.first)
    if variation.lasting:
        for operator in job.operators.values():
            if operator.keyed and not type(operator.function).__module__.startswith("state_engine."):
                _let_last(operator.function, step.cleanup)
    return job


def _bounded(source: Any, bound: int, first: tuple[str, ...]) -> Any:
    if isinstance(source, FileSource) and not first:
        return replace(source, max_files_per_batch=bound)
    if isinstance(source, KafkaSource):
        return replace(source, max_offsets_per_batch=bound)
    bounds_rows = isinstance(source, CollectionSource | FunctionSource | PythonDataSource | DeltaSource)
    return replace(source, max_rows_per_batch=bound) if bounds_rows else source


def _let_last(function: Any, cleanup: str) -> None:
    """Give the states of a function a time to live that never ends, where they have none."""
    if isinstance(function, KeyedProcessFunction):
        vars(function)["open"] = Lasting(function, cleanup)


class Lasting:
    """``open`` of a function, whose states get a time to live that never ends."""

    def __init__(self, function: Any, cleanup: str) -> None:
        self._function, self._cleanup = function, cleanup

    def __call__(self, context: RuntimeContext) -> None:
        type(self._function).open(self._function, _LastingStates(context, self._cleanup))


class _LastingStates:
    def __init__(self, context: RuntimeContext, cleanup: str) -> None:
        self._context, self._cleanup = context, cleanup

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._context, name)
        if not name.endswith("state"):
            return real

        def with_ttl(descriptor: Any) -> Any:
            if descriptor.ttl is None:
                builder = StateTtlConfig.new_builder(Time.days(36_500))
                descriptor.enable_time_to_live(CLEANUPS[self._cleanup](builder).build())
            return real(descriptor)

        return with_ttl
