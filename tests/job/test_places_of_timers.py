"""What event-time timers put out is merged with another stream only where the order has a place for it.

Known from the job alone, before a row is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from state_engine import (
    DataStream,
    FileSource,
    KeyedProcessFunction,
    OutputTag,
    Session,
    StatefulJob,
    StateTtlConfig,
    Tumbling,
    WatermarkStrategy,
    count,
)
from state_engine.core.errors import ConfigurationError
from state_engine.testing import CollectSink

ROW = "k string, n bigint, at timestamp"
REFUSED = r"operator '{}': what its event-time timers emit is merged.*begin order_by of each source before it"


class Timed(KeyedProcessFunction):
    """Sets timers, which may put something out."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        return [value]

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any]:
        return []


class Cleaning(Timed):
    """Its timers clean up."""

    timers_yield = False


def rows(job: StatefulJob, name: str = "rows", *order_by: str, timed: bool = True) -> DataStream:
    source = FileSource(f"/nowhere/{name}", schema=ROW)
    return job.source(name, source, event_time="at" if timed else None, order_by=list(order_by))


def sums(stream: DataStream, uid: str = "sums", **options: Any) -> DataStream:
    return stream.key_by("k").window(Tumbling("1 h"), **options).aggregate(n=count(), uid=uid)


def joined(left: DataStream, right: DataStream, **options: Any) -> DataStream:
    return left.key_by("k").join(right.key_by("k"), **({"take": [], "uid": "last"} | options))


def mapped(stream: DataStream) -> DataStream:
    return stream.map(lambda row: (row[0], 0, row[2]), ROW)


def of_two_windows(job: StatefulJob, *orders: Iterable[str]) -> DataStream:
    one, other = (sums(rows(job, f"rows{at}", *order), f"sums{at}") for at, order in enumerate(orders))
    return joined(one, other, within=0)


def by_strategy(job: StatefulJob) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("n", "ms")
    timed = rows(job, "rows", "n", timed=False).assign_timestamps_and_watermarks(strategy)
    return sums(timed).union(sums(timed, "others"))


def left_alone(job: StatefulJob, **options: Any) -> DataStream:
    given: dict[str, Any] = {"within": "1 h", "take": [], "uid": "first"} | options
    first = rows(job, "a").key_by("k").join(rows(job, "b").key_by("k"), **given)
    return joined(first, rows(job, "c"))


def forgetting(job: StatefulJob, ttl: Any) -> DataStream:
    newest = rows(job).key_by("k").drop_duplicates(keep="last", ttl=ttl, uid="first")
    return joined(newest, rows(job, "others"))


BY_TIME = StateTtlConfig.new_builder("1 h").use_event_time().build()
CASES: dict[str, tuple[Callable[[StatefulJob], DataStream], str | None]] = {
    "two windows": (lambda job: of_two_windows(job, [], []), "sums0"),
    "two windows in order": (lambda job: of_two_windows(job, ["at"], ["at"]), None),
    "two windows, one in order": (lambda job: of_two_windows(job, ["at"], []), "sums1"),
    "two windows in another order": (lambda job: of_two_windows(job, ["n", "at"], ["n", "at"]), "sums0"),
    "times of a strategy": (by_strategy, "sums"),
    "windows that run along": (lambda job: joined(sums(rows(job), emit="running"), rows(job, "b"), within=None), None),
    "windows of the clock": (lambda job: joined(sums(rows(job), time="clock"), rows(job, "b")), None),
    "sessions and rows": (
        lambda job: joined(
            rows(job).key_by("k").window(Session("1 h")).aggregate(n=count(), uid="first"), rows(job, "b")
        ), "first",
    ),
    "behind a transform": (
        lambda job: joined(sums(rows(job)).transform(lambda frame: frame), rows(job, "b")), "sums",
    ),
    "a transform that names the order": (
        lambda job: joined(sums(rows(job).transform(lambda frame: frame, order_by="at")), rows(job, "b")), None,
    ),
    "an inner join": (left_alone, None),
    "rows without partner": (lambda job: left_alone(job, how="left"), "first"),
    "a regular join": (lambda job: left_alone(job, within=None, how="left"), None),
    "first rows at once": (
        lambda job: joined(rows(job).key_by("k").drop_duplicates(within="1 h", uid="first"), rows(job, "b")), None,
    ),
    "first rows by time": (
        lambda job: joined(
            rows(job).key_by("k").drop_duplicates(within="1 h", emit="final", uid="first"), rows(job, "b")
        ), "first",
    ),
    "features at once": (
        lambda job: joined(rows(job).key_by("k").over(m=count(), emit="at_once", uid="first"), rows(job, "b")), None,
    ),
    "features by time": (
        lambda job: joined(rows(job).key_by("k").over(m=count(), uid="first"), rows(job, "b")), "first",
    ),
    "keys that are forgotten by the clock": (lambda job: forgetting(job, "1 h"), None),
    "keys that are forgotten by event time": (lambda job: forgetting(job, BY_TIME), "first"),
    "a function of one's own": (
        lambda job: joined(rows(job).key_by("k").process(Timed(), ROW, uid="first"), rows(job, "b")), "first",
    ),
    "one that says no": (
        lambda job: joined(rows(job).key_by("k").process(Cleaning(), ROW, uid="first"), rows(job, "b")), None,
    ),
    "one without event time": (
        lambda job: joined(rows(job, timed=False).key_by("k").process(Timed(), ROW, uid="first"), rows(job, "b")), None,
    ),
    "streams of other orders into one": (
        lambda job: joined(
            rows(job, "a", "at").key_by("k").join(
                rows(job, "b", "at", "n").key_by("k"), within="1 h", how="left", take=[], uid="first"
            ), rows(job, "c", "at"),
        ), "first",
    ),
    "behind a map": (lambda job: joined(mapped(sums(rows(job))), rows(job, "b")), "sums"),
    "behind a map, in order": (lambda job: joined(mapped(sums(rows(job, "a", "at"))), rows(job, "b", "at")), None),
    "behind a function without timers": (
        lambda job: joined(sums(mapped(sums(rows(job))), "again", emit="running"), rows(job, "b"), within=None), "sums",
    ),
    "rows that are late for a window": (
        lambda job: joined(
            mapped(sums(rows(job), late_to=OutputTag("late", ROW)).get_side_output(OutputTag("late", ROW))),
            rows(job, "b"),
        ), None,
    ),
    "nothing merged": (lambda job: sums(sums(rows(job)).map(lambda row: row, ROW), "again"), None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_timers_whose_outputs_are_merged_need_a_place_in_the_order(case: str) -> None:
    build, refused = CASES[case]
    job = StatefulJob("places")
    build(job).sink("results", CollectSink())
    if refused is None:
        job.check()
    else:
        with pytest.raises(ConfigurationError, match=REFUSED.format(refused)):
            job.check()
