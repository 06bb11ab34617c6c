"""B: a first micro-batch whose events are all of new keys, on empty state: every round begins a new root or query."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from pyspark.sql import SparkSession

from benchmarks import comparison
from benchmarks.comparison import OnStep
from benchmarks.figures import Comparison, Figures, Timed
from benchmarks.workload import Feed, Workload, scratch

NAMES = ("statelake", "statelake_columns", "transformWithState_rows", "delta_merge", "polars")


def measure(
    *,
    keys: int,
    warm_up_keys: int,
    rounds: int,
    warm_up: int,
    slow_rounds: int = 1,
    only: Sequence[str] = NAMES,
    done: OnStep = print,
) -> Figures:
    """Rounds over all contenders; ``transformWithState`` takes part in ``slow_rounds`` of those that count.

    Args:
        keys: each of which gets one event.
        warm_up_keys: of the batches that are not counted.

    Raises:
        UnequalResultsError: the results of a contender are not those of the formula.
    """
    seconds: dict[str, list[float]] = {name: [] for name in only}
    with comparison.spark_application() as spark:
        comparison.verify(
            spark, events=warm_up_keys, keys=warm_up_keys, batches=1, only=only,
            done=lambda name: done(f"equal results? {name}"),
        )  # fmt: skip
        for number in range(warm_up + rounds):
            counts = number >= warm_up
            names = [n for n in only if "transformWithState" not in n or number < warm_up + slow_rounds]
            for name, took in _first_batches(spark, keys if counts else warm_up_keys, names).items():
                seconds[name] += [took] if counts else []
                done(f"{name}, {'round' if counts else 'warm-up'}: {took:.2f} s")
    series = [Timed(name, of_name, keys) for name, of_name in seconds.items()]
    return Figures({"full": Comparison(f"{keys:,} events over {keys:,} new keys, empty state", series)})


def _first_batches(spark: SparkSession, keys: int, only: Sequence[str]) -> dict[str, float]:
    with scratch() as directory:
        batch, seconds = Feed(Workload(keys), directory / "feed").write(keys), dict[str, float]()
        for one in only:
            with ExitStack() as stack:
                [contender] = comparison.start_contenders(spark, directory, [one], stack, keep_outputs=False)
                seconds[contender.name] = contender.run(batch).seconds
        return seconds
