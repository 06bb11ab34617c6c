"""Compares contenders in one sitting: equal results first, then time, one batch each in turn.

Every contender runs from its own start to the end of the comparison, so all are warm in the same way; alternating
spreads what disturbs the machine over all of them. Medians are compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.contenders.contender import Contender, Taken
from benchmarks.contenders.registry import CONTENDERS
from benchmarks.contenders.statelake import Statelake
from benchmarks.contenders.transform_with_state import TransformWithState
from benchmarks.figures import Spread, Timed
from benchmarks.unequal import check
from benchmarks.workload import PARALLELISM, Feed, Workload, scratch
from state_engine import SparkSettings, local_session

NAMES = (Statelake.name, TransformWithState.name)
"""Contenders that ``make bench`` compares."""
SMALL_BATCH = 1000
"""Events of the small batch."""

OnStep = Callable[[str], None]
"""Is called with what was just done; once a batch."""


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
    def timed(self) -> Timed:
        """Their wall times."""
        return Timed(self.name, [t.seconds for t in self.taken], self.events)

    @property
    def spread(self) -> Spread:
        """Of their wall times."""
        return self.timed.spread


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
def site(settings: SparkSettings | None = None) -> Iterator[tuple[SparkSession, Path]]:
    """A Spark application and a directory, for one comparison."""
    with scratch() as directory, spark_application(settings) as spark:
        yield spark, directory


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
    done: OnStep = print,
) -> None:
    """Run contenders over the same small batches and compare each of them with what must come out.

    Raises:
        UnequalResultsError: an output or a state differs; the message shows where.
    """
    workload = Workload(keys)
    with scratch() as directory, ExitStack() as stack:
        feed = Feed(workload, directory / "feed")
        contenders = start_contenders(spark, directory, only, stack, keep_outputs=True)
        for _ in range(batches):
            batch = feed.write(events)
            for contender in contenders:
                contender.run(batch)
                done(contender.name)
        expected = workload.expected(feed.events)
        for contender in contenders:
            check(contender.name, contender.results(), expected)


def compare(
    spark: SparkSession, plan: Plan, *, only: Sequence[str] = NAMES, done: OnStep = print
) -> tuple[list[Series], list[Series]]:
    """Full batches, then small ones while the state of all keys is there; warm, contenders in turn."""
    with scratch() as directory, ExitStack() as stack:
        feed = Feed(Workload(plan.keys), directory / "feed")
        contenders = start_contenders(spark, directory, only, stack, keep_outputs=False)
        return (
            _alternate(contenders, feed, plan.events, plan.warm_up, plan.rounds, done),
            _alternate(contenders, feed, SMALL_BATCH, plan.small_warm_up, plan.small_rounds, done),
        )


def start_contenders(
    spark: SparkSession, directory: Path, only: Sequence[str], stack: ExitStack, *, keep_outputs: bool
) -> list[Contender]:
    """Contenders of these names, in this order, closed when the stack is."""
    contenders: list[Contender] = []
    for name in only:
        contenders.append(CONTENDERS[name].start(spark, directory / name, keep_outputs=keep_outputs))
        stack.callback(contenders[-1].close)
    return contenders


def _alternate(
    contenders: list[Contender], feed: Feed, events: int, warm_up: int, rounds: int, done: OnStep
) -> list[Series]:
    series = {contender.name: Series(contender.name, events, []) for contender in contenders}
    for number in range(warm_up + rounds):
        batch = feed.write(events)
        for contender in contenders:
            if contender.slow and events > SMALL_BATCH and number not in (warm_up - 1, warm_up):
                done(f"{contender.name}, {events:,} events: left out, it is slow")
                continue
            taken = contender.run(batch)
            if number >= warm_up:
                series[contender.name].taken.append(taken)
            counted = f"round {number - warm_up + 1}" if number >= warm_up else "warm-up"
            done(f"{contender.name}, {events:,} events, {counted}: {taken.seconds:.2f} s")
    return list(series.values())
