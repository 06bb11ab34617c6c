"""A: the reference workload, of every contender: per element, over columns, Spark, Delta's MERGE, polars, Flink."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import comparison
from benchmarks.comparison import OnStep, Plan
from benchmarks.contenders import flink
from benchmarks.contenders.registry import CONTENDERS
from benchmarks.figures import Comparison, Fact, Figures, Timed
from benchmarks.workload import WINDOW

NO_FLINK = "PyFlink and Flink SQL: `make bench-all` sets up their environment, which is not there"


def measure(
    *,
    plan: Plan,
    verify_events: int,
    verify_keys: int,
    only: Sequence[str] = tuple(CONTENDERS),
    flinks: Sequence[str] = flink.AVERAGES,
    done: OnStep = print,
) -> Figures:
    """Full batches of all of them, then small ones on the state of all keys.

    Raises:
        UnequalResultsError: the results of a contender are not those of the formula.
    """
    with comparison.spark_application() as spark:
        comparison.verify(
            spark, events=verify_events, keys=verify_keys, only=only,
            done=lambda name: done(f"equal results? {name}"),
        )  # fmt: skip
        full, small = comparison.compare(spark, plan, only=only, done=done)
    rates, missing = rates_of_flink(flinks, plan.events, plan.keys, done)
    keys = f"{plan.keys:,} keys"
    comparisons = {
        "full": Comparison(
            f"{plan.events:,} events, {keys}, window {WINDOW}", [*(one.timed for one in full), *rates]
        ),
        "small": Comparison(
            f"{comparison.SMALL_BATCH:,} events on the state of {keys}", [one.timed for one in small]
        ),
    }
    facts = {}
    for series in (full[0], small[0]):
        jobs = max(taken.spark_jobs or 0 for taken in series.taken)
        commits = max(taken.delta_commits or 0 for taken in series.taken)
        facts[f"jobs_{series.events}"] = Fact(
            f"Spark jobs of a batch of {series.events:,}, {series.name}", jobs
        )
        facts[f"commits_{series.events}"] = Fact("its Delta commits", commits)
    return Figures(comparisons, facts, missing=missing)


def rates_of_flink(
    names: Sequence[str], events: int, keys: int, done: OnStep
) -> tuple[list[Timed], list[str]]:
    """What so many events take each Flink job at its rate; and what is missing where there is no Flink.

    Raises:
        UnequalResultsError: the results of a job are not those of the formula.
    """
    if not flink.available():
        return [], [NO_FLINK] if names else []
    rates = [flink.measure(name, events=events, keys=keys, done=done) for name in names]
    return [Timed(rate.name, [events / rate.events_per_s], events, rate.how) for rate in rates], []
