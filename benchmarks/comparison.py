"""Compares contenders in one sitting: equal results first, then time, one batch each in turn.

Every contender runs from its own start to the end of the comparison, so all are warm in the same way; alternating
spreads what disturbs the machine over all of them. Medians are compared.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.contender import Contender, Taken
from benchmarks.statelake import Statelake
from benchmarks.transform_with_state import TransformWithState
from benchmarks.workload import PARALLELISM, Feed, Results, Workload
from state_engine import SparkSettings, local_session

NAMES = (Statelake.name, TransformWithState.name)
"""Contenders that run inside one Spark application."""
SMALL_BATCH = 1000
"""Events of the small batch."""

Progress = Callable[[str], None]
"""Is called with what was just done; once a batch."""


class UnequalResultsError(Exception):
    """Two engines do not agree: whatever time they take means nothing."""


@dataclass(frozen=True)
class Series:
    """The counted batches of one contender.

    Attributes:
        name: of the contender.
        events: in each batch.
        taken: in the order they ran, warm-up left out.
    """

    name: str
    events: int
    taken: list[Taken]

    @property
    def seconds(self) -> list[float]:
        """Wall times."""
        return [t.seconds for t in self.taken]

    @property
    def median_s(self) -> float:
        """The middle wall time."""
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Plan:
    """How much to run.

    Attributes:
        events: in a full batch.
        keys: distinct keys.
        rounds: counted batches of each contender.
        warm_up: batches of each contender that are not counted.
        small_rounds, small_warm_up: the same of small batches, whose cost is planning: the JVM takes more of them to
            warm up, and they are short.
    """

    events: int
    keys: int
    rounds: int = 3
    warm_up: int = 2
    small_rounds: int = 9
    small_warm_up: int = 15

    @property
    def batches(self) -> int:
        """Batches that one contender runs."""
        return self.warm_up + self.rounds + self.small_warm_up + self.small_rounds


@contextmanager
def spark_application(settings: SparkSettings | None = None) -> Iterator[SparkSession]:
    """A Spark application for one comparison, on as many cores as there are subtasks; its JVM keeps silent."""
    master = {"master": f"local[{PARALLELISM}]"}
    with _jvm_silent():
        spark = local_session(
            (settings or SparkSettings()).model_copy(update=master), app_name="statelake-benchmarks"
        )
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _jvm_silent() -> Iterator[None]:
    """What a JVM started inside writes to standard error is dropped: workers of the peer report every trigger there.

    What goes wrong comes back as an exception all the same.
    """
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def verify(
    spark: SparkSession,
    *,
    events: int,
    keys: int,
    batches: int = 3,
    only: Sequence[str] = NAMES,
    done: Progress = print,
) -> None:
    """Run contenders over the same small batches and compare each of them with what must come out.

    Raises:
        UnequalResultsError: an output or a state differs; the message shows where.
    """
    workload = Workload(keys)
    with tempfile.TemporaryDirectory(prefix="statelake-bench-") as name, ExitStack() as stack:
        feed = Feed(workload, Path(name) / "feed")
        contenders = _start(spark, Path(name), only, stack, keep_outputs=True)
        for _ in range(batches):
            batch = feed.write(events)
            for contender in contenders:
                contender.run(batch)
                done(contender.name)
        expected = workload.expected(feed.events)
        for contender in contenders:
            check(contender.name, contender.results(), expected)


def check(name: str, results: Results, expected: Results) -> None:
    """Compare all outputs as multisets, and the whole state; raises UnequalResultsError."""
    missing, extra = expected.outputs - results.outputs, results.outputs - expected.outputs
    if missing or extra:
        raise UnequalResultsError(
            f"{name}: {missing.total()} outputs are missing, {extra.total()} are wrong or too many; for example "
            f"missing {missing.most_common(3)}, wrong {extra.most_common(3)}"
        )
    differ = [k for k in {*expected.state, *results.state} if expected.state.get(k) != results.state.get(k)]
    if differ:
        shown = [(k, expected.state.get(k), results.state.get(k)) for k in sorted(differ)[:3]]
        raise UnequalResultsError(
            f"{name}: the state of {len(differ)} keys is wrong; for example (key, expected, actual) {shown}"
        )


def compare(
    spark: SparkSession, plan: Plan, *, only: Sequence[str] = NAMES, done: Progress = print
) -> tuple[list[Series], list[Series]]:
    """Full batches, then small ones while the state of all keys is there; warm, contenders in turn."""
    with tempfile.TemporaryDirectory(prefix="statelake-bench-") as name, ExitStack() as stack:
        feed = Feed(Workload(plan.keys), Path(name) / "feed")
        contenders = _start(spark, Path(name), only, stack, keep_outputs=False)
        return (
            _alternate(contenders, feed, plan.events, plan.warm_up, plan.rounds, done),
            _alternate(contenders, feed, SMALL_BATCH, plan.small_warm_up, plan.small_rounds, done),
        )


def _start(
    spark: SparkSession, directory: Path, only: Sequence[str], stack: ExitStack, *, keep_outputs: bool
) -> list[Contender]:
    """The contenders that were asked for, closed when the stack is."""
    contenders: list[Contender] = []
    if Statelake.name in only:
        contenders.append(Statelake(spark, directory / "statelake"))
    if TransformWithState.name in only:
        # A session of its own in the same application: its own options, but the same JVM, cores and memory.
        session = spark.newSession()
        contenders.append(TransformWithState(session, directory / "tws", keep_outputs=keep_outputs))
    for contender in contenders:
        stack.callback(contender.close)
    return contenders


def _alternate(
    contenders: list[Contender], feed: Feed, events: int, warm_up: int, rounds: int, done: Progress
) -> list[Series]:
    series = [Series(contender.name, events, []) for contender in contenders]
    for number in range(warm_up + rounds):
        batch = feed.write(events)
        for contender, mine in zip(contenders, series, strict=True):
            taken = contender.run(batch)
            if number >= warm_up:
                mine.taken.append(taken)
            counted = f"round {number - warm_up + 1}" if number >= warm_up else "warm-up"
            done(f"{contender.name}, {events:,} events, {counted}: {taken.seconds:.2f} s")
    return series
